"""Runs of methods on problems whose constants are exact, for tests of theorems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import undrift as ud
from undrift.theory import Constants


def exact(problem: ud.data.KnownConstants, *, batch: int | None = 1) -> Constants:
    """Return the constants of a problem at the first model zero, for minibatches of `batch`."""
    sigma = 0.0 if batch is None else problem.sigma / batch**0.5
    gap = problem.gap(torch.zeros_like(problem.A))
    return Constants(problem.L, sigma, problem.zeta, gap)


def trained(
    algorithm: Any,
    problem: ud.data.KnownConstants,
    *,
    rounds: int,
    steps: Any = 1,
    batch: int | None = 1,
    x0: torch.Tensor | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Yield the run after every round."""
    run = ud.simulate(
        algorithm,
        problem.model(x0),
        problem.clients,
        loss=problem.loss,
        work=ud.Steps(steps),
        rounds=rounds,
        batch_size=batch,
        weighting="uniform",
        evaluation=ud.EvaluationOptions(every=rounds),
        kernels=False,
        mode="stacked",
        seed=seed,
        **options,
    )
    for _ in run:
        yield run


def mean_square(
    values: Callable[[Any], torch.Tensor], runs: Any, *, first: torch.Tensor | None = None
) -> float:
    """Return the mean over rounds of the squared norm of what is read off a run."""
    squares = [float(values(run).square().sum()) for run in runs]
    if first is not None:
        squares = [float(first.square().sum()), *squares[:-1]]
    return float(np.mean(squares))


def slope(points: dict[float, float]) -> float:
    """Return the slope of the logarithm of the values against that of the keys."""
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])
