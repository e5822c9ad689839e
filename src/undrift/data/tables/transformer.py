"""Transformers of one's own for the columns of a table: any that scikit-learn's pipelines take.

A fitted one is kept as an archive of skops, which holds no code: reading it makes objects of known
types alone, and names all others before any is made.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import require
from undrift.data.formats.packed import require_deflated, too_large, unpacked_limit
from undrift.errors import DataError, UndriftError, first_line, optional
from undrift.untrusted import parse_json

if TYPE_CHECKING:
    import pandas as pd

WHO = "transformer"


@dataclass(frozen=True)
class TransformedColumns:
    """Makes features of columns by a transformer that was fitted to the training rows."""

    names: tuple[str, ...]  # of the columns that it takes
    features: tuple[str, ...]
    archive: bytes = field(repr=False)  # of skops
    fitted: Any = field(compare=False, repr=False)

    @classmethod
    def fit(cls, transformer: Any, columns: pd.DataFrame) -> TransformedColumns:
        """Return a copy of the transformer fitted to the training rows of these columns."""
        parts = all(callable(getattr(transformer, part, None)) for part in ("fit", "transform"))
        usable = parts and not isinstance(transformer, type)
        expected = "an object with fit and transform, such as a ColumnTransformer"
        require(usable, WHO, expected, transformer)
        base = optional("sklearn.base", "A transformer", "tables", package="scikit-learn")
        skops = _skops()
        try:
            fitted = base.clone(transformer).fit(columns)
        except Exception as error:  # a transformer may raise anything
            raise _failed("to be fitted to the training rows", error) from error
        values = _transformed(fitted, columns)
        try:
            archive: bytes = skops.dumps(fitted)
        except Exception as error:
            raise _failed("to be saved by skops", error) from error
        return cls(tuple(map(str, columns.columns)), _names(fitted, values), archive, fitted)

    @classmethod
    def read(
        cls, names: tuple[str, ...], features: tuple[str, ...], archive: bytes, *, trust: bool
    ) -> TransformedColumns:
        """Return what an archive of skops holds; types that skops does not know need `trust`."""
        skops = _skops()
        try:
            _require_unpackable(archive)
            others = skops.get_untrusted_types(data=archive)
            if others and not trust:
                raise UndriftError(
                    f"A model's transformer needs your trust before its types are made, got "
                    f"{', '.join(map(str, others))}; say --trust (trust=True in Python) if they "
                    "are yours."
                )
            fitted = skops.loads(archive, trusted=others)
        except UndriftError:
            raise
        except Exception as error:
            raise _failed("an archive of skops, and its types to be importable", error) from error
        return cls(names, features, archive, fitted)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (N, features) what the transformer makes of the rows."""
        values = _transformed(self.fitted, frame[list(self.names)])
        same = values.shape == (len(frame), len(self.features))
        require(same, WHO, f"{len(self.features)} features for each row", values.shape)
        return values


def _skops() -> Any:
    return optional("skops.io", "A transformer of one's own", "tables", package="skops")


def _require_unpackable(archive: bytes) -> None:
    """Raise `ValueError` where what an archive holds would take far more than its size.

    Its members may be archives themselves, as sparse matrices are, and each place that names a
    member reads it anew.
    """
    limit = unpacked_limit(len(archive))
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        left = limit - _unpacked(members)
        if left < 0:
            raise too_large(limit)
        places = Counter(_files(parse_json(members.read("schema.json"))))
        for name, times in places.items():
            content = members.read(name)
            size = len(content)
            if content.startswith(b"PK"):
                with zipfile.ZipFile(io.BytesIO(content)) as inner:
                    size += _unpacked(inner)
            left -= times * size
            if left < 0:
                raise too_large(limit)


def _unpacked(archive: zipfile.ZipFile) -> int:
    """Return how many bytes the members of an archive unpack to."""
    for member in archive.infolist():
        require_deflated(member)
    return sum(member.file_size for member in archive.infolist())


def _files(schema: Any) -> Iterator[str]:
    """Yield the name of a member for each place of skops' description that reads it."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("file"), str):
                yield value["file"]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _failed(expected: str, error: Exception) -> DataError:
    return DataError(f"A transformer needs {expected}, got {first_line(error, named=True)}.")


def _transformed(fitted: Any, columns: pd.DataFrame) -> NDArray[np.float32]:
    """Return the features as floats, or raise `DataError`."""
    try:
        made: Any = fitted.transform(columns)
        dense = made.toarray() if hasattr(made, "toarray") else np.asarray(made)
        with np.errstate(over="ignore"):  # an overflow shows as Inf below
            values: NDArray[np.float32] = dense.astype(np.float32)
    except Exception as error:
        raise _failed("to make numbers of the rows", error) from error
    if values.ndim != 2 or len(values) != len(columns) or values.shape[1] == 0:
        raise DataError(
            f"A transformer needs to return rows of features, got shape {values.shape} for "
            f"{len(columns)} rows."
        )
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise DataError(
            f"A transformer needs to return finite numbers, got NaN or Inf in row {row + 1}; add a "
            "SimpleImputer to it, or drop the row."
        )
    return values


def _names(fitted: Any, values: NDArray[np.float32]) -> tuple[str, ...]:
    """Return the names of the features, those that the transformer gives them where it can."""
    try:
        names = tuple(map(str, fitted.get_feature_names_out()))
    except Exception:  # many transformers have no names for what they make
        names = ()
    width = values.shape[1]
    return names if len(names) == width else tuple(f"feature {i}" for i in range(width))
