"""How often models are evaluated, and on how many samples, as a function of counts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from undrift import testing
from undrift.engine.settings import EvaluationOptions
from undrift.engine.simulate import check
from undrift.engine.tuning.frequency import (
    FEWEST_SAMPLES,
    FREE_ELEMENTS,
    RunCounts,
    all_passes,
    evaluations,
    settle,
)

OPEN = EvaluationOptions()
BIG = 2 * FREE_ELEMENTS  # elements of a sample, so that no evaluation is free


def counts(rounds: int, a_round: int, **others: Any) -> RunCounts:
    values = {"tested": 10_000, "elements": BIG, **others}
    return RunCounts(rounds=rounds, trained=rounds * a_round, **values)


def rounds_with_tests(options: EvaluationOptions, rounds: int) -> list[int]:
    return [t for t in range(1, rounds + 1) if options.due(t, rounds)]


# rounds, samples trained in a round, nodes; then every, samples and samples of each node.
TABLE = [
    (50, 20_000, 0, 1, None, None),  # 15,000 forward passes a round may be spent
    (50, 13_334, 0, 1, None, None),
    (50, 13_333, 0, 2, None, None),  # one less is not enough for a test in each round
    (50, 4_000, 0, 5, None, None),  # FedAvg's defaults on MNIST
    (1000, 4_000, 0, 5, None, None),
    (1000, 500, 0, 50, None, None),
    (20, 4_000, 20, 10, None, 500),  # NET-FLEET's: each node has a twentieth of the samples
    (20, 2_000, 20, 20, None, 250),  # two tests, and fewer samples of the nodes
    (20, 400, 20, 20, 2_000, 50),  # DSGD's: fewer of the mean as well
    (20, 10, 20, 20, 1_000, 50),  # not below what is worth something
    (1, 4_000, 0, 1, 3_000, None),
]


@pytest.mark.parametrize(("rounds", "a_round", "nodes", "every", "samples", "own"), TABLE)
def test_the_table_of_counts(
    rounds: int, a_round: int, nodes: int, every: int, samples: int | None, own: int | None
) -> None:
    run = counts(rounds, a_round, nodes=nodes)
    found = settle(OPEN, [run])
    assert (found.every, found.samples, found.node_samples) == (every, samples, own)
    assert found.first


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rounds=st.integers(1, 3000),
    a_round=st.integers(0, 200_000),
    nodes=st.integers(0, 100),
    tested=st.integers(1, 100_000),
    besides=st.integers(0, 1000),
)
def test_evaluation_is_below_a_fifth_or_as_little_as_it_can_be(
    rounds: int, a_round: int, nodes: int, tested: int, besides: int
) -> None:
    run = counts(rounds, a_round, nodes=nodes, tested=tested, besides=besides)
    found = settle(OPEN, [run])
    assert found.every is not None
    when = rounds_with_tests(found, rounds)
    assert (when[0], when[-1]) == (1, rounds)
    assert len(when) == evaluations(found, rounds)
    passes = all_passes(found, [run])
    if 5 * passes > passes + 3 * run.trained:
        least = min(tested, FEWEST_SAMPLES)
        assert when == sorted({1, rounds})
        assert found.samples == least or tested <= FEWEST_SAMPLES
        assert nodes == 0 or found.node_samples == -(-least // nodes)


def test_what_was_asked_for_is_done() -> None:
    run = counts(20, 10, nodes=20)
    for every in (1, 7, 100):
        found = settle(EvaluationOptions(every=every), [run])
        assert (found.every, found.first, found.samples) == (every, False, None)
        assert found.node_samples == 500  # left open: the nodes share the samples
    assert rounds_with_tests(EvaluationOptions(every=7), 20) == [7, 14, 20]
    assert rounds_with_tests(EvaluationOptions(every=7, first=True), 20) == [1, 7, 14, 20]
    assert settle(EvaluationOptions(samples=9_000), [run]).samples == 9_000
    assert settle(EvaluationOptions(node_samples=9), [run]).node_samples == 9
    whole = settle(EvaluationOptions(node_accuracy=True), [run])
    assert (whole.node_accuracy, whole.node_samples) == (True, None)
    assert settle(EvaluationOptions(node_accuracy=False), [run]).node_accuracy is False
    assert settle(EvaluationOptions(first=False), [counts(50, 4000)]).first is False


def test_little_work_is_done_in_every_round() -> None:
    free = counts(20, 0, nodes=5, tested=100, elements=FREE_ELEMENTS // 600)
    assert settle(OPEN, [free]) == EvaluationOptions(every=1, first=True, node_accuracy=True)
    shared = settle(OPEN, [replace(free, elements=FREE_ELEMENTS // 600 + 10)])
    assert (shared.every, shared.node_samples) == (1, 20)
    assert settle(OPEN, [replace(free, elements=BIG)]).every == 20


def test_runs_that_are_compared_are_tested_alike() -> None:
    """DSGD does a tenth of NET-FLEET's work in a round; both get the share of their mean."""
    runs = [counts(1000, 4_000, nodes=20), counts(1000, 400, nodes=20)]
    alone = [settle(OPEN, [run]).every for run in runs]
    assert alone == [10, 100]
    both = settle(OPEN, runs)
    assert both.every == 20
    assert 5 * all_passes(both, runs) <= all_passes(both, runs) + 3 * 4_400_000


def large_clients(nodes: int, test: bool = True) -> ud.Clients:
    torch.manual_seed(0)
    pairs = [(torch.rand(30 + i, 400), torch.arange(30 + i) % 3) for i in range(nodes)]
    held = (torch.rand(2_500, 400), torch.arange(2_500) % 3) if test else None
    return ud.Clients(pairs, test=held)


def test_counts_of_a_run() -> None:
    options: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "work": ud.Steps([1, 2, 3, 4]),
        "rounds": 10,
        "batch_size": 32,
    }
    model, clients = nn.Linear(400, 3), large_clients(4)
    found = check(ud.FedAvg(lr=0.1), model, clients, **options)
    seen = 1 * 30 + 2 * 31 + 3 * 32 + 4 * 32
    assert found == RunCounts(rounds=10, trained=10 * seen, tested=2_500, elements=403)
    options |= {"work": ud.Steps(2), "topology": ud.topology.ring(4)}
    evaluation = EvaluationOptions(train_loss=True, gradient_norm=True)
    found = check(ud.DSGD(lr=0.1), model, large_clients(4, test=False),
                  evaluation=evaluation, **options)  # fmt: skip
    held = 30 + 31 + 32 + 33
    assert (found.nodes, found.tested, found.besides) == (4, held, 4 * held)


def test_a_run_says_and_does_what_was_settled() -> None:
    run = testing.start(
        ud.DSGD(lr=0.1), model=nn.Linear(400, 3), clients=large_clients(4), rounds=30,
        evaluation=EvaluationOptions(),
    )  # fmt: skip
    records = list(run)
    tested = [r.round for r in records if r.accuracy is not None]
    assert tested == [1, 30]
    assert [r.round for r in records if r.node_accuracy is not None] == tested  # type: ignore[attr-defined]
    assert run.tests.startswith("in the first and the last round on 1000 of 2500 samples, each")
    assert run.totals.evaluation_seconds == pytest.approx(
        sum(r.evaluation_seconds for r in records)
    )
