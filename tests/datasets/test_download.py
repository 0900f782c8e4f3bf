import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.datasets._download import cache_dir, fetch, file_sha256, locate

BODY = b"private optimisation\n" * 5000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.hits += 1
        if self.path == "/missing":
            self.send_error(404)
            return
        body = self.server.body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (7 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hits, server.body = 0, BODY
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA_DIR", str(tmp_path / "cache"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    return tmp_path / "cache"


def files(cache):
    return sorted(path.name for path in cache.iterdir())


def test_first_use_downloads_and_records_the_digest_then_the_cache_serves(server, cache):
    path = fetch(f"{server.url}/data", "data.zip")
    assert path == cache / "data.zip"
    assert path.read_bytes() == BODY
    assert files(cache) == ["data.zip", "data.zip.sha256"]
    assert (cache / "data.zip.sha256").read_text().strip() == DIGEST
    assert fetch(f"{server.url}/data", "data.zip") == path
    assert server.hits == 1


def test_a_digest_given_is_enforced_and_nothing_is_left(server, cache):
    with pytest.raises(ValueError, match=rf"must have sha256 {'0' * 64} .* got {DIGEST}"):
        fetch(f"{server.url}/data", "data.zip", sha256="0" * 64)
    assert files(cache) == []
    assert fetch(f"{server.url}/data", "data.zip", sha256=DIGEST.upper()).is_file()


def test_a_cached_file_that_changed_is_refused(server, cache):
    path = fetch(f"{server.url}/data", "data.zip")
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match=rf"must have sha256 {DIGEST} \(digest in .*sha256\)"):
        fetch(f"{server.url}/data", "data.zip")


def test_a_second_download_must_match_the_first(server, cache):
    fetch(f"{server.url}/data", "data.zip").unlink()
    server.body = b"changed upstream"
    with pytest.raises(ValueError, match="If the publisher changed"):
        fetch(f"{server.url}/data", "data.zip")
    assert files(cache) == ["data.zip.sha256"]


def test_a_truncated_download_is_refused_and_leaves_nothing(server, cache):
    with pytest.raises(ConnectionError, match=r"cut short|IncompleteRead"):
        fetch(f"{server.url}/short", "data.zip")
    assert files(cache) == []


def test_http_errors_and_no_connection_say_what_to_do_by_hand(server, cache):
    with pytest.raises(ConnectionError, match=r"404.*by hand and pass path=.*data\.zip"):
        fetch(f"{server.url}/missing", "data.zip")
    with pytest.raises(ConnectionError, match=r"cannot download .* by hand and pass path="):
        fetch("http://127.0.0.1:1/data", "data.zip", timeout=2.0)
    assert files(cache) == []


def test_a_file_put_there_by_hand_is_used(server, cache):
    cache.mkdir()
    (cache / "data.zip").write_bytes(BODY)
    assert fetch(f"{server.url}/data", "data.zip").read_bytes() == BODY
    assert server.hits == 0
    assert (cache / "data.zip.sha256").read_text().strip() == DIGEST


def test_the_target_never_holds_part_of_a_file(server, cache, monkeypatch):
    import benchmarks.datasets._download as module

    seen = []
    verify = module._verify

    def watch(path, expected, origin):
        seen.append(files(cache))
        verify(path, expected, origin)

    monkeypatch.setattr(module, "_verify", watch)
    fetch(f"{server.url}/data", "data.zip", sha256=DIGEST)
    assert len(seen) == 1
    assert "data.zip" not in seen[0]


def test_locate_prefers_the_users_file(tmp_path):
    mine = tmp_path / "mine.csv"
    with pytest.raises(FileNotFoundError, match=r"path must be a file, got .*mine\.csv"):
        locate(mine, "http://127.0.0.1:1/", "x", None)
    mine.write_bytes(BODY)
    assert locate(mine, "http://127.0.0.1:1/", "x", None) == mine
    assert locate(str(mine), "http://127.0.0.1:1/", "x", file_sha256(mine)) == mine
    with pytest.raises(ValueError, match="must have sha256 ff"):
        locate(mine, "http://127.0.0.1:1/", "x", "ff")


def test_cache_folder_by_environment(tmp_path, monkeypatch):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("DPJAX_DATA_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "dpjax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "dpjax"
