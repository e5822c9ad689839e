"""The values that a sweep tries: lists, ranges, and lists whose values change together."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from undrift.check import require
from undrift.config.hyperparameters import as_text
from undrift.config.messages import describe_validation_error
from undrift.config.sections import Part


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
        return self

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
