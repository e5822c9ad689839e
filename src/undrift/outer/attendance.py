"""The ranks of a meeting are settled in the common store before anything is sent.

A group of gloo dies with a collective that times out, so nobody may begin one that a late rank
would miss. Each rank writes down that it has come. When all members have, or when a rank has waited
for `patience` seconds, it proposes who takes part, and the first proposal in the store holds for
all. A rank that reads one without itself is left out: it asks to come back and waits for the next
meeting, at the end of which it gets the server's state. Nobody waits for a rank whose script has
ended, and a rank that waits for others in vain raises an error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from undrift.engine.processes.group import Processes
from undrift.engine.processes.transport import LostError, backend_message
from undrift.engine.world import World
from undrift.errors import WorkerError

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
            with world.failure_scope(), self._store_scope():
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
        with self._store_scope():
            self._store.set(self._key("here", number, self._world.rank), "1")
            decision = self._read(number) or self._wait(number)
        self._note(decision)
        return decision

    def come_back(self) -> Quorum:
        """Return the decision of the meeting at the end of which this rank is a member again.

        Raise `WorkerError` if no member is left that could decide, or none does in time.
        """
        rank = self._world.rank
        with self._store_scope():
            self._store.set(self._key("back", rank), "1")
            began = time.monotonic()
            while True:
                # A member that has ended has settled all of its meetings before.
                ended = all(map(self._processes.has_ended, self._members))
                decision = self._read(self._number)
                if decision is not None:
                    self._number += 1
                    self._note(decision)
                    if rank in decision.back:
                        self._store.delete_key(self._key("back", rank))
                        return decision
                elif ended:
                    raise WorkerError(
                        f"Rank {rank} came too late to the last meeting, and the others have "
                        "ended, so that none of them can tell it the result; raise patience, or go "
                        "on from a checkpoint.",
                        ranks=[rank],
                    )
                elif time.monotonic() > began + self._processes.timeout:
                    self._store.delete_key(self._key("back", rank))
                    raise LostError(self._members[0], "timed out before the next meeting")
                else:
                    time.sleep(POLL)

    def _note(self, decision: Quorum) -> None:
        self._members = tuple(sorted({*decision.present, *decision.back}))

    def _wait(self, number: int) -> Quorum:
        """Wait for all members, for `patience` seconds at most, and return what then holds."""
        end = time.monotonic() + (self._patience or 0.0)
        while True:
            here = [r for r in self._members if self._has(self._key("here", number, r))]
            absent = [r for r in self._members if r not in here]
            settled = self._read(number)
            if settled is not None:
                return settled
            if all(map(self._processes.has_ended, absent)) or time.monotonic() > end:
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

    @contextmanager
    def _store_scope(self) -> Iterator[None]:
        """Raise `LostError` where the store does not answer: rank 0 has it, or torchrun."""
        try:
            yield
        except RuntimeError as error:
            raise LostError(0, backend_message(error)) from error

    @property
    def _processes(self) -> Processes:
        assert isinstance(self._world, Processes)
        return self._world

    @property
    def _store(self) -> Any:
        return self._processes.store

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _key(self, *parts: object) -> str:
        return "/".join((self._prefix, *map(str, parts)))
