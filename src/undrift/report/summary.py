"""The sentences of a comparison: the best method, and every trial that did not finish."""

from __future__ import annotations

from functools import partial

from undrift.report.comparison import Comparison
from undrift.report.numerals import grouped, spread_amount, spread_percent, target
from undrift.report.page_tables import (
    gather,
    primary,
    reached,
    rising,
    rounds_run,
    rounds_to_target,
)
from undrift.results.metrics import spread


def endings(comparison: Comparison) -> list[str]:
    """Return a sentence for every trial that did not finish."""
    sentences = []
    for trial in comparison.trials:
        if trial.status != "finished":
            why = f": {trial.reason.strip()}" if trial.reason.strip() else "."
            sentences.append(
                f"{trial.label}, seed {trial.seed}, {trial.status} after {rounds_run(trial)} of "
                f"{trial.rounds} rounds{why}"
            )
    return sentences


def summary(comparison: Comparison) -> str:
    """Return one sentence on the best method."""
    methods, metric = comparison.methods, primary(comparison)
    runs = f"{_number(len(methods), 'method')}, {_number(len(comparison.trials), 'run')}"
    last = gather(methods, lambda t: reached(t, t.rounds, metric, comparison.smoothing))
    some = [label for label, each in last.items() if each.values]
    complete = [label for label in some if last[label].complete]
    ended = {label: spread(last[label].values) for label in complete or some}
    if not ended:
        return f"{runs}; none of them has a value at its last round."
    sign = 1 if rising(comparison) else -1
    label, top = max(ended.items(), key=lambda each: sign * each[1].mean)
    value = f"{spread_percent(top)}\u00a0%" if metric == "accuracy" else spread_amount(top)
    by = f" ({comparison.smoothing_name})" if comparison.smoothing_name else ""
    named = metric.replace("_", " ")
    praise = f"{'highest' if sign > 0 else 'lowest'} {named}{by}"
    single = f"{'an' if metric[0] in 'aeiou' else 'a'} {named}{by} of {value}"
    text = f"{runs}: {label} ended with {f'the {praise}, {value}' if len(methods) > 1 else single}"
    if comparison.targets and metric == "accuracy":
        text += _first_at(comparison, comparison.targets[-1], label)
    return text + "."


def _first_at(comparison: Comparison, accuracy: float, praised: str) -> str:
    """Return the part of the sentence on the method that reached the target first."""
    rounds = gather(
        comparison.methods,
        partial(rounds_to_target, accuracy=accuracy, smoothing=comparison.smoothing),
    )
    arrived = {k: v.spread.mean for k, v in rounds.items() if v.complete and v.spread is not None}
    if not arrived:
        nobody = "no method" if len(rounds) > 1 else "it never"
        return f"; {nobody} reached {target(accuracy)} with every seed"
    least = min(arrived.values())
    first = [label for label, mean in arrived.items() if mean == least]
    who = ", and" if first == [praised] else f"; {' and '.join(first)}"
    place = " first," if len(rounds) > 1 else ""
    return f"{who} reached {target(accuracy)}{place} after {_number(least, 'round')}"


def _number(count: float, what: str) -> str:
    return f"{grouped(count)} {what}{'' if count == 1 else 's'}"
