"""Settings and numbers typed from the documents, held against the paper files.

`pins.toml` was typed from the documents by somebody who did not write the files.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from undrift.config.experiment import Experiment, Method
from undrift.papers import catalogue
from undrift.papers.file import Paper, panel_experiment
from undrift.papers.quantity import Quantity, Value
from undrift.papers.store import canonical

PINS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "pins.toml").read_text(encoding="utf-8")
)["pin"]
LEAST = 150


def papers_of(document: str, item: str) -> list[Paper]:
    """Return the files of an item; a table may have more than one."""
    found = [e.paper for e in catalogue.entries() if e.document == document]
    return [paper for paper in found if paper.item == item]


def name_of(pin: dict[str, Any]) -> str:
    parts = pin.get("method"), pin.get("published") or pin["field"]
    return " ".join([pin["document"], pin["item"], *filter(None, parts)])


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def has(experiment: Experiment, path: str) -> Any:
    section, _, name = path.partition(".")
    return getattr(getattr(experiment, section), name, None)


def fits(ours: Any, expected: Any) -> bool:
    """Return whether a setting is what a pin says; * in a text stands for anything."""
    if isinstance(expected, str) and isinstance(ours, str):
        return fnmatchcase(ours, expected)
    if isinstance(expected, list) and isinstance(ours, list):
        return sorted(map(float, expected)) == sorted(map(float, ours))
    if isinstance(expected, int | float) and isinstance(ours, int | float):
        return float(ours) == pytest.approx(float(expected))
    return str(ours) == str(expected)


def cells(pin: dict[str, Any]) -> list[tuple[Paper, str, Experiment, Method]]:
    """Return the cells that a pin is about."""
    return [
        (paper, panel.name, experiment, method)
        for paper in papers_of(pin["document"], pin["item"])
        for panel in paper.panels
        if paper.experiment is not None
        for experiment in [panel_experiment(paper.experiment, panel)]
        if all(fits(has(experiment, path), v) for path, v in pin.get("given", {}).items())
        for method in experiment.methods
        if "method" not in pin or names(method, pin["method"])
    ]


def names(method: Method, printed: str) -> bool:
    return plain(printed) in (plain(method.name), plain(method.title), plain(method.cls.__name__))


def settings(pin: dict[str, Any]) -> list[Any]:
    """Return the values that the files have for a pin's field, one for each cell."""
    field, found = pin["field"], []
    for _, _, experiment, method in cells(pin):
        if field == "training.work":
            found.append(method.work or experiment.training.work)
        elif "." in field:
            found.append(has(experiment, field))
        else:
            built = method.build()
            found.append(method.settings.get(field, getattr(built, field, None)))
    return found


def grids(pin: dict[str, Any]) -> list[Any]:
    found = []
    for _, _, experiment, method in cells(pin):
        for path, values in experiment.sweep.grid.items():
            section, _, name = path.rpartition(".")
            shared = section in ("method", "methods")
            if name == pin["parameter"] and (shared or names(method, section)):
                found.append(list(values) if isinstance(values, list) else values)
    return found


def published(pin: dict[str, Any]) -> list[Value]:
    quantity = Quantity(pin["published"], pin.get("at"), pin.get("target"))
    about = {(id(paper), panel) for paper, panel, _, _ in cells(pin)}
    found = []
    for paper in papers_of(pin["document"], pin["item"]):
        for cell in paper.cells:
            here = paper.experiment is None or (id(paper), cell.panel) in about
            same = canonical(cell.quantity, paper, cell.panel) == canonical(
                quantity, paper, cell.panel
            )
            if here and same and plain(cell.method) == plain(pin["method"]):
                found.append(cell.value)
    return found


def test_the_table_is_long_enough_and_spread_over_the_documents() -> None:
    assert len(PINS) >= LEAST
    counts = Counter(pin["document"] for pin in PINS)
    assert set(counts) == set(catalogue.DOCUMENTS)
    assert min(counts.values()) >= 20


@pytest.mark.parametrize("pin", PINS, ids=name_of)
def test_the_files_say_what_the_documents_print(pin: dict[str, Any]) -> None:
    assert papers_of(pin["document"], pin["item"]), "no file has this item"
    if "published" in pin:
        values = published(pin)
        assert values, "no published cell fits the pin"
        assert Value.of(pin["value"]) in values
        return
    found = grids(pin) if pin["field"] == "grid" else settings(pin)
    assert found, "no cell fits the pin"
    assert all(fits(value, pin["value"]) for value in found), found
