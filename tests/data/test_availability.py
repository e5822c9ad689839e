"""Clients that join and leave: the laws, and what happens to the duals of those who do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.problems import bed
from tests.support.runs import distance
from undrift import testing
from undrift.data import Replaced, Resampled, Spans

UNEQUAL = np.array([0.3, 0.1, 0.25, 0.15, 0.2])


def run_with_law(algorithm: Any, law: Any, rounds: int, **options: Any) -> tuple[ud.Run, Any]:
    problem = bed(clients=5, dim=3)
    clients = ud.Clients([problem.clients[i] for i in range(5)], availability=law)
    options.setdefault("weighting", UNEQUAL)
    options.setdefault("participation", 2)
    run = ud.simulate(
        algorithm,
        problem.model(),
        clients,
        loss=problem.loss,
        work=ud.Steps([3, 5, 2, 4, 6]),
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=rounds),
        **options,
    )
    return run, problem


def test_resampled_is_constant_within_a_stage_and_changes_between() -> None:
    law = Resampled(250, every=100, seed=1)
    stages = [law.present(t, 500) for t in (0, 99, 100, 199)]
    assert all(len(np.unique(stage)) == 250 for stage in stages)
    assert np.array_equal(stages[0], stages[1])
    assert not np.array_equal(stages[0], stages[2])
    kept = len(np.intersect1d(stages[0], stages[2]))
    assert 90 < kept < 160, "about half of half stay by chance"


def test_replaced_keeps_the_number_and_replaces_about_the_share() -> None:
    law = Replaced(250, every=100, p=0.5, seed=1)
    stages = [law.present(t, 500) for t in (0, 100, 200)]
    assert all(len(np.unique(stage)) == 250 for stage in stages)
    for before, after in pairwise(stages):
        assert 90 < len(np.setdiff1d(before, after)) < 160
    assert np.array_equal(Replaced(3, 1, p=0.0).present(7, 9), Replaced(3, 1, p=0.0).present(0, 9))
    everybody = Replaced(4, 1, p=1.0)
    assert everybody.present(3, 4).tolist() == [0, 1, 2, 3], "nobody outside to come in"


def test_cohorts_are_drawn_among_those_present() -> None:
    seen: dict[int, set[int]] = {}
    law = Spans([(0, None), (0, 2), (1, None), (3, None), (0, None)])
    run, _ = run_with_law(
        ud.FedAvg(lr=0.1), law, 5, tap=lambda u: seen.setdefault(u.round, set()).add(u.client)
    )
    list(run)
    for t in range(5):
        assert seen[t + 1] <= set(law.present(t, 5).tolist())


def test_a_fraction_is_of_those_present_and_a_count_at_most_them() -> None:
    law = Spans([(0, None), (0, None), (2, None), (2, None), (2, None)])
    run, _ = run_with_law(ud.FedAvg(lr=0.1), law, 3, participation=0.5)
    assert [record.clients for record in run] == [1, 1, 2]
    run, _ = run_with_law(ud.FedAvg(lr=0.1), law, 3, participation=4)
    assert [record.clients for record in run] == [2, 2, 4]


def registered_weights(law: Any, t: int) -> torch.Tensor:
    ever = np.zeros(5, dtype=bool)
    for s in range(t + 1):
        ever[law.present(s, 5)] = True
    weights = np.where(ever, UNEQUAL, 0)
    return torch.tensor(weights / weights.sum())


DUALS = {
    "feddyn": (ud.FedDyn(lr=0.3), lambda s: s.h, lambda c: c),
    "feddc-drift": (ud.FedDC(lr=0.3, alpha=0.1), lambda s: s.h, lambda c: c.h),
    "feddc": (ud.FedDC(lr=0.3, alpha=0.1), lambda s: s.G, lambda c: c.G),
    "fedgamma": (ud.FedGamma(lr=0.3, rho=0.0), lambda s: s.c, lambda c: c),
    "scaffold": (ud.Scaffold(lr=0.3), lambda s: s.c, lambda c: c),
    "fedspeed": (ud.FedSpeed(lr=0.3, perturbation=False), lambda s: s.g_hat, lambda c: c),
    "fedagrac": (
        ud.FedaGrac(lr=0.3, scheme="avg", nu_scope="all"),
        lambda s: s.nu,
        lambda c: c.sent,
    ),
}


@pytest.mark.parametrize("name", DUALS)
def test_the_mean_of_duals_counts_the_departed_and_newcomers_as_zero(name: str) -> None:
    """At every round: server dual = sum over all ever registered of w_i dual_i."""
    algorithm, on_server, on_client = DUALS[name]
    law = Spans([(0, None), (0, 4), (2, None), (5, 9), (7, None)])
    run, _ = run_with_law(algorithm, law, 12)
    for t, _ in enumerate(run):
        weights = registered_weights(law, t)
        held = torch.zeros(5, 3, dtype=torch.float64)
        for i, state in run.client_states.items():
            held[i] = on_client(state)
        assert distance(on_server(run.state), weights @ held) < 1e-12


def test_fedadmm_counts_a_newcomers_model_as_the_first_one() -> None:
    """x = sum over all ever registered of w_i x^_i, where nobody's first x^_i is x0."""
    law = Spans([(0, None), (0, 4), (2, None), (5, 9), (7, None)])
    run, _ = run_with_law(ud.FedADMM(lr=0.3), law, 12)
    x0 = run.x.clone()
    for t, _ in enumerate(run):
        held = x0.repeat(5, 1)
        for i, state in run.client_states.items():
            held[i] = state.x_hat
        assert distance(run.x, registered_weights(law, t) @ held) < 1e-12


