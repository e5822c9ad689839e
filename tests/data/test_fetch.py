"""Downloads against a server on the loopback: whole and right, or not there."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.system import SHARED, names_in
from undrift import files
from undrift.data import fetch
from undrift.data.fetch import Remote, download
from undrift.data.remotes import BY_HAND, REMOTES
from undrift.errors import DataError

BODY = bytes(range(256)) * 4096  # a megabyte: several blocks
SHA = "sha256:" + hashlib.sha256(BODY).hexdigest()
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()


class Answers(BaseHTTPRequestHandler):
    """What the path asks for; requests are counted by path."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.asked.append(self.path)
        self.server.agents.add(self.headers["User-Agent"])
        getattr(self, self.path.strip("/").partition("/")[0])()

    def reply(self, body: bytes, length: int | None, *, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def good(self) -> None:
        self.reply(BODY, len(BODY))

    def slow(self) -> None:
        self.server.together.wait(60)  # until as many ask as the test has started
        self.good()

    def unannounced(self) -> None:
        self.reply(BODY, None)

    def truncated(self) -> None:
        self.reply(BODY[:-1000], len(BODY))

    def short(self) -> None:
        self.reply(BODY[:-1000], len(BODY) - 1000)

    def short_unannounced(self) -> None:
        self.reply(BODY[:-1000], None)

    def long(self) -> None:
        self.reply(BODY + b"x", None)

    def tampered(self) -> None:
        self.reply(BODY[:-1] + b"x", len(BODY))

    def missing(self) -> None:
        self.reply(b"<html>no</html>", 15, code=404)

    def moved(self) -> None:
        self.reply(b"", 0, code=302, Location="/good")

    def to_ftp(self) -> None:
        self.reply(b"", 0, code=302, Location="ftp://127.0.0.1/file")

    def to_file(self) -> None:
        self.reply(b"", 0, code=302, Location="file:///etc/passwd")

    def circle(self) -> None:
        self.reply(b"", 0, code=302, Location="/circle")

    def stalled(self) -> None:
        self.reply(BODY[:1000], len(BODY))
        self.close_connection = False
        time.sleep(1.5)

    def cut_chunk(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"ffff\r\nabc")
        self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.lock = threading.Lock()
        self.asked: list[str] = []
        self.agents: set[str] = set()
        self.together = threading.Barrier(2)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is what some tests are about."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote(server: Server, *paths: str, size: int | None = len(BODY), digest: str = SHA) -> Remote:
    return Remote(tuple(server.url(path) for path in paths), "data.bin", size, digest)


@pytest.mark.parametrize("path", ["good", "unannounced", "moved"])
@pytest.mark.parametrize("digest", [SHA, MD5], ids=["sha256", "md5"])
@pytest.mark.parametrize("size", [len(BODY), None], ids=["size", "nosize"])
def test_a_good_file_arrives(
    server: Server, tmp_path: Path, path: str, digest: str, size: int | None
) -> None:
    folder = tmp_path / "new" / "folder"
    found = download(remote(server, path, size=size, digest=digest), folder)
    assert found == folder / "data.bin"
    assert found.read_bytes() == BODY
    assert names_in(folder) == ["data.bin"]
    assert server.agents == {"undrift"}


def test_what_is_there_and_right_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    for _ in range(3):
        download(remote(server, "good"), tmp_path)
    assert server.asked == ["/good"]


@pytest.mark.parametrize("before", [b"", BODY[:-1], BODY[:-1] + b"x"], ids=["0", "cut", "other"])
def test_a_wrong_file_is_replaced(server: Server, tmp_path: Path, before: bytes) -> None:
    (tmp_path / "data.bin").write_bytes(before)
    download(remote(server, "good"), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == BODY


BAD = {
    "truncated": f"{len(BODY) - 1000} of {len(BODY)} bytes",
    "short": f"{len(BODY) - 1000} bytes",
    "short_unannounced": f"{len(BODY) - 1000} of {len(BODY)} bytes",
    "long": f"more than {len(BODY)} bytes",
    "tampered": "sha256:" + hashlib.sha256(BODY[:-1] + b"x").hexdigest(),
    "missing": "HTTP 404 Not Found",
    "to_ftp": "a redirect to ftp://127.0.0.1/file, which is not http or https",
    "to_file": "HTTP 302",
    "circle": "HTTP 302",
    "cut_chunk": "IncompleteRead",
}


@pytest.mark.parametrize("path", BAD)
def test_a_bad_answer_is_refused_and_leaves_nothing(
    server: Server, tmp_path: Path, path: str
) -> None:
    with pytest.raises(DataError, match=re.escape(BAD[path])) as caught:
        download(remote(server, path), tmp_path)
    target = tmp_path / "data.bin"
    message = str(caught.value)
    assert message.startswith(f"{target} needs {len(BODY)} bytes with {SHA}, got ")
    assert f"from {server.url(path)}; " in message
    assert message.endswith(f"by hand and put it at {target}.")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("path", ["truncated", "short", "short_unannounced", "long", "tampered"])
def test_the_digest_alone_is_enough(server: Server, tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match=f"needs {SHA}, got "):
        download(remote(server, path, size=None), tmp_path)
    assert names_in(tmp_path) == []


def test_a_failed_download_leaves_what_was_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"by hand")
    with pytest.raises(DataError):
        download(remote(server, "tampered"), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"by hand"


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{closed_port()}/x"
    urls = (dead, *map(server.url, ("missing", "tampered", "truncated", "good", "never")))
    found = download(Remote(urls, "data.bin", len(BODY), SHA), tmp_path)
    assert found.read_bytes() == BODY
    assert server.asked == ["/missing", "/tampered", "/truncated", "/good"]
    assert names_in(tmp_path) == ["data.bin"]


def test_every_mirror_that_failed_is_named(server: Server, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{closed_port()}/x"
    urls = (dead, server.url("missing"))
    with pytest.raises(DataError, match=f"refused from {dead} and HTTP 404 Not Found from http"):
        download(Remote(urls, "data.bin", None, SHA), tmp_path)


def test_a_server_that_falls_silent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
    with pytest.raises(DataError, match=r"got nothing for 0\.2 seconds from http"):
        download(remote(server, "stalled"), tmp_path)
    assert names_in(tmp_path) == []


def test_stale_parts_go_and_fresh_ones_stay(server: Server, tmp_path: Path) -> None:
    old, fresh = (files.part_of(tmp_path / "data.bin") for _ in range(2))
    for part in (old, fresh):
        part.write_bytes(b"x" * 10)
    os.utime(old, (time.time() - 2 * files.STALE,) * 2)
    assert download(remote(server, "good"), tmp_path).read_bytes() == BODY
    assert names_in(tmp_path) == sorted(["data.bin", fresh.name])


def test_two_threads_at_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(download, remote(server, "slow"), tmp_path) for _ in range(2)]
        assert {job.result() for job in jobs} == {tmp_path / "data.bin"}
    assert server.asked == ["/slow", "/slow"]
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert names_in(tmp_path) == ["data.bin"]


# Bare packages: the downloader needs no torch, whose import takes longer than all of this.
SCRIPT = """
import sys, types
for name in ("undrift", "undrift.data"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [f"{sys.argv[4]}/{name.replace('.', '/')}"]
from undrift.data.fetch import Remote, download
print(download(Remote((sys.argv[1],), "data.bin", None, sys.argv[2]), sys.argv[3]))
"""


def test_two_processes_at_once(server: Server, tmp_path: Path) -> None:
    sources = str(Path(fetch.__file__).parents[2])
    command = [sys.executable, "-c", SCRIPT, server.url("slow"), SHA, str(tmp_path), sources]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out.strip()) == (0, str(tmp_path / "data.bin")), err
        assert err == ""  # no progress bar where there is no terminal
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert names_in(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    seen: list[list[str]] = []

    def interrupted(url: str, size: int | None) -> Iterator[tuple[bytes, int | None]]:
        for k, block in enumerate(real(url, size)):
            if k == 2:
                seen.append(names_in(tmp_path))
                raise stop
            yield block

    real = fetch._blocks
    monkeypatch.setattr(fetch, "_blocks", interrupted)
    with pytest.raises(stop):
        download(remote(server, "good", "good"), tmp_path)
    assert [re.sub(r"\.\d+-\w{8}\.", ".*.", name) for name in seen[0]] == [".data.bin.*.part"]
    assert len(server.asked) == 1  # nor is the next mirror tried
    assert names_in(tmp_path) == []


def test_a_folder_that_cannot_be_written_to(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"needs a folder that can be written to, got .*; free"):
        download(remote(server, "good"), tmp_path / "file" / "below")
    assert server.asked == []


def test_a_full_disk_is_no_fault_of_the_mirror(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DataError, match="got No space left on device; free some room"):
        download(remote(server, "good", "good"), tmp_path)
    assert len(server.asked) == 1
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "bar"])
def test_the_bar_is_for_terminals(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
) -> None:
    download(remote(server, "good"), tmp_path / "plain", quiet=quiet)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    download(remote(server, "good"), tmp_path / "terminal", quiet=quiet)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("data.bin" in err) is not quiet


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"urls": ()}, "at least one url"),
        ({"urls": ("ftp://host/file",)}, "urls of http or https"),
        ({"urls": ("file:///etc/passwd",)}, "urls of http or https"),
        ({"name": "../file"}, "a plain file name"),
        ({"name": ""}, "a plain file name"),
        ({"name": ".."}, "a plain file name"),
        ({"digest": "md5:12"}, "digest md5:"),
        ({"digest": "crc32:12345678"}, "digest md5:"),
        ({"digest": SHA.upper()}, "digest md5:"),
    ],
    ids=["none", "ftp", "file", "above", "empty", "dots", "short", "kind", "upper"],
)
def test_a_remote_is_checked(changes: dict[str, Any], expected: str) -> None:
    fields = {"urls": ("http://host/file",), "name": "file", "size": None, "digest": SHA}
    with pytest.raises(ValueError, match=f"Remote needs {expected}"):
        Remote(**(fields | changes))


def test_every_data_set_is_downloaded_or_explained() -> None:
    every = "mnist fashion-mnist cifar10 cifar100 tiny-imagenet a9a imdb femnist celeba shakespeare"
    assert sorted([*REMOTES, *BY_HAND]) == sorted(every.split())
    assert all(remote.size for remotes in REMOTES.values() for remote in remotes)
    assert all(text.endswith(".") for text in BY_HAND.values())
    for remotes in REMOTES.values():
        assert len({remote.name for remote in remotes}) == len(remotes)
        for each in remotes:
            assert all(url.replace("%2F", "/").endswith("/" + each.name) for url in each.urls)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no data sets beside the checkout")
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "mnist"), ("fashion-mnist", "fashion-mnist"), ("a9a", "libsvm")],
)
def test_original_files_have_the_published_digests(name: str, folder: str) -> None:
    for each in REMOTES[name]:
        assert fetch._right(SHARED / folder / each.name, each), each.name
