"""Predictions for the rows of a table."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from undrift.data.tables.preprocessing import NumberColumn, Preprocessing
from undrift.data.tables.read import as_frame
from undrift.data.tables.transformer import TransformedColumns

if TYPE_CHECKING:
    import pandas as pd

BATCH = 4096


def score(
    model: nn.Module, preprocessing: Preprocessing, rows: Any, *, tells: bool = True
) -> pd.DataFrame:
    """Return a frame of predictions, one for each row of a frame or a CSV file.

    Classes come with the probability of each; numbers are in the units of the target.
    It tells how many missing cells are filled in, unless `tells` is False.
    """
    import pandas as pd

    frame = as_frame(rows)
    parameter = next(model.parameters())
    inputs = torch.from_numpy(preprocessing.inputs(frame))
    if tells:
        _tell_filled(frame, preprocessing)
    modes = [part.training for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            batches = [
                model(batch.to(device=parameter.device, dtype=parameter.dtype)).double().cpu()
                for batch in torch.split(inputs, BATCH)
            ]
    finally:
        for part, training in zip(model.modules(), modes, strict=True):
            part.training = training
    columns = preprocessing.predictions(torch.cat(batches).numpy())
    return pd.DataFrame(columns, index=frame.index)


def _tell_filled(frame: pd.DataFrame, preprocessing: Preprocessing) -> None:
    """Raise a warning that says how many missing cells of which columns are filled in."""
    filled = [
        f"{count:,} of column {column.name!r} by {column.fill:.4g}"
        if isinstance(column, NumberColumn)
        else f"{count:,} of column {column.name!r} by {column.fill!r}"
        for column in preprocessing.columns
        if not isinstance(column, TransformedColumns)
        and column.fill is not None
        and column.name in frame.columns
        and (count := int(frame[column.name].isna().sum()))
    ]
    if filled:
        warnings.warn(f"Missing cells are filled in: {', '.join(filled)}.", stacklevel=3)
