"""Intervals, paired tests and Holm's correction, against formulas, scipy and tables."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from scipy import stats

from undrift.results.statistics import holm, interval, paired

A = {0: 80.0, 1: 81.0, 2: 79.5, 3: 80.5, 4: 82.0}
B = {0: 82.1, 1: 82.6, 2: 82.0, 3: 82.0, 4: 84.3}


def test_an_interval_is_that_of_the_t_table() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    # 2.776 is the 97.5 % quantile of t with 4 degrees of freedom in every printed table.
    half = 2.776 * math.sqrt(2.5 / 5)
    assert found.mean == 3.0
    assert found.low == pytest.approx(3.0 - half, abs=1e-3)
    assert found.high == pytest.approx(3.0 + half, abs=1e-3)
    assert interval([1.0, 2.0], level=0.9).high == pytest.approx(1.5 + 6.314 * 0.5, abs=1e-3)


def test_an_interval_agrees_with_scipy() -> None:
    values = list(B.values())
    low, high = stats.t.interval(0.99, 4, loc=sum(values) / 5, scale=stats.sem(values))
    found = interval(values, level=0.99)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_one_value_has_no_interval_and_diverged_ones_are_counted() -> None:
    assert (interval([3.0]).mean, interval([3.0]).low) == (3.0, None)
    lost = interval([3.0, 4.0, math.nan])
    assert (lost.mean, lost.low, lost.count, lost.diverged) == (3.5, None, 2, 1)
    assert interval([]).mean is None
    with pytest.raises(ValueError, match="level between 0 and 1"):
        interval([1.0, 2.0], level=95)


def test_a_paired_difference_is_scipys() -> None:
    (found,) = paired({"FedAvg": A, "FedACG": B}, "FedAvg")
    expected = stats.ttest_rel(list(B.values()), list(A.values()))
    assert found.tested.p == pytest.approx(expected.pvalue)
    assert found.tested.adjusted == found.tested.p
    low, high = expected.confidence_interval(0.95)
    assert found.tested.plain.low == pytest.approx(low)
    assert found.tested.plain.high == pytest.approx(high)
    assert found.tested.plain == found.tested.corrected
    assert found.ahead
    assert found.sentence == (
        "FedACG is ahead of FedAvg by 2.0 points, 95 % interval 1.5 to 2.5, five seeds"
    )


def test_only_seeds_of_both_count() -> None:
    (found,) = paired({"a": A, "b": {1: 82.0, 2: 80.0, 9: 0.0}}, "a")
    assert found.seeds == (1, 2)
    assert found.tested.plain.mean == pytest.approx(0.75)
    (none,) = paired({"a": {0: 1.0}, "b": {1: 1.0}}, "a")
    assert none.sentence == "b and a have no seed in common"


def test_what_is_not_shown_says_so() -> None:
    noisy = {0: 80.9, 1: 80.6, 2: 79.9, 3: 80.3, 4: 82.4}
    (found,) = paired({"FedAvg": A, "FedProx": noisy}, "FedAvg")
    assert found.ahead is None
    assert found.sentence == (
        "no difference between FedProx and FedAvg was shown (95 % interval -0.4 to 0.9, five seeds)"
    )


def test_where_less_is_better_a_negative_difference_is_ahead() -> None:
    first, second = {0: 100.0, 1: 120.0, 2: 110.0}, {0: 60.0, 1: 81.0, 2: 69.0}
    (found,) = paired({"a": first, "b": second}, "a", better="lower", unit="rounds")
    assert found.tested.plain.mean == pytest.approx(-40.0)
    assert found.sentence == (
        "b is ahead of a by 40.0 rounds, 95 % interval 37.5 to 42.5, three seeds"
    )
    (back,) = paired({"b": second, "a": first}, "b", better="lower", unit="rounds")
    assert back.ahead is False
    assert back.sentence == (
        "a is behind b by 40.0 rounds, 95 % interval 37.5 to 42.5, three seeds"
    )


def test_holm_by_hand() -> None:
    """Three samples whose p are held against 0.05 / 3, 0.05 / 2 and 0.05."""
    samples = {"c": [0.1, 2.0, 1.3], "a": [1.0, 1.1, 1.2], "b": [1.0, 1.7, 1.2]}
    p = {name: stats.ttest_1samp(values, 0).pvalue for name, values in samples.items()}
    assert p["a"] < 0.05 / 3 < p["b"] < 0.05 / 2 < 0.05 < p["c"]
    found = holm(samples)
    assert list(found) == ["c", "a", "b"]
    assert found["a"].adjusted == pytest.approx(3 * p["a"])
    assert found["b"].adjusted == pytest.approx(2 * p["b"])
    assert found["c"].adjusted == pytest.approx(p["c"])
    levels = {name: found[name].corrected.level for name in "abc"}
    assert levels == pytest.approx({"a": 1 - 0.05 / 3, "b": 1 - 0.05 / 2, "c": 0.95})
    assert [found[name].shown for name in "abc"] == [True, True, False]


def test_after_a_failure_nothing_is_shown_and_intervals_agree() -> None:
    """The second p is below 0.05, its own bound, but the first is above 0.05 / 2."""
    samples = {"a": [1.0, 1.5, 2.0, 0.3], "b": [1.0, 1.6, 2.0, 0.3]}
    found = holm(samples)
    assert all(0.025 < (found[name].p or 0) < 0.05 for name in samples)
    for each in found.values():
        assert not each.shown
        assert each.corrected.level == pytest.approx(0.975)
        assert (each.corrected.low or 0) < 0 < (each.plain.low or 0)
    assert found["a"].adjusted == found["b"].adjusted > 0.05


def test_equal_values_differ_by_exactly_zero() -> None:
    (found,) = paired({"a": A, "b": A}, "a")
    assert (found.tested.p, found.tested.plain.low, found.tested.plain.high) == (1.0, 0.0, 0.0)
    assert found.ahead is None
    assert found.sentence == (
        "no difference between b and a was shown (95 % interval 0.0 to 0.0, five seeds)"
    )


def test_the_same_difference_in_every_seed_is_shown() -> None:
    """Bytes do not depend on the seed."""
    (found,) = paired({"a": {0: 8.0, 1: 8.0}, "b": {0: 5.0, 1: 5.0}}, "a", unit="MB")
    assert (found.tested.p, found.tested.shown, found.tested.side) == (0.0, True, -1)


def test_one_seed_shows_nothing() -> None:
    (found,) = paired({"FedAvg": {0: 80.0}, "FedACG": {0: 82.0}}, "FedAvg")
    assert found.ahead is None
    assert found.sentence == (
        "FedACG is ahead of FedAvg by 2.0 points in one seed, which shows no difference"
    )
    (level,) = paired({"a": {0: 80.0}, "b": {0: 80.0}}, "a")
    assert level.sentence == "b is level with a in one seed, which shows no difference"


def test_a_run_that_diverged_is_behind_in_its_seed() -> None:
    lost = {**A, 1: math.nan}
    (found,) = paired({"FedAvg": lost, "FedACG": B}, "FedAvg")
    assert (found.tested.signs, found.tested.p, found.ahead) == (True, None, True)
    assert found.sentence.startswith("FedACG is ahead of FedAvg in all five seeds (there is no")
    (mixed,) = paired({"FedAvg": {**lost, 0: 90.0}, "FedACG": B}, "FedAvg")
    assert (mixed.ahead, mixed.tested.side) == (None, 0)
    (few,) = paired({"a": {0: math.nan, 1: math.nan}, "b": {0: 1.0, 1: 1.0}}, "a")
    assert few.ahead is None
    (both,) = paired({"a": dict.fromkeys(A, math.nan), "b": dict.fromkeys(A, math.nan)}, "a")
    assert both.tested.plain.mean == 0.0
    assert both.ahead is None


def test_a_difference_without_size_counts_among_the_comparisons() -> None:
    found = paired({"a": A, "b": B, "c": dict.fromkeys(A, math.nan)}, "a")
    assert found[0].tested.corrected.level == pytest.approx(0.975)
    assert "corrected for two comparisons, five seeds" in found[0].sentence
    assert found[1].ahead is False


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="first"):
        paired({"a": A}, "b")
    with pytest.raises(ValueError, match="better"):
        paired({"a": A}, "a", better="more")


def test_scipy_is_loaded_only_when_it_is_needed() -> None:
    code = "import sys, undrift.results.statistics; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
