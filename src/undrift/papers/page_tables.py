"""Tables of the pages, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from undrift.papers.compare import ComparedCell
from undrift.papers.file import Paper
from undrift.papers.find import Side, leading
from undrift.papers.judge import Judged
from undrift.papers.store import StoredPaper
from undrift.papers.words import AGREEMENT, document_text, head_text, heads, ours_text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", "<br>")


def number_tables(sides: Sequence[Side]) -> list[str]:
    """Return the document's numbers and ours, a table for panels with the same quantities."""
    run = [side for side in sides if side.stored is not None]
    whose = [f"ours {side.name}" if len(run) > 1 else "ours" for side in run]
    found = []
    for columns, panels in heads(run[0].all_rows):
        rows = []
        for panel in panels:
            own = [
                {(r.cell.method, r.cell.quantity): r for r in side.all_rows if r.cell.panel == panel}
                for side in run
            ]
            for i, method in enumerate(dict.fromkeys(method for method, _ in own[0])):
                cells = [
                    _numbers([places.get((method, quantity)) for places in own])
                    for quantity, _ in columns
                ]
                rows.append([panel if i == 0 else "", method, *cells])
        head = ["panel", "method", *(head_text(each) for each in columns)]
        says = f"The document / {' / '.join(whose)}, with 95 % intervals:"
        found.append(f"{says}\n\n{table(head, rows)}")
    return found


def _numbers(rows: Sequence[ComparedCell | None]) -> str:
    """Return the document's number and then ours of each kind."""
    first = next((row for row in rows if row is not None), None)
    if first is None:
        return ""
    percent = first.cell.quantity.unit == "%"
    ours = [ours_text(None if row is None else row.ours, percent=percent) for row in rows]
    if first.as_published is not None:
        ours[0] += f" (as published: {ours_text(first.as_published, percent=percent)})"
    return " / ".join([document_text(first), *ours])


def claims_table(paper: Paper, sides: Sequence[Side]) -> str:
    """Return the claims with verdicts, tuned first, the numbers that decide them, and reasons."""
    several = len(sides) > 1
    verdicts = [f"ours {side.name}" if several else "ours" for side in sides]
    found = any(claim.found for claim in paper.claims)
    head = ["claim", "its own numbers", *verdicts, "by (95 % interval)"]
    head += ["why, as far as it was found"] * found
    rows = []
    for position, claim in enumerate(paper.claims):
        judged = [side.judged[position] for side in sides]
        row = [f"{claim.text} ({claim.where})", AGREEMENT[judged[0].published]]
        row += [_verdict(each) for each in judged]
        row.append(leading(sides, position).reason)
        row += [claim.found] * found
        rows.append(row)
    return table(head, rows)


def _verdict(each: Judged) -> str:
    by_panel = f" ({each.by_panel})" if each.by_panel else ""
    return f"**{each.text}**{by_panel}"


def tried_table(stored: StoredPaper) -> str:
    """Return every cell that tuning tried, folded away."""
    rows = [
        [
            each.panel,
            each.method,
            each.cell,
            "-" if each.accuracy is None else f"{100 * each.accuracy:.2f}",
            each.outcome,
        ]
        for each in stored.tried
    ]
    head = ("panel", "method", "cell", "validation accuracy, %", "")
    return (
        f"<details><summary>The {len(rows)} cells that were tried</summary>\n\n"
        f"{table(head, rows)}\n\n</details>"
    )
