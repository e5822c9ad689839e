"""FedPD against Algorithm 1 of Zhang et al. (2021) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, assert_same_rows, everywhere, hard, options
from undrift.algorithms.fedpd import FedPD

SEED = 14
PASSES = [1, 2, 3, 1, 3, 2]  # of FedPD(p=0.5, coin=SEED); the test checks it


def box(A, b, w, K, cohorts, *, lr, eta, start, passes):
    N, d = b.shape
    x0, x, lam = np.zeros(d), {}, np.zeros((N, d))
    for t, S in enumerate(cohorts):
        mass = sum(w[i] for i in S)
        mean = np.zeros(d)
        for i in S:
            x0_i = x0.copy()  # line 1
            x.setdefault(i, x0)
            for _ in range(passes[t]):  # line 5
                y = (x[i] if start == "own" else x0_i).copy()
                for _ in range(K[i]):
                    g = A[i] @ (y - b[i])
                    y = y - lr * (g + lam[i] + (y - x0_i) / eta)  # line 2
                x[i] = y
                lam[i] = lam[i] + (y - x0_i) / eta  # line 3
                x0_i = y + eta * lam[i]  # line 4
            mean += w[i] / mass * x0_i
        x0 = mean  # line 6
    return x0, np.stack([x[i] for i in range(N)]), lam


@everywhere
@options(
    {"start": "own"},
    {"start": "server"},
    {"start": "own", "p": 0.5},
    {"start": "server", "p": 0.5},
)
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    algorithm = FedPD(lr=0.3, eta=1.6, coin=SEED, **options)
    passes = PASSES if "p" in options else [1] * 6
    assert [algorithm.passes(t) for t in range(6)] == passes
    run = case.run(algorithm)
    given = {"lr": 0.3, "eta": 1.6, "start": options["start"], "passes": passes}
    x0, x, lam = box(**case.given(), **given)
    assert_same(run.state.x, x0)
    assert_same_rows({i: state.lam for i, state in run.client_states.items()}, lam)
    if options["start"] == "own":
        assert_same_rows({i: state.x for i, state in run.client_states.items()}, x)
    else:
        assert all(state.x.numel() == 0 for state in run.client_states.values())
