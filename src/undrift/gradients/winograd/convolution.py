"""A 3x3 convolution whose forward and backward passes are compiled, as an operation of autograd."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from undrift.gradients.winograd.library import F2, F4, TAPS, Convolutions, torch_slopes

CHANNELS = 16  # of inputs and outputs from which on transforms cost less than they save
PRODUCTS = 2_000_000  # of a convolution from which on it is worth a call from Python
GAIN = 0.8  # of the products of F(2x2) that F(4x4) must undercut, as its error is larger

_functorch: Any = getattr(torch._C, "_functorch", None)


def products(scheme: int, height: int, width: int) -> int:
    """Return how many products an image takes for each pair of input and output channel."""
    if scheme == TAPS:  # the taps that meet the image
        return (3 * height - 2) * (3 * width - 2)
    return ceil(height / scheme) * ceil(width / scheme) * (scheme + 2) ** 2


def scheme_for(height: int, width: int) -> int | None:
    """Return the scheme for images of this size, or None if none saves products.

    It depends on counts alone, so that equal calls are computed alike on every machine.
    """
    if max(height, width) <= 2:
        return TAPS
    four, two = products(F4, height, width), products(F2, height, width)
    scheme = F4 if four <= GAIN * two else F2
    return scheme if products(scheme, height, width) < products(TAPS, height, width) else None


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
        """Return how many products torch takes, borders included."""
        return 9 * self.x.numel() * self.weight.shape[0]

    def scheme(self) -> int | None:
        """Return the scheme of the call, or None if torch is to convolve."""
        x, weight = self.x, self.weight
        plain = (
            x.ndim == 4
            and tuple(weight.shape[1:]) == (x.shape[1], 3, 3)
            and self.groups == 1
            and _is_one(self.stride)
            and _is_one(self.dilation)
            and (self.padding == "same" or _is_one(self.padding))
        )
        tensors = (x, weight) if self.bias is None else (x, weight, self.bias)
        if not plain or not all(map(_is_plain, tensors)):
            return None
        if min(weight.shape[:2]) < CHANNELS or self.products < PRODUCTS:
            return None
        return scheme_for(*x.shape[2:])


def _is_one(size: Any) -> bool:
    return all(each == 1 for each in ((size,) if isinstance(size, int) else size))


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
    """Convolves with 3x3 weights, stride 1 and a border of one zero.

    What is not finite is computed again by torch, because torch decides where exactly NaN and Inf
    appear. So are slopes that will be differentiated once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scheme: int,
        convolutions: Convolutions,
    ) -> Tensor:
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.scheme, ctx.convolutions = scheme, convolutions
        shift = None if bias is None else bias.contiguous()
        y = convolutions.forward(scheme, x, weight, shift, torch.get_num_threads())
        return torch.conv2d(x, weight, bias, padding=1) if y is None else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        slopes: tuple[Tensor | None, ...] | None = None
        # Autograd is on in here only if the caller asks for a graph of the slopes.
        if not torch.is_grad_enabled() and first_order() and _is_plain(dy):
            innermost = dy.contiguous(memory_format=torch.channels_last)
            threads = torch.get_num_threads()
            slopes = ctx.convolutions.backward(ctx.scheme, innermost, x, weight, wanted, threads)
        if slopes is None:
            slopes = torch_slopes(dy, x, weight, wanted)
        return *slopes, None, None
