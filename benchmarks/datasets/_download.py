"""Fetching a file once, into a cache, and never using one whose digest has changed."""

import hashlib
import os
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

from tqdm.auto import tqdm

_CHUNK = 1 << 20


def cache_dir() -> Path:
    """Where downloads are kept: `$DPJAX_DATA_DIR`, else `$XDG_CACHE_HOME/dpjax` or its default."""
    if folder := os.environ.get("DPJAX_DATA_DIR"):
        return Path(folder).expanduser()
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "dpjax"
    return Path.home() / ".cache" / "dpjax"


def locate(
    path: str | os.PathLike[str] | None, url: str, filename: str, sha256: str | None
) -> Path:
    """The user's own file where `path` is given, else the cached download of `url`.

    Raises:
        FileNotFoundError: `path` is given and is not a file.
        ValueError: the file's SHA-256 is not `sha256`.
        ConnectionError: see `fetch`.
    """
    if path is None:
        return fetch(url, filename, sha256=sha256)
    local = Path(path).expanduser()
    if not local.is_file():
        raise FileNotFoundError(f"path must be a file, got {str(local)!r}")
    if sha256 is not None:
        _verify(local, sha256, "sha256 given by the caller")
    return local


def fetch(url: str, filename: str, *, sha256: str | None = None, timeout: float = 30.0) -> Path:
    """Downloads a file into the cache, or finds it there, and verifies its SHA-256.

    Where `sha256` is not given this is *trust on first use*: the digest of the first download is
    written beside the file as `<filename>.sha256`, and every later use, and every later download,
    must match it. That detects a file that changes, not one that was wrong from the start: pass
    `sha256` if you know it. A download is written to a temporary file in the cache folder and
    renamed only when complete and verified, so a broken download is never taken for a good one.

    Args:
        url: *public*. The official address.
        filename: *public*. The name in the cache folder.
        sha256: *public*. The expected digest in hexadecimal.
        timeout: seconds without an answer after which the download fails.

    Returns:
        The path of the verified file.

    Raises:
        ConnectionError: the file cannot be downloaded, or only in part; the message says where to
            get it by hand.
        ValueError: the digest is not the expected one.
    """
    target = cache_dir() / filename
    record = target.with_name(target.name + ".sha256")
    expected, origin = sha256, "sha256 given by the caller"
    if expected is None and record.is_file():
        expected, origin = record.read_text(encoding="ascii").strip(), f"digest in {record}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        partial = Path(name)
        try:
            _download(url, partial, target, timeout)
            if expected is not None:
                _verify(partial, expected, origin)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    elif expected is not None:
        _verify(target, expected, origin)
    if not record.is_file():
        record.write_text(file_sha256(target) + "\n", encoding="ascii")
    return target


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path, expected: str, origin: str) -> None:
    got = file_sha256(path)
    if got != expected.lower():
        raise ValueError(
            f"{path} must have sha256 {expected} ({origin}), got {got}. If the publisher changed "
            "the file and you trust the new one, delete the cached file and its .sha256 record"
        )


def _download(url: str, partial: Path, target: Path, timeout: float) -> None:
    """Writes the whole of `url` to `partial`, or raises ConnectionError with a way out."""
    by_hand = (
        f"Without a connection: download {url} by hand and pass path= to the loader, or save it "
        f"as {target}"
    )
    request = urllib.request.Request(url, headers={"User-Agent": "dpjax"})
    try:
        with (
            urllib.request.urlopen(request, timeout=timeout) as response,
            partial.open("wb") as out,
        ):
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            with tqdm(
                total=total, unit="B", unit_scale=True, desc=target.name, disable=None
            ) as bar:
                while chunk := response.read(_CHUNK):
                    out.write(chunk)
                    bar.update(len(chunk))
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"cannot download {url}: {error}. {by_hand}") from error
    size = partial.stat().st_size
    if total is not None and size != total:
        raise ConnectionError(f"{url} must have {total} bytes, got {size}: cut short. {by_hand}")
