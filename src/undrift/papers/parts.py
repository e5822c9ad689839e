"""The parts of a paper file beside its experiment: panels, numbers, claims, the small scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from undrift.check import require
from undrift.config.sections import Part
from undrift.papers.quantity import Quantity, Value

Printed = int | float | str
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
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
    headline: str = ""  # the claim in a few words, for the README, which names no others
    found: str = ""  # the reason for our verdict, where one was looked for

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


class Tune(Part):
    """Says how `--tune` looks for each method's step size."""

    axis: bool = False  # whether the methods are step sizes, so that none is tuned
    factors: list[Factor] = Field(default=[0.1, 0.3, 1.0, 3.0], min_length=2)  # of the printed one
    grid: dict[str, list[Any]] = Field(default_factory=dict)  # field -> values, instead or besides
    panels: list[str] | None = None  # that are tuned; None: all
    methods: list[str] | None = None
    trials: int | None = None  # these five as in [sweep]
    halving: bool | None = None
    extend: int | None = None
    validation: float | None = None
    tune_seeds: list[int] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Return what is given of the fields that `[sweep]` has, too."""
        names = ("trials", "halving", "extend", "validation", "tune_seeds")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


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
