"""`undrift papers show`: a document's numbers and claims beside ours, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.papers.catalogue import PaperEntry
from undrift.papers.compare import ComparedCell, Ours
from undrift.papers.file import Paper
from undrift.papers.find import Side
from undrift.papers.judge import Judged
from undrift.papers.parts import Claim
from undrift.papers.quantity import UNKNOWN
from undrift.papers.verdicts import CONTRADICTED, NOT_RUN, SHOWN, Evidence, unit_of
from undrift.papers.words import (
    AGREEMENT,
    Head,
    document_text,
    head_text,
    heads,
    ours_text,
    setting_lines,
)

COLOURS = {SHOWN: "green", CONTRADICTED: "red", NOT_RUN: "dim"}  # by how a verdict begins


def print_paper(paper: Paper, sides: Sequence[Side], console: Console) -> None:
    """Print a paper: how it was run, numbers side by side, claims, readings.

    The user's own results come before the package's.
    """
    sides = sorted(sides, key=lambda side: not side.own)
    console.print(Text(f"{paper.item}: {paper.what}", style="bold"))
    console.print(f"Printed in: {paper.printed}", highlight=False, markup=False)
    if paper.kind != "experiment":
        console.print(paper.why, highlight=False, markup=False)
    if len({side.own for side in sides}) > 1:
        whose = (f"{'yours' if side.own else _others(side)}, {side.name}" for side in sides)
        console.print(f"Results: first {'; then '.join(whose)}.", highlight=False, markup=False)
    for side in sides:
        _print_side(paper, side, console, named=len(sides) > 1)
    if paper.claims:
        console.print(_claims_table(paper, sides))
        for side in sides:
            if (line := _agreement(side)) is not None:
                console.print(line, highlight=False, markup=False)
    reasons = dict.fromkeys(claim.found for claim in paper.claims if claim.found)
    if reasons:
        console.print(Text("Why, as far as it was found", style="bold"))
        for found in reasons:
            about = ", ".join(f"{i}" for i, c in enumerate(paper.claims, 1) if c.found == found)
            console.print(f"Claim {about}: {found}", highlight=False, markup=False)
    if paper.readings.strip():
        console.print(Text("Readings", style="bold"))
        console.print(paper.readings.strip(), highlight=False, markup=False)


def _agreement(side: Side) -> str | None:
    """Return in how many claims the user's verdicts are the package's, and which others differ."""
    others = side.other_verdicts
    if others is None or not side.compared_verdicts:
        return None
    same = side.compared_verdicts - len(others)
    line = f"Yours {side.name}: the package's verdict in {same} of {side.compared_verdicts} claims"
    named = "; ".join(f"claim {i}: {ours}, the package's: {its}" for i, ours, its in others)
    return f"{line}{' (' if named else ''}{named}{')' if named else ''}."


def _others(side: Side) -> str:
    return "none" if side.stored is None else "the package's"


def _print_side(paper: Paper, side: Side, console: Console, *, named: bool) -> None:
    """Print how one kind of results was made, and its numbers beside the document's."""
    if named:
        console.print(Text(f"Each method {side.name}", style="bold"))
    if side.stored is not None:
        for line in setting_lines(paper, side.stored):
            console.print(line, highlight=False, markup=False)
    elif paper.kind == "experiment":
        console.print("Not run yet: `undrift papers run` runs it.")
    for columns, panels in heads(side.all_rows):
        console.print(_table(columns, panels, side))


def _table(columns: Sequence[Head], panels: Sequence[str], side: Side) -> Table:
    alone = side.stored is None
    title = "The document" if alone else "The document / ours [95 % interval] (difference)"
    table = Table("panel", "method", title=title)
    for head in columns:
        table.add_column(escape(head_text(head, alone=alone)), justify="right")
    for panel in panels:
        rows = [row for row in side.all_rows if row.cell.panel == panel]
        methods = list(dict.fromkeys(row.cell.method for row in rows))
        by_place = {(row.cell.method, row.cell.quantity): row for row in rows}
        for i, method in enumerate(methods):
            found = [by_place.get((method, quantity)) for quantity, _ in columns]
            cells = ["" if row is None else escape(_cell(row, alone=alone)) for row in found]
            table.add_row(escape(panel) if i == 0 else "", escape(method), *cells)
        table.add_section()
    return table


