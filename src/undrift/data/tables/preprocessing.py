"""The fitted form of a table's preprocessing: plain data that is a part of the model.

It is means, scales, categories and values to fill in, nothing else, so that it is written as JSON,
read without running code, and can be made from sums over sites as well as from a table.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import nearest
from undrift.data.tables.cells import as_numbers, as_words, bad_cell
from undrift.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FORM = 1  # of the JSON; another number is another form


@dataclass(frozen=True)
class NumberColumn:
    """Scales a column of numbers to mean 0 and deviation 1."""

    name: str
    mean: float
    scale: float
    fill: float | None = None  # for missing cells; None refuses them

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that the column becomes."""
        return (self.name,)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, 1) the scaled numbers."""
        values = as_numbers(frame[self.name], self.name, self.fill)
        with np.errstate(over="ignore"):  # an overflow shows as Inf below
            scaled = ((values - self.mean) / self.scale).astype(np.float32)
        if not np.isfinite(scaled).all():
            row = int(np.argmin(np.isfinite(scaled)))
            expected = "numbers of a sensible range"
            raise bad_cell(self.name, row, expected, values[row], "scale the column")
        return scaled[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """Makes a column of words one feature of 0 and 1 for each category."""

    name: str
    categories: tuple[str, ...]
    fill: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that the column becomes."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, categories); a word that is no category is a row of zeros, with a warning."""
        import pandas as pd

        words = as_words(frame[self.name], self.name, self.fill)
        codes = pd.Index(self.categories, dtype=object).get_indexer(words)
        unknown = codes < 0
        if unknown.any():
            first = words[int(unknown.argmax())]
            warnings.warn(
                f"Column {self.name!r} has {int(unknown.sum())} cells with values that training "
                f"did not see, such as {first!r}; they count as none of its categories.",
                stacklevel=2,
            )
        features = np.zeros((len(words), len(self.categories)), np.float32)
        known = np.flatnonzero(~unknown)
        features[known, codes[known]] = 1
        return features


@dataclass(frozen=True)
class Target:
    """Says what is predicted: one of `classes`, or a number that was scaled for training."""

    name: str
    classes: tuple[str, ...] = ()  # empty for regression
    mean: float = 0.0
    scale: float = 1.0

    @property
    def task(self) -> str:
        """Return "classification" or "regression"."""
        return "classification" if self.classes else "regression"

    def encode(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Return classes as int64 from 0, or scaled numbers as float32."""
        if not self.classes:
            values = as_numbers(frame[self.name], self.name, None)
            numbers: NDArray[np.float32] = ((values - self.mean) / self.scale).astype(np.float32)
            return numbers
        import pandas as pd

        words = as_words(frame[self.name], self.name, None)
        coded = pd.Index(self.classes, dtype=object).get_indexer(words)
        codes: NDArray[np.int64] = np.asarray(coded, dtype=np.int64)
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            expected = f"one of {len(self.classes)} classes"
            raise bad_cell(self.name, row, expected, repr(words[row]), "correct the row")
        return codes

    def decode(self, outputs: NDArray[Any]) -> dict[str, Any]:
        """Return by name the columns that a model's outputs become: values, or probabilities."""
        if not self.classes:
            return {self.name: outputs.reshape(len(outputs)) * self.scale + self.mean}
        shifted = np.exp(outputs - outputs.max(1, keepdims=True))
        shares = shifted / shifted.sum(1, keepdims=True)
        chosen = np.array(self.classes, dtype=object)[shares.argmax(1)]
        each = {f"{self.name}={name}": shares[:, i] for i, name in enumerate(self.classes)}
        return {self.name: chosen, **each}


@dataclass(frozen=True)
class Preprocessing:
    """Turns rows of a table into the inputs of a model, and its outputs into predictions."""

    columns: tuple[NumberColumn | CategoryColumn, ...]
    target: Target

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the inputs."""
        return tuple(name for column in self.columns for name in column.features)

    def inputs(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, features) the inputs of the rows; other columns do not count."""
        names = [str(name) for name in frame.columns]
        for column in self.columns:
            if column.name not in names:
                raise DataError(
                    f"The table needs a column {column.name!r}, got none"
                    f"{nearest(column.name, names)}; the model was trained with it."
                )
        return np.concatenate([column.encode(frame) for column in self.columns], axis=1)

    def predictions(self, outputs: NDArray[Any]) -> dict[str, Any]:
        """Return by name the columns of predictions."""
        return {f"predicted {name}": each for name, each in self.target.decode(outputs).items()}

    def to_json(self) -> str:
        """Return the preprocessing as JSON, which `from_json` reads."""
        kinds = {NumberColumn: "number", CategoryColumn: "category"}
        columns = [{"kind": kinds[type(each)], **asdict(each)} for each in self.columns]
        return json.dumps({"form": FORM, "columns": columns, "target": asdict(self.target)})

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Return what `to_json` has written, or raise `DataError`."""
        try:
            values = json.loads(text)
            if values["form"] != FORM:
                raise ValueError(f"its form is {values['form']}, not {FORM}")
            target = values["target"] | {"classes": tuple(map(str, values["target"]["classes"]))}
            return cls(tuple(map(_column, values["columns"])), Target(**target))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"Preprocessing needs JSON as undrift writes it, got an error: {error}; export the "
                "model again."
            ) from error


def _column(values: dict[str, Any]) -> NumberColumn | CategoryColumn:
    kind = values.pop("kind")
    if kind == "number":
        return NumberColumn(**values)
    if kind != "category":
        raise ValueError(f"columns of kind number or category, got {kind!r}")
    return CategoryColumn(**values | {"categories": tuple(map(str, values["categories"]))})
