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
from undrift import FedaGrac, testing


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
    nu_scope="all",
    start="zero",
):
    """The box, with our own line numbers; it begins with nu = nu_i = 0, or as Section 4.4 says:

    0  client in its first round: nu_i = grad F_i(x);  server: nu = mean of all nu_i so far

    1  server: broadcast x, nu and K = sum_i w_i K_i over S
    2  client, K_i times from y = x: y <- y - lr (g_i(y) + lam (nu - nu_i))
    3  client: avg = mean of the gradients, first = the gradient of step 0
    4  client: send y, and v_i = first if K_i > K else avg;  nu_i <- avg
    5  server: x <- sum_S w_i y_i
    6  server: nu <- sum_S w_i v_i
    """
    N, d = b.shape
    x, nu, nu_i, v = np.zeros(d), np.zeros(d), np.zeros((N, d)), np.zeros((N, d))
    seen = set() if start == "full" else set(range(N))
    for S in cohorts:
        new = [i for i in S if i not in seen]
        for i in new:
            nu_i[i] = v[i] = A[i] @ (x - b[i])  # line 0
        if new and nu_scope == "all":
            seen.update(new)
            nu = sum(w[i] * v[i] for i in seen) / sum(w[i] for i in seen)  # line 0
        elif not seen:
            nu = sum(w[i] * nu_i[i] for i in S) / sum(w[i] for i in S)  # line 0
        seen.update(new)
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
        else:  # what the absent sent last; from "zero" on those who never sent count as zeros
            nu = sum(w[i] * v[i] for i in seen) / sum(w[i] for i in seen)
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
@options(
    *({"scheme": scheme} for scheme in SCHEMES),
    {"nu_scope": "participants"},
    {"lam": 0.4},
    {"lam": 1.3},
    {"start": "full"},
)
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedaGrac(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=0.3, **options))


COMBINED = product(SCHEMES, ("avg", "sent"), ("participants", "all"), ("zero", "full"))
NAMES = ("scheme", "local_reference", "nu_scope", "start")


def all_references_changed(parameters):
    """Return whether all options about references differ from their defaults."""
    options = parameters["options"]
    changed = options["local_reference"] == "sent" and options["nu_scope"] == "participants"
    return changed and options["start"] == "full"


@hardest
@options(*(dict(zip(NAMES, values, strict=True)) for values in COMBINED))
@pytest.mark.wide(daily=all_references_changed)
def test_combined_options(case, options):
    run = case.run(FedaGrac(lr=0.3, lam=0.8, **options))
    compare(run, *box(**case.given(), lr=0.3, lam=0.8, **options))


def test_full_start_asks_each_client_once_and_counts_what_travels():
    """A vector goes down and comes up for each new client, and a pass over its data is counted."""
    clients = testing.small_clients()
    cohorts = [[0, 1], [1, 2], [0, 2], [3]]
    new = [[0, 1], [2], [], [3]]
    runs = [
        testing.start(FedaGrac(lr=0.1, start=start), participation=cohorts, clients=clients)
        for start in ("zero", "full")
    ]
    for run in runs:
        testing.finish(run)
    zero, full = (run.records for run in runs)
    vector = runs[0].x.numel() * 8
    for plain, asked, fresh in zip(zero, full, new, strict=True):
        assert asked.bytes_up - plain.bytes_up == len(fresh) * vector
        assert asked.bytes_down - plain.bytes_down == len(fresh) * vector
        assert asked.samples - plain.samples == sum(clients.sizes[i] for i in fresh)


def test_full_start_runs_between_processes():
    """Processes know the states of their own clients only, and must agree who is new."""
    cohorts = [[0, 2], [1, 2], [0, 1], [3, 2]]
    one, two = (
        testing.start(FedaGrac(lr=0.1, start="full"), participation=cohorts, processes=n)
        for n in (None, 2)
    )
    with two:
        apart = (testing.finish(one) - testing.finish(two)).abs().max()
        assert apart < 1e-13
        assert [r.bytes_up for r in one.records] == [r.bytes_up for r in two.records]
