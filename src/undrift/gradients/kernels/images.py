"""The C++ of layers of images, which take V samples at a time.

Values are numbered along the stages: value i, the input of stage i, is `s.a{i}` inside the border
that the stage needs; the slope there is `f.d{i}`, without a border. Every block of samples has its
own `s`, which keeps what the backward pass needs; there is one `f`.
"""

from __future__ import annotations

import math

from undrift.gradients.kernels.layers import (
    Activation,
    Convolution,
    Drop,
    IntPair,
    Pooling,
    Shape,
)
from undrift.gradients.kernels.stages import ImageStage


class ImageCode:
    """Collects the C++ of layers of images, stage by stage."""

    def __init__(self, stages: list[ImageStage]) -> None:
        self.stages = stages
        self.types: list[str] = []
        self.block: list[str] = []  # members of `s`
        self.fixed: list[str] = []  # members of `f`
        self.before: list[str] = []  # runs once for a client
        self.packed: list[str] = []  # the part of it that the forward pass needs
        self.forward: list[str] = []  # runs for each block
        self.backward: list[list[str]] = []  # runs for each block, in reverse order of the stages
        self.after: list[str] = []  # runs once for a client
        self.learns = False  # whether a stage so far has parameters
        for i in range(len(stages) + 1 if stages else 0):
            self.types.append(f"using P{i} = {self._plane(i)};")
        for i, stage in enumerate(stages):
            self._stage(i, stage)

    def _padding(self, i: int) -> IntPair:
        """Return the border around value i, which is the padding of the next convolution."""
        first = self.stages[i].layers[0] if i < len(self.stages) else None
        return first.padding if isinstance(first, Convolution) else (0, 0)

    def _plane(self, i: int) -> str:
        shape = self.stages[i].shape if i < len(self.stages) else self.stages[-1].out
        return _plane(shape, self._padding(i))

    def _stage(self, i: int, stage: ImageStage) -> None:
        channels = stage.shape[0]
        if i + 1 == len(self.stages):
            self.block.append(f"vec a{i + 1}[{stage.out[0]} * P{i + 1}::SIZE];")
            self.fixed.append(f"vec d{i + 1}[{math.prod(stage.out)}];")
        self.block.append(f"vec a{i}[{channels} * P{i}::SIZE];")
        wanted = self.learns
        if wanted:
            self.fixed.append(f"vec d{i}[{math.prod(stage.shape)}];")
        first = stage.layers[0]
        if isinstance(first, Convolution):
            self._convolution(i, stage, first, wanted)
        elif isinstance(first, Activation):
            self._activation(i, first)
        elif isinstance(first, Drop):
            self._drop(i, first)
        elif isinstance(first, Pooling) and first.kind == "max":
            self._max_pool(i, first)
        else:
            assert isinstance(first, Pooling)
            self._avg_pool(i, first)
        if not wanted and not isinstance(first, Convolution):
            self.backward.pop()

    def _masks(self, i: int, drop: Drop, numbers: int) -> None:
        self.block.append(f"vec m{i}[{numbers}];")
        arguments = f"folded(key, {drop.call}), b, {probability(drop.p)}"
        self.forward.append(f"masks_in_lanes<{numbers}>({arguments}, s.m{i});")

    def _convolution(self, i: int, stage: ImageStage, conv: Convolution, wanted: bool) -> None:
        bias, bias_slope = self._declare_convolution(i, conv)
        activation, pool, drop = (stage.first(kind) for kind in (Activation, Pooling, Drop))
        kind = activation.kind if isinstance(activation, Activation) else "Same"
        times = ""
        if isinstance(drop, Drop):
            self._masks(i, drop, conv.out[0])
            times = f" * s.m{i}[o]"
        self.forward.append(
            f"L{i}::forward(s.a{i}, f.f{i}, {bias}, f.p{i}, [&](int o, const vec* plane) {{"
        )
        if isinstance(pool, Pooling):
            back = self._pooled_outputs(i, conv, pool, kind, times)
        else:
            back = self._outputs(i, kind, times)
        self.forward.append("});")
        back.append(f"L{i}::to_weights(s.a{i}, f.z{i}, f.w{i}, {bias_slope});")
        if wanted:
            self.fixed.append(f"float q{i}[L{i}::O * L{i}::TAPS];")
            self.before.append(f"L{i}::pack_back(x + {conv.weight}, f.q{i});")
            back.append(f"L{i}::to_input(f.z{i}, f.q{i}, mask, f.d{i});")
        self.backward.append(back)
        self.learns = True

    def _declare_convolution(self, i: int, conv: Convolution) -> tuple[str, str]:
        """Declare a convolution's type and memory; return the C++ of its bias and bias's slope."""
        (height, width), (down, right), out = conv.kernel, conv.stride, conv.out[0]
        kernel = f"{height}, {width}, {down}, {right}"
        self.types.append(f"using L{i} = Conv<{conv.shape[0]}, P{i}, {out}, {kernel}>;")
        self.fixed += [
            f"vec w{i}[L{i}::O * L{i}::TAPS];",
            f"vec z{i}[L{i}::PLACES * L{i}::O];",
            f"float f{i}[L{i}::O * L{i}::TAPS];",
            f"vec p{i}[L{i}::CHANNELS * L{i}::PLACES];",
        ]
        self.packed.append(f"L{i}::pack(x + {conv.weight}, f.f{i});")
        self.before += [self.packed[-1], f"std::memset(f.w{i}, 0, sizeof f.w{i});"]
        self.after.append(f"sum_lanes(f.w{i}, L{i}::O * L{i}::TAPS, g + {conv.weight});")
        if conv.bias is None:
            return "nullptr", "nullptr"
        self.fixed.append(f"vec b{i}[L{i}::O];")
        self.before.append(f"std::memset(f.b{i}, 0, sizeof f.b{i});")
        self.after.append(f"sum_lanes(f.b{i}, L{i}::O, g + {conv.bias});")
        return f"x + {conv.bias}", f"f.b{i}"

    def _outputs(self, i: int, kind: str, times: str) -> list[str]:
        """Write a convolution's outputs in the forward pass, and return the backward pass."""
        self.forward += [
            f"over<1, Plane<L{i}::OH, L{i}::OW, 0, 0>>([&](int at, int) {{",
            f"const int to = P{i + 1}::at(at / L{i}::OW, at % L{i}::OW);",
            f"{_output(i)}to] = masked({kind}::value(plane[at]){times}, mask);",
            "});",
        ]
        return [
            f"over<L{i}::O, P{i + 1}>([&](int at, int p) {{",
            f"const int o = p / L{i}::PLACES;",
            f"f.z{i}[p % L{i}::PLACES * L{i}::O + o] =",
            f"{kind}::slope(s.a{i + 1}[at], f.d{i + 1}[p]{times});",
            "});",
        ]

    def _pooled_outputs(
        self, i: int, conv: Convolution, pool: Pooling, kind: str, times: str
    ) -> list[str]:
        """Write a convolution's pooled outputs, and return the backward pass."""
        inner = _plane(conv.out, (0, 0))
        self.types.append(f"using M{i} = MaxPool<{_window(inner, pool)}, P{i + 1}>;")
        places = math.prod(pool.out[1:])
        self.block.append(f"std::int8_t k{i}[{math.prod(pool.out)} * V];")
        self.forward += [
            f"M{i}::forward(plane, s.k{i} + o * {places} * V, [&](int at, int, vec y) {{",
            f"{_output(i)}at] = masked({kind}::value(y){times}, mask);",
            "});",
        ]
        return [
            f"for (int o = 0; o < L{i}::O; ++o)",
            f"M{i}::backward(s.k{i} + o * {places} * V, [&](int p) {{",
            f"const vec y = {_output(i)}P{i + 1}::at(p / {pool.out[2]}, p % {pool.out[2]})];",
            f"return {kind}::slope(y, f.d{i + 1}[o * {places} + p]{times});",
            f"}}, f.z{i} + o, L{i}::O);",
        ]

    def _activation(self, i: int, layer: Activation) -> None:
        channels = layer.shape[0]
        self.forward += [
            *self._across(i, channels),
            f"s.a{i + 1}[to] = masked({layer.kind}::value(s.a{i}[from]), mask); }});",
        ]
        self.backward.append(
            [
                f"over<{channels}, P{i + 1}>([&](int at, int p) {{",
                f"f.d{i}[p] = {layer.kind}::slope(s.a{i + 1}[at], f.d{i + 1}[p]); }});",
            ]
        )

    def _across(self, i: int, channels: int) -> list[str]:
        """Return the head of a loop over values i and i + 1, whose borders may differ."""
        step = f"from / P{i}::SIZE * P{i + 1}::SIZE"
        width = f"P{i}::W"
        return [
            f"over<{channels}, P{i}>([&](int from, int p) {{",
            f"const int inside = p % (P{i}::H * {width});",
            f"const int to = {step} + P{i + 1}::at(inside / {width}, inside % {width});",
        ]

    def _drop(self, i: int, drop: Drop) -> None:
        channels, places = drop.shape[0], math.prod(drop.shape[1:])
        numbers, which = (channels, f"p / {places}") if drop.channels else (channels * places, "p")
        self._masks(i, drop, numbers)
        self.forward += [
            *self._across(i, channels),
            f"s.a{i + 1}[to] = masked(s.a{i}[from] * s.m{i}[{which}], mask); }});",
        ]
        self.backward.append(
            [
                f"for (int p = 0; p < {channels * places}; ++p)",
                f"f.d{i}[p] = f.d{i + 1}[p] * s.m{i}[{which}];",
            ]
        )

    def _max_pool(self, i: int, pool: Pooling) -> None:
        channels, places = pool.shape[0], math.prod(pool.out[1:])
        before = math.prod(pool.shape[1:])
        # Values have a border that the forward pass must skip; slopes have none.
        self.types += [
            f"using M{i} = MaxPool<{_window(f'P{i}', pool)}, P{i + 1}>;",
            f"using N{i} = MaxPool<{_window(_plane(pool.shape, (0, 0)), pool)}, P{i + 1}>;",
        ]
        self.block.append(f"std::int8_t k{i}[{channels * places} * V];")
        self.forward += [
            f"for (int c = 0; c < {channels}; ++c)",
            f"M{i}::forward(s.a{i} + c * P{i}::SIZE, s.k{i} + c * {places} * V,",
            f"[&](int at, int, vec y) {{ s.a{i + 1}[c * P{i + 1}::SIZE + at] =",
            "masked(y, mask); });",
        ]
        self.backward.append(
            [
                f"for (int c = 0; c < {channels}; ++c)",
                f"N{i}::backward(s.k{i} + c * {places} * V,",
                f"[&](int p) {{ return f.d{i + 1}[c * {places} + p]; }},",
                f"f.d{i} + c * {before}, 1);",
            ]
        )

    def _avg_pool(self, i: int, pool: Pooling) -> None:
        channels, places = pool.shape[0], math.prod(pool.out[1:])
        before = math.prod(pool.shape[1:])
        counts = "true" if pool.border_counts else "false"
        inner = _plane(pool.shape, (0, 0))
        self.types += [
            f"using M{i} = AvgPool<{_window(f'P{i}', pool)}, P{i + 1}, {counts}>;",
            f"using N{i} = AvgPool<{_window(inner, pool)}, P{i + 1}, {counts}>;",
        ]
        self.forward += [
            f"for (int c = 0; c < {channels}; ++c)",
            f"M{i}::forward(s.a{i} + c * P{i}::SIZE, mask, s.a{i + 1} + c * P{i + 1}::SIZE);",
        ]
        self.backward.append(
            [
                f"for (int c = 0; c < {channels}; ++c)",
                f"N{i}::backward(f.d{i + 1} + c * {places}, f.d{i} + c * {before});",
            ]
        )


def _output(i: int) -> str:
    return f"s.a{i + 1}[o * P{i + 1}::SIZE + "


def _plane(shape: Shape, padding: IntPair) -> str:
    return f"Plane<{shape[1]}, {shape[2]}, {padding[0]}, {padding[1]}>"


def _window(plane: str, pool: Pooling) -> str:
    return f"Window<{plane}, {', '.join(map(str, pool.kernel + pool.stride + pool.padding))}>"


def probability(p: float) -> str:
    """Return the arguments p and 1 / (1 - p) of a mask."""
    return f"{float(p)!r}f, {0.0 if p == 1 else 1 / (1 - p)!r}f"
