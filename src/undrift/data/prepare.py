"""Preparation of stored samples for a model: bytes to floats, tokens to indices, augmentation.

Data sets stay in memory as they are published, images as bytes and characters as small integers;
a minibatch is prepared when it is drawn. Augmentation is arithmetic on a key, as dropout is, so
that a sample of a step of a client is cropped and flipped the same way whether clients run one by
one, stacked under `vmap`, or on another machine.
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
    """Converts stored samples to inputs.

    Any frozen dataclass with these two members serves; checkpoints identify it by its repr.
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
        """Crop and flip by one gather of the pixels' sources."""
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
    """Converts small stored integers to the indices that an embedding takes."""

    random = False

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        return inputs.long()
