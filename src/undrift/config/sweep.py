"""The values that a sweep tries: lists, ranges, and lists whose values change together.

Tuning is a sweep, too: each method is then run anew at its best cell, with seeds of their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from undrift.check import require
from undrift.config.hyperparameters import as_text
from undrift.config.messages import describe_validation_error
from undrift.config.sections import Count, Part

Seed = Annotated[int, Field(ge=0, lt=2**63)]
TUNE_SEED = 1000  # of tuning where none is named; the next one that is not among the seeds
VALUES = ("grid", "together")  # the fields that name values; the others say how to tune


class Range(Part):
    """Holds the ends of the numbers that a search draws from; whole ones if both ends are."""

    low: int | float
    high: int | float
    log: bool = Field(False, description="Draw evenly in the logarithm.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        finite = abs(self.low) < float("inf") and abs(self.high) < float("inf")
        ends = [self.low, self.high]
        require(finite and self.low < self.high, "A range", "two numbers, low < high", ends)
        require(not self.log or self.low > 0, "A range", "low > 0 with log = true", self.low)
        return self

    @property
    def whole(self) -> bool:
        """Return whether whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def _range(path: str, table: dict[str, Any]) -> Range:
    try:
        return Range.model_validate(table)
    except ValidationError as error:
        raise ValueError(
            f"sweep.grid's {path!r}: {describe_validation_error(error, Range)}"
        ) from None


def _refuse_bare_names(table: Any) -> None:
    """Raise if a name has no quotes: TOML reads FedProx.mu = [0.1] as a table in a table."""
    for section, values in table.items() if isinstance(table, dict) else ():
        names = [*values] if isinstance(values, dict) else []
        bare = next((name for name in names if isinstance(values[name], list | dict)), None)
        if bare is not None and bare not in Range.model_fields:
            raise ValueError(
                f"sweep needs the names of fields in quotes, got {section}.{bare} without; write "
                f'"{section}.{bare}" = ...'
            )


class Sweep(Part):
    """Says which values to try: all combinations of `grid`, and rows that change together."""

    grid: dict[str, list[Any] | Range] = Field(
        default_factory=dict,
        description="Field -> values, such as 'method.lr' = [0.1, 0.3]; or, for a search, "
        "{ low = 0.001, high = 1.0, log = true }.",
    )
    together: list[dict[str, list[Any]]] = Field(
        default_factory=list,
        description="Tables of equally long lists, such as rounds and epochs whose product is "
        "fixed.",
    )
    tune: bool = Field(
        False,
        description="Choose each method's cell on validation samples, then run it there with the "
        "experiment's seeds on all samples.",
    )
    trials: Count | None = Field(
        None, description="Tuning: cells of a method; as many as the smallest grid has."
    )
    halving: bool = Field(
        False, description="Tuning: few rounds first, twice as many for the better half."
    )
    extend: Annotated[int, Field(ge=0)] = Field(
        2, description="Tuning: further values, one a method, while a choice is at an edge."
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Tuning: share of each client's samples to choose by."
    )
    tune_seeds: list[Seed] = Field(
        default_factory=list, description="Tuning: seeds that are not among the experiment's."
    )

    @field_validator("grid", "together", mode="before")
    @classmethod
    def _as_toml_has_it(cls, values: Any) -> Any:
        """Return the values with schedules and rules as text, and tables as ranges."""
        plain = as_text(values)
        for table in plain if isinstance(plain, list) else [plain]:
            _refuse_bare_names(table)
        if not isinstance(plain, dict):
            return plain
        tables = {path: each for path, each in plain.items() if isinstance(each, dict)}
        return {**plain, **{path: _range(path, table) for path, table in tables.items()}}

    @model_validator(mode="after")
    def _rows(self) -> Self:
        for name, values in self.grid.items():
            require(bool(values), f"sweep.grid.{name}", "at least one value", values)
        for table in self.together:
            lengths = {name: len(values) for name, values in table.items()}
            even = len(set(lengths.values())) == 1 and min(lengths.values()) > 0
            require(even, "sweep.together", "lists of the same length, one value at least", lengths)
        twice = next((path for path in self.paths if self.paths.count(path) > 1), None)
        require(twice is None, "sweep", "every field once", twice, "name it in one place")
        for values in [*self.grid.values(), *(v for t in self.together for v in t.values())]:
            writable = not isinstance(values, list) or None not in values
            require(writable, "sweep", "values that TOML has", None, "write 'none'")
        if self.tune:
            self._check_tuning()
        elif "tune" not in self.model_fields_set:  # An explicit false switches tuning off.
            for name in self.model_fields_set.difference(VALUES):
                raise ValueError(f"sweep.{name} needs sweep.tune = true beside it, got none.")
        return self

    def _check_tuning(self) -> None:
        """Raise if cells could not be chosen among these values."""
        example = '"method.lr" = [0.01, 0.03, 0.1, 0.3]'
        remedy = f"add [sweep.grid] with a line such as {example}"
        require(not self.empty, "sweep.tune", "values to choose from", "none", remedy)
        for path, values in self.ranges.items():
            got = f"the range {values.low} to {values.high} for {path!r}"
            raise ValueError(f"sweep.tune needs lists of values, got {got}; write {example}.")
        twice = len(set(self.tune_seeds)) < len(self.tune_seeds)
        require(not twice, "sweep.tune_seeds", "different seeds", self.tune_seeds)

    @model_serializer(mode="wrap")
    def _without_tuning(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields, those of tuning only where it is asked for."""
        fields: dict[str, Any] = dump(self)
        return fields if self.tune else {n: v for n, v in fields.items() if n in VALUES}

    def seeds_beside(self, seeds: list[int]) -> list[int]:
        """Return the seeds of tuning, none of which is among those of the experiment."""
        if not self.tune_seeds:
            return [next(s for s in range(TUNE_SEED, 2**63) if s not in seeds)]
        among = [seed for seed in self.tune_seeds if seed in seeds]
        remedy = "name others, or leave sweep.tune_seeds out"
        require(not among, "sweep.tune_seeds", f"seeds beside {seeds}", among, remedy)
        return self.tune_seeds

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to try."""
        return not self.grid and not self.together

    @property
    def paths(self) -> list[str]:
        """Return the fields that are swept."""
        return [*self.grid, *(path for table in self.together for path in table)]

    @property
    def ranges(self) -> dict[str, Range]:
        """Return the fields whose values are drawn from a range."""
        return {path: values for path, values in self.grid.items() if isinstance(values, Range)}
