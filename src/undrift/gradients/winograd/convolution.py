"""A convolution whose forward and backward passes are compiled, as an operation of autograd."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from undrift.gradients.winograd.library import (
    Convolutions,
    Scheme,
    torch_convolution,
    torch_slopes,
)
from undrift.gradients.winograd.places import Places

CHANNELS = 16  # of inputs and outputs from which on transforms cost less than they save
PRODUCTS = 2_000_000  # of a convolution from which on it is worth a call from Python
FORMS = (((3, 3), 1, 1), ((3, 3), 2, 1), ((1, 1), 2, 0))  # weights, stride and padding that fit
GAIN = 0.8  # of the products of F(2x2) that F(4x4) must undercut, as its error is larger

LOSS = (
    2.0  # products with stride 2 beside those of the taps, which torch computes at half the speed
)

_functorch: Any = getattr(torch._C, "_functorch", None)


def products(scheme: Scheme, height: int, width: int) -> int:
    """Return how many products an image takes for each pair of input and output channel."""
    if scheme in (Scheme.TAPS, Scheme.TAPS_STRIDED):
        return _taps(scheme, height) * _taps(scheme, width)
    tile, taken = _TILES[scheme]
    rows, columns = (ceil(scheme.outputs(edge) / tile) for edge in (height, width))
    return rows * columns * taken


# The edge of a tile of outputs, and the products of a tile.
_TILES = {Scheme.F4: (4, 36), Scheme.F2: (2, 16), Scheme.F2_STRIDED: (2, 25)}
_TILES[Scheme.ONE_STRIDED] = 1, 1


def _taps(scheme: Scheme, edge: int) -> int:
    """Return how many pairs of an output and a tap meet the image along an edge."""
    outputs = scheme.outputs(edge)
    beyond = 1 + (scheme.stride * (outputs - 1) == edge - 1)  # at the first and the last output
    return 3 * outputs - beyond


def scheme_for(height: int, width: int, stride: int = 1, kernel: int = 3) -> Scheme | None:
    """Return the scheme for images of this size, or None if torch convolves faster.

    It depends on counts alone, so that equal calls are computed alike on every machine.
    """
    if kernel == 1:
        return Scheme.ONE_STRIDED
    taps = Scheme.TAPS if stride == 1 else Scheme.TAPS_STRIDED
    if max(map(taps.outputs, (height, width))) <= 2:
        return taps
    direct = products(taps, height, width)
    if stride == 2:
        two = products(Scheme.F2_STRIDED, height, width)
        return Scheme.F2_STRIDED if two < LOSS * direct else None
    four, two = products(Scheme.F4, height, width), products(Scheme.F2, height, width)
    scheme, fewest = (Scheme.F4, four) if four <= GAIN * two else (Scheme.F2, two)
    return scheme if fewest < direct else None


class Call(NamedTuple):
    """Holds the arguments of a call of `torch.conv2d`."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: Any
    padding: Any
    dilation: Any
    groups: int

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Call:
        """Return the call with these arguments, which are named as torch names them."""
        return cls(input, weight, bias, stride, padding, dilation, groups)

    @property
    def products(self) -> int:
        """Return how many products torch takes for a call that fits, borders included."""
        number, _, height, width = self.x.shape
        stride = _single(self.stride) or 1
        outputs = ceil(height / stride) * ceil(width / stride)
        return number * outputs * self.weight.numel()

    def scheme(self) -> Scheme | None:
        """Return the scheme of the call, or None if torch is to convolve."""
        x, weight = self.x, self.weight
        if x.ndim != 4 or weight.ndim != 4 or weight.shape[1] != x.shape[1]:
            return None
        stride, padding = _single(self.stride) or 0, _single(self.padding)
        if self.padding == "same" and stride == 1:
            padding = weight.shape[2] // 2
        fits = (tuple(weight.shape[2:]), stride, padding) in FORMS
        tensors = (x, weight) if self.bias is None else (x, weight, self.bias)
        if not (
            fits and self.groups == _single(self.dilation) == 1 and all(map(_is_plain, tensors))
        ):
            return None
        if min(weight.shape[:2]) < CHANNELS or self.products < PRODUCTS or 0 in x.shape:
            return None
        return scheme_for(x.shape[2], x.shape[3], stride, weight.shape[2])


def _single(size: Any) -> int | None:
    """Return the size of both directions, or None if they differ or it is a word."""
    if isinstance(size, str):
        return None
    sizes = {size} if isinstance(size, int) else set(size)
    return sizes.pop() if len(sizes) == 1 else None


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
    )


def first_order() -> bool:
    """Return whether nothing but plain autograd looks at the operations of this thread.

    Transforms (`torch.func`, `vmap`), forward derivatives, tracers, autocast and whoever watches
    what torch dispatches, such as a counter of operations, need torch's own convolution.
    """
    return (
        (_functorch is None or _functorch.peek_interpreter_stack() is None)
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.is_autocast_enabled("cpu")
        and torch._C._get_tracing_state() is None
        and not torch.compiler.is_compiling()
    )


class WinogradConvolution(torch.autograd.Function):
    """Convolves with the stride and the border of a scheme.

    What is not finite is computed again by torch, because torch decides where exactly NaN and Inf
    appear. So are slopes that will be differentiated once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scheme: Scheme,
        convolutions: Convolutions,
        places: Places,
        threads: int,
    ) -> Tensor:
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.scheme, ctx.convolutions, ctx.places = scheme, convolutions, places
        ctx.threads = threads
        shift = None if bias is None else bias.contiguous()
        y = convolutions.forward(scheme, x, weight, shift, threads)
        return torch_convolution(scheme, x, weight, bias) if y is None else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        slopes: tuple[Tensor | None, ...] | None = None
        # Autograd is on in here only if the caller asks for a graph of the slopes.
        if not torch.is_grad_enabled() and first_order() and _is_plain(dy):
            innermost = dy.contiguous(memory_format=torch.channels_last)
            given = innermost, x, weight, wanted, ctx.threads
            into = ctx.places.lend(weight) if wanted[1] else None
            slopes = ctx.convolutions.backward(ctx.scheme, *given, into)
        if slopes is None:
            slopes = torch_slopes(ctx.scheme, dy, x, weight, wanted)
        return *slopes, None, None, None, None
