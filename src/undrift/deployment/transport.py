"""Flower as the transport of a federation: requests go through a relay in Flower's environment.

The relay, a ServerApp, connects to a Unix socket of this process. If it is gone, because SuperLink
or relay were killed, it is started again and what has no reply yet is asked for again.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from undrift.check import require_positive
from undrift.errors import UndriftError
from undrift.federation.frames import receive_frame, send_frame
from undrift.federation.sockets import listen
from undrift.federation.transport import Arrived

MARGIN = 30.0  # seconds after a deadline in which the relay must have said that it is over
CONNECTING = 60.0  # seconds in which a relay that was started must connect
PAUSE = 2.0  # seconds between two tries


class RelayTransport:
    """Asks sites through a relay; `start(socket)` starts one that connects to the socket.

    `keys()` returns the public key of each site, as the SuperLink has checked it, so a site cannot
    speak for another; it is called before each request, since keys are added and revoked.
    `patience` are the seconds in which all sites must have connected at the start, and in which a
    relay must be back.
    """

    def __init__(
        self,
        keys: Callable[[], Mapping[str, str]],
        start: Callable[[Path], None],
        folder: Path,
        *,
        deadline: float = 600.0,
        patience: float = 300.0,
    ) -> None:
        require_positive("A transport", deadline=deadline, patience=patience)
        self._read_keys, self._start, self._folder = keys, start, folder
        self._keys = _different(keys())
        self._deadline, self._patience = deadline, patience
        self._relay: socket.socket | None = None
        self._starts = 0
        self.errors: dict[str, str] = {}  # of the last request: what Flower said of a site

    def sites(self) -> list[str]:
        """Return the names of the sites that are connected."""
        end = time.monotonic() + self._patience
        while True:
            try:
                relay = self._connected(end)
                relay.settimeout(CONNECTING)
                _send(relay, {"do": "sites"})
                keys = json.loads(receive_frame(relay))
                return sorted(name for name, key in self._current_keys().items() if key in keys)
            except OSError:
                self._lose()

    def admitted(self) -> list[str]:
        """Return the names of the sites that have a key, whether they are connected or not."""
        return sorted(self._current_keys())

    def wait(self, names: list[str]) -> None:
        """Return when all of these sites are connected, or raise after the patience."""
        end = time.monotonic() + self._patience
        while missing := sorted(set(names) - set(self.sites())):
            if time.monotonic() > end:
                raise UndriftError(
                    f"A federation needs all of its sites at its start, got none of "
                    f"{', '.join(missing)} within {self._patience:g} s; start them with `undrift "
                    "federation site`."
                )
            time.sleep(PAUSE)

    def ask(self, requests: Mapping[str, bytes], *, seconds: float = math.inf) -> Iterator[Arrived]:
        """Yield the replies as they come."""
        end = time.monotonic() + min(self._deadline, seconds)
        keys = self._current_keys()
        names = {key: name for name, key in keys.items()}
        left = {keys[name]: data for name, data in requests.items() if name in keys}
        self.errors = {}
        while left and time.monotonic() < end:
            try:
                for key, data in self._replies(left, end):
                    left.pop(key, None)
                    if key in names:
                        yield Arrived(names[key], data)
                return
            except OSError:
                self._lose()
                time.sleep(PAUSE)

    def close(self) -> None:
        """Let the relay end."""
        self._lose()

    def _current_keys(self) -> dict[str, str]:
        """Return the keys as they are now; while a file cannot be read, as they were."""
        with suppress(OSError, ValueError, UndriftError):
            self._keys = _different(self._read_keys())
        return self._keys

    def _replies(self, requests: Mapping[str, bytes], end: float) -> Iterator[tuple[str, bytes]]:
        relay = self._connected(end)
        relay.settimeout(max(1.0, end - time.monotonic()) + MARGIN)
        seconds = max(1.0, end - time.monotonic())
        _send(relay, {"do": "ask", "keys": list(requests), "seconds": seconds})
        for data in requests.values():
            send_frame(relay, data)
        while True:
            header = json.loads(receive_frame(relay))
            if header["key"] is None:
                said = header["errors"]
                self.errors = {
                    name: str(said[key]) for name, key in self._keys.items() if key in said
                }
                return
            yield header["key"], receive_frame(relay)

    def _connected(self, end: float) -> socket.socket:
        """Return the connection to the relay; start one, again and again, if there is none."""
        while self._relay is None:
            self._starts += 1
            path = self._folder / f"relay-{self._starts}.sock"
            try:
                with listen(path) as listener:
                    self._start(path)
                    listener.settimeout(CONNECTING)
                    self._relay, _ = listener.accept()
            except (OSError, UndriftError) as error:
                if time.monotonic() + PAUSE > end:
                    raise UndriftError(
                        f"A federation needs its SuperLink, got no connection to it ({error}); "
                        "start it with `undrift federation serve`."
                    ) from error
                time.sleep(PAUSE)
            finally:
                path.unlink(missing_ok=True)
        return self._relay

    def _lose(self) -> None:
        if self._relay is not None:
            with suppress(OSError):
                self._relay.close()
        self._relay = None


def _different(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of sites, or raise if two of them are the same."""
    if len(set(keys.values())) < len(keys):
        raise UndriftError("Sites need different keys, got one key twice; make new ones.")
    return dict(keys)


def _send(relay: socket.socket, order: dict[str, Any]) -> None:
    send_frame(relay, json.dumps(order).encode())
