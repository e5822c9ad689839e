"""Samples with several inputs, such as token ids and a mask, in one tensor for the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undrift.check import require

_EXACT = 2**24  # whole numbers below it survive in float32


@dataclass(frozen=True)
class Field:
    """Describes one input of a sample."""

    name: str
    shape: tuple[int, ...]
    whole: bool

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)


def pack(inputs: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Field, ...]]:
    """Return all inputs side by side in one tensor (N, numbers), and what they are."""
    fields = tuple(
        Field(name, tuple(value.shape[1:]), not value.is_floating_point())
        for name, value in inputs.items()
    )
    whole = all(field.whole for field in fields)
    flat = [value.reshape(len(value), -1) for value in inputs.values()]
    if whole:
        return torch.cat([part.long() for part in flat], dim=1), fields
    for field, part in zip(fields, flat, strict=True):
        exact = not field.whole or part.numel() == 0 or int(part.abs().max()) < _EXACT
        remedy = "give it as a float"
        require(exact, f"The field {field.name!r}", "numbers below 2**24", "larger ones", remedy)
    return torch.cat([part.float() for part in flat], dim=1), fields


class FieldModel(nn.Module):
    """Gives a model its inputs by name, and takes the logits of its answer."""

    def __init__(self, model: nn.Module, fields: tuple[Field, ...]) -> None:
        super().__init__()
        self.model, self.fields = model, fields

    def forward(self, packed: Tensor) -> Tensor:
        parts = torch.split(packed, [field.size for field in self.fields], dim=-1)
        named = {
            field.name: (part.round().long() if field.whole else part).reshape(-1, *field.shape)
            for field, part in zip(self.fields, parts, strict=True)
        }
        outputs = self.model(**named)
        if isinstance(outputs, Mapping):
            outputs = outputs.get("logits", outputs)
        logits: Tensor = getattr(outputs, "logits", outputs)
        return logits
