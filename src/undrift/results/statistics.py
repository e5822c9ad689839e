"""Means over seeds with Student t intervals, and paired differences with Holm's correction.

Methods are compared seed by seed: with one seed they have the same data, cohorts and batches, so
the difference within a seed has less noise than the difference of two means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from undrift.check import is_finite, require, require_choice

LEVEL = 0.95
FEWEST_SIGNS = 3  # seeds that must agree where a value has no size, so that there is no interval
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Interval:
    """Holds a mean and its t interval, which a single value does not have.

    Values that are not finite, those of runs that diverged, are counted and are not in the mean;
    there is no interval beside them, because it would leave out the failures.
    """

    mean: float | None  # None if no value is finite
    low: float | None
    high: float | None
    count: int  # finite values
    level: float = LEVEL
    diverged: int = 0  # values that are not finite

    @property
    def text(self) -> str:
        """Return the interval such as "1.2 to 2.8", or "" if there is none."""
        if self.low is None or self.high is None:
            return ""
        digits = _digits(self)
        return f"{_plain(self.low, digits)} to {_plain(self.high, digits)}"

    @property
    def mean_text(self) -> str:
        """Return the mean with as many decimals, or "" if there is none."""
        return "" if self.mean is None else _plain(self.mean, _digits(self))


@dataclass(frozen=True)
class Tested:
    """Says whether the mean of some differences is shown to be above or below zero.

    `side` is the sign of the mean, or the sign in all seeds where a difference has no size.
    """

    plain: Interval  # at the level that was asked for
    corrected: Interval  # at the level that Holm's correction leaves, which may be higher
    p: float | None  # of the two-sided t test; None without an interval
    adjusted: float | None  # p after Holm's correction
    shown: bool  # whether the corrected interval excludes zero
    side: int  # 1, -1 or 0
    signs: bool = False  # whether signs decided, because a difference has no size

    @property
    def shown_alone(self) -> bool:
        """Return whether the plain interval excludes zero, as if nothing else was compared."""
        low, high = self.plain.low, self.plain.high
        if self.signs or low is None or high is None:
            return self.shown
        return low > 0 or high < 0


@dataclass(frozen=True)
class Difference:
    """Holds how far one label is ahead of the first, over the seeds that both have."""

    label: str
    first: str
    seeds: tuple[int, ...]
    tested: Tested  # positive: the label's value minus the first's
    ahead: bool | None  # whether the label is better; None where that is not shown
    sentence: str  # for a reader to quote


@dataclass(frozen=True)
class _Words:
    """Holds what sentences about differences need besides the numbers."""

    better: str
    unit: str
    comparisons: int


def interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean of the values and its Student t interval."""
    require(is_finite(level) and 0 < level < 1, "An interval", "a level between 0 and 1", level)
    finite = [float(value) for value in values if math.isfinite(value)]
    count, lost = len(finite), len(values) - len(finite)
    mean = fmean(finite) if finite else None
    if mean is None or count < 2 or lost:
        return Interval(mean, None, None, count, level, lost)
    half = _t_quantile(level, count - 1) * stdev(finite) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count, level)


def holm(samples: Mapping[str, Sequence[float]], level: float = LEVEL) -> dict[str, Tested]:
    """Return for each set of differences whether its mean is shown to be above or below zero.

    Holm: the k-th smallest of m values of p is held against (1 - level) / (m - k + 1), and nothing
    is shown after the first that is larger. The intervals have the same levels, that of the first
    failure from there on, so an interval excludes zero exactly if the difference is shown. An
    infinite difference has no size, and NaN none that is known: all seeds, three at least, must
    then have the same sign.
    """
    plain = {name: interval(values, level) for name, values in samples.items()}
    p = {name: _p_value(samples[name], each) for name, each in plain.items()}
    order = sorted(samples, key=lambda name: (p[name] is None, p[name] or 0.0))
    found: dict[str, Tested] = {}
    adjusted, share, failed = 0.0, 1.0, False
    for position, name in enumerate(order):
        left = len(order) - position
        value = p[name]
        if value is None:
            found[name] = _by_signs(samples[name], plain[name])
            continue
        adjusted = max(adjusted, min(1.0, left * value))
        share = share if failed else (1 - level) / left
        failed = failed or value >= share
        corrected = interval(samples[name], 1 - share)
        side = _side(plain[name])
        found[name] = Tested(plain[name], corrected, value, adjusted, not failed, side)
    return {name: found[name] for name in samples}


