"""All ranks run the same method, and each meeting is of the same round on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import nn

from undrift.check import is_finite
from undrift.engine.processes.rendezvous import code_digest, join, launched
from undrift.engine.world import World
from undrift.errors import DivergenceError, UndriftError
from undrift.outer.meeting import Meeting
from undrift.usercode.functions import functions_of

T = TypeVar("T")


EARLY_END = (
    "its script has ended while others wait to meet it; look at its output, and let all ranks take "
    "as many rounds, also where their loaders differ in length."
)


def world_of(timeout: float) -> World:
    """Return the ranks that torchrun or the script has launched, or this process alone."""
    world = join(timeout) if launched() else World()
    world.begin()  # all are here, so that from now on the timeout counts
    world.explain_end(EARLY_END)
    return world


def require_on_all_ranks(world: World, check: Callable[[], T]) -> T:
    """Run a check on every rank and return what it does; raise on all of them if one refuses."""
    refusal, found = "", None
    with world.failure_scope():  # which tells the others of any other error
        try:
            found = check()
        except (ValueError, UndriftError) as error:
            refusal = str(error)
        refusals = world.texts(refusal)
    if found is None:
        raise ValueError(refusal)
    for rank, text in enumerate(refusals):
        if text:
            raise ValueError(f"Rank {rank} refuses: {text}")
    return found


def require_same_everywhere(world: World, method: Any, **settings: Any) -> None:
    """Raise on all ranks if they were made with other methods, steps, models or code."""
    texts = {name: str(value) for name, value in settings.items()}
    texts |= {"method": repr(method), "undrift": code_digest()[:12]}
    texts |= {f"the code of {name}": found for name, found in functions_of(method).items()}
    with world.failure_scope():
        world.require_same(texts)


def described(model: nn.Module) -> dict[str, str]:
    """Return the kinds, shapes and order of a model's tensors, which all ranks must share."""
    found = {}
    trained = 0
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        if tensor.requires_grad:
            trained += 1
            kind += f", trained, number {trained}"
        # A model that is compiled on some ranks only has the same parameters.
        found[f"model.{name.replace('_orig_mod.', '')}"] = kind
    return found


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
    seconds: float  # of a local step, 0 if the rank took none


def exchange_reports(meeting: Meeting, own: Report) -> dict[int, Report]:
    """Return the reports of the ranks that are there; raise on all unless they fit together."""
    numbers = [own.t, int(own.finite), *map(_bits, (own.lr, own.loss, own.seconds))]
    with meeting.world.failure_scope():
        rows = meeting.gather(numbers, f"reports of round {own.t + 1}")
    reports = {
        rank: Report(t, _number(lr), _number(loss), bool(fine), _number(seconds))
        for rank, (t, fine, lr, loss, seconds) in rows.items()
    }
    first, one = next(iter(reports.items()))
    for rank, report in reports.items():
        for name, got, expected in (
            ("round", report.t + 1, one.t + 1),
            ("lr", report.lr, one.lr),
        ):
            if got != expected:
                raise UndriftError(
                    f"A meeting needs the same {name} on all ranks, got {got} on rank {rank} and "
                    f"{expected} on rank {first}; run the same script and scheduler everywhere, "
                    "from checkpoints of one round."
                )
    bad = [rank for rank, report in reports.items() if not report.finite]
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
