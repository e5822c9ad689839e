"""The inputs of new samples, in whatever a user has them, as one tensor for a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from undrift.check import require
from undrift.data.sources.fields import Field, pack
from undrift.data.sources.samples import TARGETS, Source, as_tensor, is_source

WHO = "predict"


def inputs_of(rows: Any, fields: tuple[Field, ...]) -> Tensor:
    """Return the inputs of arrays, tensors, a `Dataset`, a `DataLoader` or a dictionary of inputs.

    Targets beside them are left out. `fields` are the inputs that the model takes by name, which
    are packed as the clients' samples are.
    """
    if is_source(rows):
        source = Source.of(rows, WHO)
        rows = source.batch(range(len(source.indices)), WHO)
        if isinstance(rows, tuple | list) and len(rows) > 0:
            rows = rows[0]
    elif isinstance(rows, tuple) and len(rows) == 2:
        rows = rows[0]
    if not isinstance(rows, Mapping):
        names = ", ".join(field.name for field in fields)
        require(not fields, WHO, f"a dictionary of {names}", type(rows).__name__)
        return as_tensor(rows, WHO)
    known = [field.name for field in fields] or [name for name in rows if name not in TARGETS]
    lacking = next((name for name in known if name not in rows), None)
    require(lacking is None, WHO, f"the input {lacking!r}", ", ".join(map(str, rows)))
    if not fields:
        require(len(known) == 1, WHO, "one input, as the clients' samples have", known)
        return as_tensor(rows[known[0]], WHO)
    packed, found = pack({name: as_tensor(rows[name], WHO) for name in known})
    for field, own in zip(fields, found, strict=True):
        kind = "whole numbers" if field.whole else "floats"
        got = f"{own.shape} of {'whole numbers' if own.whole else 'floats'}"
        expected = f"{field.name!r} of shape {field.shape} of {kind} for each sample"
        require(own == field, WHO, expected, got)
    return packed
