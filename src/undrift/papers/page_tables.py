"""Tables of the pages, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from undrift.papers.compare import ComparedCell
from undrift.papers.file import Paper
from undrift.papers.find import Side, leading
from undrift.papers.judge import Judged
from undrift.papers.quantity import Quantity
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
    own = [{_place(row): row for row in side.all_rows} for side in run]
    every = {place: row for rows in reversed(own) for place, row in rows.items()}
    says = f"The document / {' / '.join(whose)}, with 95 % intervals:"
    tables = []
    for columns, panels in heads(list(every.values())):
        lines = []
        for panel in panels:
            methods = dict.fromkeys(method for p, method, _ in every if p == panel)
            for i, method in enumerate(methods):
                rows = [[each.get((panel, method, q)) for each in own] for q, _ in columns]
                chosen = [_tuned_cell(rows)] if run[0].tuned else []
                cells = [_numbers(each) for each in rows]
                lines.append([panel if i == 0 else "", method, *chosen, *cells])
        tuned = ["tuned"] if run[0].tuned else []
        head = ["panel", "method", *tuned, *(head_text(each) for each in columns)]
        tables.append(f"{says}\n\n{table(head, lines)}")
    return tables


def _place(row: ComparedCell) -> tuple[str, str, Quantity]:
    return row.cell.panel, row.cell.method, row.cell.quantity


def _tuned_cell(rows: Sequence[Sequence[ComparedCell | None]]) -> str:
    """Return the cell that tuning chose for a method, such as "lr=0.1"."""
    first = [row[0] for row in rows]
    cells = [row.ours.cell for row in first if row is not None and row.ours is not None]
    values = cells[0].items() if cells else ()
    return ", ".join(f"{path.rpartition('.')[2]}={value}" for path, value in values)


def _numbers(rows: Sequence[ComparedCell | None]) -> str:
    """Return the document's number and then ours of each kind."""
    first = next((row for row in rows if row is not None), None)
    if first is None:
        return ""
    return " / ".join([document_text(first), *(_ours(row) for row in rows)])


def _ours(row: ComparedCell | None) -> str:
    if row is None:
        return "-"
    percent = row.cell.quantity.unit == "%"
    text = ours_text(row.ours, percent=percent)
    if row.as_published is not None:
        text += f" (as published: {ours_text(row.as_published, percent=percent)})"
    return text


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
