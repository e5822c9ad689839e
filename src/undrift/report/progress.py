"""A bar of a run's rounds, in a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from undrift.errors import import_or_none
from undrift.results.metrics import primary, value_of
from undrift.results.record import Record


def round_bar(run: Any) -> Callable[[Record], None]:
    """Return a function that takes each record of a run; the bar ends with the last round.

    In a notebook it is a line of text where ipywidgets, which rich needs there, is not installed.
    """
    console = Console(stderr=True)
    if console.is_jupyter and import_or_none("ipywidgets") is None:
        return _line(run)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[test]}"),
        TimeRemainingColumn(),
        console=console,
    )
    label = type(run.algorithm).__name__
    task = bar.add_task(label, total=run.planned_rounds, completed=run.round, test="")

    def add(record: Record) -> None:
        if not bar.live.is_started:
            bar.start()
        found: dict[str, Any] = {} if record.loss is None else {"test": test_text(record)}
        bar.update(task, completed=record.round, **found)
        if record.round >= run.rounds:
            bar.stop()

    return add


def _line(run: Any) -> Callable[[Record], None]:
    """Return a function that writes each record over the line of the one before."""
    label, tested = type(run.algorithm).__name__, ""

    def add(record: Record) -> None:
        nonlocal tested
        tested = tested if record.loss is None else f"  {test_text(record)}"
        end = "\n" if record.round >= run.rounds else ""
        print(
            f"\r{label} {record.round}/{run.planned_rounds}{tested}",
            end=end,
            file=sys.stderr,
            flush=True,
        )

    return add


def test_text(record: Record) -> str:
    """Return what a test found in a few words, such as "accuracy 71.20 %"."""
    metric = primary([record])
    value = value_of(record, metric)
    if value is None:
        return ""
    return f"{metric} {100 * value:.2f} %" if metric == "accuracy" else f"{metric} {value:.4g}"
