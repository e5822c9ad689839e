"""Checkpoints of a centre: the server's state and the ledger that belongs to it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from undrift.aggregation.validation import sizes_of
from undrift.errors import CheckpointError
from undrift.federation.members import Ledger
from undrift.federation.messages import StateName
from undrift.federation.sealed import read_sealed, write_sealed
from undrift.results.record import Record, Totals

KEPT = 2
_NAME = re.compile(r"centre-(\d{8})\.sealed")


@dataclass(frozen=True)
class CentreState:
    """Holds all that a centre needs to go on."""

    experiment: str
    round: int
    ledger: Ledger
    totals: Totals
    record: Record | None
    sizes: dict[str, list[float]]  # of uploads, as `UsualSizes` has them
    tensors: list[Tensor]  # the first model, and the leaves of the server's state


class CentreCheckpoints:
    """Writes and reads the checkpoints of one federation in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.oldest: Mapping[int, StateName] = {}  # states that the oldest checkpoint asks for
        self._ledgers: dict[int, Ledger] = {}

    def require_empty(self) -> None:
        """Raise if the folder has checkpoints, which a new run would overwrite."""
        if self._rounds():
            raise ValueError(
                f"checkpoint needs an empty folder, got {str(self._folder)!r} with checkpoints of "
                "an earlier run; pass resume=True, or choose another."
            )

    def write(self, state: CentreState) -> None:
        """Save a state; the last two are kept."""
        header = {
            "experiment": state.experiment,
            "round": state.round,
            "ledger": state.ledger.to_dict(),
            "totals": asdict(state.totals),
            "record": state.record and state.record.to_dict(),
            "sizes": state.sizes,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        write_sealed(self._path(state.round), header, state.tensors)
        self._ledgers[state.round] = state.ledger
        for round in self._rounds():
            if round > state.round:  # of a run that went back to an earlier checkpoint
                self._remove(round)
        for round in [each for each in self._rounds() if each <= state.round][:-KEPT]:
            self._remove(round)
        kept = [each for each in sorted(self._ledgers) if each in self._rounds()]
        self.oldest = self._ledgers[kept[0]].counted

    def latest(self, experiment: str) -> CentreState:
        """Return the newest sound checkpoint of this experiment."""
        states = []
        for round in reversed(self._rounds()):
            try:
                states.append(self._read(round))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                warnings.warn(f"Checkpoint {round} is damaged ({error}).", stacklevel=2)
        if not states:
            raise CheckpointError(
                f"resume needs a sound checkpoint, got none in {str(self._folder)!r}; start anew."
            )
        newest = states[0]
        if newest.experiment != experiment:
            raise CheckpointError(
                f"resume needs the experiment {newest.experiment} of the checkpoint, got "
                f"{experiment}; use the same file."
            )
        self._ledgers = {state.round: state.ledger for state in states}
        self.oldest = states[-1].ledger.counted
        return newest

    def _read(self, round: int) -> CentreState:
        header, tensors = read_sealed(self._path(round))
        record: Any = header["record"]
        if header["round"] != round:
            raise ValueError(f"it is of round {str(header['round'])[:20]}")
        return CentreState(
            experiment=header["experiment"],
            round=header["round"],
            ledger=Ledger.from_dict(header["ledger"]),
            totals=Totals(**header["totals"]),
            record=Record(**record) if record else None,
            sizes=sizes_of(header["sizes"]),
            tensors=tensors,
        )

    def _rounds(self) -> list[int]:
        names = (_NAME.fullmatch(path.name) for path in self._folder.glob("centre-*"))
        return sorted(int(match[1]) for match in names if match is not None)

    def _remove(self, round: int) -> None:
        with suppress(OSError):
            self._path(round).unlink()
        self._ledgers.pop(round, None)

    def _path(self, round: int) -> Path:
        return self._folder / f"centre-{round:08d}.sealed"
