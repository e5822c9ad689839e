"""The ranks of a meeting are settled in the common store before anything is sent.

A group of gloo dies with a collective that times out, so nobody may begin one that a late rank
would miss. Each rank writes down that it has come. When all members have, or when a rank has waited
for `patience` seconds, it proposes who takes part, and the first proposal in the store holds for
all. A rank that reads one without itself is left out: it asks to come back and waits for the next
meeting, at the end of which it gets the server's state.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from undrift.engine.processes.group import Processes
from undrift.engine.world import World

POLL = 0.02  # seconds between two looks into the store


class Quorum(NamedTuple):
    """Says which ranks take part in a meeting, and which come back at its end."""

    present: tuple[int, ...]
    back: tuple[int, ...] = ()


class Attendance:
    """Settles who takes part in each meeting; without patience that is everybody, unasked."""

    def __init__(self, world: World, patience: float | None) -> None:
        self._world, self._patience = world, patience
        self._members = tuple(range(world.size))
        self._number = 0  # meetings so far
        self._prefix = ""
        if self._asks and isinstance(world, Processes):
            # Ranks make their Outers in the same order, so that the numbers agree.
            own = world.store.add(f"outer/made/{world.rank}", 1)
            self._prefix = f"outer/{own}"

    @property
    def _asks(self) -> bool:
        return self._patience is not None and isinstance(self._world, Processes)

    def settle(self) -> Quorum:
        """Return who takes part in the next meeting; all ranks read the same."""
        if not self._asks:
            return Quorum(self._members)
        number, self._number = self._number, self._number + 1
        self._store.set(self._key("here", number, self._world.rank), "1")
        decision = self._read(number) or self._wait(number)
        self._members = tuple(sorted({*decision.present, *decision.back}))
        return decision

    def come_back(self) -> Quorum:
        """Return the decision of the meeting at the end of which this rank is a member again."""
        rank = self._world.rank
        self._store.set(self._key("back", rank), "1")
        while True:
            decision = self._read(self._number)
            if decision is None:
                time.sleep(POLL)
                continue
            self._number += 1
            if rank in decision.back:
                self._store.delete_key(self._key("back", rank))
                self._members = tuple(sorted({*decision.present, *decision.back}))
                return decision

    def _wait(self, number: int) -> Quorum:
        """Wait for all members, for `patience` seconds at most, and return what then holds."""
        end = time.monotonic() + (self._patience or 0.0)
        while True:
            here = [r for r in self._members if self._has(self._key("here", number, r))]
            settled = self._read(number)
            if settled is not None:
                return settled
            if len(here) == len(self._members) or time.monotonic() > end:
                others = set(range(self._world.size)) - set(self._members)
                back = [r for r in sorted(others) if self._has(self._key("back", r))]
                proposal = json.dumps([here, back])
                self._store.compare_set(self._key("decision", number), "", proposal)
                return self._read(number) or Quorum(tuple(here), tuple(back))
            time.sleep(POLL)

    def _read(self, number: int) -> Quorum | None:
        key = self._key("decision", number)
        if not self._has(key):
            return None
        present, back = json.loads(self._store.get(key))
        return Quorum(tuple(present), tuple(back))

    @property
    def _store(self) -> Any:
        assert isinstance(self._world, Processes)
        return self._world.store

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _key(self, *parts: object) -> str:
        return "/".join((self._prefix, *map(str, parts)))
