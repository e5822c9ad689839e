"""A paper file: one table or figure of a document, typed.

paper = read(path)
paper.experiment, paper.panels        what is run
paper.cells                           what the document prints
paper.claims                          what the document says about it
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from undrift.check import nearest, require
from undrift.config.experiment import Experiment
from undrift.config.messages import describe_validation_error
from undrift.config.sections import Part
from undrift.papers.parts import (
    Claim,
    Panel,
    PublishedCell,
    PublishedNumbers,
    Small,
    StandIn,
    Tune,
)
from undrift.papers.quantity import Value


class Paper(Part):
    """Holds one table or figure of a document."""

    item: str = Field(min_length=1)
    what: str = Field(min_length=1)
    printed: str = Field(min_length=1)
    kind: Literal["experiment", "command", "impossible"] = "experiment"
    command: str | None = None
    why: str = ""
    readings: str = ""
    experiment: Experiment | None = None
    methods: list[str] = Field(default_factory=list)  # of a file that has no experiment
    panels: list[Panel] = Field(default_factory=list)
    published: list[PublishedNumbers] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
    small: Small | None = None
    stand_in: dict[str, StandIn] = Field(default_factory=dict)
    tune: Tune = Field(default_factory=Tune)

    @field_validator("experiment", mode="before")
    @classmethod
    def _titled(cls, values: Any) -> Any:
        """Return the experiment, whose own errors are sentences already."""
        return Experiment.of(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _whole(self) -> Self:
        runs = self.kind == "experiment"
        needs = "an [experiment]" if runs else "no [experiment]"
        has = "one" if self.experiment is not None else "none"
        if runs:
            require(self.experiment is not None, "kind = 'experiment'", needs, has)
            require(bool(self.panels), "kind = 'experiment'", "one of [[panels]] at least", [])
        else:
            require(bool(self.why), f"kind = {self.kind!r}", "a sentence in why", self.why)
        named = self.experiment is None or not self.methods
        require(named, "methods", "a file without [experiment]", self.methods)
        commanded = (self.kind == "command") == (self.command is not None)
        require(commanded, "kind", "'command' if and only if command is given", self.kind)
        self._check_panels()
        self._check_published()
        self._check_claims()
        self._check_small()
        self._check_tune()
        return self

    @cached_property
    def panel_experiments(self) -> list[tuple[Panel, Experiment]]:
        """Return the panels, each with its experiment as the document has it."""
        whole = self.experiment
        return [] if whole is None else [(p, panel_experiment(whole, p)) for p in self.panels]

    def _check_panels(self) -> None:
        if self.experiment is None:
            return
        titles = self.method_names
        seen: set[tuple[str, str]] = set()
        for panel in self.panels:
            for name in panel.methods or ():
                _require_known(f"The panel {panel.name!r}", "methods of the file", name, titles)
            for name in panel.methods or titles:
                remedy = "give panels of one name disjoint methods"
                twice = (panel.name, name) in seen
                require(not twice, "[[panels]]", "each cell once", (panel.name, name), remedy)
                seen.add((panel.name, name))
        _ = self.panel_experiments

    def _check_published(self) -> None:
        for entry in self.published:
            who = f"The published cell of {entry.where!r}"
            single = entry.panel if entry.panel is not None else entry.method
            outer, inner = (
                (self.panel_names, self.method_names)
                if entry.panel is not None
                else (self.method_names, self.panel_names)
            )
            kinds = ("panel", "method") if entry.panel is not None else ("method", "panel")
            _require_known(who, f"a {kinds[0]} of the file", str(single), outer)
            for name in entry.values:
                _require_known(who, f"a {kinds[1]} of the file", name, inner)
            if entry.relative_to is not None:
                _require_known(who, "a method of the file", entry.relative_to, self.method_names)
        places = [(cell.quantity, cell.panel, cell.method) for cell in self.cells]
        twice = next((place for place in places if places.count(place) > 1), None)
        require(twice is None, "[[published]]", "each cell once", twice)

    def _check_claims(self) -> None:
        for claim in self.claims:
            who = f"The claim {claim.text!r}"
            methods, panels = self.method_names, self.panel_names
            for name in claim.names:
                known = panels if claim.across is not None else methods
                kind = "a panel of the file" if claim.across is not None else "a method of the file"
                _require_known(who, kind, name, known)
            for method in (claim.across, claim.relative_to):
                if method is not None:
                    _require_known(who, "a method of the file", method, methods)
            for name in (*(claim.panels or ()), *(claim.change or ())):
                _require_known(who, "a panel of the file", name, panels)

    def _check_small(self) -> None:
        if self.small is None:
            return
        require(self.experiment is not None, "[small]", "an [experiment]", None)
        for name in self.small.panel:
            _require_known("[small.panel]", "a panel of the file", name, self.panel_names)
        for each in self.small.left_out:
            alone = not (each.grid and each.methods)
            require(alone, "left_out", "a grid of all methods", each.methods)
            if each.panel is not None:
                _require_known("left_out", "a panel of the file", each.panel, self.panel_names)
            for name in each.methods or ():
                _require_known("left_out", "a method of the file", name, self.method_names)

    def _check_tune(self) -> None:
        for name in self.tune.panels or ():
            _require_known("[tune]", "a panel of the file", name, self.panel_names)
        for name in self.tune.methods or ():
            _require_known("[tune]", "a method of the file", name, self.method_names)

    @property
    def panel_names(self) -> list[str]:
        """Return the names of the panels; a file that runs nothing has those of its numbers."""
        if self.panels:
            return list(dict.fromkeys(panel.name for panel in self.panels))
        named = [entry.panel for entry in self.published if entry.panel is not None]
        keyed = [name for entry in self.published if entry.panel is None for name in entry.values]
        return list(dict.fromkeys([*named, *keyed]))

    @property
    def method_names(self) -> list[str]:
        """Return the titles of the methods; a file that runs nothing has those of its numbers."""
        if self.experiment is not None:
            return [method.title for method in self.experiment.methods]
        if self.methods:
            return self.methods
        named = [entry.method for entry in self.published if entry.method is not None]
        keyed = [name for entry in self.published if entry.method is None for name in entry.values]
        return list(dict.fromkeys([*named, *keyed]))

    @property
    def cells(self) -> list[PublishedCell]:
        """Return the numbers that the document prints, one by one."""
        return [
            PublishedCell(
                entry.quantity,
                panel=key if entry.panel is None else entry.panel,
                method=key if entry.method is None else entry.method,
                value=Value.of(value),
                deviation=entry.deviation.get(key),
                approximate=entry.approximate,
                where=entry.where,
            )
            for entry in self.published
            for key, value in entry.values.items()
        ]


def panel_experiment(experiment: Experiment, panel: Panel) -> Experiment:
    """Return the experiment of a panel: its settings and its methods, and grids that concern them.

    Documents test in every round where they do not say otherwise. A field that names a method that
    the panel does not have is an error of the file.
    """
    often = {"evaluation.every": 1} if experiment.evaluation.every is None else {}
    changed = experiment.changed({**often, **panel.set})
    if panel.methods is None:
        return changed
    return with_methods(changed, panel.methods)


def with_methods(experiment: Experiment, titles: Sequence[str]) -> Experiment:
    """Return the experiment with these methods alone, and with the grids that concern them."""
    methods = [method for method in experiment.methods if method.title in titles]
    names = {name.lower() for method in methods for name in (method.name, method.title)}
    shared = {"", "method", "methods", *Experiment.model_fields}

    def concerns(path: str) -> bool:
        return path.rpartition(".")[0].lower() in names | shared

    grid = {path: values for path, values in experiment.sweep.grid.items() if concerns(path)}
    together = [t for t in experiment.sweep.together if all(concerns(path) for path in t)]
    sweep = experiment.sweep.model_copy(update={"grid": grid, "together": together})
    return experiment.model_copy(update={"methods": methods, "sweep": sweep})


def _require_known(who: str, kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        lowered = {each.lower(): each for each in known}
        near = nearest(name, lowered)
        listed = ", ".join(known) or "none"
        raise ValueError(f"{who} needs {kind}, got {name!r}{near}; there are {listed}.")


def parse(text: str, name: str) -> Paper:
    """Return the paper of a TOML text; `name` is its name in messages."""
    try:
        return Paper.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} needs to be TOML, got an error: {error}.") from None
    except ValidationError as error:
        raise ValueError(f"{name}: {describe_validation_error(error, Paper)}") from None


def read(path: Path) -> Paper:
    """Return the paper of a file."""
    return parse(path.read_text(encoding="utf-8"), path.name)
