"""Metrics of records against values by hand and closed forms."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import undrift as ud
from undrift.results import metrics
from undrift.results.metrics import (
    SMOOTHINGS,
    at_round,
    best,
    best_so_far,
    cost_to,
    cumulative,
    curve,
    ema,
    last,
    rounds_to,
    spread,
    stationarity,
    variation,
    window,
)
from undrift.results.record import PeerRecord, Record
from undrift.results.trial import Trial
from undrift.testing import start

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
sequences = st.lists(numbers, min_size=1, max_size=40)


def records(accuracies: Sequence[float | None], **other: Any) -> list[Record]:
    """Rounds that cost 10 bytes up, 1 down, 3 gradients, 6 samples and half a second each."""
    return [
        Record(t, 2, None if a is None else 1 - a, a, 10, 1, 3, 6, 0.5, **other)
        for t, a in enumerate(accuracies, 1)
    ]


def peer(gradient_norm: float | None, consensus: float | None) -> PeerRecord:
    extra = {"bytes_per_worker": 1, "bytes_per_link": 1, "hops": 1}
    none = dict.fromkeys(("node_accuracy", "bits", "sign_matching"))
    costs = (1, 2, 0.5, 0.5, 10, 1, 3, 6, 0.5)
    return PeerRecord(*costs, gradient_norm=gradient_norm, consensus=consensus, **extra, **none)


SWING = records([0.2, None, 0.6, 0.4, None, 0.8, 0.7])  # evaluated in rounds 1, 3, 4, 6, 7


def test_ema_starts_at_the_first_value() -> None:
    assert ema([1.0, 0.0, 0.0, 1.0], 0.5) == [1.0, 0.5, 0.25, 0.625]
    assert ema([0.5, 1.0]) == pytest.approx([0.5, 0.55])
    assert ema([]) == []


@given(sequences, st.floats(0, 0.99))
def test_ema_is_a_weighted_mean_of_the_past(values: list[float], decay: float) -> None:
    n = len(values)
    weights = [(1 - decay) * decay ** (n - 1 - k) for k in range(n)]
    weights[0] = decay ** (n - 1)  # the first value stands for all that was before
    expected = math.fsum(w * v for w, v in zip(weights, values, strict=True))
    assert ema(values, decay)[-1] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_window_averages_as_many_as_there_are() -> None:
    assert window([4.0, 2.0, 0.0, 7.0], 3) == [4.0, 3.0, 2.0, 3.0]
    assert window([1.0, 2.0], 1) == [1.0, 2.0]
    assert window(list(map(float, range(1, 13))))[-1] == 7.5  # 3 to 12
    assert window([]) == []


@given(sequences, st.integers(1, 50))
def test_window_equals_the_mean_of_the_slice(values: list[float], size: int) -> None:
    expected = [statistics.fmean(values[: n + 1][-size:]) for n in range(len(values))]
    assert window(values, size) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(sequences)
def test_best_so_far_is_the_largest_up_to_there(values: list[float]) -> None:
    assert best_so_far(values) == [max(values[: n + 1]) for n in range(len(values))]


def test_best_so_far_passes_over_nan() -> None:
    assert best_so_far([math.nan, 0.3, math.nan, 0.5])[1:] == [0.3, 0.3, 0.5]
    assert best_so_far([]) == []


@pytest.mark.parametrize(
    ("smoothing", "expected"),
    [
        ("raw", (0.2, 0.6, 0.4, 0.8, 0.7)),
        ("ema", (0.2, 0.276, 0.2884, 0.385604, 0.4170436)),  # of rounds 1 to 7
        ("window", (0.2, 0.4, 0.4, 0.5, 0.54)),
        ("best", (0.2, 0.6, 0.6, 0.8, 0.8)),
    ],
)
def test_curve_of_evaluated_rounds(smoothing: str, expected: tuple[float, ...]) -> None:
    line = curve(SWING, smoothing=smoothing)
    assert line.rounds == (1, 3, 4, 6, 7)
    assert line.values == pytest.approx(expected)
    assert set(metrics.SMOOTHINGS) == {"raw", "ema", "window", "best"}


def test_the_best_of_a_loss_is_its_smallest() -> None:
    assert curve(SWING, "loss", "best").values == pytest.approx((0.8, 0.4, 0.4, 0.2, 0.2))
    assert curve(SWING, "loss", "ema").values == pytest.approx(
        [1 - a for a in curve(SWING, "accuracy", "ema").values]
    )
    assert best(SWING, "loss") == pytest.approx(0.2)
    assert best(SWING) == 0.8


def test_any_number_of_a_record_is_a_metric() -> None:
    assert curve(SWING, "bytes_up").values == (10.0,) * 7
    assert curve(SWING, "consensus").values == ()  # not measured by this family
    assert curve([peer(3.0, 2.0), peer(None, 2.0)], "stationarity").values == (11.0,)
    assert curve([peer(3.0, 2.0)], "gradient_norm").values == (3.0,)


@pytest.mark.parametrize(
    ("smoothing", "target", "expected"),
    [
        ("raw", 0.6, 3),
        ("raw", 0.61, 6),
        ("raw", 0.81, None),
        ("ema", 0.3, 6),
        ("ema", 0.45, None),
        ("window", 0.5, 6),
        ("window", 0.54, 7),
        ("best", 0.7, 6),
    ],
)
def test_rounds_to_target(smoothing: str, target: float, expected: int | None) -> None:
    assert rounds_to(SWING, target - 1e-12, smoothing) == expected


def test_rounds_to_a_loss_is_the_first_at_or_below() -> None:
    assert rounds_to(SWING, 0.4 + 1e-12, metric="loss") == 3
    assert rounds_to(SWING, 0.3, metric="loss") == 6
    assert rounds_to(SWING, 0.1, metric="loss") is None
    assert rounds_to([peer(3.0, 2.0)], 11.0, metric="stationarity") == 1


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30), st.floats(0, 1))
def test_best_so_far_reaches_a_target_when_the_raw_curve_does(
    accuracies: list[float | None], target: float
) -> None:
    run = records(accuracies)
    reached = rounds_to(run, target)
    assert rounds_to(run, target, "best") == reached
    if reached is not None:
        assert run[reached - 1].accuracy >= target  # type: ignore[operator]
        assert all(r.accuracy is None or r.accuracy < target for r in run[: reached - 1])


@pytest.mark.parametrize(
    ("cost", "each"),
    [("bytes", 11), ("gradients", 3), ("samples", 6), ("seconds", 0.5), ("simulated_seconds", 4)],
)
def test_costs_add_up_to_the_round_that_reached(cost: str, each: float) -> None:
    run = records([0.2, None, 0.6, 0.4], simulated_seconds=4.0)
    assert cumulative(run, cost) == [each, 2 * each, 3 * each, 4 * each]
    assert cost_to(run, 0.5, cost) == 3 * each
    assert cost_to(run, 0.9, cost) is None
    assert cost_to(run, 0.4, cost, "window") == 3 * each
    assert cost_to(run, 0.5, cost, metric="loss") == 3 * each
    assert cumulative([], cost) == []


def test_costs_are_those_of_the_records_not_of_their_number() -> None:
    run = records([0.2, 0.6])
    later = [Record(9, 2, 0.1, 0.9, 100, 0, 50, 70, 2.0)]  # a record that rounds were left out of
    assert cost_to(run + later, 0.8, "bytes") == 122
    assert cost_to(run + later, 0.8, "seconds") == 3.0


def test_at_round_takes_the_last_evaluation_before() -> None:
    assert at_round(SWING, 5) == 0.4
    assert at_round(SWING, 6) == 0.8
    assert at_round(SWING, 1000) == 0.7
    assert at_round(SWING, 5, "best") == 0.6
    assert at_round(SWING, 6, metric="loss") == pytest.approx(0.2)
    assert at_round(SWING, 0) is None


def test_last_and_variation_go_by_rounds_however_often_a_run_is_tested() -> None:
    rising = [k / 100 for k in range(1, 51)]
    fifth = records([v if t == 1 or t % 5 == 0 else None for t, v in enumerate(rising, 1)])
    assert last(fifth) == pytest.approx((0.45 + 0.50) / 2)
    assert last(fifth, 11) == pytest.approx((0.40 + 0.45 + 0.50) / 3)
    assert last(records([0.1, *18 * [None], 0.9])) == 0.9  # the first round is not among ten
    apart = [0, 2, 14 / 3, *8 * [2.5]]  # points from the mean of the tests within ten rounds
    assert variation(fifth) == pytest.approx(sum(a**2 for a in apart) / 11)
    trial = Trial("A", "A", {}, 0, 50, records=fifth)
    assert trial.recent("accuracy") == last(fifth)
    assert rounds_to(fifth, 0.31) == 35
    assert rounds_to(fifth, 0.31, "best") == 35


def test_costs_of_training_and_evaluation() -> None:
    tested = records([0.1, None, 0.8], evaluation_seconds=0.25)
    assert cost_to(tested, 0.8, "seconds") == 1.5
    assert cost_to(tested, 0.8, "evaluation_seconds") == 0.75
    assert cost_to(tested, 0.8, "all_seconds") == 2.25


def test_last_is_the_mean_of_the_last_evaluations() -> None:
    assert last(SWING, 2) == pytest.approx(0.75)
    assert last(SWING) == pytest.approx(0.54)
    long = records([k / 100 for k in range(30)])
    assert last(long) == pytest.approx(0.245)
    assert last(long, metric="loss") == pytest.approx(0.755)


def test_nothing_evaluated_gives_none() -> None:
    nothing = records([None, None])
    results = [best(nothing), last(nothing), variation(nothing), at_round(nothing, 2)]
    assert [*results, rounds_to(nothing, 0.0), cost_to(nothing, 0.0, "bytes")] == [None] * 6


def test_variation_by_hand() -> None:
    # Averages of two: 50, 60, 60, 55; distances 0, 10, -10, 5 points; squares sum to 225.
    assert variation(records([0.5, 0.7, 0.5, 0.6]), 2) == pytest.approx(225 / 4)
    assert variation(records([0.5] * 30)) == 0.0
    # A swing between 0 and 1 is half a point of a hundred from its average of two, always.
    assert variation(records([0.0, 0.01] * 50), 2) == pytest.approx(0.25 * 99 / 100)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=25), st.floats(-0.5, 0.5))
def test_variation_does_not_see_a_shift(accuracies: list[float], shift: float) -> None:
    moved = [a + shift for a in accuracies]
    assert variation(records(moved)) == pytest.approx(variation(records(accuracies)), abs=1e-9)


def test_stationarity_squares_the_norm_but_not_the_consensus() -> None:
    assert stationarity(peer(3.0, 2.0)) == 11.0
    assert stationarity(peer(None, 2.0)) is None
    assert stationarity(peer(3.0, None)) is None
    assert stationarity(SWING[0]) is None


def test_stationarity_of_a_run_is_that_of_its_models() -> None:
    problem = ud.data.quadratics(4, 3, seed=1)
    run = ud.simulate(
        ud.DSGD(lr=0.05),
        problem.model(),
        problem.clients,
        loss=problem.loss,
        topology=ud.topology.ring(4),
        work=ud.Steps(1),
        batch_size=None,
        rounds=3,
        evaluation=ud.EvaluationOptions(gradient_norm=True),
    )
    *_, record = run
    mean = run.x.mean(0)
    g = sum(A @ (mean - b) for A, b in zip(problem.A, problem.b, strict=True)) / 4
    expected = float(g @ g + (run.x - mean).square().sum(1).mean())
    assert expected > 1e-3
    assert stationarity(record) == pytest.approx(expected, rel=1e-10)


def test_metrics_of_a_run_that_is_evaluated_every_other_round() -> None:
    run = start(ud.FedAvg(lr=0.1), rounds=5, evaluation=ud.EvaluationOptions(every=2))
    done = list(run)
    assert curve(done).rounds == (2, 4, 5)
    assert cumulative(done, "gradients")[-1] == run.totals.gradients
    assert cumulative(done, "bytes")[-1] == run.totals.bytes_up + run.totals.bytes_down
    assert last(done, 1) == done[-1].accuracy


def test_spread_divides_by_n_minus_one() -> None:
    assert spread([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7)))
    assert spread([0.25]) == (0.25, None)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "metric": (lambda: curve(SWING, "acuracy"), "got 'acuracy'; the nearest is 'accuracy'"),
    "smoothing": (lambda: curve(SWING, smoothing="emma"), "got 'emma'; the nearest is 'ema'"),
    "cost": (lambda: cumulative(SWING, "byte"), "got 'byte'; the nearest is 'bytes'"),
    "no-clock": (
        lambda: cost_to(SWING, 0.5, "simulated_seconds"),
        "cumulative needs records with simulated_seconds, got none; run with a fleet",
    ),
    "target": (lambda: rounds_to(SWING, math.nan), "a finite number as target, got nan"),
    "decay": (lambda: ema([1.0], 1.0), "ema needs decay in [0, 1), got 1.0"),
    "window": (lambda: window([1.0], 0), "window needs size >= 1, a whole number, got 0"),
    "count": (lambda: last(SWING, 0), "last needs count >= 1, a whole number, got 0"),
    "round": (lambda: at_round(SWING, 2.5), "a whole number as round, got 2.5"),  # type: ignore[arg-type]
    "spread": (lambda: spread([]), "spread needs at least one value, got []"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=list(BAD))
def test_bad_input_is_answered(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_mean_over_rounds_is_of_those_within_its_size() -> None:
    rounds = [1, 2, 4, 7, 11, 12, 13, 21, 40]
    values = [float(round) for round in rounds]
    means = SMOOTHINGS["window"](rounds, values)
    for now, mean in zip(rounds, means, strict=True):
        recent = [value for value in values if now - 10 < value <= now]
        assert mean == math.fsum(recent) / len(recent)


def test_the_end_of_a_long_run_takes_no_time_that_grows_with_its_square() -> None:
    rounds = range(1, 60_001)
    begun = time.process_time()
    means = SMOOTHINGS["window"](rounds, [float(round) for round in rounds])
    assert time.process_time() - begun < 5  # and took minutes
    assert means[-1] == 60_000 - 4.5
