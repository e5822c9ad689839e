"""Settings and numbers typed from the documents, held against the paper files.

`pins.toml` was typed from the documents by somebody who did not write the files.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from undrift.config.experiment import Experiment, Method
from undrift.papers import catalogue
from undrift.papers.file import Paper
from undrift.papers.quantity import Value
from undrift.papers.store import canonical

PINS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "pins.toml").read_text(encoding="utf-8")
)["pin"]
LEAST = 150


METRICS = {"matching_rate": "sign_matching", "minutes": "seconds_to"}
SCALES = {"minutes": 60.0}  # of what is printed


def papers_of(document: str, item: str) -> list[Paper]:
    """Return the files of an item; one part of a figure, such as 1a, may be a panel of a file."""
    found = [e.paper for e in catalogue.entries() if e.document == document]
    exact = [paper for paper in found if paper.item == item]
    return exact or [paper for paper in found if paper.item == item[:-1]]


def name_of(pin: dict[str, Any]) -> str:
    parts = pin.get("method"), pin.get("published") or pin["field"]
    return " ".join([pin["document"], pin["item"], *filter(None, parts)])


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def setting(experiment: Experiment, method: Method, path: str) -> Any:
    """Return a setting of a cell by its dotted name, or a method's hyper-parameter by its name."""
    if path == "training.work":
        return method.work or experiment.training.work
    if path == "training.participation":
        return share_of(experiment)
    section, dot, name = path.partition(".")
    if dot:
        return getattr(getattr(experiment, section), name, None)
    return method.settings.get(path, getattr(method.build(), path, None))


def share_of(experiment: Experiment) -> Any:
    """Return the share of the clients, or of those that are there, that take part in a round."""
    taken, clients = experiment.training.participation, experiment.data.clients
    if not isinstance(taken, int) or clients is None:
        return taken
    there = experiment.data.availability
    return taken / (clients if there is None else int(there.split(":")[1]))


def fits(ours: Any, expected: Any) -> bool:
    """Return whether a setting is what a pin says.

    In a text * stands for anything, and a leading ! for anything but what follows.
    """
    if expected == "none":
        return ours is None
    if isinstance(expected, str) and expected.startswith("!"):
        return not fits(ours, expected[1:])
    if isinstance(expected, list):
        each = ours if isinstance(ours, list) else [ours]
        return len(each) == len(expected) and all(
            any(fits(mine, value) for mine in each) for value in expected
        )
    if isinstance(expected, str) and isinstance(ours, str):
        return fnmatchcase(ours.replace(" ", ""), expected.replace(" ", ""))
    if isinstance(expected, int | float) and isinstance(ours, int | float):
        return float(ours) == pytest.approx(float(expected))
    return str(ours) == str(expected)


class Cell(NamedTuple):
    """A cell of a file that is run."""

    paper: Paper
    panel: str
    experiment: Experiment
    method: Method


def cells(pin: dict[str, Any]) -> list[Cell]:
    """Return the cells that a pin is about."""
    found = [
        Cell(paper, panel.name, experiment, method)
        for paper in papers_of(pin["document"], pin["item"])
        for panel, experiment in paper.panel_experiments
        for method in experiment.methods
        if "method" not in pin or names(method, pin["method"])
        if all(fits(setting(experiment, method, p), v) for p, v in pin.get("given", {}).items())
    ]
    if "row" in pin:
        return rows(pin["row"], found)
    exact = [each for each in found if plain(each.method.title) == plain(pin.get("method", ""))]
    return exact or found


def rows(label: str, found: list[Cell]) -> list[Cell]:
    """Return the cells of a printed label: that of a panel or method, or a part of a panel's."""
    whole = [
        each for each in found if plain(label) in (plain(each.panel), plain(each.method.title))
    ]
    parts = [
        each for each in found if plain(label) in [plain(part) for part in each.panel.split(",")]
    ]
    return whole or parts


def names(method: Method, printed: str) -> bool:
    return plain(printed) in (plain(method.name), plain(method.title), plain(method.cls.__name__))


