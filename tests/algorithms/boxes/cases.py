"""The settings in which every box is compared: work x participation x weights x mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.problems import bed
from tests.support.runs import on_quadratics

# Unequal sample sizes, so that the stacked mode has to mask its padding.
PROBLEM = bed(clients=5, dim=3, samples=[4, 9, 6, 16, 5], seed=3)

# Client 2 runs exactly the uniform mean of 3 steps: the border between FedaGrac's fast and slow.
WORK = {"equal": (4,) * 5, "unequal": (2, 5, 3, 4, 1)}
# Sizes vary, the order is not sorted, clients return after absences, client 4 starts late.
COHORTS = {
    "full": ((0, 1, 2, 3, 4),) * 6,
    "partial": ((0, 2), (1, 3, 0), (2,), (4, 0, 1), (3, 2, 4), (1, 4)),
}
WEIGHTS = {"uniform": (0.2,) * 5, "weighted": (0.35, 0.05, 0.25, 0.15, 0.2)}


@dataclass(frozen=True)
class Case:
    work: str
    participation: str
    weights: str
    mode: str

    def __str__(self) -> str:
        return f"{self.work}-{self.participation}-{self.weights}-{self.mode}"

    @property
    def easy(self) -> int:
        """Return in how many respects all clients are alike, so that a mistake may cancel."""
        return (self.work == "equal") + (self.participation == "full") + (self.weights == "uniform")

    def run(self, algorithm: Any, **options: Any) -> Any:
        """The class under test, in the simulator."""
        cohorts = COHORTS[self.participation]
        return on_quadratics(
            algorithm,
            PROBLEM,
            rounds=len(cohorts),
            work=WORK[self.work],
            participation=cohorts,
            weighting="uniform" if self.weights == "uniform" else WEIGHTS[self.weights],
            mode=self.mode,
            **options,
        )

    def given(self) -> dict[str, Any]:
        """The same setting as plain numbers, for the box."""
        return {
            "A": PROBLEM.A.numpy(),
            "b": PROBLEM.b.numpy(),
            "w": WEIGHTS[self.weights],
            "K": WORK[self.work],
            "cohorts": COHORTS[self.participation],
        }


ALL = [Case(*c) for c in product(WORK, COHORTS, WEIGHTS, ("loop", "stacked"))]
everywhere = pytest.mark.parametrize("case", ALL, ids=str)
# Where nothing cancels: for the rarer combinations of options.
hardest = pytest.mark.parametrize(
    "case", [c for c in ALL if str(c).startswith("unequal-partial-weighted")], ids=str
)


def hard(parameters: Mapping[str, Any]) -> bool:
    """Return whether clients differ in all respects, or are stacked and differ in all but one."""
    case = parameters["case"]
    return case.easy == 0 or (case.easy == 1 and case.mode == "stacked")


def options(*settings: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Hyper-parameters, each setting named by what it changes."""
    names = ["-".join(f"{k}={v}" for k, v in s.items()) or "default" for s in settings]
    return pytest.mark.parametrize("options", settings, ids=names)


def assert_same(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual.numpy() - expected).max() < 1e-10


def assert_same_rows(rows: Mapping[int, torch.Tensor], expected: np.ndarray) -> None:
    """States of all clients: every one has taken part in every case."""
    assert_same(torch.stack([rows[i] for i in range(len(expected))]), expected)
