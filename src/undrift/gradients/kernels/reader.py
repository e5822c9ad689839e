"""Reads a model as a chain of layers with their shapes, or says which part no kernel knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from undrift.gradients.kernels.layers import (
    Activation,
    Chain,
    Convolution,
    Drop,
    Flatten,
    IntPair,
    Layer,
    Matrix,
    Pooling,
    Shape,
    UnsupportedError,
)
from undrift.gradients.kernels.tracing import is_batch_size, traced_chain
from undrift.gradients.mlp import flattened, hooked
from undrift.gradients.task import Task

# Layers with more weights are as fast in torch's libraries.
LARGEST_CONVOLUTION = 40_000
LARGEST_MATRIX = 1_000_000

LOSSES: dict[Any, str] = {
    F.cross_entropy: "CrossEntropy",
    F.binary_cross_entropy_with_logits: "BinaryLogistic",
    F.mse_loss: "Squared",
}


def read(task: Task, inputs: Sequence[int], targets: Sequence[int]) -> Chain:
    """Return the chain of a task whose samples and targets have these shapes, or raise.

    Shapes are without the batch axis. `UnsupportedError` says why there is no chain.
    """
    if task.layout.device.type != "cpu":
        raise UnsupportedError(f"kernels compute on the CPU, the model is on {task.layout.device}")
    if task.layout.dtype != torch.float32:
        raise UnsupportedError(f"parameters of {task.layout.dtype}")
    if task.precision is not None:
        raise UnsupportedError("kernels compute in the model's own precision")
    if task.randomness == "other":
        raise UnsupportedError("random numbers that are not dropout layers")
    try:
        loss = LOSSES[task.loss]
    except (KeyError, TypeError):
        name = getattr(task.loss, "__name__", type(task.loss).__name__)
        raise UnsupportedError(f"the loss {name}") from None
    layers = _Reader(task, tuple(inputs)).layers()
    last = layers[-1].out if layers else tuple(inputs)
    if len(last) != 1:
        raise UnsupportedError(f"an output of shape {last}")
    labels = () if loss == "CrossEntropy" else last
    if tuple(targets) != labels:
        raise UnsupportedError(f"targets of shape {tuple(targets)} under {loss}")
    used = sum(_parameters(layer) for layer in layers)
    if used != task.layout.size:
        raise UnsupportedError("parameters that are shared or belong to no layer of the chain")
    if not used:
        raise UnsupportedError("no layer with parameters")
    return Chain(tuple(layers), tuple(inputs), last[0], loss, task.layout.size)


def _parameters(layer: Layer) -> int:
    """Return the number of a layer's parameters."""
    if isinstance(layer, Convolution):
        weights = layer.out[0] * layer.shape[0] * math.prod(layer.kernel)
    elif isinstance(layer, Matrix):
        weights = layer.out[0] * layer.shape[0]
    else:
        return 0
    return weights + (0 if layer.bias is None else layer.out[0])