def settings(pin: dict[str, Any]) -> list[Any]:
    """Return the values that the files have for a pin's field, one for each cell."""
    values = [setting(e, method, pin["field"]) for _, _, e, method in cells(pin)]
    if pin.get("total"):
        clients = [experiment.data.clients or 1 for _, _, experiment, _ in cells(pin)]
        return [value * count for value, count in zip(values, clients, strict=True)]
    return values


def grids(pin: dict[str, Any]) -> list[Any]:
    """Return the values of a parameter: those tuned over, and those that the cells compare."""
    parameter, about = pin["parameter"], cells(pin)
    tuned = [
        values
        for _, _, experiment, method in about
        for path, values in experiment.sweep.grid.items()
        if path.rpartition(".")[2] == parameter
        and (path.partition(".")[0] in ("method", "methods") or concerns(path, method))
    ]
    compared = [setting(e, method, parameter) for _, _, e, method in about]
    return [*tuned, list(dict.fromkeys(compared))]


def concerns(path: str, method: Method) -> bool:
    return names(method, path.rpartition(".")[0])


def published(pin: dict[str, Any]) -> list[Value]:
    """Return the numbers of the files that fit a pin."""
    metric = METRICS.get(pin["published"], pin["published"])
    about = {(id(paper), panel, method.title) for paper, panel, _, method in cells(pin)}
    found = []
    for paper in papers_of(pin["document"], pin["item"]):
        for cell in paper.cells:
            if paper.experiment is None:  # so that it has no settings to be found by
                named = plain(cell.method) == plain(pin.get("method", cell.method))
                row = plain(cell.panel) == plain(pin.get("row", cell.panel))
                here = named and row and "given" not in pin
            else:
                here = (id(paper), cell.panel, cell.method) in about
            quantity = cell.quantity
            at_end = canonical(quantity, paper, cell.panel).at is None
            at = quantity.at == pin["at"] if quantity.at and "at" in pin else at_end
            target = "target" not in pin or quantity.target == pin["target"]
            if here and at and target and metric in quantity.metric:
                found.append(cell.value)
    return found


def test_the_table_is_long_enough_and_spread_over_the_documents() -> None:
    assert len(PINS) >= LEAST
    counts = Counter(pin["document"] for pin in PINS)
    assert set(counts) == set(catalogue.DOCUMENTS)
    assert min(counts.values()) >= 20


@pytest.mark.parametrize("pin", PINS, ids=name_of)
def test_the_files_say_what_the_documents_print(pin: dict[str, Any]) -> None:
    papers = papers_of(pin["document"], pin["item"])
    assert papers, "no file has this item"
    if "published" in pin:
        values = published(pin)
        expected = Value.of(pin["value"])
        scaled = Value(expected.number * SCALES.get(pin["published"], 1.0), expected.beyond)
        assert values, "no number fits the pin"
        assert set(values) == {scaled}, "a pin is about one number, or about several that are equal"
    elif pin["field"] == "grid":
        found = grids(pin)
        assert any(fits(value, pin["value"]) for value in found), found
    else:
        found = settings(pin)
        assert found, "no cell fits the pin"
        part = pin.get("some") or not any(paper.item == pin["item"] for paper in papers)
        right = [fits(value, pin["value"]) for value in found]
        assert any(right) if part else all(right), found


def test_a_label_that_no_row_has_finds_nothing() -> None:
    pin = {"document": "fedagrac", "item": "Table 4.1", "field": "training.work"}
    assert {cell.panel for cell in cells({**pin, "row": "both"})} == {
        "LR, both",
        "2-layer CNN, both",
    }
    assert cells({**pin, "row": "neither of them"}) == []


def test_a_pin_that_fits_several_numbers_has_them_all() -> None:
    """So that it is refused unless they are equal: a pin says which of the numbers it means."""
    pin = {"document": "fedacg", "item": "Table 2", "method": "FedDC", "at": 1000}
    loose = {**pin, "published": "accuracy", "given": {"data.name": "cifar10"}}
    assert published(loose) == [Value(75.06), Value(83.49)]
    closer = {**loose, "given": {**loose["given"], "training.participation": 0.01}}
    assert published(closer) == [Value(75.06)]
