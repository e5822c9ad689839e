"""Closed forms of the baselines on quadratics are where their runs end."""

from __future__ import annotations

import numpy as np
import pytest

import undrift as ud
from undrift.theory import Constants, Verdict, dsgd, fedavg, fednova, ldsgd
from undrift.theory.quadratic import optimum

STEPS = [1, 2, 4]


def end(method, problem, rounds=4000, **options):
    run = ud.simulate(
        method,
        problem.model(),
        problem.clients,
        loss=problem.loss,
        rounds=rounds,
        kernels=False,
        mode="stacked",
        evaluation=ud.EvaluationOptions(every=rounds),
        **options,
    )
    for _ in run:
        pass
    return run.state.x.numpy()


@pytest.mark.parametrize(("method", "module"), [(ud.FedAvg, fedavg), (ud.FedNova, fednova)])
def test_runs_end_at_the_fixed_point(method, module) -> None:
    problem = ud.data.quadratics(3, 2, condition=2.0)
    found = end(method(lr=0.3), problem, rounds=60, work=ud.Steps(STEPS), weighting="uniform")
    point = module.fixed_point(problem.A, problem.b, lr=0.3, steps=STEPS)
    assert found == pytest.approx(point, abs=1e-8)
    assert np.linalg.norm(point - optimum(problem.A, problem.b)) > 1e-3


def test_fedavg_contracts_at_its_rate() -> None:
    problem = ud.data.quadratics(3, 2)
    point = fedavg.fixed_point(problem.A, problem.b, lr=0.3, steps=STEPS)
    rate = fedavg.rate(problem.A, lr=0.3, steps=STEPS)
    near, far = (
        np.linalg.norm(
            end(ud.FedAvg(lr=0.3), problem, rounds=t, work=ud.Steps(STEPS), weighting="uniform")
            - point
        )
        for t in (13, 12)
    )
    assert near / far == pytest.approx(rate, rel=1e-2)


@pytest.mark.parametrize(("method", "steps"), [("dsgd", 1), ("ldsgd", 3)])
def test_gossip_ends_at_a_point_that_is_no_consensus(method, steps) -> None:
    problem, topology = ud.data.quadratics(4, 2, condition=3.0), ud.topology.ring(4)
    if method == "dsgd":
        algorithm, point = (
            ud.DSGD(lr=0.2),
            dsgd.fixed_point(problem.A, problem.b, lr=0.2, W=topology.W),
        )
    else:
        algorithm, point = (
            ud.LDSGD(lr=0.2),
            ldsgd.fixed_point(problem.A, problem.b, lr=0.2, steps=steps, W=topology.W),
        )
    found = end(algorithm, problem, rounds=120, work=ud.Steps(steps), topology=topology)
    assert found == pytest.approx(point, abs=1e-6)
    assert np.ptp(point, axis=0).max() > 1e-2


def test_dsgd_has_a_largest_step() -> None:
    W = ud.topology.ring(4).W
    limit = 1 + np.linalg.eigvalsh(W)[0]
    below, above = (
        dsgd.conditions(Constants(1.0), lr=f * limit, W=W)[0].verdict for f in (0.99, 1.01)
    )
    assert (below, above) == (Verdict.HOLDS, Verdict.VIOLATED)
