"""Plans of rounds: made of a census alone, and the small ones of trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import undrift as ud
from undrift import testing
from undrift.data.availability import Availability
from undrift.engine.participation import parse, population_weights
from undrift.engine.plan import Census, Plan, Planner, mean_steps

SIZES = (9, 4, 7, 9, 12, 5)


@dataclass(frozen=True)
class Sizes:
    """What a server knows of clients that keep their samples."""

    sizes: np.ndarray
    availability: Availability | None

    def __len__(self) -> int:
        return len(self.sizes)


@pytest.mark.parametrize(
    "participation",
    [1.0, 0.5, 2, ud.Bernoulli(0.4), ud.WithReplacement(3), lambda t: [0, 2 + t % 2]],
)
@pytest.mark.filterwarnings("ignore:A mean of duals")  # as repr reads all fields
@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize(
    "availability",
    [None, ud.Spans([(0, None), (0, 2), (0, None), (0, None), (1, None), (2, None)])],
)
def test_a_census_without_data_gives_the_same_plans(
    participation: Any, weighting: Any, availability: Availability | None
) -> None:
    pairs = [testing.small_clients(SIZES)[i] for i in range(len(SIZES))]
    clients = ud.Clients(pairs, availability=availability)

    def plans(census: Census) -> list[Plan]:
        weights = population_weights(weighting, census.sizes)
        work = ud.Epochs(2)
        planner = Planner(census, weights, parse(participation), work, 4, seed=3)
        planner.check(4)
        return [planner.plan(t) for t in range(4)]

    census = Sizes(clients.sizes, availability)
    for own, other in zip(plans(clients), plans(census), strict=True):
        assert repr(own) == repr(other)
        assert own.mean_count == mean_steps(own.weights, own.counts)


def test_equal_steps_have_exactly_their_mean() -> None:
    weights = np.full(7, 1 / 7)
    assert mean_steps(weights, np.full(7, 5)) == 5.0
    assert mean_steps(np.array([0.25, 0.75]), np.array([1, 2])) == 1.75


@pytest.mark.parametrize(("steps", "mean"), [(3, 3.0), ([1, 2], 1.5)])
def test_a_trial_weighs_its_clients_alike(steps: Any, mean: float) -> None:
    plan = Plan.equal(np.array([1, 4]), steps, 8, t=2)
    assert plan.weights.tolist() == [0.5, 0.5]
    assert plan.counts.tolist() == np.broadcast_to(steps, 2).tolist()
    assert plan.mean_count == mean
    assert plan.cohort == ud.Cohort(2, 8, 2, 0.25)
    assert plan.t == 2


def test_an_assignment_holds_what_some_clients_are_told() -> None:
    clients = testing.small_clients(SIZES)
    weights = population_weights("size", clients.sizes)
    planner = Planner(clients, weights, parse(1.0), ud.Epochs(1), 4, seed=3)
    plan = planner.plan(1)
    assignment = planner.assign(plan, np.array([4, 1]))
    assert assignment.ids.tolist() == [4, 1]
    assert assignment.counts.tolist() == [3, 1]
    assert assignment.mean_count == plan.mean_count
    assert (assignment.t, assignment.seed, assignment.batch_size, assignment.width) == (1, 3, 4, 4)
