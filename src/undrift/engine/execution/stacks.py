"""Stacks of clients under `vmap`, seen from inside: a tensor's rows, and rows as a tensor again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_functorch: Any = getattr(torch._C, "_functorch", None)
try:  # This interface is not public, so the code below works without it, only more slowly.
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    _ = _functorch.get_interpreter_stack, _functorch.TransformType.Vmap
    _ = _functorch._unwrap_batched, _functorch._add_batch_dim
except (ImportError, AttributeError):
    temporarily_clear_interpreter_stack = None  # type: ignore[assignment]


def only_vmap() -> int | None:
    """Return the level of the active vmap, None if there are other transforms or torch hides it.

    With the level a step can go around `autograd.Function`, which saves half a millisecond, most of
    the time of a small step.
    """
    if temporarily_clear_interpreter_stack is None:
        return None
    stack = _functorch.get_interpreter_stack()
    if stack is None or len(stack) != 1 or stack[0].key() != _functorch.TransformType.Vmap:
        return None
    return int(stack[0].level())


def outside_transforms() -> AbstractContextManager[Any]:
    """Return a context whose tensors outlive a `torch.func.grad` that is active."""
    if temporarily_clear_interpreter_stack is None:
        return nullcontext()
    return temporarily_clear_interpreter_stack()


def unwrapped(x: Tensor, level: int) -> tuple[Tensor, int | None]:
    """Return the rows of all clients and the clients' axis, None where all have the same x."""
    return _functorch._unwrap_batched(x, level)  # type: ignore[no-any-return]


def wrapped(rows: Tensor, level: int) -> Tensor:
    """Return rows, one for each client, as the tensor of the client that asks."""
    return _functorch._add_batch_dim(rows, 0, level)  # type: ignore[no-any-return]


def clients_first(x: Tensor, axis: int | None, clients: int) -> Tensor:
    """Return x as (clients, ...); `axis` is that of the clients, None where all have the same x."""
    return x.expand(clients, *x.shape) if axis is None else x.movedim(axis, 0)
