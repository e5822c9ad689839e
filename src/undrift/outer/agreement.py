"""All ranks run the same method, and each meeting is of the same round on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from undrift.check import is_finite, is_whole, require
from undrift.core import AllReduce, Peer
from undrift.engine.processes.rendezvous import code_digest, join, launched
from undrift.engine.world import World
from undrift.errors import DivergenceError, UndriftError


def world_of(timeout: float) -> World:
    """Return the ranks that torchrun or the script has launched, or this process alone."""
    return join(timeout) if launched() else World()


def require_on_all_ranks(world: World, check: Callable[[], None]) -> None:
    """Run a check on every rank, and raise on all of them if one refuses."""
    refusal = ""
    try:
        check()
    except (ValueError, UndriftError) as error:
        refusal = str(error)
    with world.failure_scope():
        refusals = world.texts(refusal)
    if refusal:
        raise ValueError(refusal)
    for rank, text in enumerate(refusals):
        if text:
            raise ValueError(f"Rank {rank} refuses: {text}")


def require_same_everywhere(world: World, **settings: Any) -> None:
    """Raise on all ranks if they were made with other methods, steps, models or code."""
    texts = {name: str(value) for name, value in settings.items()}
    with world.failure_scope():
        world.require_same(texts | {"undrift": code_digest()[:12]})


def counts_of(every: Any, size: int) -> tuple[int, ...]:
    """Return the local steps of each rank between two meetings."""
    who, expected = "Outer", "every >= 1, a whole number of local steps, or one for each rank"
    if isinstance(every, Sequence) and not isinstance(every, str):
        require(len(every) == size, who, f"every with {size} numbers, one for each rank", every)
        require(all(map(_positive, every)), who, expected, every)
        return tuple(int(count) for count in every)
    require(_positive(every), who, expected, every)
    return (int(every),) * size


def _positive(count: Any) -> bool:
    return is_whole(count) and count >= 1


def check_counts(method: Any, counts: Sequence[int]) -> None:
    """Raise for unequal steps where ranks would wait for each other inside a round."""
    if not isinstance(method, Peer) or len(set(counts)) == 1:
        return
    together = method.every_step or isinstance(method, AllReduce)
    if together or min(counts) < method.meetings:
        raise ValueError(
            f"{type(method).__name__} needs the same number of local steps on every rank, got "
            f"{list(counts)}; use one number as every."
        )


def shares_of(world: World, weight: Any, equal: bool) -> list[float]:
    """Return each rank's share of the mean, from the weights that they give.

    Peers are `equal`, since their mixing matrices and all-reduces weigh all alike.
    """
    sound = is_finite(weight) and weight > 0
    with world.failure_scope():
        # A rank with a bad weight tells the others, so that all of them raise.
        rows = world.gather([_bits(float(weight) if sound else -1.0)])
    weights = [_number(row[0]) for row in rows]
    bad = [rank for rank, each in enumerate(weights) if each <= 0]
    if bad:
        got = repr(weight) if world.rank in bad else f"another on rank {bad[0]}"
        raise ValueError(f"Outer needs weight > 0, a finite number, got {got}.")
    if equal and len(set(weights)) > 1:
        raise ValueError(
            f"A method without a server needs ranks that weigh the same, got {weights}; leave "
            "weight out."
        )
    return [each / sum(weights) for each in weights]


class Report(NamedTuple):
    """Holds what ranks tell each other at every meeting."""

    t: int
    lr: float
    loss: float  # mean over the rank's steps of the round
    finite: bool


def exchange_reports(world: World, own: Report) -> list[Report]:
    """Return the reports of all ranks; raise on all of them unless they fit together."""
    numbers = [own.t, _bits(own.lr), _bits(own.loss), int(own.finite)]
    with world.failure_scope():
        rows = world.gather(numbers).tolist()
    reports = [Report(t, _number(lr), _number(loss), bool(fine)) for t, lr, loss, fine in rows]
    for rank, report in enumerate(reports):
        if report.t != reports[0].t or report.lr != reports[0].lr:
            name = "round" if report.t != reports[0].t else "lr"
            got, first = (
                (report.t + 1, reports[0].t + 1)
                if name == "round"
                else (
                    report.lr,
                    reports[0].lr,
                )
            )
            raise UndriftError(
                f"A meeting needs the same {name} on all ranks, got {got} on rank {rank} and "
                f"{first} on rank 0; run the same script and scheduler everywhere, from "
                "checkpoints of one round."
            )
    bad = [rank for rank, report in enumerate(reports) if not report.finite]
    if bad:
        who = f"rank {bad[0]}" if len(bad) == 1 else f"ranks {bad}"
        raise DivergenceError(
            f"Training needs finite updates, got NaN or Inf from {who} in round {own.t + 1}; lower "
            "lr or clip gradients in the closure. The model is at the last meeting.",
            round=own.t + 1,
            clients=bad,
            everywhere=True,
        )
    return reports


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _number(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
