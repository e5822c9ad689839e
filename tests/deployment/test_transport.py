"""The transport keeps to keys, and asks again through a new relay when one has gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest

from undrift.deployment import transport as module
from undrift.deployment.transport import RelayTransport
from undrift.errors import UndriftError
from undrift.federation.frames import receive_frame, send_frame

KEYS = {"north": "key of north", "south": "key of south"}


class FakeRelay:
    """Stands for a ServerApp: a thread that answers orders as it is told to."""

    def __init__(self, behave: Callable[[socket.socket, dict[str, Any]], None]) -> None:
        self._behave, self.starts = behave, 0

    def start(self, path: Path) -> None:
        self.starts += 1
        threading.Thread(target=self._serve, args=(path,), daemon=True).start()

    def _serve(self, path: Path) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as centre:
            centre.connect(str(path))
            while True:
                order = json.loads(receive_frame(centre))
                if order["do"] == "sites":
                    keys = [*KEYS.values(), "a key that nobody knows"]
                    send_frame(centre, json.dumps(keys).encode())
                else:
                    self._behave(centre, order)


def reply(centre: socket.socket, key: str, data: bytes) -> None:
    send_frame(centre, json.dumps({"key": key}).encode())
    send_frame(centre, data)


def echo(centre: socket.socket, order: dict[str, Any]) -> None:
    for key in order["keys"]:
        reply(centre, key, receive_frame(centre) + b" of " + key.encode())
    send_frame(centre, json.dumps({"key": None, "errors": {}}).encode())


def test_requests_go_to_keys_and_replies_come_by_names(tmp_path: Path) -> None:
    relay = FakeRelay(echo)
    transport = RelayTransport(lambda: KEYS, relay.start, tmp_path)
    assert transport.sites() == ["north", "south"]
    transport.wait(["north"])
    arrived = dict(transport.ask({"north": b"1", "south": b"2", "nobody": b"3"}))
    assert arrived == {"north": b"1 of key of north", "south": b"2 of key of south"}
    assert relay.starts == 1
    assert not list(tmp_path.iterdir())  # A socket has no name after its relay has connected.
    transport.close()


def test_what_has_no_reply_is_asked_for_again_through_a_new_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    orders: list[list[str]] = []

    def die_once(centre: socket.socket, order: dict[str, Any]) -> None:
        orders.append(order["keys"])
        if len(orders) == 1:
            requests = [receive_frame(centre) for _ in order["keys"]]
            reply(centre, order["keys"][0], requests[0])
            raise OSError
        echo(centre, order)

    relay = FakeRelay(die_once)
    transport = RelayTransport(lambda: KEYS, relay.start, tmp_path, deadline=20.0)
    arrived = dict(transport.ask({"north": b"1", "south": b"2"}))
    assert arrived == {"north": b"1", "south": b"2 of key of south"}
    transport.close()
    assert orders == [["key of north", "key of south"], ["key of south"]]
    assert relay.starts == 2


@pytest.mark.parametrize(("deadline", "seconds"), [(3.0, inf), (600.0, 3.0)])
def test_a_deadline_ends_the_asking(deadline: float, seconds: float, tmp_path: Path) -> None:
    def silent(centre: socket.socket, order: dict[str, Any]) -> None:
        for _ in order["keys"]:
            receive_frame(centre)
        assert order["seconds"] <= 3.0
        errors = {"key of north": "Node Unavailable"}
        send_frame(centre, json.dumps({"key": None, "errors": errors}).encode())

    transport = RelayTransport(lambda: KEYS, FakeRelay(silent).start, tmp_path, deadline=deadline)
    assert list(transport.ask({"north": b"1"}, seconds=seconds)) == []
    transport.close()
    assert transport.errors == {"north": "Node Unavailable"}


def test_sites_that_do_not_come_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    keys = {**KEYS, "west": "key of west"}
    transport = RelayTransport(lambda: keys, FakeRelay(echo).start, tmp_path, patience=0.2)
    with pytest.raises(UndriftError, match="got none of west within"):
        transport.wait(["north", "west"])
    transport.close()


def test_a_centre_without_superlink_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)

    def fail(path: Path) -> None:
        raise UndriftError("flwr run failed")

    transport = RelayTransport(lambda: KEYS, fail, tmp_path, patience=0.1)
    with pytest.raises(UndriftError, match="needs its SuperLink"):
        transport.sites()


def test_keys_that_are_added_and_revoked_count_from_the_next_request(tmp_path: Path) -> None:
    keys = {"north": KEYS["north"]}
    transport = RelayTransport(lambda: keys, FakeRelay(echo).start, tmp_path)
    assert transport.sites() == ["north"]
    keys["south"] = KEYS["south"]
    assert transport.sites() == ["north", "south"]
    assert [name for name, _ in transport.ask({"south": b"1"})] == ["south"]
    keys["west"] = KEYS["south"]  # A file that is wrong leaves the keys as they were.
    assert transport.sites() == ["north", "south"]
    assert transport.admitted() == ["north", "south"]
    del keys["west"], keys["north"]
    assert transport.sites() == ["south"]
    assert transport.admitted() == ["south"]
    assert list(transport.ask({"north": b"1"})) == []
    transport.close()


def test_one_key_for_two_sites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UndriftError, match="different keys"):
        RelayTransport(lambda: {"a": "key", "b": "key"}, lambda path: None, tmp_path)


def test_a_second_reply_is_handed_on_to_be_named(tmp_path: Path) -> None:
    def answer_twice(centre: socket.socket, order: dict[str, Any]) -> None:
        data = receive_frame(centre)
        for _ in range(2):
            reply(centre, order["keys"][0], data)
        send_frame(centre, json.dumps({"key": None, "errors": {}}).encode())

    transport = RelayTransport(lambda: KEYS, FakeRelay(answer_twice).start, tmp_path)
    assert list(transport.ask({"north": b"1"})) == [("north", b"1")] * 2
    transport.close()
