"""Processes agree who meets: each may have been started again, and the dead do not count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, Store

from undrift.engine.processes import meeting
from undrift.engine.processes.meeting import Agreement, agree
from undrift.errors import WorkerError


@pytest.fixture
def store() -> Store:
    made = HashStore()
    made.set_timeout(timedelta(seconds=5))
    return made


@pytest.fixture
def come(store):
    """Starts a rank of a meeting in a thread; a rank that has ended leaves what it wrote."""
    over = threading.Event()

    def watch() -> None:
        if over.is_set():
            raise RuntimeError("the test is over")

    with ThreadPoolExecutor(8) as pool:

        def start(
            rank: int, size: int = 2, patience: float = 30, also: Callable[[], None] = watch
        ) -> Future[Agreement]:
            return pool.submit(agree, store, rank, size, patience, also)

        yield start
        over.set()


def together(pending: list[Future[Agreement]]) -> list[Agreement]:
    """What all of them know; raise unless they have met each other."""
    met = [each.result(10) for each in pending]
    for i, one in enumerate(met):
        one.store.set(f"mark/{i}", "1")
    assert all(one.store.check([f"mark/{i}" for i in range(len(met))]) for one in met)
    assert all(one.places == met[0].places for one in met)
    return met


def call_and_die(come, store) -> None:
    """Let rank 0 die after it has called."""
    dead = threading.Event()

    def die() -> None:
        if dead.is_set():
            raise RuntimeError("killed")

    pending = come(0, also=die)
    store.get("call")
    dead.set()
    assert isinstance(pending.exception(10), RuntimeError)


def test_all_come_in_any_order_and_meet_again(come):
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        pending = {rank: come(rank, 3) for rank in order}
        together([pending[rank] for rank in range(3)])


def test_the_agents_of_two_machines_may_have_restarted_their_ranks_differently_often(come, store):
    """The machine that is cut off comes once; rank 0's has come three times meanwhile."""
    for _ in range(3):
        call_and_die(come, store)
    late = come(1)
    time.sleep(5 * meeting.PAUSE)  # it answers the call of one that is dead
    together([come(0), late])


def test_an_answer_of_a_process_that_died_is_replaced(come, store):
    called = come(0, 3)
    _spoil(store, 1)
    one = come(1, 3)
    time.sleep(5 * meeting.PAUSE)
    together([called, one, come(2, 3)])


def _spoil(store: Store, rank: int) -> None:
    """Answer a call, which is awaited, for a process that is dead."""
    store.set(f"{store.get('call').decode()}/here/{rank}", "elsewhere 1 dead")


def test_who_comes_after_a_dead_one_was_admitted_waits_for_the_next_call(come, store):
    first = come(0)
    _spoil(store, 1)
    assert first.result(10).places[1] == "elsewhere 1"
    late = come(1)
    time.sleep(5 * meeting.PAUSE)
    assert not late.done()
    together([come(0), late])


def test_who_is_missing_is_told_to_all(come, monkeypatch):
    monkeypatch.setattr(meeting, "GRACE", 0.1)
    pending = [come(rank, 4, patience=0.3) for rank in (0, 2)]
    for each in pending:
        with pytest.raises(WorkerError, match=r"nothing from ranks 1 and 3 within 0\.3 s") as told:
            each.result(10)
        assert told.value.ranks == [1, 3]


def test_without_a_call_rank_0_is_missing(come):
    with pytest.raises(WorkerError, match=r"nothing from rank 0 within 0\.1 s"):
        come(1, patience=0.1).result(10)
