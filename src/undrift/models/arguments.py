"""Checks of the arguments that models are built from: shapes of inputs, and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from undrift.check import is_probability, is_whole, require


def require_images(name: str, shape: Sequence[int]) -> int:
    """Return the channels of a shape (channels, height, width), or raise `ValueError`."""
    sizes = tuple(shape)
    remedy = "use a model without convolutions such as mlp, or reshape them"
    require(len(sizes) == 3, name, "images as (channels, height, width)", sizes, remedy)
    return sizes[0]


def require_tokens(name: str, shape: Sequence[int]) -> int:
    """Return the length of a text, whose token ids have the shape (length,)."""
    sizes = tuple(shape)
    remedy = "it is a model of token ids; for images use one such as cnn2"
    require(len(sizes) == 1, name, "texts as (length,)", sizes, remedy)
    return sizes[0]


def require_token_ids(name: str, inputs: Tensor) -> None:
    """Raise `ValueError` unless the inputs are whole numbers."""
    integral = not (inputs.is_floating_point() or inputs.is_complex())
    require(integral, name, "token ids as whole numbers", inputs.dtype, "it is a model of texts")


def require_whole(name: str, *, least: int = 1, **options: Any) -> None:
    """Raise `ValueError` unless each option is a whole number of at least `least`."""
    for option, value in options.items():
        fits = is_whole(value) and value >= least
        require(fits, name, f"{option} >= {least}, a whole number", value)


def require_probability(name: str, **options: Any) -> None:
    """Raise `ValueError` unless each option is in [0, 1); a dropout of 1 would leave nothing."""
    for option, value in options.items():
        fits = is_probability(value) and value < 1
        require(fits, name, f"{option} in [0, 1)", value)


def require_groups(name: str, groups: int, channels: int) -> None:
    """Raise `ValueError` unless the groups divide the channels."""
    require_whole(name, groups=groups)
    fits = channels % groups == 0
    require(fits, name, f"groups that divide its {channels} channels", groups, "2 is usual")


def flat_size(name: str, body: nn.Module, shape: Sequence[int]) -> int:
    """Return the size of the output of convolutions and poolings for an image of this shape."""
    channels = [layer.out_channels for layer in body.modules() if isinstance(layer, nn.Conv2d)]
    height, width = (_side(body, side) for side in shape[1:])
    if min(height, width) < 1:
        least = next(side for side in range(1, 1000) if _side(body, side) >= 1)
        raise ValueError(
            f"{name} needs images of at least {least}x{least}, got {shape[1]}x{shape[2]}; "
            "enlarge or pad them, or use a smaller model such as mlp."
        )
    return channels[-1] * height * width


def _side(body: nn.Module, side: int) -> int:
    """Return height or width after the layers, or 0 where a window does not fit."""
    for layer in body.modules():
        if not isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            continue
        window, stride, padding = (
            _one(n) for n in (layer.kernel_size, layer.stride, layer.padding)
        )
        free = side + 2 * padding - window
        up = isinstance(layer, nn.MaxPool2d) and layer.ceil_mode
        if side < 1 or (free < 0 and not up):
            return 0
        side = (-(-free // stride) if up else free // stride) + 1
    return side


def _one(sides: Any) -> int:
    return int(sides[0] if isinstance(sides, tuple) else sides)
