"""FedDyn against Algorithm 1 of Acar et al. (2021) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import (
    assert_same,
    assert_same_rows,
    everywhere,
    hard,
    hardest,
    options,
)
from tests.algorithms.boxes.feddyn import box, compare
from undrift import exponential
from undrift.algorithms.feddyn import FedDyn


def box_in_parameter_units(A, b, w, K, cohorts, *, lr, alpha):
    """The authors' code: h_i = -lam_i / alpha, and the prox as a linear term plus weight decay."""
    N, d = b.shape
    x, h = np.zeros(d), np.zeros((N, d))
    for S in cohorts:
        mass = sum(w[i] for i in S)
        mean_y = np.zeros(d)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                y = y - lr * (A[i] @ (y - b[i]) + alpha * (h[i] - x) + alpha * y)
            h[i] = h[i] + (y - x)
            mean_y += w[i] / mass * y
        x = mean_y + sum(w[i] * h[i] for i in range(N))
    return x, h


@everywhere
@options({}, {"alpha": 0.7})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedDyn(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=0.3, **{"alpha": 0.1, **options}))


@everywhere
def test_authors_code(case):
    run = case.run(FedDyn(lr=0.3, alpha=0.5))
    x, h = box_in_parameter_units(**case.given(), lr=0.3, alpha=0.5)
    assert_same(run.state.x, x)
    assert_same_rows({i: -lam / 0.5 for i, lam in run.client_states.items()}, h)


@hardest
def test_box_with_a_growing_alpha(case):
    """In gradient units the duals outlive a change of alpha, and so does their mean."""
    run = case.run(FedDyn(lr=0.3, alpha=exponential(0.2, 1.3)))
    compare(run, *box(**case.given(), lr=0.3, alpha=lambda t: 0.2 * 1.3**t))
