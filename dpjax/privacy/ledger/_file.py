"""A ledger's file: locked, replaced in one piece, and never read as empty when it is not."""

import contextlib
import hashlib
import json
import os
from typing import Any

import filelock

_FORMAT = "dpjax.Ledger"
_VERSION = 1


class LedgerFile:
    """One JSON file and the lock beside it (`<path>.lock`).

    A write goes to a second file, reaches the disk, and takes the first one's name: whenever a
    process dies, the name stands for the old content or the new one, each whole.
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float):
        # a link is followed, since replacing it would leave two ledgers
        self.path = os.path.realpath(os.fspath(path))
        self._timeout = timeout
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"path must lie in an existing folder, got {folder!r}")
        self._lock = filelock.FileLock(self.path + ".lock")

    def locked(self) -> contextlib.AbstractContextManager[object]:
        """Takes the lock, against other processes and other threads, for a `with` block."""
        try:
            return self._lock.acquire(timeout=self._timeout)
        except filelock.Timeout as error:
            raise TimeoutError(
                f"another process has held {self.path}.lock for {self._timeout} s; nothing was "
                "spent. Try again, or with a longer timeout"
            ) from error

    def read(self) -> dict[str, Any]:
        """The content.

        Raises:
            FileNotFoundError: If the file is gone.
            ValueError: If it is not, to the last character, what `write` wrote.
        """
        try:
            with open(self.path, encoding="utf-8") as file:
                value = json.load(file)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"the ledger {self.path} has been moved or removed since it was opened: put it "
                "back, what it recorded is spent"
            ) from error
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(self._refusal(f"not JSON ({error})")) from error
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise ValueError(self._refusal(f"no {_FORMAT}"))
        if value.get("version") != _VERSION:
            version = value.get("version")
            raise ValueError(self._refusal(f"version {version!r}, this dpjax reads {_VERSION}"))
        content = value.get("content")
        if not isinstance(content, dict) or value.get("sha256") != _digest(content):
            raise ValueError(self._refusal("its checksum does not match: damaged, or edited"))
        return content

    def write(self, content: dict[str, Any]) -> None:
        """Replaces the content; it is on the disk when this returns. Call with the lock held."""
        sha256 = _digest(content)
        value = {"format": _FORMAT, "version": _VERSION, "sha256": sha256, "content": content}
        replace_json(self.path, value)

    def _refusal(self, reason: str) -> str:
        return (
            f"{self.path} cannot be read as a ledger: {reason}. It is not taken for an empty one, "
            "since what it recorded is spent: restore it from a backup, or name another file"
        )


def replace_json(path: str, value: object) -> None:
    """Writes a JSON file in one piece; it is on the disk when this returns. For one writer."""
    beside = path + ".tmp"  # what a dead writer left is overwritten
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    if os.name != "nt":  # the new name lasts through a power cut; Windows opens no folders
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
