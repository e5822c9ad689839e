"""Predictions for the rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.read import as_frame

if TYPE_CHECKING:
    import pandas as pd

BATCH = 4096


def score(model: nn.Module, preprocessing: Preprocessing, rows: Any) -> pd.DataFrame:
    """Return a frame of predictions, one for each row of a frame or a CSV file.

    Classes come with the probability of each; numbers are in the units of the target.
    """
    import pandas as pd

    frame = as_frame(rows)
    parameter = next(model.parameters())
    inputs = torch.from_numpy(preprocessing.inputs(frame))
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
