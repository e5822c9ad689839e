"""The C++ of flat layers, which have a row of numbers for each sample of the minibatch.

Value j, the input of layer j, is `r{j}`; one slope, `e`, is carried back from layer to layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from undrift.gradients.kernels.images import probability
from undrift.gradients.kernels.layers import Activation, Drop, Layer, Matrix


class RowCode:
    """Collects the C++ of flat layers; `source` is the C++ of the first rows."""

    def __init__(self, layers: Sequence[Layer], source: str, learns: bool) -> None:
        self.width = 0  # floats that all values of a sample take
        self.names: list[str] = []  # declarations of the memory of each value
        self.forward: list[str] = []
        self.backward: list[str] = []
        sources = [source]
        for j, layer in enumerate(layers):
            out = math.prod(layer.out)
            self._keep(f"r{j + 1}", out)
            self._forward(j, layer, sources[-1], out)
            sources.append(f"Packed{{r{j + 1}, {out}}}")
        self.slope, self.copied = f"r{len(layers)}", ""  # where the loss puts its slope
        if layers and isinstance(layers[-1], Activation):  # Its slope needs its output unchanged.
            width = math.prod(layers[-1].out)
            self._keep("e_last", width)
            self.copied = f"std::memcpy(e_last, {self.slope}, 4 * n * {width});"
            self.slope = "e_last"
        earlier = [learns or _learns(layers[:j]) for j in range(len(layers))]
        for j in reversed(range(len(layers))):
            if learns or _learns(layers[: j + 1]):
                self._backward(j, layers[j], sources[j], earlier[j])

    def _keep(self, name: str, width: int) -> None:
        """Declare memory of so many floats for each sample."""
        self.names.append(f"float* {name} = rows + {self.width} * batch;")
        self.width += width

    def keep_first(self, width: int) -> None:
        """Declare memory for images that have become rows."""
        self._keep("r0", width)

    def _forward(self, j: int, layer: Layer, source: str, out: int) -> None:
        count = f"n * {out}"
        if isinstance(layer, Matrix):
            bias = "nullptr" if layer.bias is None else f"x + {layer.bias}"
            arguments = f"{source}, n, x + {layer.weight}, {bias}, r{j + 1}"
            self.forward.append(f"{_linear(layer)}::forward({arguments});")
            return
        # Other layers take each row by itself, as the first rows may lie anywhere in memory.
        self.forward.append(f"for (long i = 0; i < n; ++i) {{ const float* row = {source}(i);")
        to = f"r{j + 1} + i * {out}"
        if isinstance(layer, Activation):
            self.forward.append(f"activate<{layer.kind}>(row, {out}, {to}); }}")
            return
        assert isinstance(layer, Drop)
        self._keep(f"m{j}", out)
        self.forward.append(f"multiply(m{j} + i * {out}, row, {out}, {to}); }}")
        masks = f"folded(key, {layer.call}), {count}, {probability(layer.p)}, m{j}"
        self.forward.insert(len(self.forward) - 2, f"masks_in_rows({masks});")

    def _backward(self, j: int, layer: Layer, source: str, wanted: bool) -> None:
        count = f"n * {math.prod(layer.out)}"
        if isinstance(layer, Activation):
            self.backward.append(f"deactivate<{layer.kind}>(r{j + 1}, {count}, e);")
        elif isinstance(layer, Drop):
            self.backward.append(f"multiply(m{j}, e, {count}, e);")
        elif isinstance(layer, Matrix):
            bias = "nullptr" if layer.bias is None else f"g + {layer.bias}"
            arguments = f"{source}, e, n, g + {layer.weight}, {bias}"
            self.backward.append(f"{_linear(layer)}::to_weights({arguments});")
            if wanted:
                self._keep(f"e{j}", layer.shape[0])
                arguments = f"e, n, x + {layer.weight}, e{j}"
                self.backward += [f"{_linear(layer)}::to_input({arguments});", f"e = e{j};"]


def _linear(layer: Matrix) -> str:
    return f"Linear<{layer.shape[0]}, {layer.out[0]}>"


def _learns(layers: Sequence[Layer]) -> bool:
    return any(isinstance(layer, Matrix) for layer in layers)
