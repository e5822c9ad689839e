"""The fitted form of a table's preprocessing: plain data that is a part of the model.

It is means, scales, categories and values to fill in, so that it is written as JSON, read without
running code, and can be made from sums over sites as well as from a table. A transformer of one's
own is an archive of skops in the same JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import nearest
from undrift.data.tables.cells import (
    NEW_ROW_REMEDY,
    TARGET_REMEDY,
    as_numbers,
    as_words,
    bad_cell,
)
from undrift.data.tables.files import as_decimal
from undrift.data.tables.transformer import TransformedColumns
from undrift.errors import DataError
from undrift.untrusted import parse_json

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
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that it takes."""
        return (self.name,)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that the column becomes."""
        return (self.name,)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, 1) the scaled numbers."""
        cells = frame[self.name]
        values = as_numbers(cells, self.name, self.fill, missing_remedy=NEW_ROW_REMEDY)
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
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that it takes."""
        return (self.name,)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that the column becomes."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, categories); another word is "other", a row of zeros, with a warning."""
        import pandas as pd

        words = as_words(frame[self.name], self.name, self.fill, NEW_ROW_REMEDY)
        codes = pd.Index(self.categories, dtype=object).get_indexer(words)
        unknown = codes < 0
        if unknown.any():
            first = words[int(unknown.argmax())]
            warnings.warn(
                f"Column {self.name!r} has {int(unknown.sum())} cells with values that training "
                f'did not see, such as {first!r}; they are "other", none of its categories.',
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

    def sentence(self, option: str) -> str:
        """Return which task was taken since none was said, and by which `option` to say another."""
        if self.classes:
            few = ", ".join(self.classes[:3]) + (", ..." if len(self.classes) > 3 else "")
            return f"Task: classification of {self.name!r}, whose classes are {few}"
        return (
            f"Task: regression, since the target {self.name!r} holds numbers; say "
            f"{option}classification if they stand for classes"
        )

    def encode(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Return classes as int64 from 0, or scaled numbers as float32."""
        if not self.classes:
            values = as_numbers(frame[self.name], self.name, None, missing_remedy=TARGET_REMEDY)
            numbers: NDArray[np.float32] = ((values - self.mean) / self.scale).astype(np.float32)
            return numbers
        import pandas as pd

        words = as_words(frame[self.name], self.name, None, TARGET_REMEDY)
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
            if outputs.size != len(outputs):
                raise DataError(
                    f"A prediction of {self.name!r} needs one output for each row, got outputs of "
                    f"shape {outputs.shape[1:]}; call the model itself."
                )
            return {self.name: outputs.reshape(len(outputs)) * self.scale + self.mean}
        if len(self.classes) == 2 and outputs.size == len(outputs):
            rows = outputs.reshape(-1, 1)  # the logit of the second class
            outputs = np.concatenate([np.zeros_like(rows), rows], 1)
        shifted = np.exp(outputs - outputs.max(1, keepdims=True))
        shares = shifted / shifted.sum(1, keepdims=True)
        chosen = np.array(self.classes, dtype=object)[shares.argmax(1)]
        each = {f"{self.name}={name}": shares[:, i] for i, name in enumerate(self.classes)}
        return {self.name: chosen, **each}


Column = NumberColumn | CategoryColumn | TransformedColumns


@dataclass(frozen=True)
class Preprocessing:
    """Turns rows of a table into the inputs of a model, and its outputs into predictions."""

    columns: tuple[Column, ...]
    target: Target
    decimal: str = "."  # of the numbers in the file that it was fitted to

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that rows need."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the inputs."""
        return tuple(name for column in self.columns for name in column.features)

    def inputs(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, features) the inputs of the rows; other columns do not count."""
        there = [str(name) for name in frame.columns]
        for name in self.names:
            if name not in there:
                raise DataError(
                    f"The table needs a column {name!r}, got none{nearest(name, there)}; the model "
                    "was trained with it."
                )
        return np.concatenate([column.encode(frame) for column in self.columns], axis=1)

    def predictions(self, outputs: NDArray[Any]) -> dict[str, Any]:
        """Return by name the columns of predictions."""
        return {f"predicted {name}": each for name, each in self.target.decode(outputs).items()}

    @property
    def digest(self) -> str:
        """Return a hash by which equal preprocessings are known."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """Return the preprocessing as JSON, which `from_json` reads."""
        columns = list(map(_values, self.columns))
        values = {"form": FORM, "columns": columns, "target": asdict(self.target)}
        return json.dumps(values | ({} if self.decimal == "." else {"decimal": self.decimal}))

    @classmethod
    def from_json(cls, text: str, *, trust: bool = False, archives: bool = True) -> Preprocessing:
        """Return what `to_json` has written, or raise `DataError`.

        `trust` lets a transformer of one's own have types that skops does not know; without
        `archives` there must be none, so that nothing but numbers and texts is read.
        """
        try:
            values = parse_json(text)
            if values["form"] != FORM:
                raise ValueError(f"its form is {str(values['form'])[:20]!r}, not {FORM}")
            aim = values["target"]
            target = Target(
                _text(aim["name"]),
                tuple(map(str, aim["classes"])),
                _finite(aim["mean"]),
                _scale(aim["scale"]),
            )
            columns = tuple(_column(each, trust, archives) for each in values["columns"])
            return cls(columns, target, as_decimal(values.get("decimal", ".")))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"Preprocessing needs JSON as undrift writes it, got an error: {error}; export the "
                "model again."
            ) from error


def _values(column: Column) -> dict[str, Any]:
    """Return a column as JSON has it."""
    if isinstance(column, TransformedColumns):
        archive = base64.b64encode(column.archive).decode()
        return {
            "kind": "skops",
            "names": column.names,
            "features": column.features,
            "archive": archive,
        }
    kind = "number" if isinstance(column, NumberColumn) else "category"
    return {"kind": kind, **asdict(column)}


def _column(values: dict[str, Any], trust: bool, archives: bool) -> Column:
    kind, fill = values["kind"], values.get("fill")
    if kind == "number":
        mean, scale = _finite(values["mean"]), _scale(values["scale"])
        return NumberColumn(
            _text(values["name"]), mean, scale, None if fill is None else _finite(fill)
        )
    if kind == "skops" and archives:
        names, features = (tuple(map(str, values[key])) for key in ("names", "features"))
        archive = base64.b64decode(values["archive"], validate=True)
        return TransformedColumns.read(names, features, archive, trust=trust)
    if kind != "category":
        known = "number, category or skops" if archives else "number or category"
        raise ValueError(f"columns of kind {known}, got {str(kind)[:20]!r}")
    categories = tuple(map(str, values["categories"]))
    return CategoryColumn(_text(values["name"]), categories, None if fill is None else _text(fill))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text, got {str(value)[:20]}")
    return value


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"a finite number, got {str(value)[:20]}")
    return float(value)


def _scale(value: Any) -> float:
    if not _finite(value) > 0:
        raise ValueError(f"a scale above 0, got {str(value)[:20]}")
    return float(value)
