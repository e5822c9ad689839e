"""Sites as processes of their own, behind Unix sockets that only their owner can open.

A site stays resident: its model, data and state are ready when a request comes. Whoever relays
requests from another machine, such as a Flower ClientApp, connects to the same socket.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from undrift.check import require_positive
from undrift.errors import UndriftError
from undrift.federation.frames import receive_frame, send_frame
from undrift.federation.messages import MessageError, encode
from undrift.federation.refusals import log_at_site, refusal
from undrift.federation.transport import Answering, Arrived, answer

IDLE = 60.0  # seconds after which a silent connection is closed
RETRY = 0.2  # seconds until a site that is gone is asked again


class SiteServer:
    """Answers requests to one site on a Unix socket, one after the other.

    With `group` the group of the socket's folder may connect, too, such as a relay that runs as
    another user.
    """

    def __init__(self, site: Answering, path: str | Path, *, group: bool = False) -> None:
        self.site, self.path = site, Path(path)
        self._listener = listen(self.path, group=group)

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Wait for requests until `until` returns True; it is called once a second."""
        self._listener.settimeout(1.0)
        try:
            while not until():
                with suppress(TimeoutError):
                    connection, _ = self._listener.accept()
                    with connection:
                        self._answer(connection)
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(IDLE)
        with suppress(OSError):  # Whoever asked may have gone; the state is on disk.
            request = receive_frame(connection)
            try:
                reply = answer(self.site, request)
            except MessageError as error:
                reply = encode(refusal("", error, log_at_site))
            send_frame(connection, reply)


class SocketTransport:
    """Asks sites behind Unix sockets, all at the same time, and waits until a deadline.

    `folder` has a socket `<site>.sock` for each site. A site that has gone is asked again until
    the deadline, so one that is started again in time is in the round.
    """

    def __init__(self, folder: str | Path, *, deadline: float = 600.0) -> None:
        require_positive("A transport", deadline=deadline)
        self._folder, self._deadline = Path(folder), deadline

    def sites(self) -> list[str]:
        """Return the names of the sites that have a socket."""
        return sorted(path.stem for path in self._folder.glob("*.sock"))

    def ask(self, requests: Mapping[str, bytes], *, seconds: float = math.inf) -> Iterator[Arrived]:
        """Yield the replies as they come."""
        if not requests:
            return
        end = time.monotonic() + min(self._deadline, seconds)
        with ThreadPoolExecutor(len(requests), thread_name_prefix="undrift-site") as pool:
            waiting = {
                pool.submit(_ask, self._folder / f"{name}.sock", data, end): name
                for name, data in requests.items()
            }
            for done in as_completed(waiting):
                with suppress(OSError):
                    yield Arrived(waiting[done], done.result())


def _ask(path: Path, request: bytes, end: float) -> bytes:
    """Return the reply of the site behind a socket; raise `OSError` if none comes before `end`.

    A site that is gone may be starting again, so it is asked until then. A request names the state
    that it starts from, so it does not matter if the site has worked on it before.
    """
    while True:
        try:
            return _ask_once(path, request, end)
        except OSError:
            if time.monotonic() + RETRY >= end:
                raise
            time.sleep(RETRY)


def _ask_once(path: Path, request: bytes, end: float) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(max(0.001, end - time.monotonic()))
        connection.connect(str(path))
        send_frame(connection, request)
        connection.settimeout(max(0.001, end - time.monotonic()))
        return receive_frame(connection)


def listen(path: Path, *, group: bool = False) -> socket.socket:
    """Return a socket that only its owner, or also its group, can open; a dead one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(1.0)
            with suppress(ConnectionRefusedError, FileNotFoundError):
                other.connect(str(path))
                raise UndriftError(
                    f"A site needs a socket of its own, got {str(path)!r}, on which another "
                    "process answers; stop it, or choose another name."
                )
        path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o117 if group else 0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UndriftError(
            f"A site needs a folder in which it can make its socket, got {error.strerror} for "
            f"{str(path)!r}; a path has at most 107 bytes."
        ) from error
    finally:
        os.umask(before)
    listener.listen()
    return listener
