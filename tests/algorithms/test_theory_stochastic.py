"""Noise floors: with m clients in a round the stationary error of the model falls like 1 / m.

All clients have the same optimum x* = 0 and different curvatures, so that FedAvg-like methods have
no bias and everything that is left is gradient noise. Steps are small: with large ones the noise of
the curvature, which is proportional to the error, would bend the line at small m.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import undrift as ud

BURN_IN = 50  # rounds; an error is forgotten within about 15


def floor(algorithm: Any, m: int, *, of: int, seeds: Sequence[int], rounds: int) -> float:
    """Mean of ||x - x*||^2 over late rounds with m of the clients taking part in each."""
    errors = []
    for seed in seeds:
        problem = ud.data.quadratics(
            of, dim=8, samples=48, heterogeneity=0.0, condition=2.0, noise=1.0, seed=seed
        )
        run = ud.simulate(
            algorithm,
            problem.model(),
            problem.clients,
            loss=problem.loss,
            work=ud.Steps([1, 3] * (of // 2)),  # the same mean for every even m
            batch_size=4,
            participation=m,
            rounds=rounds,
            evaluation=ud.EvaluationOptions(every=rounds),
            seed=seed,
        )
        errors += [float(run.x.square().sum()) for record in run if record.round > BURN_IN]
    return float(np.mean(errors))


def slope(floors: dict[int, float]) -> float:
    """Of the logarithm of the error against that of m."""
    return float(np.polyfit(np.log(list(floors)), np.log(list(floors.values())), 1)[0])


ALGORITHMS = [ud.FedACG(lr=0.05, lam=0.6), ud.FedaGrac(lr=0.05)]


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("population", ["64", "m"])
def test_the_noise_floor_falls_like_one_over_the_number_of_participants(algorithm, population):
    floors = {
        m: floor(
            algorithm, m, of=64 if population == "64" else m, seeds=range(4), rounds=BURN_IN + 150
        )
        for m in (2, 4, 8, 16)
    }
    assert -1.25 < slope(floors) < -0.75


def test_sixteen_participants_have_about_an_eighth_of_the_noise_of_two():
    """The quick form of the test above: one seed, few rounds, wide bounds."""
    floors = {m: floor(ALGORITHMS[0], m, of=64, seeds=[0], rounds=BURN_IN + 100) for m in (2, 16)}
    assert 4 < floors[2] / floors[16] < 16
