"""`undrift papers list`: what each table or figure is, how long it takes, what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from undrift.config.experiment import Data
from undrift.papers.catalogue import DOCUMENTS, PaperEntry
from undrift.papers.estimate import hours
from undrift.papers.scales import PanelRun, lack, plan


def listed(entries: Sequence[PaperEntry]) -> list[dict[str, Any]]:
    """Return what the list says of each paper, as `--json` has it."""
    known = cache(lack)  # Papers share data sets, which are looked for once.
    return [_listed(entry, known) for entry in entries]


def _listed(entry: PaperEntry, lack_of: Callable[[Data], str | None]) -> dict[str, Any]:
    paper = entry.paper
    full = plan(paper, "full")
    small = (
        [] if paper.small is None else plan(paper, "small", at_hand=lambda d: lack_of(d) is None)
    )
    needed = list(dict.fromkeys(run.experiment.data for run in full))
    lacks = {data.name: found for data in needed if (found := lack_of(data)) is not None}
    return {
        "document": entry.document,
        "item": paper.item,
        "name": entry.name,
        "file": f"{entry.name}.toml",
        "what": paper.what,
        "kind": paper.kind,
        "why": paper.why,
        "command": paper.command,
        "published": len(paper.cells),
        "claims": len(paper.claims),
        "hours_full": _hours(full),
        "hours_small": _hours(small),
        "data": list(dict.fromkeys(data.name for data in needed)),
        "missing": list(lacks),
        "lacks": lacks,
    }


def _hours(runs: Sequence[PanelRun]) -> float | None:
    """Return a rough number of hours on two cores, None if nothing is run."""
    return sum(hours(run.experiment) for run in runs) if runs else None


def print_list(papers: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the papers as a table, document by document."""
    table = Table(title="Tables and figures of the documents")
    for head in ("name", "item", "what"):
        table.add_column(head, no_wrap=head == "name")
    for head in ("cells", "claims", "full", "small"):
        table.add_column(head, justify="right")
    table.add_column("needs")
    for document in DOCUMENTS:
        for paper in papers:
            if paper["document"] == document:
                table.add_row(*_list_row(paper))
        table.add_section()
    console.print(table)
    console.print(
        "full, small: rough time on two cores, one seed. Run with undrift papers run NAME --scale "
        "small, see undrift papers show NAME.",
        style="dim",
    )
    if any(paper["missing"] for paper in papers):
        console.print(
            "What is not here may lie elsewhere: --data-dir FOLDER, or $UNDRIFT_DATA, names the "
            "folder of your data sets; undrift data list says what is found.",
            style="dim",
        )


def _list_row(paper: dict[str, Any]) -> list[str]:
    lacks = paper["lacks"]
    needs = ", ".join(f"{n} ({lacks[n]})" if n in lacks else n for n in paper["data"])
    if paper["kind"] != "experiment":
        needs = paper["command"] or "cannot be run"
    counts = str(paper["published"]), str(paper["claims"])
    times = duration(paper["hours_full"]), duration(paper["hours_small"])
    return [paper["name"], paper["item"], escape(paper["what"]), *counts, *times, escape(needs)]


def duration(hours: float | None) -> str:
    """Return a rough time in its largest unit."""
    if hours is None:
        return "-"
    for unit, length in (("d", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= 1.5 * length:
            return f"{hours / length:.0f} {unit}"
    return "1 min"
