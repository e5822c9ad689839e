"""What is compared: methods with their hyper-parameters, and the values that a sweep tries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from undrift.check import require
from undrift.config.hyperparameters import (
    METHODS,
    apply_wrappers,
    as_text,
    build,
    hyper_parameters,
    method_class,
    parse_codec,
)
from undrift.config.messages import describe_validation_error
from undrift.config.sections import Part, WorkForm, parsed_by

CodecForm = Annotated[str, parsed_by(parse_codec)]


class Method(Part):
    """One method: its name, hyper-parameters beside it, and what wraps it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = Field(description="As `undrift list` shows it, or module:Class for your own.")
    label: str | None = Field(None, min_length=1, description="What tables call it.")
    work: WorkForm | None = Field(None, description="Its own local work, instead of training.work.")
    accelerate: float | None = Field(None, description="lam of accelerated broadcast (X + ACG).")
    codec: CodecForm | None = Field(
        None, description="Of uploads: qsgd:8, scaled-sign, top-k:0.01."
    )
    error_feedback: bool = Field(False, description="Keep what the codec loses for later.")

    @model_validator(mode="before")
    @classmethod
    def _as_toml_has_it(cls, values: Any) -> Any:
        """Schedules and rules as text, the library's names in lower case."""
        if not isinstance(values, Mapping):
            return values
        plain = {name: as_text(value) for name, value in values.items()}
        name = plain.get("name")
        if isinstance(name, str) and name.lower() in METHODS:
            plain["name"] = name.lower()
        return plain

    @field_validator("accelerate")
    @classmethod
    def _ahead(cls, lam: float | None) -> float | None:
        require(lam is None or 0 <= lam < 1, "accelerate", "a number in [0, 1) such as 0.85", lam)
        return lam

    @model_validator(mode="after")
    def _buildable(self) -> Self:
        self.build()
        return self

    @property
    def cls(self) -> type:
        return method_class(self.name)

    @property
    def given(self) -> dict[str, Any]:
        """Its hyper-parameters as they were given."""
        return dict(self.model_extra or {})

    @property
    def title(self) -> str:
        if self.label is not None:
            return self.label
        added = " + ACG" if self.accelerate is not None else ""
        return f"{self.cls.__name__}{added}{f' + {self.codec}' if self.codec else ''}"

    def build(self) -> Any:
        return apply_wrappers(
            build(self.cls, self.given),
            accelerate=self.accelerate,
            codec=self.codec,
            error_feedback=self.error_feedback,
        )

    def resolved(self) -> Method:
        """With every hyper-parameter, also those left at their defaults."""
        own = hyper_parameters(build(self.cls, self.given))
        told = {**own, **self.model_dump(include=set(Method.model_fields))}
        return Method(**{**told, "name": absolute(self.name, Path())})


def absolute(name: str, folder: Path) -> str:
    """A method's name; of one in a file, with the whole path, if it is in this folder."""
    place, _, cls = name.rpartition(":")
    there = place.endswith(".py") and (folder / place).is_file()
    return f"{(folder / place).absolute()}:{cls}" if there else name


class Range(Part):
    """Numbers from `low` to `high`, of which a search draws; whole ones if both are."""

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
        return isinstance(self.low, int) and isinstance(self.high, int)


def _range(path: str, table: dict[str, Any]) -> Range:
    try:
        return Range.model_validate(table)
    except ValidationError as error:
        raise ValueError(
            f"sweep.grid's {path!r}: {describe_validation_error(error, Range)}"
        ) from None


class Sweep(Part):
    """Values to try: every combination of `grid`, and rows of values that change together."""

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
    def _as_toml_has_it(cls, given: Any) -> Any:
        """Schedules and rules as text, and tables of the grid as ranges."""
        plain = as_text(given)
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
            known = not isinstance(values, list) or None not in values
            require(known, "sweep", "values that TOML has", None, "write 'none'")
        return self

    @property
    def empty(self) -> bool:
        return not self.grid and not self.together

    @property
    def paths(self) -> list[str]:
        """The fields that are swept."""
        return [*self.grid, *(path for table in self.together for path in table)]

    @property
    def ranges(self) -> dict[str, Range]:
        return {path: values for path, values in self.grid.items() if isinstance(values, Range)}
