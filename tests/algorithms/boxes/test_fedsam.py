"""FedSAM against the box of Qu et al. (2022) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, hardest, options
from undrift.algorithms.fedsam import FedSAM


def box(A, b, w, K, cohorts, *, lr, rho, normalise=True):
    """The box, with our own line numbers:

    1  client: y <- x;  K_i times: g = grad F_i(y)
    2  client: y~ = y + rho g / ||g||
    3  client: y <- y - lr grad F_i(y~)
    4  server: x <- sum_i w_i y
    """
    x = np.zeros(b.shape[1])
    for S in cohorts:
        mass = sum(w[i] for i in S)
        mean = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])  # line 1
                above = y + rho * g / (np.sqrt(g @ g) + 1e-7 if normalise else 1)  # line 2
                y = y - lr * A[i] @ (above - b[i])  # line 3
            mean += w[i] / mass * y
        x = mean  # line 4
    return x


@everywhere
@pytest.mark.wide(daily=hard)
def test_box(case):
    run = case.run(FedSAM(lr=0.3, rho=0.4))
    assert_same(run.x, box(**case.given(), lr=0.3, rho=0.4))


@hardest
@options({"rho": 0.1}, {"rho": 0.4, "normalise": False})
def test_options(case, options):
    run = case.run(FedSAM(lr=0.3, **options))
    assert_same(run.x, box(**case.given(), lr=0.3, **options))
