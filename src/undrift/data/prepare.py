"""Preparation of stored samples for a model: bytes to floats, tokens to indices, augmentation.

Data sets stay in memory as they are published, images as bytes and characters as small integers;
a minibatch is prepared when it is drawn. Augmentation is arithmetic on a key, as dropout is, so
that a sample of a step of a client is cropped and flipped the same way whether clients run one by
one, stacked under `vmap`, or on another machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from undrift import keyed
from undrift.check import is_finite, is_whole, require

_BLOCK = 2**17  # pixels of the images that are cropped at a time
_NUMPY = (torch.uint8, torch.float16, torch.float32, torch.float64)
_functorch: Any = getattr(torch._C, "_functorch", None)


@runtime_checkable
class Prepare(Protocol):
    """Converts stored samples to inputs.

    Any frozen dataclass with these two members serves; checkpoints identify it by its repr. One
    that has `stacked`, too, as `Images` has, prepares the samples of many clients in one call.
    """

    @property
    def random(self) -> bool:
        """Return whether training batches are augmented, so that a key is needed."""
        ...

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        """Return stored samples (B, ...) as inputs of the model, augmented only with a key."""
        ...


@dataclass(frozen=True)
class Images:
    """Converts pixels to (pixel - mean) / std per channel; in training it crops and flips before.

    Bytes count as pixel / 255, floats as they are. `crop` pads that many black pixels on every
    side and cuts a window of the original size anywhere in it; `flip` mirrors half of the images
    from left to right. The crop comes first and is black before normalisation, as torchvision's
    usual chain RandomCrop, RandomHorizontalFlip, ToTensor, Normalize has it.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            finite = isinstance(values, tuple | list) and all(map(is_finite, values))
            require(finite, "Images", f"{name} as finite numbers, one per channel", values)
        alike = len(self.mean) == len(self.std) and len(self.mean) > 0
        require(alike, "Images", "as many means as stds, one per channel", (self.mean, self.std))
        require(min(self.std) > 0, "Images", "std > 0", self.std)
        padding = is_whole(self.crop) and self.crop >= 0
        require(padding, "Images", "crop >= 0, a whole number of pixels", self.crop)

    @property
    def random(self) -> bool:
        """Return whether images are cropped or flipped in training."""
        return self.crop > 0 or self.flip

    def plain(self) -> Images:
        """Return the same preparation without augmentation."""
        return Images(self.mean, self.std)

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        """Return images (B, C, H, W) as inputs of the model, augmented only with a key."""
        require(inputs.ndim == 4, "Images", "images as (B, C, H, W)", tuple(inputs.shape))
        fits = len(self.mean) in (1, inputs.shape[1])
        require(fits, "Images", f"mean and std for {inputs.shape[1]} channels", len(self.mean))
        if key is None or not self.random:
            return self._normalised(inputs, dtype)
        return self._augmented(inputs, dtype, keyed.uniform(key, (len(inputs), 3), torch.float64))

    def stacked(self, inputs: Tensor, dtype: torch.dtype, keys: Tensor) -> Tensor:
        """Return images (clients, B, C, H, W), those of each client augmented with its own key."""
        if not self.random:
            return self(inputs.flatten(0, 1), dtype).view(inputs.shape)
        draws = keyed.uniform(keys[:, None, None], (inputs.shape[1], 3), torch.float64)
        return self._augmented(inputs.flatten(0, 1), dtype, draws.flatten(0, 1)).view(inputs.shape)

    def _normalised(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        shifts, scales = self._shifts_and_scales(inputs, dtype)
        return torch.addcmul(shifts, inputs.to(dtype), scales)

    def _shifts_and_scales(self, inputs: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what is added to each channel, and what it is multiplied by before."""
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        scale = [1 / (unit * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        column = {"dtype": dtype, "device": inputs.device}
        shifts, scales = torch.tensor([shift, scale], **column)[:, :, None, None]  # type: ignore[arg-type]
        return shifts, scales

    def _augmented(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor) -> Tensor:
        """Return images cropped, flipped and normalised; `draws` has three uniforms of each."""
        corners = (draws[:, :2] * (2 * self.crop + 1)).long()  # of the windows
        mirrored = draws[:, 2] < (0.5 if self.flip else 0.0)
        numpy = inputs.device.type == "cpu" and inputs.dtype in _NUMPY and not _transformed()
        if not numpy:
            return self._normalised(_gathered(inputs, corners, mirrored, self.crop), dtype)
        shifts, scales = self._shifts_and_scales(inputs, dtype)
        result = torch.empty(inputs.shape, dtype=dtype)
        # A few images at a time stay in the processor's cache between the steps.
        for part, cut in _windows(inputs, corners, mirrored, self.crop):
            torch.addcmul(shifts, cut.to(dtype), scales, out=result[part])
        return result


def _transformed() -> bool:
    """Return whether a transform such as `vmap` is active, whose tensors NumPy cannot read."""
    return _functorch is None or _functorch.peek_interpreter_stack() is not None


def _gathered(inputs: Tensor, corners: Tensor, mirrored: Tensor, padding: int) -> Tensor:
    """Return windows of padded images by one gather of the pixels' sources, with any tensors."""
    samples, channels, height, width = inputs.shape
    rows = torch.arange(height, device=inputs.device) + corners[:, :1] - padding  # (B, H)
    across = torch.arange(width, device=inputs.device)
    across = torch.where(mirrored[:, None], across.flip(0), across)
    columns = across + corners[:, 1:] - padding  # (B, W)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None, :
    ]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    source = (rows[:, :, None] * width + columns[:, None, :]).reshape(samples, 1, -1)
    pixels = inputs.reshape(samples, channels, -1)
    picked = pixels.gather(2, source.expand(samples, channels, height * width))
    return (picked * inside.reshape(samples, 1, -1)).reshape(inputs.shape)


def _windows(
    inputs: Tensor, corners: Tensor, mirrored: Tensor, padding: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield windows of padded images, some images at a time, and which images these are."""
    images, mirror = inputs.numpy(), mirrored.numpy()
    samples, channels, height, width = images.shape
    block = max(1, min(samples, _BLOCK // (channels * height * width)))
    padded = np.zeros((block, channels, height + 2 * padding, width + 2 * padding), images.dtype)
    # All windows of the padded images, by corner; NumPy's own view of them takes longer than a cut.
    places = 2 * padding + 1
    shape = (block, channels, places, places, height, width)
    windows = np.ndarray(shape, images.dtype, padded, 0, padded.strides + padded.strides[2:])
    inner = padded[:, :, padding : padding + height, padding : padding + width]
    own, (rows, columns) = np.arange(block), corners.numpy().T
    for start in range(0, samples, block):
        part = slice(start, min(start + block, samples))
        count = part.stop - start
        inner[:count] = images[part]
        cut = windows[own[:count], :, rows[part], columns[part]]
        turned = np.flatnonzero(mirror[part])
        cut[turned] = cut[turned, ..., ::-1]
        yield part, torch.from_numpy(cut)


@dataclass(frozen=True)
class Tokens:
    """Converts small stored integers to the indices that an embedding takes."""

    random = False

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        return inputs.long()
