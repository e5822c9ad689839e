"""Convolutions of few channels and max pooling, written so that a compiler makes fast code of them.

torch's own kernels are made for many channels: with 1 to 16 of them a convolution's backward pass
reaches a twentieth of what a processor can do. Here a convolution is one matrix product with the
patches of its input. Samples are innermost in memory, so operations between two products run over
contiguous samples, vector by vector.

`DECOMPOSITIONS` replace operations while a gradient is traced; those that do not fit stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

NARROW_CHANNELS = 16  # of a convolution's input, up to which patches are faster
POOLED_CHANNELS = 32  # of a pooling's input, up to which the pooling here is faster

Ints = Sequence[int]


def _settled(x: Tensor) -> Tensor:
    """Return (B, C, H, W) written to memory with samples innermost.

    A compiler does not fuse as_strided with later operations, which would otherwise compute x once
    for every patch that contains it.
    """
    t = x.permute(1, 2, 3, 0).contiguous()
    return t.as_strided(t.shape, t.stride()).permute(3, 0, 1, 2)


def _patches(x: Tensor, kernel: Ints, padding: Ints) -> Tensor:
    """Return (C, kh, kw, oh, ow, B) the numbers that each weight is multiplied with."""
    (kh, kw), (ph, pw) = kernel, padding
    t = x.permute(1, 2, 3, 0)
    if ph or pw:
        t = torch.constant_pad_nd(t, (0, 0, pw, pw, ph, ph))
    t = t.contiguous()
    (c, h, w, b), (sc, sh, sw, sb) = t.shape, t.stride()
    return t.as_strided((c, kh, kw, h - kh + 1, w - kw + 1, b), (sc, sh, sw, sh, sw, sb))


def _fits(weight: Tensor, stride: Ints, dilation: Ints, transposed: bool, groups: int) -> bool:
    """Return whether a convolution is plain and has few channels."""
    plain = not transposed and groups == 1 and set(stride) == set(dilation) == {1}
    return plain and weight.ndim == 4 and weight.shape[1] <= NARROW_CHANNELS


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Any:
    if not _fits(weight, stride, dilation, transposed, groups):
        return NotImplemented
    patches = _patches(x, weight.shape[2:], padding)
    y = weight.flatten(1) @ patches.reshape(weight[0].numel(), -1)
    y = y.view(len(weight), *patches.shape[3:])
    if bias is not None:
        y = y + bias[:, None, None, None]
    return y.permute(3, 0, 1, 2)


def _convolution_backward(
    d: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    if not _fits(weight, stride, dilation, transposed, groups):
        return NotImplemented
    of_x, of_weight, of_bias = wanted
    d = d.permute(1, 2, 3, 0)  # (O, oh, ow, B)
    rows = d.reshape(len(d), -1)
    dx = dw = None
    if of_weight:
        patches = _patches(x, weight.shape[2:], padding)
        dw = (rows @ patches.reshape(weight[0].numel(), -1).t()).view(weight.shape)
    if of_x:
        slopes = weight.flatten(1).t() @ rows
        dx = _folded(slopes.view(*weight.shape[1:], *d.shape[1:]), padding)
    return dx, dw, rows.sum(1) if of_bias else None


def _folded(patches: Tensor, padding: Ints) -> Tensor:
    """Return (B, C, H, W) the sum over all patches that contain a place: `_patches` transposed."""
    _, kh, kw, *_ = patches.shape
    pad = torch.constant_pad_nd
    t = reduce(torch.add, [pad(patches[:, :, j], (0, 0, j, kw - 1 - j)) for j in range(kw)])
    t = reduce(torch.add, [pad(t[:, i], (0, 0, 0, 0, i, kh - 1 - i)) for i in range(kh)])
    (ph, pw), (_, h, w, _) = padding, t.shape
    return _settled(t[:, ph : h - ph, pw : w - pw].permute(3, 0, 1, 2))


def _tiled(
    x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> bool:
    """Return whether windows lie side by side in images of few channels."""
    beside = len(kernel) == 2 and list(stride or kernel) == list(kernel) and not ceil_mode
    plain = not any(padding) and set(dilation) == {1}
    return beside and plain and x.ndim == 4 and x.shape[1] <= POOLED_CHANNELS


def _largest(x: Tensor, kernel: Ints) -> tuple[Tensor, Tensor]:
    """Return the largest number of each window and its first place in the window, as a float."""
    kh, kw = kernel
    oh, ow = x.shape[2] // kh, x.shape[3] // kw
    best = x[:, :, : oh * kh : kh, : ow * kw : kw]
    place = torch.zeros_like(best)
    for n in range(1, kh * kw):
        i, j = divmod(n, kw)
        other = x[:, :, i : oh * kh : kh, j : ow * kw : kw]
        better = (other > best) | other.isnan()
        best = torch.where(better, other, best)
        place = torch.where(better, float(n), place)
    return best, place


def _max_pool(
    x: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    if not _tiled(x, kernel, stride, padding, dilation, ceil_mode):
        return NotImplemented
    best, place = _largest(x, kernel)
    (kh, kw), (oh, ow), n = kernel, best.shape[2:], place.long()
    row = kh * torch.arange(oh, device=x.device)[:, None] + n // kw
    column = kw * torch.arange(ow, device=x.device) + n % kw
    return _settled(best), row * x.shape[3] + column


def _max_pool_backward(
    d: Tensor,
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Tensor,
) -> Any:
    if not _tiled(x, kernel, stride, padding, dilation, ceil_mode):
        return NotImplemented
    (kh, kw), (b, c, oh, ow) = kernel, d.shape
    own = torch.arange(kh * kw, dtype=x.dtype, device=x.device).view(kh, 1, kw)
    d, place = (_settled(each)[:, :, :, None, :, None] for each in (d, _largest(x, kernel)[1]))
    dx = torch.where(place == own, d, 0.0).reshape(b, c, oh * kh, ow * kw)
    return torch.constant_pad_nd(dx, (0, x.shape[3] - ow * kw, 0, x.shape[2] - oh * kh))


_ATEN = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _ATEN.convolution.default: _convolution,
    _ATEN.convolution_backward.default: _convolution_backward,
    _ATEN.max_pool2d_with_indices.default: _max_pool,
    _ATEN.max_pool2d_with_indices_backward.default: _max_pool_backward,
}
