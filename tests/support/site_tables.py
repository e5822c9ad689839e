"""Tables of three sites that agree on their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import undrift as ud
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.read import Table
from undrift.federation import FederatedExperiment

NAMES = ["east", "north", "west"]
OPTIONS: dict[str, Any] = {
    "loss": F.cross_entropy,
    "work": ud.Steps(3),
    "batch_size": 10,
    "rounds": 3,
    "seed": 3,
}


def frame_of(i: int) -> Any:
    """Return the rows of one site."""
    import pandas

    rng = np.random.default_rng(i)
    rows = 50 + 13 * i
    age = rng.normal(40 + 8 * i, 6, rows)
    return pandas.DataFrame(
        {
            "age": age,
            "ward": rng.choice(["a", "b", NAMES[i]], rows),
            "visits": rng.integers(0, 30, rows),
            "died": np.where(age + rng.normal(0, 4, rows) > 50, "yes", "no"),
        }
    )


def table_of(i: int, **options: Any) -> Table:
    """Return the table of one site, which agrees with others."""
    return Table.read(frame_of(i), target="died", alone=False, **options)


def experiment_of(columns: Preprocessing) -> FederatedExperiment:
    """Return the experiment for agreed columns."""
    torch.manual_seed(0)
    net = torch.nn.Linear(len(columns.features), len(columns.target.classes))
    return FederatedExperiment(algorithm=ud.Scaffold(lr=0.1), model=net, **OPTIONS)
