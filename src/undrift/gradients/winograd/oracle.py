"""Gradients by torch, with its wide convolutions replaced by compiled ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undrift.core import Vector
from undrift.gradients.task import Autograd, Batch, Task
from undrift.gradients.winograd.convolution import (
    CHANNELS,
    Call,
    WinogradConvolution,
    first_order,
)
from undrift.gradients.winograd.library import Convolutions, load
from undrift.gradients.winograd.places import Places

ALONE = 0.9  # of the products of a gradient, from which on they are nearly all that is computed
FEW = 4  # threads; on more, what is left to torch would take longer than the waiting costs


class _Replaced(TorchFunctionMode):
    """Replaces calls of `torch.conv2d` in this thread, whoever makes them.

    The parameters' slopes go where `places` has them, for which it splits the leaf.
    """

    def __init__(self, convolutions: Convolutions, places: Places, threads: int) -> None:
        super().__init__()
        self._convolutions, self._places, self._threads = convolutions, places, threads

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and first_order():
            call = Call.of(*args, **kwargs)
            scheme = call.scheme()
            if scheme is not None:
                how = scheme, self._convolutions, self._places, self._threads
                given = call.x, call.weight, call.bias, *how
                return WinogradConvolution.apply(*given)  # type: ignore[no-untyped-call]
        if func is torch.split and args[0] is self._places.leaf and first_order():
            sizes = args[1]
            if isinstance(sizes, list):  # as a layout of parameters splits
                return self._places.split(sizes)
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Winograd(Autograd):
    """Computes gradients of one client by autograd with compiled convolutions.

    Stacks of clients are left to torch, as `vmap` needs its convolutions. The compiled functions
    have no state and the replacement is a thread's own, so clients on several threads share them.

    Where hardly anything else is computed, on few threads, torch computes the rest on one: between
    its operations GNU's OpenMP has the others wait in a loop for milliseconds, on the cores that
    the convolutions need.
    """

    convolutions: Convolutions
    alone: bool = False  # whether hardly anything else is computed

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient of f at x, outside of any vmap; by torch alone if not finite."""
        places, threads = Places(x.detach().requires_grad_()), torch.get_num_threads()
        replaced = _Replaced(self.convolutions, places, threads)
        single = self.alone and threads <= FEW
        with torch.enable_grad(), _threads(1 if single else threads), replaced:
            value = f(places.leaf)
            with places.lending():
                (g,) = torch.autograd.grad(value, places.leaf)
        return g if places.is_finite(g) else super().slope(f, x)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads for a while."""
    before = torch.get_num_threads()
    if number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Survey(NamedTuple):
    """Holds what a forward pass would replace."""

    convolutions: int  # calls of torch.conv2d
    replaced: int  # of which a compiled one takes the place
    products: int  # of a sample's gradient in those, as torch would compute them
    others: int  # of a sample's gradient in other convolutions and in linear layers

    @property
    def alone(self) -> bool:
        """Return whether hardly anything but compiled convolutions is computed."""
        return self.products >= ALONE * (self.products + self.others)


class _Count(TorchFunctionMode):
    """Counts the calls that would be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Survey(0, 0, 0, 0)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result, counts = func(*args, **(kwargs or {})), self.counts
        if func is torch.conv2d:
            call = Call.of(*args, **(kwargs or {}))
            fits = call.scheme() is not None
            taken = call.products if fits else result.numel() * call.weight[0].numel()
            counts = counts._replace(
                convolutions=counts.convolutions + 1, replaced=counts.replaced + fits
            )
        elif func is F.linear:
            fits, taken = False, result.numel() * args[0].shape[-1]
        else:
            return result
        name = "products" if fits else "others"  # forward, and back to both operands
        self.counts = counts._replace(**{name: getattr(counts, name) + 3 * taken})
        return result


def has_wide_convolutions(model: nn.Module) -> bool:
    """Return whether the model has 3x3 weights of enough channels."""
    shapes = (tuple(parameter.shape) for parameter in model.parameters())
    return any(
        len(shape) == 4 and shape[2:] == (3, 3) and min(shape[:2]) >= CHANNELS for shape in shapes
    )


def survey(task: Task, batch: Batch) -> Survey:
    """Return what would be replaced in the gradient of a minibatch, by a forward pass."""
    counting = _Count()
    x = task.layout.gather(task.model)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), counting:
        task.forward(x, batch.inputs, batch.keys)
    counts, samples = counting.counts, len(batch.targets)
    products, others = counts.products // samples, counts.others // samples
    return counts._replace(products=products, others=others)


def build_winograd(*, alone: bool = False) -> Winograd:
    """Return the oracle, or raise `UnsupportedError`, which says why it cannot be built."""
    return Winograd(load(), alone)
