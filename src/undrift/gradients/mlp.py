"""Gradients of chains of linear layers, written out: few large products, not many small steps.

Logistic regression and multi-layer perceptrons spend most of their time in calling operations. With
the backward pass written by hand a gradient takes about ten of them, for one client or for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.core import Vector
from undrift.gradients.task import Autograd, Batch, Task

_AUTOGRAD = Autograd()  # for what is not as expected


class Layer(NamedTuple):
    """BatchIndices in the flat vector, the shape of the weights, and what follows them."""

    weight: slice
    shape: tuple[int, int]
    bias: slice | None
    activation: type[nn.Module] | None


# From the layer's output and the slope there to the slope at its input.
_SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda h, d: torch.ops.aten.threshold_backward(d, h, 0.0),
    nn.Tanh: lambda h, d: torch.ops.aten.tanh_backward(d, h),
    nn.Sigmoid: lambda h, d: torch.ops.aten.sigmoid_backward(d, h),
}
_VALUES: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
}


@dataclass(frozen=True)
class Dense(Autograd):
    """Of linear layers with activations between them, under the cross-entropy of class labels."""

    layers: tuple[Layer, ...]
    pads_batches = schedules_clients = False

    @classmethod
    def of(cls, task: Task) -> Dense | None:
        """Nothing where the model, its loss or its data are anything else."""
        layers = _layers(task)
        plain = task.loss is F.cross_entropy and task.randomness == "none"
        return cls(layers) if layers and plain else None

    def one(self, task: Task, x: Vector, batch: Batch) -> Vector:
        if not self._fits(batch, 1):
            return _AUTOGRAD.one(task, x, batch)
        valid = None if batch.valid is None else batch.valid[None]
        rows = Batch(batch.inputs[None], batch.targets[None], valid)
        return self.many(task, x[None], rows)[0]

    def _fits(self, batch: Batch, axes: int) -> bool:
        """Whether there is a class label for each sample, which the first layer takes whole."""
        labelled = batch.targets.ndim == axes and not batch.targets.is_floating_point()
        return labelled and batch.inputs.shape[axes:].numel() == self.layers[0].shape[1]

    def many(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        if not self._fits(batch, 2):
            return _AUTOGRAD.many(task, x, batch)
        clients = len(x)
        values = [batch.inputs.reshape(clients, batch.targets.shape[1], -1)]
        for layer in self.layers:
            weight = x[:, layer.weight].view(clients, *layer.shape).mT
            if layer.bias is None:
                h = torch.bmm(values[-1], weight)
            else:
                h = torch.baddbmm(x[:, None, layer.bias], values[-1], weight)
            values.append(h if layer.activation is None else _VALUES[layer.activation](h))
        d = out = _slope_of_cross_entropy(values.pop(), batch)
        g = x.new_empty(clients, x.shape[1])
        for layer in reversed(self.layers):
            h = values.pop()
            if layer.activation is not None:
                d = _SLOPES[layer.activation](out, d)
            torch.bmm(d.mT, h, out=g[:, layer.weight].view(clients, *layer.shape))
            if layer.bias is not None:
                torch.sum(d, 1, out=g[:, layer.bias])
            if values:
                d = torch.bmm(d, x[:, layer.weight].view(clients, *layer.shape))
            out = h
        return g


def _slope_of_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """(softmax - one hot) / samples; nothing where there is only padding."""
    slope = logits.softmax(2)
    labels = batch.targets[:, :, None].long()  # bytes are labels, too
    slope.scatter_add_(2, labels, slope.new_full((), -1.0).expand_as(labels))
    if batch.valid is None:
        return slope.div_(logits.shape[1])
    return slope.mul_((batch.valid / batch.valid.sum(1, keepdim=True).clamp(min=1))[:, :, None])


def _layers(task: Task) -> tuple[Layer, ...]:
    """The chain, empty if the model is none."""
    if type(task.model) is not nn.Sequential or hooked(task.model):
        return ()
    starts = dict(zip(task.layout.names, task.layout.starts, strict=True))
    layers: list[Layer] = []
    for name, part in flattened(task.model):
        if hooked(part):
            return ()
        if type(part) is nn.Linear:
            names = [f"{name}.{what}" for what, _ in part.named_parameters()]
            if any(one not in starts for one in names):  # frozen
                return ()
            weight, shape = starts[f"{name}.weight"], (part.out_features, part.in_features)
            bias = None
            if part.bias is not None:
                bias = slice(starts[f"{name}.bias"], starts[f"{name}.bias"] + shape[0])
            layers.append(Layer(slice(weight, weight + shape[0] * shape[1]), shape, bias, None))
        elif type(part) in _SLOPES and layers and layers[-1].activation is None:
            layers[-1] = layers[-1]._replace(activation=type(part))
        elif not (type(part) is nn.Flatten and not layers and part.start_dim == 1):
            return ()
    used = sum(
        math.prod(layer.shape) + layer.shape[0] * (layer.bias is not None) for layer in layers
    )
    if used != task.layout.size:  # there are parameters that no layer of the chain has
        return ()
    return tuple(layers) if layers[-1].activation is None else ()


def flattened(model: nn.Sequential, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The parts of a chain of chains, by their full names."""
    parts: list[tuple[str, nn.Module]] = []
    for name, part in model._modules.items():  # where one that is there twice is there twice
        if type(part) is nn.Sequential and not hooked(part):
            parts += flattened(part, f"{prefix}{name}.")
        elif part is not None and (type(part) is not nn.Identity or hooked(part)):
            parts.append((prefix + name, part))
    return parts


def hooked(part: nn.Module) -> bool:
    """Whether calling it does something besides."""
    kinds = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    return any(getattr(part, kind, None) for kind in kinds)
