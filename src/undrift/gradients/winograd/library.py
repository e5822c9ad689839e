"""The compiled convolutions: their source, their two functions, and a check before their use."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.builder import library
from undrift.gradients.kernels.layers import UnsupportedError

PARTS = (
    ("undrift.gradients.kernels", ("vectors.hpp", "workers.hpp")),
    (
        "undrift.gradients.winograd",
        ("lines.hpp", "strided.hpp", "tiles.hpp", "products.hpp", "convolution.hpp"),
    ),
)
CLOSE = 1e-5  # largest distance from double precision in the check, as a share of the norm
_NO_MEMORY = 2  # what the functions return if they cannot allocate

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int


class Scheme(IntEnum):
    """Names the ways to convolve by the numbers that they have in C++."""

    F4 = 4  # tiles of 4x4 outputs
    F2 = 2  # tiles of 2x2 outputs
    TAPS = 1  # at most 2x2 outputs, by the taps that meet the image
    F2_STRIDED = 22  # as above, with stride 2
    TAPS_STRIDED = 21
    ONE_STRIDED = 20  # 1x1 weights with stride 2

    @property
    def kernel(self) -> int:
        """Return the edge of the weights."""
        return 1 if self is Scheme.ONE_STRIDED else 3

    @property
    def stride(self) -> int:
        """Return the distance between inputs of neighbouring outputs."""
        return 1 if self in (Scheme.F4, Scheme.F2, Scheme.TAPS) else 2

    @property
    def padding(self) -> int:
        """Return the zeros around an image."""
        return self.kernel // 2

    def outputs(self, edge: int) -> int:
        """Return how many outputs there are along an edge of so many inputs."""
        return (edge - 1) // self.stride + 1


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
        self, scheme: Scheme, x: Tensor, weight: Tensor, bias: Tensor | None, threads: int
    ) -> Tensor | None:
        """Return the outputs, or None if they are not finite."""
        y = _innermost((x.shape[0], weight.shape[0], *map(scheme.outputs, x.shape[2:])))
        given = (_at(each) for each in (x, weight, bias, y))
        done = self._forward(scheme, *given, *_sizes(x, weight), threads)
        return y if _is_finite(done) else None

    def backward(
        self,
        scheme: Scheme,
        dy: Tensor,
        x: Tensor,
        weight: Tensor,
        wanted: tuple[bool, bool, bool],
        threads: int,
        into: Tensor | None = None,
    ) -> Slopes | None:
        """Return the slopes that are wanted, those of the weight in `into`; None if not finite."""
        slopes = Slopes(
            _innermost(tuple(x.shape)) if wanted[0] else None,
            (torch.empty(weight.shape) if into is None else into) if wanted[1] else None,
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
    for scheme in Scheme:
        away = _error(made, scheme, 2 if scheme in (Scheme.TAPS, Scheme.TAPS_STRIDED) else 7)
        if not away <= CLOSE:
            raise UnsupportedError(f"a compiled convolution that is wrong by {away:.1e}")
    return made


def _error(made: Convolutions, scheme: Scheme, edge: int) -> float:
    """Return the largest distance of outputs and slopes, as a share of their norms."""
    draw = torch.Generator().manual_seed(edge)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).contiguous(memory_format=torch.channels_last)

    small, kernel = scheme.outputs(edge), scheme.kernel
    x, dy, bias = drawn(3, 20, edge, edge), drawn(3, 17, small, small), torch.ones(17)
    weight = torch.randn(17, 20, kernel, kernel, generator=draw)
    slopes = made.backward(scheme, dy, x, weight, (True, True, True), 1)
    ours = [made.forward(scheme, x, weight, bias, 1), *(slopes or [None] * 3)]
    theirs = [
        torch_convolution(scheme, x.double(), weight.double(), bias.double()),
        *torch_slopes(scheme, dy.double(), x.double(), weight.double(), (True, True, True)),
    ]
    pairs: Any = zip(ours, theirs, strict=True)
    return max(
        float("inf") if a is None else float((a - b).norm() / b.norm())  # not finite
        for a, b in pairs
    )


def torch_convolution(scheme: Scheme, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs by torch's own operation."""
    return torch.conv2d(x, weight, bias, stride=scheme.stride, padding=scheme.padding)


def torch_slopes(
    scheme: Scheme, dy: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, ...]:
    """Return the slopes by torch's own operation, which can be differentiated once more."""
    stride, padding = [scheme.stride] * 2, [scheme.padding] * 2
    ones, zeros, mask = [1, 1], [0, 0], list(wanted)
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        dy, x, weight, [weight.shape[0]], stride, padding, ones, False, zeros, 1, mask
    )
