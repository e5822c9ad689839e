"""Numbers and settings in words, the same in the terminal and on the pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undrift.papers.compare import ComparedCell, Ours
from undrift.papers.file import Paper
from undrift.papers.quantity import UNKNOWN, Quantity, Value
from undrift.papers.store import StoredPaper

AGREEMENT = {True: "agree", False: "contradict it", None: "-"}
Head = tuple[Quantity, Quantity | None]  # what is printed, and what is read off our runs instead


def number(value: Value, *, percent: bool = False) -> str:
    """Return a value as tables print it."""
    if math.isnan(value.number):
        return "diverges"
    digits = ".2f" if percent else ".0f" if value.number >= 1000 else ".4g"
    text = f"{value.number:{digits}}"
    return f"> {text}" if value.beyond else text


def document_text(row: ComparedCell) -> str:
    """Return the number of the document, "-" where it prints none."""
    if row.cell.value == UNKNOWN:
        return "-"
    percent = row.cell.quantity.unit == "%"
    text = ("~" if row.cell.approximate else "") + number(row.cell.value, percent=percent)
    return text if row.cell.deviation is None else f"{text} ± {row.cell.deviation:g}"


def ours_text(ours: Ours | None, *, percent: bool) -> str:
    """Return our mean, its 95 % interval in brackets, and how many seeds diverge."""
    if ours is None:
        return "-"
    part = 0 < ours.diverged < ours.seeds
    lost = f", {ours.diverged} of {ours.seeds} seeds diverge" if part else ""
    ends = ""
    if ours.interval.low is not None and ours.interval.high is not None:
        low, high = (Value(end) for end in (ours.interval.low, ours.interval.high))
        ends = f" [{number(low, percent=percent)}, {number(high, percent=percent)}]"
    return number(ours.value, percent=percent) + ends + lost


def heads(rows: Sequence[ComparedCell]) -> list[tuple[tuple[Head, ...], list[str]]]:
    """Return sets of panels that print the same quantities, and these quantities."""
    panels: dict[str, list[ComparedCell]] = {}
    for row in rows:
        panels.setdefault(row.cell.panel, []).append(row)
    groups: dict[tuple[Head, ...], list[str]] = {}
    for panel, own in panels.items():
        key = tuple(dict.fromkeys((row.cell.quantity, row.located) for row in own))
        groups.setdefault(key, []).append(panel)
    return list(groups.items())


def head_text(head: Head, *, alone: bool = False) -> str:
    """Return the head of a column: a quantity, where ours is read, and the unit."""
    quantity, located = head
    unit = f", {quantity.unit}" if quantity.unit not in ("", "rounds", "gradients") else ""
    ours = "" if located is None or alone else f" (ours {_place(located)})"
    return f"{quantity.text}{ours}{unit}"


def _place(quantity: Quantity) -> str:
    """Return the round or the target of a quantity in words."""
    return f"at {quantity.at}" if quantity.at is not None else f"{100 * (quantity.target or 0):g} %"


def setting_lines(paper: Paper, stored: StoredPaper) -> list[str]:
    """Return sentences that say how our results were made."""
    ran = len(stored.trials)
    part = "" if ran == stored.planned else f", {ran} of {_number(stored.planned, 'trial')}"
    whose = f"Ours ({stored.source})" if stored.source else "Ours"
    seeds = _number(len(stored.seeds), "seed")
    lines = [f"{whose}: scale {stored.scale}, {seeds}{part}, {stored.date}."]
    if stored.scale == "small" and paper.small is not None:
        lines.append(paper.small.why.strip())
    lines += [
        f"{panel.panel}: on {panel.data} ({panel.stand_in.rstrip('.')})."
        for panel in stored.panels
        if panel.stand_in is not None
    ]
    if stored.scale == "small" and paper.small is not None:
        for each in paper.small.left_out:
            what = ", ".join([each.panel or "all panels", *(each.methods or ())])
            grid = " (the grid)" if each.grid else ""
            lines.append(f"Left out: {what}{grid}, about {each.hours:g} hours.")
    return lines


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
