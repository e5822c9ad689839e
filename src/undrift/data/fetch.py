"""Downloads with published checksums: a file is complete and correct, or it does not exist.

Bytes go to a `.part` file of the process in the same folder, which gets its name only when length
and digest agree, so several processes may fetch the same file at once.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import sys
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from undrift.check import require
from undrift.errors import DataError
from undrift.files import atomic_file

TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_DIGEST = re.compile(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Remote:
    """Describes a file to download: its mirrors in order, its name here, its length and digest."""

    urls: tuple[str, ...]
    name: str
    size: int | None
    digest: str  # "md5:..." or "sha256:..."

    def __post_init__(self) -> None:
        require(bool(self.urls), "Remote", "at least one url", self.urls)
        for url in self.urls:
            require(_over_http(url), "Remote", "urls of http or https", url)
        plain = self.name == Path(self.name).name and self.name not in ("", ".", "..")
        require(plain, "Remote", "a plain file name", self.name)
        known = _DIGEST.fullmatch(self.digest) is not None
        require(known, "Remote", "digest md5:<32 hex> or sha256:<64 hex>", self.digest)


Remotes = tuple[Remote, ...]


def download(remote: Remote, folder: str | Path, *, quiet: bool = False) -> Path:
    """Return the file in `folder`, and download it unless it is there and correct."""
    target = Path(folder) / remote.name
    if _right(target, remote):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = []
        for url in remote.urls:
            try:
                with _progress(remote, quiet) as bar:
                    _attempt(url, remote, target, bar)
                return target
            except _FailedError as failure:
                failures.append(f"{failure} from {url}")
    except OSError as error:
        raise DataError(
            f"{target} needs a folder that can be written to, got {error.strerror or error}; "
            "free some room or choose another data folder."
        ) from error
    length = "" if remote.size is None else f"{remote.size} bytes with "
    raise DataError(
        f"{target} needs {length}{remote.digest}, got {' and '.join(failures)}; "
        f"try again later, or fetch the file by hand and put it at {target}."
    )


class _FailedError(Exception):
    """Says what a mirror gave instead of the file."""


class _Bar(Protocol):
    """Shows how many bytes have arrived."""

    def __call__(self, done: int, total: int | None) -> None: ...


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never to ftp, which the standard library would do."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not _over_http(newurl):
            fp.close()
            raise URLError(f"a redirect to {newurl}, which is not http or https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _over_http(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


def _hash(remote: Remote) -> Any:
    return hashlib.new(remote.digest.partition(":")[0], usedforsecurity=False)


def _right(path: Path, remote: Remote) -> bool:
    """Return whether a file has the published length and digest."""
    try:
        if remote.size is not None and path.stat().st_size != remote.size:
            return False
        with path.open("rb") as file:
            digest = _hash(remote)
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError:
        return False
    return bool(digest.hexdigest() == remote.digest.partition(":")[2])


def _attempt(url: str, remote: Remote, target: Path, bar: _Bar) -> None:
    """Download one mirror's file to `target`, or raise `_FailedError`."""
    try:
        with atomic_file(target) as part, part.open("xb") as file:
            _receive(url, remote, file, bar)
    except OSError:
        # Windows refuses to replace a file that another process has just finished and now reads.
        if not _right(target, remote):
            raise


def _receive(url: str, remote: Remote, file: IO[bytes], bar: _Bar) -> None:
    """Write the body of a response to a file, or raise `_FailedError` if it is wrong."""
    received = _hash(remote)
    done = 0
    with closing(_blocks(url, remote.size)) as blocks:
        for block, total in blocks:
            done += len(block)
            if total is not None and done > total:
                raise _FailedError(f"more than {total} bytes")
            file.write(block)
            received.update(block)
            bar(done, total)
    if total is not None and done != total:
        raise _FailedError(f"{done} of {total} bytes")
    kind, _, digest = remote.digest.partition(":")
    if received.hexdigest() != digest:
        raise _FailedError(f"{kind}:{received.hexdigest()}")


def _blocks(url: str, size: int | None) -> Generator[tuple[bytes, int | None], None, None]:
    """Yield an empty block and then the body in blocks, each with the total length if known."""
    request = urllib.request.Request(url, headers={"User-Agent": "undrift"})
    opener = urllib.request.build_opener(_HttpOnly)
    try:
        with opener.open(request, timeout=TIMEOUT) as response:
            length = response.headers.get("Content-Length", "")
            announced = int(length) if length.isdecimal() else size
            if size is not None and announced != size:
                raise _FailedError(f"{announced} bytes")
            yield b"", announced
            while block := response.read(_BLOCK):
                yield block, announced
    except HTTPError as error:
        with error:
            raise _FailedError(f"HTTP {error.code} {error.reason}".rstrip()) from error
    except URLError as error:
        raise _FailedError(_reason(error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _FailedError(_reason(error)) from error


def _reason(error: object) -> str:
    """Return the reason of an error in a few words."""
    if isinstance(error, TimeoutError):
        return f"nothing for {TIMEOUT:g} seconds"
    return str(error) or type(error).__name__


@contextmanager
def _progress(remote: Remote, quiet: bool) -> Iterator[_Bar]:
    """Yield a function that shows progress on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # rich is imported here, because it would slow down every `import undrift`.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(remote.name, total=remote.size)
        yield lambda done, total: progress.update(task, completed=done, total=total)
