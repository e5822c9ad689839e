"""The compiled convolutions: their source, their two functions, and a check before their use."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.builder import library
from undrift.gradients.kernels.layers import UnsupportedError

PARTS = (
    ("undrift.gradients.kernels", ("vectors.hpp", "workers.hpp")),
    ("undrift.gradients.winograd", ("lines.hpp", "tiles.hpp", "products.hpp", "convolution.hpp")),
)
F4, F2, TAPS = 4, 2, 1  # the schemes: tiles of 4x4 or 2x2 outputs, or images of at most 2x2 pixels
CLOSE = 1e-5  # largest distance from double precision in the check, as a share of the norm
_NO_MEMORY = 2  # what the functions return if they cannot allocate

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int


class Slopes(NamedTuple):
    """Holds the slopes of a convolution; None where nobody asked for them."""

    inputs: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


class Convolutions:
    """Calls the compiled functions on float32 tensors of the CPU.

    Inputs are innermost in channels, weights are contiguous. ctypes releases the interpreter lock
    during a call, and the memory that a call works in belongs to its thread.
    """

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._forward, self._backward = functions.undrift_convolve, functions.undrift_convolve_back
        self._forward.argtypes = [_INT, *[_POINTER] * 4, *[_LONG] * 5, _INT]
        self._backward.argtypes = [_INT, *[_POINTER] * 6, *[_LONG] * 5, _INT]

    def forward(
        self, scheme: int, x: Tensor, weight: Tensor, bias: Tensor | None, threads: int
    ) -> Tensor | None:
        """Return the outputs, or None if they are not finite."""
        y = _innermost((x.shape[0], weight.shape[0], *x.shape[2:]))
        given = (_at(each) for each in (x, weight, bias, y))
        done = self._forward(scheme, *given, *_sizes(x, weight), threads)
        return y if _is_finite(done) else None

    def backward(
        self,
        scheme: int,
        dy: Tensor,
        x: Tensor,
        weight: Tensor,
        wanted: tuple[bool, bool, bool],
        threads: int,
    ) -> Slopes | None:
        """Return the slopes that are wanted, or None if they are not finite."""
        slopes = Slopes(
            _innermost(tuple(x.shape)) if wanted[0] else None,
            torch.empty(weight.shape) if wanted[1] else None,
            torch.empty(weight.shape[0]) if wanted[2] else None,
        )
        given = (_at(each) for each in (dy, x, weight, *slopes))
        done = self._backward(scheme, *given, *_sizes(x, weight), threads)
        return slopes if _is_finite(done) else None


def _innermost(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, memory_format=torch.channels_last)


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int, int, int]:
    number, channels, height, width = x.shape
    return number, height, width, channels, weight.shape[0]


def _is_finite(result: int) -> bool:
    if result == _NO_MEMORY:
        raise MemoryError("A convolution needs memory for its transforms, got none.")
    return result == 0


def source() -> str:
    """Return the C++ of the library."""
    parts = (files(package).joinpath(name) for package, names in PARTS for name in names)
    return "".join(part.read_text(encoding="utf-8") for part in parts)


def load() -> Convolutions:
    """Return the compiled functions, or raise `UnsupportedError` if they cannot be built."""
    return _checked(library(source()))


@cache
def _checked(functions: ctypes.CDLL) -> Convolutions:
    """Return the functions if they compute what double precision does, for every scheme."""
    made = Convolutions(functions)
    for scheme, edge in ((F4, 7), (F2, 5), (TAPS, 2)):
        away = _error(made, scheme, edge)
        if not away <= CLOSE:
            raise UnsupportedError(f"a compiled convolution that is wrong by {away:.1e}")
    return made


def _error(made: Convolutions, scheme: int, edge: int) -> float:
    """Return the largest distance of outputs and slopes, as a share of their norms."""
    draw = torch.Generator().manual_seed(edge)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).contiguous(memory_format=torch.channels_last)

    x, dy, bias = drawn(3, 20, edge, edge), drawn(3, 17, edge, edge), torch.ones(17)
    weight = torch.randn(17, 20, 3, 3, generator=draw)
    slopes = made.backward(scheme, dy, x, weight, (True, True, True), 1)
    ours = [made.forward(scheme, x, weight, bias, 1), *(slopes or [None] * 3)]
    theirs = [
        torch.conv2d(x.double(), weight.double(), bias.double(), padding=1),
        *torch_slopes(dy.double(), x.double(), weight.double(), (True, True, True)),
    ]
    pairs: Any = zip(ours, theirs, strict=True)
    return max(
        float("inf") if a is None else float((a - b).norm() / b.norm())  # not finite
        for a, b in pairs
    )


def torch_slopes(
    dy: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, ...]:
    """Return the slopes by torch's own operation, which can be differentiated once more."""
    ones, zeros = [1, 1], [0, 0]
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        *(dy, x, weight, [weight.shape[0]], ones, ones, ones, False, zeros, 1, list(wanted))
    )
