"""A workload's results on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.speed.roster import CONTESTANTS
from rich.table import Table

COLUMNS = {
    "seconds": "s / round",
    "cpu_seconds": "CPU s",
    "first_round_seconds": "first round s",
    "peak_bytes": "peak MB",
}
WIDTH = 120  # in a file, where no terminal says how much fits
IDLE = 0.02  # of a core: what a waiting contestant may take without a remark


def table(name: str, found: Mapping[str, Any]) -> Table:
    shown = Table(title=f"{name}, {found['title']}: medians (ratios to undrift's)")
    for column in ("", "set-up"):
        shown.add_column(column)
    for column in (*COLUMNS.values(), "accuracy", ""):
        shown.add_column(column, justify="right")
    for who, figures in found["summary"].items():
        cells = []
        for what in COLUMNS:
            value = figures["median"][what]
            value = value / 1e6 if what == "peak_bytes" and value is not None else value
            cells.append(f"{number(value)} ({number(figures['ratio'][what])}x)")
        score = found["scores"][who]
        accuracy = "-" if score["accuracy"] is None else f"{score['accuracy']:.3f}"
        shown.add_row(who, CONTESTANTS[who].set_up, *cells, accuracy, state(score["disturbed"]))
    return shown


def number(value: float | None) -> str:
    """Return three digits, or all before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def state(disturbed: bool | None) -> str:
    return {True: "disturbed", False: "", None: "unknown"}[disturbed]


def remarks(found: Mapping[str, Any]) -> Iterator[str]:
    """Return what a reader of the table should know."""
    scores = found["scores"]
    disturbed = [who for who, score in scores.items() if score["disturbed"]]
    if disturbed:
        worst = max(scores[who]["others_cores"] for who in disturbed)
        yield (
            f"Disturbed: other processes took up to {worst:.2f} of a core during the turns of "
            f"{', '.join(disturbed)}."
        )
    if any(score["disturbed"] is None for score in scores.values()):
        yield "Whether others disturbed is unknown without /proc."
    idle = [score["idle_cores"] or 0.0 for score in scores.values()]
    if idle and max(idle) > IDLE:
        yield f"Contestants that waited took up to {max(idle):.2f} of a core meanwhile."
    for who, why in found["left_out"].items():
        yield f"Left out: {who}, {why}"
