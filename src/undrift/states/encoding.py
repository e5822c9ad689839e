"""A client's state as bytes: its tensors one after another, described once for all clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Only these names are read from a file, so that no file can name anything else of torch.
_KINDS = "float64 float32 float16 bfloat16 complex128 complex64 int64 int32 int16 int8 uint8 bool"
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _KINDS.split()}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 8  # bytes; a tensor that begins elsewhere could not be used where it lies

Leaf = tuple[str, str, tuple[int, ...]]  # name, dtype and shape of a tensor
Form = tuple[Leaf, ...]


def form_of(state: Mapping[str, Tensor]) -> Form:
    """Return names, dtypes and shapes of a state's tensors."""
    return tuple((name, _NAMES[leaf.dtype], tuple(leaf.shape)) for name, leaf in state.items())


def form_bytes(form: Form) -> int:
    """Return the length of a state of this form as bytes."""
    return sum(_padded(_leaf_bytes(leaf)) for leaf in form)


def encode(state: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a state; `decode` needs its form."""
    parts = []
    for leaf in state.values():
        flat = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        parts += [flat.numpy().tobytes(), bytes(_padded(flat.numel()) - flat.numel())]
    return b"".join(parts)


def decode(data: bytearray, form: Form) -> dict[str, Tensor]:
    """Return the tensors of a state, which share the memory of `data`."""
    state, begin = dict[str, Tensor](), 0
    for name, dtype, shape in form:
        count = math.prod(shape)
        if count:
            flat = torch.frombuffer(data, dtype=DTYPES[dtype], count=count, offset=begin)
        else:
            flat = torch.empty(0, dtype=DTYPES[dtype])
        state[name] = flat.view(shape)
        begin += _padded(_leaf_bytes((name, dtype, shape)))
    return state


def form_from_json(entry: Any) -> Form:
    """Return a form that was read from a file, or raise `ValueError`."""
    form: list[Leaf] = []
    if not isinstance(entry, list):
        raise ValueError("a form is not a list")
    for leaf in entry:
        if not (isinstance(leaf, list) and len(leaf) == 3 and isinstance(leaf[2], list)):
            raise ValueError("a form needs a name, a dtype and a shape of each tensor")
        name, dtype, shape = leaf
        if not (isinstance(name, str) and isinstance(dtype, str) and dtype in DTYPES):
            raise ValueError(f"a form has the unknown dtype {str(dtype)[:20]!r}")
        sizes = [size for size in shape if type(size) is int and 0 <= size < 2**48]
        if len(sizes) != len(shape) or math.prod(sizes) >= 2**48:
            raise ValueError("a form has a shape that no tensor has")
        form.append((name, dtype, tuple(sizes)))
    if len({name for name, _, _ in form}) < len(form):
        raise ValueError("a form names a tensor twice")
    return tuple(form)


def _leaf_bytes(leaf: Leaf) -> int:
    _, dtype, shape = leaf
    return math.prod(shape) * DTYPES[dtype].itemsize


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