def _cell(row: ComparedCell, *, alone: bool) -> str:
    percent = row.cell.quantity.unit == "%"
    if alone:
        return document_text(row)
    text = f"{document_text(row)} / {ours_text(row.ours, percent=percent)}"
    text += "" if row.difference is None else f" ({row.difference:+.4g})"
    if row.as_published is not None:
        text += f"; as published {ours_text(row.as_published, percent=percent)}"
    return text


def _claims_table(paper: Paper, sides: Sequence[Side]) -> Table:
    table = Table(title="What the document claims")
    for head in ("", "claim", "where", "its own numbers"):
        table.add_column(head)
    for side in sides:
        scale = "" if side.stored is None else f" ({side.stored.scale})"
        table.add_column(
            f"{'yours' if side.own else 'ours'} {side.name}{scale}"
            if len(sides) > 1
            else f"ours{scale}"
        )
        table.add_column("by (95 % interval)")
    for position, claim in enumerate(paper.claims):
        found = [side.judged[position] for side in sides]
        cells = [cell for each in found for cell in _verdict_cells(each)]
        agreement = AGREEMENT[found[0].published]
        texts = escape(claim.text), escape(claim.where)
        table.add_row(str(position + 1), *texts, agreement, *cells)
    return table


def _verdict_cells(each: Judged) -> tuple[Text, str]:
    colour = next((c for word, c in COLOURS.items() if each.verdict.startswith(word)), "yellow")
    by_panel = f"\n{each.by_panel}" if each.by_panel else ""
    return Text(each.text + by_panel, style=colour), escape(each.reason)


def as_json(entry: PaperEntry, sides: Sequence[Side]) -> dict[str, Any]:
    """Return what `papers show --json` prints: the printed settings, and the tuned in `tuned`."""
    paper = entry.paper
    parts = {side.tuned: _side_json(side) for side in sides}
    return {
        "document": entry.document,
        "item": paper.item,
        "name": entry.name,
        "file": f"{entry.name}.toml",
        "kind": paper.kind,
        **parts[False],
        "tuned": parts.get(True),
        "readings": paper.readings.strip(),
    }


def _side_json(side: Side) -> dict[str, Any]:
    stored = side.stored
    return {
        "scale": None if stored is None else stored.scale,
        "date": None if stored is None else stored.date,
        "trials": None if stored is None else len(stored.trials),
        "planned": None if stored is None else stored.planned,
        "published": [_row_json(row) for row in side.rows],
        "claimed": [_row_json(row) for row in side.claimed],
        "claims": [_claim_json(each) for each in side.judged],
        "package_verdicts": None
        if side.package is None
        else [each.verdict for each in side.package],
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
        "value": None if cell.value == UNKNOWN else cell.value.plain,
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
        "low": ours.interval.low,
        "high": ours.interval.high,
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
        "panels": each.panels,
        "reason": each.reason,
        "found": each.claim.found,
        "comparisons": [_evidence_json(each.claim, one) for one in each.evidence],
        "without": list(each.without),
        "hours": each.hours,
    }


def _evidence_json(claim: Claim, each: Evidence) -> dict[str, Any]:
    found = each.found
    return {
        "panel": each.panel,
        "comparison": each.words,
        "verdict": each.word,
        "unit": unit_of(claim),
        "seeds": list(each.seeds),
        "holds": [margin.holds for margin in each.margins],
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
        "level": found.level,
        "p": each.tested.p,
        "adjusted_p": each.tested.adjusted,
    }
