"""FedaGrac against Algorithm 3 of the thesis (Wu et al., 2023) in naive loops."""

from itertools import product

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
from undrift import FedaGrac


def box(
    A,
    b,
    w,
    K,
    cohorts,
    *,
    lr,
    lam=1.0,
    scheme="fedagrac",
    local_reference="avg",
    nu_scope="participants",
):
    """The box from nu = nu_i = 0, with our own line numbers:

    1  server: broadcast x, nu and K = sum_i w_i K_i over S
    2  client, K_i times from y = x: y <- y - lr (g_i(y) + lam (nu - nu_i))
    3  client: avg = mean of the gradients, first = the gradient of step 0
    4  client: send y, and v_i = first if K_i > K else avg;  nu_i <- avg
    5  server: x <- sum_S w_i y_i
    6  server: nu <- sum_S w_i v_i
    """
    N, d = b.shape
    x, nu, nu_i, v = np.zeros(d), np.zeros(d), np.zeros((N, d)), np.zeros((N, d))
    for S in cohorts:
        mass = sum(w[i] for i in S)
        mean_K = sum(w[i] * K[i] for i in S) / mass  # line 1
        mean_y = np.zeros(d)
        for i in S:
            y, gradients = x.copy(), []
            for _ in range(K[i]):
                gradients.append(A[i] @ (y - b[i]))
                y = y - lr * (gradients[-1] + lam * (nu - nu_i[i]))  # line 2
            avg, first = sum(gradients) / K[i], gradients[0]  # line 3
            fast = K[i] > mean_K + 1e-9  # K_i = K is slow, whatever the rounding of K
            v[i] = {  # line 4
                "fedagrac": first if fast else avg,
                "avg": avg,
                "first": first,
                "reverse": avg if fast else first,
            }[scheme]
            nu_i[i] = avg if local_reference == "avg" else v[i]  # line 4
            mean_y += w[i] / mass * y
        x = mean_y  # line 5
        if nu_scope == "participants":
            nu = sum(w[i] / mass * v[i] for i in S)  # line 6
        else:  # what the absent sent last, zero if never
            nu = sum(w[i] * v[i] for i in range(N))
    return x, nu, nu_i, v


def compare(run, x, nu, nu_i, v):
    assert_same(run.state.x, x)
    assert_same(run.state.nu, nu)
    states = run.client_states
    assert_same_rows({i: states[i].nu for i in states}, nu_i)
    if run.algorithm.nu_scope == "all":
        assert_same_rows({i: states[i].sent for i in states}, v)


SCHEMES = ("fedagrac", "avg", "first", "reverse")


@everywhere
@options(*({"scheme": scheme} for scheme in SCHEMES), {"nu_scope": "all"}, {"lam": 0.4})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedaGrac(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=0.3, **options))


COMBINED = product(SCHEMES, ("avg", "sent"), ("participants", "all"))
NAMES = ("scheme", "local_reference", "nu_scope")


def both_references_changed(parameters):
    """Return whether both options about references differ from their defaults."""
    options = parameters["options"]
    return options["local_reference"] == "sent" and options["nu_scope"] == "all"


@hardest
@options(*(dict(zip(NAMES, values, strict=True)) for values in COMBINED))
@pytest.mark.wide(daily=both_references_changed)
def test_combined_options(case, options):
    run = case.run(FedaGrac(lr=0.3, lam=0.8, **options))
    compare(run, *box(**case.given(), lr=0.3, lam=0.8, **options))