class _Reader:
    """Follows one value from the input to the output and notes its shape."""

    def __init__(self, task: Task, shape: Shape) -> None:
        self.model, self.shape, self.drops = task.model, shape, 0
        self.starts = dict(zip(task.layout.names, task.layout.starts, strict=True))

    def layers(self) -> list[Layer]:
        """Return the layers in their order."""
        if any(hooked(part) for part in self.model.modules()):
            raise UnsupportedError("a layer with hooks")
        steps: Iterator[Layer | None]
        if type(self.model) is nn.Sequential:
            steps = (self._module(name, part) for name, part in flattened(self.model))
        elif type(self.model) in _MODULES:
            steps = iter([self._module("", self.model)])
        else:
            steps = (self._layer(node) for node in traced_chain(self.model))
        layers: list[Layer] = []
        for layer in steps:
            if layer is not None:
                layers.append(layer)
                self.shape = layer.out
        return layers

    def _layer(self, node: fx.Node) -> Layer | None:
        """Return the layer of a traced node, None for one that changes nothing."""
        if node.op == "call_module":
            part = self.model.get_submodule(str(node.target))
            return self._module(str(node.target), part)
        target: Any = node.target
        if node.op == "call_method":
            target = _METHODS.get(str(target), target)
        name = getattr(target, "__name__", target)
        try:
            return self._function(target, list(node.args[1:]), dict(node.kwargs))
        except (TypeError, ValueError) as error:
            raise UnsupportedError(f"`{name}` with such arguments") from error

    def _module(self, name: str, part: nn.Module) -> Layer | None:
        read = _MODULES.get(type(part))
        if read is None or "forward" in part.__dict__:  # A user may have replaced `forward`.
            raise UnsupportedError(type(part).__name__)
        return read(self, name, part)

    def _function(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Layer | None:
        """Return the layer of the module that does the same as a function."""
        if target in _FUNCTIONS:
            return Activation(self.shape, _FUNCTIONS[target])
        if target in (F.max_pool2d, torch.max_pool2d) and len(args) <= 4:
            return self._max_pool("", nn.MaxPool2d(*args, **kwargs))
        if target is F.avg_pool2d:
            return self._avg_pool("", nn.AvgPool2d(*args, **kwargs))
        if target is torch.flatten:
            dims = {"start_dim": 0} | dict(zip(("start_dim", "end_dim"), args, strict=False))
            return self._flatten("", nn.Flatten(**(dims | kwargs)))
        if target == "view":
            return self._view(args)
        if target in (F.dropout, F.dropout2d):
            options = {"p": 0.5} | dict(zip(("p", "training"), args, strict=False)) | kwargs
            part = nn.Dropout(options["p"]) if target is F.dropout else nn.Dropout2d(options["p"])
            return self._drop("", part.train(bool(options.get("training", True))))
        raise UnsupportedError(f"`{getattr(target, '__name__', target)}`")

    def _start(self, name: str) -> int:
        """Return where a parameter begins in the flat vector; each is used once."""
        if name not in self.starts:
            raise UnsupportedError(f"{name}, which is frozen, shared or used twice")
        return self.starts.pop(name)

    def _places(self, name: str, part: nn.Module) -> tuple[int, int | None]:
        """Return where weight and bias begin in the flat vector."""
        names = {what for what, _ in part.named_parameters(recurse=False)}
        if not names <= {"weight", "bias"}:  # Weight norm has other parameters, for example.
            raise UnsupportedError(f"parametrised weights of {name}")
        prefix = f"{name}." if name else ""
        bias = None if getattr(part, "bias", None) is None else self._start(f"{prefix}bias")
        return self._start(f"{prefix}weight"), bias

    def _matrix(self, name: str, part: nn.Linear) -> Matrix:
        if self.shape != (part.in_features,):
            raise UnsupportedError(f"a Linear layer on values of shape {self.shape}")
        if part.weight.numel() > LARGEST_MATRIX:
            raise UnsupportedError(
                f"a Linear of {part.weight.numel()} weights, fast enough in torch"
            )
        weight, bias = self._places(name, part)
        return Matrix(self.shape, (part.out_features,), weight, bias)

    def _convolution(self, name: str, part: nn.Conv2d) -> Convolution:
        if part.groups != 1 or part.dilation != (1, 1) or part.padding_mode != "zeros":
            raise UnsupportedError("Conv2d with groups, dilation or a padding other than zeros")
        if isinstance(part.padding, str):
            raise UnsupportedError(f"Conv2d with padding={part.padding!r}")
        if part.weight.numel() > LARGEST_CONVOLUTION:
            raise UnsupportedError(
                f"a Conv2d of {part.weight.numel()} weights, fast enough in torch"
            )
        kernel, stride, padding = _window(part)
        out = (part.out_channels, *self._windows("Conv2d", kernel, stride, padding))
        weight, bias = self._places(name, part)
        return Convolution(self.shape, out, kernel, stride, padding, weight, bias)

    def _max_pool(self, _: str, part: nn.MaxPool2d) -> Pooling:
        if _pair(part.dilation) != (1, 1) or part.ceil_mode or part.return_indices:
            raise UnsupportedError("MaxPool2d with dilation, ceil_mode or indices")
        kernel, stride, padding = _window(part)
        if math.prod(kernel) > 127:
            raise UnsupportedError("MaxPool2d with more than 127 places in a window")
        out = (self.shape[0], *self._windows("MaxPool2d", kernel, stride, padding))
        return Pooling(self.shape, out, "max", kernel, stride, padding)

    def _avg_pool(self, _: str, part: nn.AvgPool2d) -> Pooling:
        if part.ceil_mode or part.divisor_override is not None:
            raise UnsupportedError("AvgPool2d with ceil_mode or a divisor")
        kernel, stride, padding = _window(part)
        out = (self.shape[0], *self._windows("AvgPool2d", kernel, stride, padding))
        return Pooling(self.shape, out, "avg", kernel, stride, padding, part.count_include_pad)

    def _windows(self, who: str, kernel: IntPair, stride: IntPair, padding: IntPair) -> list[int]:
        """Return the number of windows in each direction."""
        if len(self.shape) != 3:
            raise UnsupportedError(f"{who} on values of shape {self.shape}")
        directions = zip(self.shape[1:], kernel, stride, padding, strict=True)
        return [(side + 2 * pad - width) // step + 1 for side, width, step, pad in directions]

    def _flatten(self, _: str, part: nn.Flatten) -> Flatten | None:
        if part.start_dim != 1 or part.end_dim not in (-1, len(self.shape)):
            raise UnsupportedError("Flatten of other than all but the batch")
        return Flatten(self.shape) if len(self.shape) > 1 else None

    def _view(self, sizes: Sequence[Any]) -> Flatten | None:
        """Return the layer of a view as (batch, rest), however the sizes are written."""
        if len(sizes) == 1 and isinstance(sizes[0], Sequence):
            sizes = sizes[0]
        size = math.prod(self.shape)
        batch, rest = sizes if len(sizes) == 2 else (None, None)
        measured = isinstance(batch, fx.Node) and is_batch_size(batch) and rest in (-1, size)
        if not measured and not (batch == -1 and rest == size):
            raise UnsupportedError("a view that is not flat")
        return self._flatten("", nn.Flatten())

    def _drop(self, _: str, part: nn.Dropout | nn.Dropout2d) -> Drop | None:
        channels = isinstance(part, nn.Dropout2d)
        if not part.training or part.p == 0:
            return None
        if channels and len(self.shape) != 3:
            raise UnsupportedError(f"Dropout2d on values of shape {self.shape}")
        self.drops += 1
        return Drop(self.shape, part.p, channels, self.drops - 1)

    def _activation(self, _: str, part: nn.Module) -> Activation:
        return Activation(self.shape, type(part).__name__.replace("ReLU", "Relu"))

    def _nothing(self, _: str, part: nn.Module) -> None:
        return None


# Modules need exactly one of these types, because a subclass may do anything.
_MODULES: dict[type[nn.Module], Callable[[_Reader, str, Any], Layer | None]] = {
    nn.Linear: _Reader._matrix,
    nn.Conv2d: _Reader._convolution,
    nn.MaxPool2d: _Reader._max_pool,
    nn.AvgPool2d: _Reader._avg_pool,
    nn.Flatten: _Reader._flatten,
    nn.Dropout: _Reader._drop,
    nn.Dropout2d: _Reader._drop,
    nn.ReLU: _Reader._activation,
    nn.Tanh: _Reader._activation,
    nn.Sigmoid: _Reader._activation,
    nn.Identity: _Reader._nothing,
}
_FUNCTIONS: dict[Any, str] = {
    F.relu: "Relu",
    torch.relu: "Relu",
    torch.tanh: "Tanh",
    F.tanh: "Tanh",
    torch.sigmoid: "Sigmoid",
    F.sigmoid: "Sigmoid",
}
_METHODS: dict[str, Any] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "flatten": torch.flatten,
    "view": "view",
    "reshape": "view",
}


def _window(part: nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d) -> tuple[IntPair, IntPair, IntPair]:
    """Return kernel, stride and padding."""
    return _pair(part.kernel_size), _pair(part.stride), _pair(part.padding)


def _pair(value: Any) -> IntPair:
    first, second = value if isinstance(value, Sequence) else (value, value)
    return int(first), int(second)