def test_fedadmm_leaves_newcomers_out_until_they_are_seen() -> None:
    """x = the mean of the x^_i of those seen, by their weights among all ever registered."""
    law = Spans([(0, None), (0, 4), (2, None), (5, 9), (7, None)])
    run, _ = run_with_law(ud.FedADMM(lr=0.3, average="seen"), law, 12)
    for t, _ in enumerate(run):
        weights, states = registered_weights(law, t), run.client_states
        total = sum(weights[i] for i in states)
        mean = sum(weights[i] / total * states[i].x_hat for i in states)
        assert distance(run.x, mean) < 1e-12


def test_fedagrac_with_full_gradients_averages_over_those_seen() -> None:
    law = Spans([(0, None), (0, 4), (2, None), (5, 9), (7, None)])
    run, _ = run_with_law(ud.FedaGrac(lr=0.3, start="full"), law, 12)
    for t, _ in enumerate(run):
        weights, states = registered_weights(law, t), run.client_states
        total = sum(weights[i] for i in states)
        mean = sum(weights[i] / total * states[i].sent for i in states)
        assert distance(run.state.nu, mean) < 1e-12


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("feddyn", "scaffold") else pytest.param(name, marks=pytest.mark.long)
        for name in DUALS
    ],
)
def test_after_the_last_newcomer_the_optimum_of_all_is_reached(name: str) -> None:
    algorithm, *_ = DUALS[name]
    law = Spans([(0, None), (0, None), (2, None), (5, None), (7, None)])
    run, problem = run_with_law(algorithm, law, 400, participation=3)
    list(run)
    assert distance(run.x, problem.optimum(UNEQUAL.tolist())) < 1e-6


def test_fedacg_does_not_care_who_the_clients_are() -> None:
    """No client state: the same data under other identities gives the same model."""
    problem = bed(clients=2, dim=3)
    one = ud.Clients([problem.clients[0], problem.clients[1]] * 2)
    ends = []
    for cohorts in ([[0, 1]] * 4, [[0, 1], [2, 3], [0, 3], [1, 2]]):
        run = ud.simulate(
            ud.FedACG(lr=0.2),
            problem.model(),
            one,
            loss=problem.loss,
            work=ud.Steps(3),
            rounds=4,
            participation=cohorts,
        )
        list(run)
        ends.append(run.x)
    assert distance(*ends) < 1e-12


def test_resume_in_the_middle_of_a_changing_population(tmp_path: Any) -> None:
    law = Replaced(3, every=2, p=0.5, seed=4)
    whole, _ = run_with_law(ud.Scaffold(lr=0.2), law, 9)
    list(whole)
    first, _ = run_with_law(ud.Scaffold(lr=0.2), law, 5, checkpoint=tmp_path)
    list(first)
    rest, _ = run_with_law(ud.Scaffold(lr=0.2), law, 9, resume=tmp_path)
    list(rest)
    assert torch.equal(whole.x, rest.x)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (Resampled(0, 5), "between 1 and 4 active"),
        (Resampled(9, 5), "between 1 and 4 active"),
        (Resampled(2, 0), "every >= 1"),
        (Replaced(2, 5, p=1.5), "probability"),
        (Spans([(0, None)]), "4 spans"),
        (Spans([(0, None), (3, 3), (0, None), (0, None)]), "for client 1"),
    ],
)
def test_bad_laws(law: Any, message: str) -> None:
    data = testing.small_clients()
    with pytest.raises(ValueError, match=message):
        ud.Clients([data[i] for i in range(4)], availability=law)


def test_a_round_without_anybody_is_named() -> None:
    with pytest.raises(ValueError, match="none in round 3"):
        run_with_law(ud.FedAvg(lr=0.1), Spans([(0, 2)] * 5), 4)


def test_replacement_is_fair_and_reaches_far_rounds() -> None:
    left = np.zeros(10)
    for seed in range(300):
        law = Replaced(8, 1, seed=seed)
        left[np.setdiff1d(law.present(0, 10), law.present(1, 10))] += 1
    assert left.max() / left.min() < 2, "no client id leaves more often than another"
    assert len(Replaced(5, 1).present(3000, 10)) == 5


def test_an_explicit_cohort_must_be_present() -> None:
    law = Spans([(0, None), (1, None), *[(0, None)] * 3])
    with pytest.raises(ValueError, match="present in round 1"):
        run_with_law(ud.FedAvg(lr=0.1), law, 2, participation=[[1], [1]])
