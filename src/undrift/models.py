"""Models by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from undrift.check import require, require_choice


def logistic(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features: int, classes: int, hidden: int = 32) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


MODELS = {"logistic": logistic, "mlp": mlp}


def build(name: str, *, shape: Sequence[int], classes: int) -> nn.Module:
    """The model of that name for inputs of this shape (without the batch axis)."""
    require_choice("build", "name", name, MODELS)
    require(classes >= 2, "build", "classes >= 2", classes)
    return MODELS[name](math.prod(shape), classes)
