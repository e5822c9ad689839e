"""A stand-in for a GPU: a device whose tensors do not mix with those of the CPU.

Its tensors hold CPU tensors and compute with them, under torch's key PrivateUse1. An operation
that gets tensors of both devices raises, as on a GPU. `COPIES` notes what is copied to the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
COPIES: list[str] = []  # the shape of each tensor that was copied to the CPU, or "item"
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}
_COPIED: set[int] = set()  # storages of tensors that hold a copy where torch has a view
_HELD: dict[int, Tensor] = {}  # storage -> what a tensor of the device holds


def wrap(held: Any) -> Any:
    """Return a tensor of the device that holds one of the CPU; other values stay."""
    if not isinstance(held, Tensor):
        return held
    # A tensor of the device is contiguous, so what it holds is, too: a view that is not is a copy.
    copied = not held.is_contiguous()
    held = held.contiguous()
    outer = torch._C._acc.create_empty_tensor(tuple(held.shape), held.dtype)
    # torch's shallow copies share the storage, and every tensor of the device has one of its own.
    key = outer.untyped_storage()._cdata
    _HELD[key] = held
    (_COPIED.add if copied else _COPIED.discard)(key)
    return outer


def held(tensor: Tensor) -> Tensor:
    """Return what a tensor of the device holds."""
    return _HELD[tensor.untyped_storage()._cdata]


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on what its tensors hold."""
    indexes = op.overloadpacket is torch.ops.aten.index  # A GPU takes indices of the CPU, too.

    def inner(value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == NAME:
            return held(value)
        if isinstance(value, Tensor) and value.ndim and not indexes:
            raise RuntimeError(f"{op} needs all tensors on {NAME}, got one on {value.device}.")
        return torch.device("cpu") if isinstance(value, torch.device) else value

    # torch hands over a number in the place of a tensor as a plain number.
    kinds = [str(each.type) == "Tensor" for each in op._schema.arguments]
    args = tuple(
        torch.scalar_tensor(value, dtype=_DTYPES[type(value)])
        if kind and type(value) in _DTYPES
        else value
        for value, kind in zip(args, kinds, strict=False)
    )
    result = op(*tree_map(inner, args), **tree_map(inner, kwargs))
    for value in (*args, *kwargs.values()):
        own = isinstance(value, Tensor) and value.device.type == NAME
        if own and held(value).shape != value.shape:
            value.data = wrap(held(value))  # an output that the operation has resized
    returns = op._schema.returns
    if len(returns) == 1 and returns[0].alias_info is not None and returns[0].alias_info.is_write:
        written = [each.name for each in op._schema.arguments if each.alias_info is not None]
        goal = kwargs.get(written[0], args[0] if args else None)
        if goal.untyped_storage()._cdata in _COPIED:
            raise NotImplementedError(f"{op} writes into a view that the stand-in has copied.")
        return goal
    return tree_map(wrap, result)


_setup_privateuseone_for_python_backend(NAME)
_ANY = torch.library.Library("_", "IMPL")
_ANY.fallback(_fallback, "PrivateUse1")
_ATEN = torch.library.Library("aten", "IMPL")


def _kernel(name: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        _ATEN.impl(name, function, "PrivateUse1")
        return function

    return register


@_kernel("empty.memory_format")
def _empty(size: Any, dtype: Any = None, **options: Any) -> Tensor:
    return wrap(torch.empty(size, dtype=dtype))


@_kernel("empty_strided")
def _empty_strided(size: Any, stride: Any, dtype: Any = None, **options: Any) -> Tensor:
    return wrap(torch.empty_strided(size, stride, dtype=dtype))


@_kernel("as_strided")
def _as_strided(tensor: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Tensor:
    inner = held(tensor)
    return wrap(inner.as_strided(size, stride, inner.storage_offset() + (storage_offset or 0)))


@_kernel("as_strided_")
def _as_strided_in_place(
    tensor: Tensor, size: Any, stride: Any, storage_offset: Any = None
) -> Tensor:
    tensor.data = _as_strided(tensor, size, stride, storage_offset)
    return tensor


@_kernel("fill_diagonal_")
def _fill_diagonal(tensor: Tensor, value: Any, wraps: bool = False) -> Tensor:
    held(tensor).fill_diagonal_(value, wraps)
    return tensor


@_kernel("_copy_from")
def _copy_from(source: Tensor, goal: Tensor, non_blocking: bool = False) -> Tensor:
    if goal.device.type != NAME:
        COPIES.append(str(tuple(source.shape)))
    inner = [held(each) if each.device.type == NAME else each for each in (source, goal)]
    inner[1].copy_(inner[0])
    return goal


@_kernel("_local_scalar_dense")
def _item(tensor: Tensor) -> Any:
    COPIES.append("item")
    return held(tensor).item()
