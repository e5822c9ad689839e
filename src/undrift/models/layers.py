"""Helpers that put layers together to a model."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def chain(**blocks: nn.Module) -> nn.Sequential:
    """Return a model that runs named blocks in this order."""
    return nn.Sequential(OrderedDict(blocks))


def drop(p: float, *, channels: bool = False) -> nn.Module:
    """Return dropout, or for p = 0 an Identity, which draws nothing and keeps later names."""
    if p == 0:
        return nn.Identity()
    return nn.Dropout2d(p) if channels else nn.Dropout(p)
