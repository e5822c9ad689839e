"""A paper file: one table or figure of a document, typed.

paper = read(path)
paper.experiment, paper.panels        what is run
paper.cells                           what the document prints
paper.claims                          what the document says about it
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from undrift.check import nearest, require
from undrift.config.experiment import Experiment
from undrift.config.messages import describe_validation_error
from undrift.config.sections import Part
from undrift.papers.quantity import Quantity, Value

Printed = int | float | str
Hours = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Panel(Part):
    """Says what a part of a table or figure changes in the experiment, and which methods it has."""

    name: str = Field(min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    methods: list[str] | None = None


class Measured(Part):
    """Names the quantity that a published entry or a claim is about."""

    metric: str
    at: int | None = None
    target: float | None = None
    relative_to: str | None = None
    where: str = Field(min_length=1)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        _ = self.quantity
        return self

    @property
    def quantity(self) -> Quantity:
        """Return the quantity."""
        return Quantity(self.metric, self.at, self.target, self.relative_to)


class PublishedNumbers(Measured):
    """Holds numbers that a document prints: of one panel by method, or of one method by panel."""

    panel: str | None = None
    method: str | None = None
    values: dict[str, Printed]
    deviation: dict[str, float] = Field(default_factory=dict)
    approximate: bool = False

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        one = (self.panel is None) != (self.method is None)
        got = "both" if self.panel is not None else "neither"
        require(one, "[[published]]", "either panel or method", got)
        for value in self.values.values():
            Value.of(value)
        strange = next((key for key in self.deviation if key not in self.values), None)
        require(strange is None, "deviation", "keys that values has, too", strange)
        return self


class Claim(Measured):
    """States an ordering or a bound that a document claims."""

    text: str = Field(min_length=1)
    panels: list[str] | None = None
    ahead: str | None = None
    of: list[str] | None = None
    order: list[str] | None = None
    alike: list[str] | None = None
    method: str | None = None
    by: float | None = None
    factor: float | None = None
    within: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    across: str | None = None
    change: list[str] | None = None
    contradicted: bool = False  # whether the document's own numbers contradict it

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = ("ahead", "order", "alike", "method")
        given = [name for name in forms if getattr(self, name) is not None]
        require(len(given) == 1, "A claim", f"one of {', '.join(forms)}", given)
        bounded = self.at_least is not None or self.at_most is not None
        is_bound = self.method is not None
        require(is_bound == bounded, "A claim", "at_least or at_most beside method alone", given)
        tied = (self.alike is None) == (self.within is None)
        require(tied, "A claim", "within beside alike, and nowhere else", self.within)
        fits = self.of is None or self.ahead is not None
        require(fits, "A claim", "of beside ahead alone", self.of)
        leads = self.ahead is not None or self.order is not None
        free = leads or (self.by is None and self.factor is None)
        require(free, "A claim", "by or factor beside ahead or order", given)
        for name in ("order", "alike"):
            several = getattr(self, name) is None or len(getattr(self, name)) > 1
            require(several, f"A claim's {name}", "two names at least", getattr(self, name))
        pair = self.change is None or len(self.change) == 2
        require(pair, "A claim's change", "two panels", self.change)
        single = self.across is None or (self.panels is None and self.change is None)
        require(single, "A claim", "neither panels nor change beside across", self.across)
        lonely = self.change is None or self.panels is None
        require(lonely, "A claim", "no panels beside change", self.panels)
        return self

    @property
    def names(self) -> list[str]:
        """Return the methods, or with `across` the panels, that the claim names."""
        single = [name for name in (self.ahead, self.method) if name is not None]
        return [*single, *(self.of or ()), *(self.order or ()), *(self.alike or ())]


class SmallPanel(Part):
    """Says what the small scale changes: the network, the rounds, the evaluation."""

    model: dict[str, Any] | None = None
    rounds: int | float | None = None
    evaluation: dict[str, Any] = Field(default_factory=dict)

    @field_validator("rounds")
    @classmethod
    def _some(cls, rounds: int | float | None) -> int | float | None:
        whole = rounds is None or (isinstance(rounds, int) and rounds >= 1)
        share = isinstance(rounds, float) and 0 < rounds <= 1
        require(whole or share, "rounds", "a whole number, or a share such as 0.2", rounds)
        return rounds


class LeftOut(Part):
    """Names cells that the small scale leaves out, and the hours that they would take."""

    panel: str | None = None
    methods: list[str] | None = None
    grid: bool = False  # whether it is the grid that is left out
    hours: Hours
    why: str = ""


class Small(SmallPanel):
    """Describes the scale that two cores can carry."""

    why: str = Field(min_length=1)
    panel: dict[str, SmallPanel] = Field(default_factory=dict)
    left_out: list[LeftOut] = Field(default_factory=list)


class StandIn(Part):
    """Names the data that take the place of a data set that is not at hand."""

    name: str
    why: str = Field(min_length=1)
    clients: int | None = None
    partition: str | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Return the fields of the data section that change."""
        values = {"name": self.name, "clients": self.clients, "partition": self.partition}
        return {f"data.{key}": value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class PublishedCell:
    """Holds one number that a document prints."""

    quantity: Quantity
    panel: str
    method: str
    value: Value
    deviation: float | None
    approximate: bool
    where: str


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
        if self.experiment is not None:
            self._check_panels(self.experiment)
        self._check_published()
        self._check_claims()
        self._check_small()
        return self

    def _check_panels(self, experiment: Experiment) -> None:
        titles = [method.title for method in experiment.methods]
        seen: set[tuple[str, str]] = set()
        for panel in self.panels:
            for name in panel.methods or ():
                _require_known(f"The panel {panel.name!r}", "methods of the file", name, titles)
            for name in panel.methods or titles:
                remedy = "give panels of one name disjoint methods"
                twice = (panel.name, name) in seen
                require(not twice, "[[panels]]", "each cell once", (panel.name, name), remedy)
                seen.add((panel.name, name))
            panel_experiment(experiment, panel)

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
