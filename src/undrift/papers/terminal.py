"""`undrift papers show`: a document's numbers and claims beside ours, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.papers.catalogue import PaperEntry
from undrift.papers.claims import CONTRADICTED, NOT_RUN, SHOWN, UNDECIDED
from undrift.papers.compare import ComparedCell, Judged, Ours
from undrift.papers.file import Paper
from undrift.papers.quantity import Quantity, Value
from undrift.papers.store import StoredPaper

COLOURS = {SHOWN: "green", CONTRADICTED: "red", NOT_RUN: "dim"}


def print_paper(
    paper: Paper,
    rows: Sequence[ComparedCell],
    judged: Sequence[Judged],
    stored: StoredPaper | None,
    console: Console,
) -> None:
    """Print a paper: how it was run, numbers side by side, claims, readings."""
    console.print(Text(f"{paper.item}: {paper.what}", style="bold"))
    console.print(f"Printed in: {paper.printed}", highlight=False, markup=False)
    if paper.kind != "experiment":
        console.print(paper.why, highlight=False, markup=False)
    if stored is not None:
        _print_setting(paper, stored, console)
    elif paper.kind == "experiment":
        console.print("Not run yet: `undrift papers run` runs it.")
    for table in _tables(rows, alone=stored is None):
        console.print(table)
    if judged:
        console.print(_claims_table(judged, stored))
    if paper.readings.strip():
        console.print(Text("Readings", style="bold"))
        console.print(paper.readings.strip(), highlight=False, markup=False)


def _print_setting(paper: Paper, stored: StoredPaper, console: Console) -> None:
    seeds = len({trial.seed for trial in stored.trials})
    ran = len(stored.trials)
    part = "" if ran == stored.planned else f", {ran} of {_number(stored.planned, 'trial')}"
    whose = f"Ours ({stored.source})" if stored.source else "Ours"
    lines = [f"{whose}: scale {stored.scale}, {_number(seeds, 'seed')}{part}, {stored.date}."]
    if stored.scale == "small" and paper.small is not None:
        lines.append(paper.small.why.strip())
    lines += [
        f"{panel.panel}: on {panel.data} ({panel.stand_in})."
        for panel in stored.panels
        if panel.stand_in is not None
    ]
    if stored.scale == "small" and paper.small is not None:
        for each in paper.small.left_out:
            what = ", ".join([each.panel or "all panels", *(each.methods or ())])
            grid = " (the grid)" if each.grid else ""
            lines.append(f"Left out: {what}{grid}, about {each.hours:g} hours.")
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _tables(rows: Sequence[ComparedCell], *, alone: bool) -> list[Table]:
    """Return a table for each set of panels that print the same quantities.

    `alone` says that there is nothing of ours to show.
    """
    panels: dict[str, list[ComparedCell]] = {}
    for row in rows:
        panels.setdefault(row.cell.panel, []).append(row)
    groups: dict[tuple[tuple[Quantity, Quantity | None], ...], list[str]] = {}
    for panel, own in panels.items():
        key = tuple(dict.fromkeys((row.cell.quantity, row.located) for row in own))
        groups.setdefault(key, []).append(panel)
    return [
        _table(columns, {panel: panels[panel] for panel in names}, alone=alone)
        for columns, names in groups.items()
    ]


def _table(
    columns: Sequence[tuple[Quantity, Quantity | None]],
    panels: dict[str, list[ComparedCell]],
    *,
    alone: bool,
) -> Table:
    title = "The document" if alone else "The document / ours (difference)"
    table = Table("panel", "method", title=title)
    for quantity, located in columns:
        unit = f", {quantity.unit}" if quantity.unit not in ("", "rounds", "gradients") else ""
        ours = "" if located is None or alone else f" (ours {_place(located)})"
        table.add_column(escape(f"{quantity.text}{ours}{unit}"), justify="right")
    for panel, rows in panels.items():
        methods = list(dict.fromkeys(row.cell.method for row in rows))
        by_place = {(row.cell.method, row.cell.quantity): row for row in rows}
        for i, method in enumerate(methods):
            found = [by_place.get((method, quantity)) for quantity, _ in columns]
            cells = ["" if row is None else _cell(row, alone=alone) for row in found]
            table.add_row(escape(panel) if i == 0 else "", escape(method), *cells)
        table.add_section()
    return table


def _place(quantity: Quantity) -> str:
    """Return the round or the target of a quantity in words."""
    return f"at {quantity.at}" if quantity.at is not None else f"{100 * (quantity.target or 0):g} %"


def _cell(row: ComparedCell, *, alone: bool) -> str:
    percent = row.cell.quantity.unit == "%"
    document = ("~" if row.cell.approximate else "") + number(row.cell.value, percent=percent)
    if row.cell.deviation is not None:
        document += f" ± {row.cell.deviation:g}"
    if alone:
        return document
    if row.ours is None:
        return f"{document} / -"
    gap = row.difference
    text = f"{document} / {_ours(row.ours, percent=percent)}"
    text += "" if gap is None else f" ({gap:+.4g})"
    if row.as_published is not None:
        text += f"; as published {_ours(row.as_published, percent=percent)}"
    return text


def _ours(ours: Ours, *, percent: bool) -> str:
    deviation = "" if ours.deviation is None else f" ± {ours.deviation:.2g}"
    part = 0 < ours.diverged < ours.seeds
    lost = f", {ours.diverged} of {ours.seeds} seeds diverge" if part else ""
    return number(ours.value, percent=percent) + deviation + lost


def number(value: Value, *, percent: bool = False) -> str:
    """Return a value as tables print it."""
    if math.isnan(value.number):
        return "diverges"
    digits = ".2f" if percent else ".0f" if value.number >= 1000 else ".4g"
    text = f"{value.number:{digits}}"
    return f"> {text}" if value.beyond else text


def _claims_table(judged: Sequence[Judged], stored: StoredPaper | None) -> Table:
    scale = "" if stored is None else f" ({stored.scale})"
    table = Table(title="What the document claims")
    table.add_column("claim")
    table.add_column("where")
    table.add_column("its own numbers")
    table.add_column(f"ours{scale}")
    words = {True: "agree", False: "contradict it", None: "-"}
    for each in judged:
        counts = [sum(result is word for result in each.seeds) for word in (True, False, None)]
        seeds = ": {} for, {} against, {} open".format(*counts)
        text = each.verdict + (seeds if each.verdict == UNDECIDED else "")
        if each.without and each.verdict != NOT_RUN:
            text += f", without {', '.join(each.without)}"
        colour = COLOURS.get(each.verdict, "yellow")
        table.add_row(
            escape(each.claim.text),
            escape(each.claim.where),
            words[each.published],
            Text(text, style=colour),
        )
    return table


def as_json(
    entry: PaperEntry,
    rows: Sequence[ComparedCell],
    judged: Sequence[Judged],
    stored: StoredPaper | None,
) -> dict[str, Any]:
    """Return what `papers show --json` prints."""
    paper = entry.paper
    return {
        "document": entry.document,
        "item": paper.item,
        "name": entry.name,
        "file": f"{entry.name}.toml",
        "kind": paper.kind,
        "scale": None if stored is None else stored.scale,
        "date": None if stored is None else stored.date,
        "trials": None if stored is None else len(stored.trials),
        "planned": None if stored is None else stored.planned,
        "published": [_row_json(row) for row in rows],
        "claims": [_claim_json(each) for each in judged],
        "readings": paper.readings.strip(),
    }


def _row_json(row: ComparedCell) -> dict[str, Any]:
    cell = row.cell
    return {
        "panel": cell.panel,
        "method": cell.method,
        "metric": cell.quantity.metric,
        "at": cell.quantity.at,
        "target": cell.quantity.target,
        "relative_to": cell.quantity.relative_to,
        "value": cell.value.plain,
        "deviation": cell.deviation,
        "approximate": cell.approximate,
        "where": cell.where,
        "ours": _ours_json(row.ours),
        "as_published": _ours_json(row.as_published),
        "ours_at": None if row.located is None else row.located.at,
        "ours_target": None if row.located is None else row.located.target,
        "difference": row.difference,
    }


def _ours_json(ours: Ours | None) -> dict[str, Any] | None:
    if ours is None:
        return None
    return {
        "value": ours.value.plain,
        "deviation": ours.deviation,
        "seeds": ours.seeds,
        "diverged": ours.diverged,
        "cell": dict(ours.cell),
    }


def _claim_json(each: Judged) -> dict[str, Any]:
    return {
        "text": each.claim.text,
        "where": each.claim.where,
        "published": each.published,
        "verdict": each.verdict,
        "seeds": list(each.seeds),
        "without": list(each.without),
    }
