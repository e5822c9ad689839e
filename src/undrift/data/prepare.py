"""How stored samples become what a model sees: bytes to floats, tokens to indices, augmentation.

Data sets stay in memory as they are published, images as bytes and characters as small integers;
a minibatch is prepared when it is drawn. Augmentation is arithmetic on a key, as dropout is: the
same sample of the same step of the same client is cropped and flipped alike whether clients run
alone, stacked under `vmap`, or on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from undrift import keyed
from undrift.check import is_finite, is_whole, require


@runtime_checkable
class Prepare(Protocol):
    """Any frozen dataclass with these two serves; its repr is part of a checkpoint's identity."""

    @property
    def random(self) -> bool:
        """Whether training batches are augmented, so that a key is needed."""
        ...

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        """(B, ...) stored samples as the model's inputs; augmented only when there is a key."""
        ...


@dataclass(frozen=True)
class Images:
    """Pixels to (pixel - mean) / std per channel; in training a random crop and a flip before it.

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
        return self.crop > 0 or self.flip

    def plain(self) -> Images:
        """Without augmentation."""
        return Images(self.mean, self.std)

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        require(inputs.ndim == 4, "Images", "images as (B, C, H, W)", tuple(inputs.shape))
        fits = len(self.mean) in (1, inputs.shape[1])
        require(fits, "Images", f"mean and std for {inputs.shape[1]} channels", len(self.mean))
        if key is not None and self.random:
            inputs = self._augmented(inputs, key)
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        scale = [1 / (unit * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        column = {"dtype": dtype, "device": inputs.device}
        scales, shifts = torch.tensor([scale, shift], **column)[:, :, None, None]  # type: ignore[arg-type]
        return torch.addcmul(shifts, inputs.to(dtype), scales)

    def _augmented(self, inputs: Tensor, key: Tensor) -> Tensor:
        """Crop and flip as one gather: where each pixel comes from, and whether that is outside."""
        samples, channels, height, width = inputs.shape
        draws = keyed.uniform(key, (samples, 3), torch.float64)
        offsets = (draws[:, :2] * (2 * self.crop + 1)).long() - self.crop
        rows = torch.arange(height, device=inputs.device) + offsets[:, :1]  # (B, H)
        across = torch.arange(width, device=inputs.device)
        if self.flip:
            across = torch.where(draws[:, 2:] < 0.5, across.flip(0), across)
        columns = across + offsets[:, 1:]  # (B, W)
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
            :, None, :
        ]
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        source = (rows[:, :, None] * width + columns[:, None, :]).reshape(samples, 1, -1)
        pixels = inputs.reshape(samples, channels, -1)
        picked = pixels.gather(2, source.expand(samples, channels, height * width))
        return (picked * inside.reshape(samples, 1, -1)).reshape(inputs.shape)


@dataclass(frozen=True)
class Tokens:
    """Small stored integers to the indices an embedding takes."""

    random = False

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        return inputs.long()
