"""Processes agree here who meets, however often each of them has been started again.

Rank 0 calls a meeting by a new name, the others answer, and once all have answered rank 0 says who
takes part. A process that comes in the place of one that answered and died waits for the next call.
Nothing counts restarts, since the agents of two machines that lost each other count differently.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

from undrift.engine.processes.group import GRACE, ranks_in_words, this_process
from undrift.errors import WorkerError

PAUSE = 0.02  # seconds between two looks into the store


class Agreement(NamedTuple):
    """Holds what processes that have met know of each other."""

    store: Store  # with keys of this meeting alone
    places: dict[int, str]  # the host and the number of every process, by rank


def agree(
    store: Store, rank: int, size: int, patience: float, watch: Callable[[], None]
) -> Agreement:
    """Wait until all processes are here, or raise on all of them with the missing ranks.

    The first process that loses patience writes the missing ranks into the store for the others;
    `watch` is called meanwhile and may raise.
    """
    own = f"{this_process()} {uuid4().hex}"
    name = _call(store) if rank == 0 else ""
    end = time.monotonic() + patience
    while True:
        watch()
        if rank != 0:
            name = _answer(store, rank, own, name)
        elif not _unanswered(store, name, size):
            answers = [_read(store, f"{name}/here/{each}") for each in range(1, size)]
            store.set(f"{name}/members", json.dumps([own, *answers]))
        members = json.loads(_read(store, f"{name}/members") or "{}")
        if members and members[rank] == own:
            places = {each: member.rpartition(" ")[0] for each, member in enumerate(members)}
            return Agreement(PrefixStore(f"{name}/group", store), places)
        given_up = _read(store, f"{name}/missing")
        if given_up or time.monotonic() > end:
            # A process that nobody waits for has to be called again, which rank 0 does.
            missing = json.loads(given_up or "[]") or _unanswered(store, name, size) or [0]
            if name and not given_up:
                store.set(f"{name}/missing", json.dumps(missing))
                time.sleep(GRACE if rank == 0 else 0)  # rank 0 may hold the store
            raise WorkerError(
                f"A run of {size} processes needs all of them, got nothing from "
                f"{ranks_in_words(missing).lower()} within {patience:g} s; start every rank with "
                "the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE.",
                ranks=missing,
            )
        time.sleep(PAUSE)


def _call(store: Store) -> str:
    """Call a meeting and return its name."""
    name = uuid4().hex
    store.set("call", name)
    return name


def _answer(store: Store, rank: int, own: str, answered: str) -> str:
    """Return the name of the newest call, "" if there is none, and answer it unless done."""
    newest = _read(store, "call")
    if newest != answered:
        store.set(f"{newest}/here/{rank}", own)
    return newest


def _unanswered(store: Store, name: str, size: int) -> list[int]:
    """Return the ranks that have not answered a call; rank 0 if nobody has called."""
    if not name:
        return [0]
    return [each for each in range(1, size) if not store.check([f"{name}/here/{each}"])]


def _read(store: Store, key: str) -> str:
    """Return a value of the store, or "" if it has none; `get` would wait for one."""
    return store.get(key).decode() if store.check([key]) else ""
