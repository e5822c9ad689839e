"""Functions that run in lockstep: they meet in order, fail together and leave no thread."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.system import no_threads_left
from undrift.engine.execution.lockstep import run_lockstep


def turns(functions: Sequence[Callable[..., Any]], meet: Callable[..., Any]) -> dict[int, Any]:
    ends: dict[int, Any] = {}
    with no_threads_left():
        run_lockstep(functions, meet, ends.__setitem__)
    return ends


def test_functions_meet_in_order_as_often_as_they_ask():
    order: list[Any] = []

    def function(i: int) -> Callable[..., Any]:
        def turn(ask: Callable[..., Any]) -> int:
            order.append(("begin", i))
            total = ask(i)
            order.append(("middle", i))
            assert not torch.is_grad_enabled()
            return total + ask(10 * total + i)

        return turn

    def meet(asked: list[int]) -> list[int]:
        order.append(("meet", list(asked)))
        return [sum(asked)] * len(asked)

    ends = turns([function(i) for i in range(3)], meet)
    assert ends == dict.fromkeys(range(3), 3 + 93)
    begun, middle = [("begin", i) for i in range(3)], [("middle", i) for i in range(3)]
    assert order == [*begun, ("meet", [0, 1, 2]), *middle, ("meet", [30, 31, 32])]


def test_functions_that_never_ask_just_end():
    assert turns([lambda ask: 1, lambda ask: 2], pytest.fail) == {0: 1, 1: 2}


@pytest.mark.parametrize("asks", [(1, 2), (2, 1), (0, 1), (1, 0)], ids=str)
def test_asking_unequally_often_is_said_clearly(asks):
    def function(n: int) -> Callable[..., Any]:
        return lambda ask: [ask(i) for i in range(n)]

    with pytest.raises(ud.UndriftError, match="communicate equally often"):
        turns([function(n) for n in asks], lambda asked: asked)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_in_one_function_ends_all(error, bad, when):
    cleaned: list[int] = []

    def function(i: int) -> Callable[..., Any]:
        def turn(ask: Callable[..., Any]) -> None:
            try:
                if when == "after":
                    ask(i)
                if i == bad:
                    raise error("mine")
                ask(i)
            finally:
                cleaned.append(i)

        return turn

    with pytest.raises(error, match="mine"):
        turns([function(i) for i in range(3)], lambda asked: asked)
    begun = range(bad + 1) if when == "before" else range(3)
    assert sorted(cleaned) == list(begun)


def test_an_error_in_the_meeting_ends_all():
    def meet(asked: list[int]) -> list[int]:
        raise ud.UndriftError("no meeting")

    with pytest.raises(ud.UndriftError, match="no meeting"):
        turns([lambda ask: ask(0)] * 3, meet)


def test_an_interrupt_of_the_main_thread_ends_all():
    def interrupts(ask: Callable[..., Any]) -> None:
        _thread.interrupt_main()
        ask(0)

    # A suite started in the background ignores Ctrl-C; here it must not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            turns([lambda ask: ask(0), interrupts, lambda ask: ask(0)], lambda asked: asked)
    finally:
        signal.signal(signal.SIGINT, before)
