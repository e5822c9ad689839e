"""Linear CKA says how alike the layers of two models are, in what they make of the same inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from undrift.check import require
from undrift.core import Vector
from undrift.models.layout import Layout


def cka(model: nn.Module, x_a: Vector, x_b: Vector, inputs: Tensor) -> dict[str, float]:
    """Return linear CKA (Kornblith et al., ICML 2019) of two parameter vectors, layer by layer.

    ||Y' X||^2 / ||X' X|| ||Y' Y|| in Frobenius norms, where X and Y are what a layer of the two
    models makes of the inputs, a row for each, less the mean row. Layers are the model's modules
    without children, in the order of their calls (`relu`, `relu#2` when called again); NaN where
    one of the two answers all inputs alike.
    """
    layers = LayerGrams(model, inputs)
    a, b = layers(x_a), layers(x_b)
    return {name: _cosine(a[name], b[name]) for name in a}


def _cosine(a: Tensor, b: Tensor) -> float:
    lengths = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return clipped(float((a * b).sum()) / lengths) if lengths > 0 else math.nan


class LayerGrams:
    """Maps parameters to each layer's centred Gram matrix (n, n), 0 if all outputs are equal."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        require(isinstance(model, nn.Module), "cka", "an nn.Module as model", model)
        enough = isinstance(inputs, Tensor) and inputs.ndim >= 1 and len(inputs) >= 3
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else inputs
        remedy = "two inputs alone always give 1; take a few hundred"
        require(enough, "cka", "a tensor of at least three inputs", got, remedy)
        self._model = copy.deepcopy(model).eval()
        self._layout = Layout.of(self._model)
        dtype = self._layout.dtype if inputs.is_floating_point() else inputs.dtype
        self._inputs = inputs.to(device=self._layout.device, dtype=dtype)
        grams = self(self._layout.gather(model))  # raises an error if the inputs do not fit
        require(bool(grams), "cka", "layers that give a row for each input", grams)

    def __call__(self, x: Vector) -> dict[str, Tensor]:
        size = self._layout.size
        fits = x.shape == (size,)
        require(fits, "cka", f"vectors of the model's {size} parameters", tuple(x.shape))
        grams: dict[str, Tensor] = {}
        with self._recording(grams), torch.no_grad():
            functional_call(self._model, self._layout.views(x.detach()), (self._inputs,))
        return grams

    def learns(self, layer: str) -> bool:
        """Return whether a layer has parameters."""
        name = layer.partition("#")[0]
        module = self._model if name == "model" else self._model.get_submodule(name)
        return any(True for _ in module.parameters())

    @contextmanager
    def _recording(self, grams: dict[str, Tensor]) -> Iterator[None]:
        """Collect the layers' Gram matrices of forward passes inside the block."""
        leaves = [(n, m) for n, m in self._model.named_modules() if not any(m.children())]
        hooks = [m.register_forward_hook(self._recorder(n or "model", grams)) for n, m in leaves]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _recorder(self, name: str, grams: dict[str, Tensor]) -> Callable[..., None]:
        calls = 0

        def record(module: nn.Module, arguments: Any, output: Any) -> None:
            nonlocal calls
            calls += 1
            first = output[0] if isinstance(output, tuple) and output else output  # LSTM and such
            rows = len(self._inputs)
            if isinstance(first, Tensor) and first.shape[:1] == (rows,):
                # The matrix is made at once, because the next layer may work in place and the
                # outputs of all layers would take more memory than their matrices.
                grams[name if calls == 1 else f"{name}#{calls}"] = _gram(first.reshape(rows, -1))

        return record


def _gram(features: Tensor) -> Tensor:
    """Return the centred Gram matrix of a layer's outputs."""
    wide = features.double()
    centred = wide - wide.mean(0)
    exact = features.dtype if features.is_floating_point() else torch.float64
    rounding = 10 * torch.finfo(exact).eps * torch.linalg.vector_norm(wide)
    if torch.linalg.vector_norm(centred) <= rounding:
        return torch.zeros(len(wide), len(wide), dtype=wide.dtype, device=wide.device)
    return centred @ centred.T


def clipped(cosine: float) -> float:
    """Return a cosine within its bounds, which rounding may exceed."""
    return min(1.0, max(-1.0, cosine))
