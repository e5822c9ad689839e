"""Randomness inside a forward pass as a function of a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undrift import keyed


class KeyedDropout(TorchFunctionMode):
    """Makes dropout masks a function of a key, so that every call at one step sees the same masks.

    Masks are indexed by sample and feature: padding a batch does not change the masks of the
    samples in front of the padding.
    """

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        channels_only = _DROPOUTS.get(func)
        if channels_only is None:
            return func(*args, **kwargs)
        return self._dropout(channels_only, *args, **kwargs)

    def _dropout(
        self,
        channels_only: bool,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        shape = tuple(input.shape)
        if channels_only:
            shape = shape[:2] + (1,) * (len(shape) - 2)
        draws = keyed.uniform(keyed.fold(self.keys, self.calls), shape)
        self.calls += 1
        scale = 0.0 if p == 1 else 1 / (1 - p)
        masked = input * ((draws >= p).to(input.dtype) * scale)
        return input.copy_(masked) if inplace else masked


# The functions whose masks are keyed, and whether each drops whole channels.
_DROPOUTS: dict[Any, bool] = {
    F.dropout: False,
    F.dropout1d: True,
    F.dropout2d: True,
    F.dropout3d: True,
}


@contextmanager
def seeded(keys: Tensor) -> Iterator[None]:
    """Seed torch's own generator, for randomness such as RNN dropout or torch.rand in a forward."""
    with torch.random.fork_rng(devices=[keys.device] if keys.is_cuda else []):
        torch.manual_seed(int(keys.item()))
        yield
