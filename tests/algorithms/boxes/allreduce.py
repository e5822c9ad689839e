"""What the boxes of the all-reduce family share: four unequal workers, and a run on them."""

from __future__ import annotations

from typing import Any

import undrift as ud
from tests.support.problems import bed

PROBLEM = bed(clients=4, dim=7, samples=[8, 9, 12, 7], seed=3)
ROUNDS, SEED = 6, 5


def started(
    algorithm: Any, K: int, problem: ud.data.Quadratics = PROBLEM, **options: Any
) -> ud.Run:
    """A run with K exact gradients a round, ready to be compared round by round."""
    settings = {"loss": problem.loss, "work": ud.Steps(K), "rounds": ROUNDS, "seed": SEED}
    return ud.simulate(algorithm, problem.model(), problem.clients, **settings | options)
