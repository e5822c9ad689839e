"""Results of the readers of file formats: arrays as they are stored, small and exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.errors import DataError

if TYPE_CHECKING:
    from undrift.data.tables.preprocessing import Preprocessing

Array = NDArray[Any]


@dataclass(frozen=True)
class Samples:
    """Holds images as bytes (N, C, H, W), tokens as integers (N, length), or features as floats."""

    inputs: Array
    targets: Array  # (N,) int64 labels from 0, or float32 numbers
    owners: NDArray[np.int64] | None = None  # (N,) index into the names of the natural clients

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Stored:
    """Holds a data set as it was read from its files."""

    train: Samples
    test: Samples
    classes: int
    labels: tuple[str, ...] = ()  # names of the classes, where the files have them
    names: tuple[str, ...] = ()  # of the natural clients (writers, roles, celebrities)
    vocabulary: tuple[str, ...] = ()  # of tokens: token i stands for vocabulary[i]
    preprocessing: Preprocessing | None = None  # of a table, fitted to its training rows

    def __repr__(self) -> str:
        shape = tuple(self.train.inputs.shape[1:])
        named = f", {len(self.names)} natural clients" if self.names else ""
        return (
            f"Stored({len(self.train)} training and {len(self.test)} test samples of shape "
            f"{shape}{named})"
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Stored has no {name!r}, as it holds samples as they were read; "
            "undrift.Dataset.of(stored) makes a data set of it, which can be split."
        )


def damaged(path: object, expected: str, got: object, remedy: str) -> DataError:
    """Return `DataError("<path> needs <expected>, got <got>; <remedy>.")`."""
    return DataError(f"{path} needs {expected}, got {got}; {remedy}.")
