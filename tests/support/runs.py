"""Runs on quadratics and on a small net, before their first round or after their last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import undrift as ud
from undrift.testing import small_clients, small_net


def start_on_quadratics(
    algorithm: Any, problem: ud.data.Quadratics, *, rounds: int, **options: Any
) -> ud.Run:
    """Return a run before its first round, which is evaluated after its last."""
    return ud.simulate(
        algorithm,
        problem.model(),
        problem.clients,
        loss=problem.loss,
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=max(1, rounds)),
        **options,
    )


def finished(run: ud.Run) -> ud.Run:
    """Return the run after its last round."""
    for _ in run:
        pass
    return run


def on_quadratics(
    algorithm: Any, problem: ud.data.Quadratics, *, rounds: int, work: Any = 5, **options: Any
) -> ud.Run:
    """Return a finished run with exact gradients; weights are uniform unless options say more."""
    options.setdefault("weighting", "uniform")
    steps = ud.Steps(work) if isinstance(work, int | Sequence) else work
    return finished(start_on_quadratics(algorithm, problem, rounds=rounds, work=steps, **options))


def on_net(algorithm: Any, *, mode: str, rounds: int = 4, **options: Any) -> ud.Run:
    """Return a finished run of the small net: ragged minibatches, dropout and unequal work."""
    options.setdefault("work", ud.Steps([3, 5, 2, 6]))
    options.setdefault("batch_size", 4)
    options.setdefault("clients", small_clients())
    options.setdefault("model", small_net())
    run = ud.simulate(
        algorithm,
        options.pop("model"),
        options.pop("clients"),
        loss=nn.functional.cross_entropy,
        rounds=rounds,
        mode=mode,  # type: ignore[arg-type]
        evaluation=ud.EvaluationOptions(every=max(1, rounds)),
        **options,
    )
    return finished(run)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of two coordinates."""
    return float((one - other).abs().max())
