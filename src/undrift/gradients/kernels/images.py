"""The C++ of layers of images: V samples at a time, a convolution with what follows it in one go.

Values are numbered along the stages: value i is what stage i sees, `s.a{i}` inside the border that
the stage wants; the slope there is `f.d{i}`, without a border. `s` is what each block of samples
keeps for the way back, `f` what there is once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from undrift.gradients.kernels.layers import (
    Activation,
    Convolution,
    Drop,
    Layer,
    Pair,
    Pooling,
    Shape,
)


@dataclass(frozen=True)
class Stage:
    """Layers of images that are computed in one go: a convolution with what follows it, or one."""

    layers: tuple[Layer, ...]

    @property
    def shape(self) -> Shape:
        return self.layers[0].shape

    @property
    def out(self) -> Shape:
        return self.layers[-1].out

    def first(self, kind: type[Layer]) -> Layer | None:
        return next((layer for layer in self.layers if isinstance(layer, kind)), None)


def stages_of(layers: Sequence[Layer]) -> list[Stage]:
    """Convolutions take along what commutes with taking the largest of a window.

    A rectifier and a dropout of whole channels do, in any order: they only need the largest number
    of a window and its place, so the numbers in front of the pooling are never kept.
    """
    stages: list[Stage] = []
    rest = list(layers)
    while rest:
        taken = [rest.pop(0)]
        if isinstance(taken[0], Convolution):
            while rest and _joins(taken, rest[0]):
                taken.append(rest.pop(0))
        stages.append(Stage(tuple(taken)))
    return stages


def _joins(taken: Sequence[Layer], layer: Layer) -> bool:
    if isinstance(layer, Activation) and layer.kind != "Relu":
        return len(taken) == 1
    if any(isinstance(each, Activation) and each.kind != "Relu" for each in taken):
        return False
    if isinstance(layer, Drop) and not layer.channels:
        return False
    if isinstance(layer, Pooling) and layer.kind != "max":
        return False
    joining = isinstance(layer, Activation | Drop | Pooling)
    return joining and not any(type(each) is type(layer) for each in taken)


class Images:
    """Collects the pieces of a program, stage by stage."""

    def __init__(self, stages: list[Stage]) -> None:
        self.stages = stages
        self.types: list[str] = []
        self.block: list[str] = []  # members of `s`
        self.fixed: list[str] = []  # members of `f`
        self.before: list[str] = []  # once for a client
        self.forward: list[str] = []  # for each block
        self.backward: list[list[str]] = []  # likewise, of each stage that slopes come back through
        self.after: list[str] = []
        self.learns = False  # whether there was a layer with parameters so far
        for i in range(len(stages) + 1 if stages else 0):
            self.types.append(f"using P{i} = {self._plane(i)};")
        for i, stage in enumerate(stages):
            self._stage(i, stage)

    def _padding(self, i: int) -> Pair:
        """Of the border around value i, which is what the next convolution wants."""
        first = self.stages[i].layers[0] if i < len(self.stages) else None
        return first.padding if isinstance(first, Convolution) else (0, 0)

    def _plane(self, i: int) -> str:
        shape = self.stages[i].shape if i < len(self.stages) else self.stages[-1].out
        return _plane(shape, self._padding(i))

    def _stage(self, i: int, stage: Stage) -> None:
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
        about = f"folded(key, {drop.call}), b, {probability(drop.p)}"
        self.forward.append(f"masks_in_lanes<{numbers}>({about}, s.m{i});")

    def _convolution(self, i: int, stage: Stage, conv: Convolution, wanted: bool) -> None:
        (height, width), (down, right), out = conv.kernel, conv.stride, conv.out[0]
        kernel = f"{height}, {width}, {down}, {right}"
        self.types.append(f"using L{i} = Conv<{conv.shape[0]}, P{i}, {out}, {kernel}>;")
        self.fixed += [
            f"vec w{i}[L{i}::O * L{i}::TAPS];",
            f"vec z{i}[L{i}::PLACES * L{i}::O];",
            f"float f{i}[L{i}::O * L{i}::TAPS];",
            f"vec p{i}[L{i}::CHANNELS * L{i}::PLACES];",
        ]
        bias, biases = "nullptr", "nullptr"
        self.before += [
            f"L{i}::pack(x + {conv.weight}, f.f{i});",
            f"std::memset(f.w{i}, 0, sizeof f.w{i});",
        ]
        self.after.append(f"sum_lanes(f.w{i}, L{i}::O * L{i}::TAPS, g + {conv.weight});")
        if conv.bias is not None:
            bias, biases = f"x + {conv.bias}", f"f.b{i}"
            self.fixed.append(f"vec b{i}[L{i}::O];")
            self.before.append(f"std::memset(f.b{i}, 0, sizeof f.b{i});")
            self.after.append(f"sum_lanes(f.b{i}, L{i}::O, g + {conv.bias});")
        act, pool, drop = (stage.first(kind) for kind in (Activation, Pooling, Drop))
        kind = act.kind if isinstance(act, Activation) else "Same"
        times = ""
        if isinstance(drop, Drop):
            self._masks(i, drop, out)
            times = f" * s.m{i}[o]"
        to = f"s.a{i + 1}[o * P{i + 1}::SIZE + "
        self.forward.append(
            f"L{i}::forward(s.a{i}, f.f{i}, {bias}, f.p{i}, [&](int o, const vec* plane) {{"
        )
        if isinstance(pool, Pooling):
            inner = _plane(conv.out, (0, 0))
            self.types.append(f"using M{i} = MaxPool<{_window(inner, pool)}, P{i + 1}>;")
            places = math.prod(pool.out[1:])
            self.block.append(f"std::int8_t k{i}[{math.prod(pool.out)} * V];")
            self.forward += [
                f"M{i}::forward(plane, s.k{i} + o * {places} * V, [&](int at, int, vec y) {{",
                f"{to}at] = masked({kind}::value(y){times}, mask);",
                "});",
            ]
            back = [
                f"for (int o = 0; o < L{i}::O; ++o)",
                f"M{i}::backward(s.k{i} + o * {places} * V, [&](int p) {{",
                f"const vec y = {to}P{i + 1}::at(p / {pool.out[2]}, p % {pool.out[2]})];",
                f"return {kind}::slope(y, f.d{i + 1}[o * {places} + p]{times});",
                f"}}, f.z{i} + o, L{i}::O);",
            ]
        else:
            self.forward += [
                f"over<1, Plane<L{i}::OH, L{i}::OW, 0, 0>>([&](int at, int) {{",
                f"const int to = P{i + 1}::at(at / L{i}::OW, at % L{i}::OW);",
                f"{to}to] = masked({kind}::value(plane[at]){times}, mask);",
                "});",
            ]
            back = [
                f"over<L{i}::O, P{i + 1}>([&](int at, int p) {{",
                f"const int o = p / L{i}::PLACES;",
                f"f.z{i}[p % L{i}::PLACES * L{i}::O + o] =",
                f"{kind}::slope(s.a{i + 1}[at], f.d{i + 1}[p]{times});",
                "});",
            ]
        self.forward.append("});")
        back.append(f"L{i}::to_weights(s.a{i}, f.z{i}, f.w{i}, {biases});")
        if wanted:
            self.fixed.append(f"float q{i}[L{i}::O * L{i}::TAPS];")
            self.before.append(f"L{i}::pack_back(x + {conv.weight}, f.q{i});")
            back.append(f"L{i}::to_input(f.z{i}, f.q{i}, mask, f.d{i});")
        self.backward.append(back)
        self.learns = True

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
        """Over all numbers of values i and i + 1, whose borders may differ."""
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
        # Forward it reads inside a border; on the way back there is none.
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


def _plane(shape: Shape, padding: Pair) -> str:
    return f"Plane<{shape[1]}, {shape[2]}, {padding[0]}, {padding[1]}>"


def _window(plane: str, pool: Pooling) -> str:
    return f"Window<{plane}, {', '.join(map(str, pool.kernel + pool.stride + pool.padding))}>"


def probability(p: float) -> str:
    """The arguments p and 1 / (1 - p) of a mask."""
    return f"{float(p)!r}f, {0.0 if p == 1 else 1 / (1 - p)!r}f"