def paired(
    values: Mapping[str, Mapping[int, float]],
    first: str,
    *,
    level: float = LEVEL,
    better: str = "higher",
    unit: str = "points",
) -> list[Difference]:
    """Return the differences of every other label to the first, over the seeds that both have.

    `values` are by label and seed, in `unit`s, so an accuracy comes in per cent. NaN stands for a
    run that diverged; it is behind every number, and two of them are level.
    """
    require_choice("paired", "first", first, values)
    require_choice("paired", "better", better, ("higher", "lower"))
    others = [label for label in values if label != first]
    seeds = {o: tuple(sorted({*values[o]} & {*values[first]})) for o in others}
    samples = {
        label: [_gap(values[label][s], values[first][s], better) for s in seeds[label]]
        for label in others
    }
    results, words = holm(samples, level), _Words(better, unit, len(others))
    return [_difference(o, first, seeds[o], results[o], words) for o in others]


def count_text(count: int, what: str) -> str:
    """Return a number of things in words, such as "five seeds"."""
    number = _WORDS[count] if count < len(_WORDS) else f"{count:,}"
    return f"{number} {what}{'' if count == 1 else 's'}"


def _difference(
    label: str, first: str, seeds: tuple[int, ...], tested: Tested, words: _Words
) -> Difference:
    forward = (tested.side > 0) == (words.better == "higher")
    pair = (label, "is ahead of" if forward else "is behind", first)
    ahead = forward if tested.shown else None
    return Difference(
        label, first, seeds, tested, ahead, _sentence(pair, len(seeds), tested, words)
    )


def _sentence(pair: tuple[str, str, str], seeds: int, tested: Tested, words: _Words) -> str:
    """Return what was found in one sentence without a full stop; its interval is corrected."""
    label, is_ahead, first = pair
    over = count_text(seeds, "seed")
    if seeds == 0:
        return f"{label} and {first} have no seed in common"
    if tested.signs:
        why = "there is no interval, because a run diverged or missed its target"
        if tested.shown:
            return f"{' '.join(pair)} in all {over} ({why})"
        return f"no difference between {label} and {first} was shown ({why}; {over})"
    found, digits = tested.corrected, _digits(tested.corrected)
    unit = f" {words.unit}" if words.unit else ""
    gap = f"{_plain(abs(found.mean or 0.0), digits)}{unit}"
    if found.low is None or found.high is None:
        lead = f"{' '.join(pair)} by {gap}" if tested.side else f"{label} is level with {first}"
        return f"{lead} in one seed, which shows no difference"
    # A reader sees positive numbers for what is ahead, and for what a sentence calls behind.
    turned = (words.better == "lower") != (tested.shown and is_ahead == "is behind")
    low, high = (-found.high, -found.low) if turned else (found.low, found.high)
    ends = (
        f"{100 * tested.plain.level:g} % interval {_plain(low, digits)} to {_plain(high, digits)}"
    )
    if words.comparisons > 1:
        ends += f" corrected for {count_text(words.comparisons, 'comparison')}"
    if tested.shown:
        return f"{' '.join(pair)} by {gap}, {ends}, {over}"
    return f"no difference between {label} and {first} was shown ({ends}, {over})"


def _gap(value: float, first: float, better: str) -> float:
    """Return value minus first, infinite where one of them diverged or lies beyond a bound."""
    worst = -math.inf if better == "higher" else math.inf
    value, first = (worst if math.isnan(each) else each for each in (value, first))
    return 0.0 if value == first else value - first


def _p_value(values: Sequence[float], found: Interval) -> float | None:
    """Return the two-sided p of a mean of zero, or None if there is no interval."""
    if found.low is None or found.mean is None:
        return None
    error = stdev(values) / math.sqrt(len(values))
    if error == 0:
        return 1.0 if found.mean == 0 else 0.0
    from scipy.stats import t

    return float(2 * t.sf(abs(found.mean) / error, len(values) - 1))


def _t_quantile(level: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, freedom))


def _by_signs(values: Sequence[float], found: Interval) -> Tested:
    """Return the test of differences of which some have no size, or of a single one."""
    signs_only = not all(math.isfinite(value) for value in values)
    signs = {(value > 0) - (value < 0) for value in values}
    side = signs.pop() if len(signs) == 1 else 0
    shown = signs_only and side != 0 and len(values) >= FEWEST_SIGNS
    return Tested(found, found, None, None, shown, side, signs_only)


def _side(found: Interval) -> int:
    mean = found.mean or 0.0
    return (mean > 0) - (mean < 0)


def _digits(found: Interval) -> int:
    """Return the decimals with which neither the width nor an end of an interval becomes zero."""
    mean, low, high = found.mean or 0.0, found.low, found.high
    sizes = [abs(mean)] if low is None or high is None else [high - low, abs(low), abs(high)]
    smallest = min((size for size in sizes if size > 0), default=1.0)
    return min(3, max(1, -math.floor(math.log10(smallest))))


def _plain(value: float, digits: int) -> str:
    """Return a number with so many decimals, and zero without a sign."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text
