"""Gradients of chains of linear layers, written out as few large products.

Logistic regression and multi-layer perceptrons spend most of their time in calling operations. With
the backward pass written by hand a gradient takes about ten calls, for one client or for all.
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

_AUTOGRAD = Autograd()  # for minibatches of another form


class LinearLayer(NamedTuple):
    """Says where weights and bias lie in the flat vector, and which activation follows."""

    weight: slice
    shape: tuple[int, int]
    bias: slice | None
    activation: type[nn.Module] | None


# Each makes the slope before an activation of its output and the slope after it.
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
    """Computes gradients of linear layers with activations, under the cross-entropy of labels."""

    layers: tuple[LinearLayer, ...]
    pads_batches = schedules_clients = False

    @classmethod
    def of(cls, task: Task) -> Dense | None:
        """Return the oracle of a task, or None where its model or loss is another."""
        layers = _layers(task)
        plain = task.loss is F.cross_entropy and task.randomness == "none"
        plain = plain and task.precision is None
        return cls(layers) if layers and plain else None

    def gradient(self, task: Task, x: Vector, batch: Batch) -> Vector:
        """Return the gradient of one client's loss at x."""
        if not self._fits(batch, 1):
            return _AUTOGRAD.gradient(task, x, batch)
        valid = None if batch.valid is None else batch.valid[None]
        rows = Batch(batch.inputs[None], batch.targets[None], valid)
        return self.gradients(task, x[None], rows)[0]

    def _fits(self, batch: Batch, axes: int) -> bool:
        """Return whether samples have one label each and the size of the first layer's input."""
        labelled = batch.targets.ndim == axes and not batch.targets.is_floating_point()
        return labelled and batch.inputs.shape[axes:].numel() == self.layers[0].shape[1]

    def gradients(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        """Return (clients, D) the gradients of many clients at the rows of x."""
        if not self._fits(batch, 2):
            return _AUTOGRAD.gradients(task, x, batch)
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
    """Return (softmax - one hot) / samples, and zero where there is only padding."""
    slope = logits.softmax(2)
    labels = batch.targets[:, :, None].long()  # Labels may be bytes.
    slope.scatter_add_(2, labels, slope.new_full((), -1.0).expand_as(labels))
    if batch.valid is None:
        return slope.div_(logits.shape[1])
    return slope.mul_((batch.valid / batch.valid.sum(1, keepdim=True).clamp(min=1))[:, :, None])


def _layers(task: Task) -> tuple[LinearLayer, ...]:
    """Return the chain of layers, empty if the model is none."""
    if type(task.model) is not nn.Sequential or hooked(task.model):
        return ()
    starts = dict(zip(task.layout.names, task.layout.starts, strict=True))
    layers: list[LinearLayer] = []
    for name, part in flattened(task.model):
        if hooked(part):
            return ()
        if type(part) is nn.Linear:
            names = [f"{name}.{what}" for what, _ in part.named_parameters()]
            if any(each not in starts for each in names):  # A frozen parameter has no place.
                return ()
            weight, shape = starts[f"{name}.weight"], (part.out_features, part.in_features)
            bias = None
            if part.bias is not None:
                bias = slice(starts[f"{name}.bias"], starts[f"{name}.bias"] + shape[0])
            weights = slice(weight, weight + shape[0] * shape[1])
            layers.append(LinearLayer(weights, shape, bias, None))
        elif type(part) in _SLOPES and layers and layers[-1].activation is None:
            layers[-1] = layers[-1]._replace(activation=type(part))
        elif not (type(part) is nn.Flatten and not layers and part.start_dim == 1):
            return ()
    used = sum(
        math.prod(layer.shape) + layer.shape[0] * (layer.bias is not None) for layer in layers
    )
    if used != task.layout.size:  # Some parameter belongs to no layer of the chain.
        return ()
    return tuple(layers) if layers[-1].activation is None else ()


def flattened(model: nn.Sequential, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Return the parts of a chain of chains with their full names."""
    parts: list[tuple[str, nn.Module]] = []
    for name, part in model._modules.items():  # This lists a part that is used twice twice.
        if type(part) is nn.Sequential and not hooked(part):
            parts += flattened(part, f"{prefix}{name}.")
        elif part is not None and (type(part) is not nn.Identity or hooked(part)):
            parts.append((prefix + name, part))
    return parts


def hooked(part: nn.Module) -> bool:
    """Return whether a call of the part also calls hooks."""
    kinds = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    return any(getattr(part, kind, None) for kind in kinds)
