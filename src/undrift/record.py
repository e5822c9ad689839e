"""What a run reports after each round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Record:
    """One round, measured. Costs are of this round alone; `Totals` adds them up."""

    round: int  # rounds completed, from 1
    clients: int  # distinct clients that took part
    loss: float | None  # test set, or training data without one; None when not evaluated
    accuracy: float | None  # top-1 on the same data; None when not evaluated or not a classifier
    bytes_up: int
    bytes_down: int
    gradients: int  # minibatch gradients evaluated, over all clients
    samples: int  # samples those gradients were taken on
    seconds: float  # wall time of the round without evaluation

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        shown = [f"round {self.round:4d}"]
        if self.loss is not None:
            shown.append(f"loss {self.loss:.4f}")
        if self.accuracy is not None:
            shown.append(f"accuracy {self.accuracy:.4f}")
        shown.append(f"up {self.bytes_up / 1e6:.3f} MB  down {self.bytes_down / 1e6:.3f} MB")
        shown.append(f"gradients {self.gradients}  {self.seconds:.3f} s")
        return "  ".join(shown)


@dataclass
class Totals:
    """Costs of a run so far; survives a resume."""

    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0
    samples: int = 0
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(record, field.name))
