"""How layers become a model."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def chain(**blocks: nn.Module) -> nn.Sequential:
    """Named children that are run in this order; each with parameters is a block."""
    return nn.Sequential(OrderedDict(blocks))


def drop(p: float, *, channels: bool = False) -> nn.Module:
    """Dropout; for p = 0 an Identity, which draws nothing and keeps the names of later layers."""
    if p == 0:
        return nn.Identity()
    return nn.Dropout2d(p) if channels else nn.Dropout(p)
