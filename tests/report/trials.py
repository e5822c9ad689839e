"""Trials for reports, among them some whose texts try to break out of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undrift.results.record import Record
from undrift.results.trial import Trial

HOSTILE = "</script><script>window.pwned = 1</script>"
QUOTES = "\"'><img src=x onerror='window.pwned = 2'> & é $x_1$ \\frac{"


def records(
    accuracies: Sequence[float | None], *, mb: float = 2, gradients: int = 10, **others: Any
) -> list[Record]:
    """Return a record for each accuracy, of `mb` megabytes up and down together."""
    half = int(mb * 5e5)
    return [
        Record(k, 4, None if a is None else 1 - a, a, half, half, gradients, 100, 0.5, **others)
        for k, a in enumerate(accuracies, 1)
    ]


def trial(label: str, seed: int, runs: Sequence[Record], **options: Any) -> Trial:
    """Return a finished trial with these records."""
    fields = {"rounds": len(runs), "status": "finished", "settings": {"lr": 0.1}, **options}
    return Trial(label=label, method=label, seed=seed, records=runs, **fields)


def tenths(count: int, start: float = 0.0) -> list[float]:
    """Return accuracies that grow by a tenth a round."""
    return [start + k / 10 for k in range(1, count + 1)]
