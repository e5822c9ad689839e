"""Convolutions by Winograd against torch in double precision: every shape, scheme and exception."""

from __future__ import annotations

import copy
import shutil
import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from undrift.gradients.task import Autograd, Batch, Task
from undrift.gradients.winograd import build_winograd as build
from undrift.gradients.winograd import convolution, library
from undrift.gradients.winograd import oracle as winograd_oracle
from undrift.gradients.winograd.convolution import products, scheme_for
from undrift.gradients.winograd.library import Convolutions, Scheme
from undrift.gradients.winograd.oracle import survey
from undrift.models.layout import Layout
from undrift.models.resnet import ResNet18

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
INNERMOST = torch.channels_last


@pytest.fixture(scope="module")
def made() -> Convolutions:
    return library.load()


@pytest.fixture(autouse=True)
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets of these tests are smaller than what is worth it."""
    monkeypatch.setattr(convolution, "PRODUCTS", 0)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    noise = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return noise.contiguous(memory_format=INNERMOST) if len(shape) == 4 else noise


def operands(
    scheme: Scheme, number: int, inputs: int, outputs: int, *edges: int
) -> tuple[Tensor, ...]:
    """Inputs, weights, biases and slopes of outputs, all of variance one."""
    x, dy = (
        drawn(number, inputs, *edges),
        drawn(number, outputs, *map(scheme.outputs, edges), seed=1),
    )
    kernel = scheme.kernel, scheme.kernel
    return x, drawn(outputs, inputs, *kernel, seed=2).contiguous(), drawn(outputs, seed=3), dy


def by_torch(scheme: Scheme, x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> list[Tensor]:
    """Outputs and slopes of inputs, weights and bias."""
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
    y = F.conv2d(*leaves, stride=scheme.stride, padding=scheme.padding)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def by_winograd(
    made: Convolutions, scheme: Scheme, given: tuple[Tensor, ...], threads: int = 1
) -> list[Tensor | None]:
    x, weight, bias, dy = given
    slopes = made.backward(scheme, dy, x, weight, (True, True, True), threads)
    return [made.forward(scheme, x, weight, bias, threads), *(slopes or (None,) * 3)]


def away(ours: Tensor, exact: Tensor) -> float:
    """The distance, as a share of the norm."""
    return float((ours.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def errors_of(made: Convolutions, scheme: Scheme, *shape: int) -> list[float]:
    """The errors of outputs and slopes, as shares of the norms that they have on average.

    The variance of a number is how many terms it has, which the same operation finds with ones.
    """
    given = operands(scheme, *shape)
    exact = by_torch(scheme, *(each.double() for each in given))
    terms = by_torch(scheme, *(torch.ones_like(each) for each in given))
    found = []
    for ours, right, number in zip(by_winograd(made, scheme, given), exact, terms, strict=True):
        assert ours is not None
        assert ours.shape == right.shape
        found.append(float((ours.double() - right).norm() / number.sum().sqrt().clamp(min=1)))
    return found


def schemes_of(*edges: int) -> list[Scheme]:
    """The schemes that can convolve images of this size."""
    small = Scheme.TAPS, Scheme.TAPS_STRIDED
    return [
        scheme for scheme in Scheme if scheme not in small or max(map(scheme.outputs, edges)) <= 2
    ]


# Images that a tile divides or not, channels that a vector divides or not, and single pixels.
SHAPES = [
    (2, 16, 16, 4, 4),
    (3, 17, 20, 5, 7),
    (1, 3, 5, 1, 1),
    (5, 40, 33, 2, 2),
    (2, 33, 16, 1, 2),
    (7, 24, 8, 3, 9),
    (2, 64, 64, 13, 30),
    (1, 300, 20, 6, 6),
    (2, 20, 18, 4, 3),
]


class TestOperation:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_every_scheme_and_shape(self, made: Convolutions, shape: tuple[int, ...]) -> None:
        for scheme in schemes_of(*shape[3:]):
            assert max(errors_of(made, scheme, *shape)) < 2e-6, scheme

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_the_bits_are_those_of_one_thread(
        self, made: Convolutions, shape: tuple[int, ...]
    ) -> None:
        for scheme in schemes_of(*shape[3:]):
            given = operands(scheme, *shape)
            alone = by_winograd(made, scheme, given)
            for threads in (2, 3, 7, 40):
                for a, b in zip(by_winograd(made, scheme, given, threads), alone, strict=True):
                    assert torch.equal(a, b)

    def test_callers_on_several_threads(self, made: Convolutions) -> None:
        """Each has memory of its own, and whoever comes late works alone."""
        given = operands(Scheme.F4, 3, 20, 18, 9, 7)
        alone = by_winograd(made, Scheme.F4, given)

        def call(_: int) -> bool:
            again = by_winograd(made, Scheme.F4, given, 2)
            return all(torch.equal(a, b) for a, b in zip(again, alone, strict=True))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(call, range(60)))

    @pytest.mark.parametrize("scheme", [Scheme.F2, Scheme.F2_STRIDED])
    def test_only_what_is_wanted_is_computed(self, made: Convolutions, scheme: Scheme) -> None:
        x, weight, _, dy = given = operands(scheme, 2, 20, 17, 6, 6)
        whole = by_winograd(made, scheme, given)[1:]
        for i in range(3):
            wanted = tuple(j == i for j in range(3))
            slopes = made.backward(scheme, dy, x, weight, wanted, 1)
            assert [slope is not None for slope in slopes] == list(wanted)
            assert torch.equal(slopes[i], whole[i])

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        number=st.integers(1, 6),
        channels=st.tuples(st.integers(1, 40), st.integers(1, 40)),
        edges=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    )
    def test_any_shape(
        self, number: int, channels: tuple[int, int], edges: tuple[int, int]
    ) -> None:
        for scheme in schemes_of(*edges):
            assert max(errors_of(library.load(), scheme, number, *channels, *edges)) < 3e-6, scheme

    def test_the_backward_pass_is_the_adjoint_of_the_forward_pass(self, made: Convolutions) -> None:
        """<y, dy> is linear in x, in w and in dy, so all three products are the same number."""
        for scheme in Scheme:
            edges = (3, 4) if scheme is Scheme.TAPS_STRIDED else (2, 1)
            edges = edges if scheme in schemes_of(*edges) and "TAPS" in scheme.name else (7, 9)
            x, weight, _, dy = operands(scheme, 2, 19, 23, *edges)
            y = made.forward(scheme, x, weight, None, 1)
            dx, dw, _ = made.backward(scheme, dy, x, weight, (True, True, False), 1)
            numbers = [(a.double() * b).sum() for a, b in ((y, dy), (x, dx), (weight, dw))]
            scale = float(y.norm() * dy.norm())
            assert max(numbers) - min(numbers) < 1e-7 * scale, scheme

    def test_slopes_of_the_weight_go_where_they_are_wanted(self, made: Convolutions) -> None:
        for scheme, edge in ((Scheme.F4, 6), (Scheme.TAPS, 1), (Scheme.ONE_STRIDED, 5)):
            x, weight, _, dy = given = operands(scheme, 2, 20, 17, edge, edge)
            into = torch.full(weight.shape, float("nan"))
            slopes = made.backward(scheme, dy, x, weight, (False, True, False), 1, into)
            assert slopes.weight is into
            assert torch.equal(into, by_winograd(made, scheme, given)[2])


class TestSchemes:
    def test_are_chosen_by_counts(self) -> None:
        taps, two, four = Scheme.TAPS, Scheme.F2, Scheme.F4
        assert [scheme_for(n, n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 32)] == [
            *(taps, taps, four, four, two, two, four, four, two, four)
        ]
        assert scheme_for(1, 9) is None  # 25 products by taps, 80 by F(2x2)
        assert products(four, 8, 8) == 4 * 36
        assert products(two, 5, 5) == 9 * 16
        assert products(taps, 2, 2) == 16

    def test_of_stride_two_are_chosen_by_counts(self) -> None:
        taps, two = Scheme.TAPS_STRIDED, Scheme.F2_STRIDED
        assert [scheme_for(n, n, 2) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 32)] == [
            *([taps] * 4),
            None,
            *([two] * 5),
        ]
        assert scheme_for(1, 9, 2) is None
        assert scheme_for(9, 9, 2, 1) is Scheme.ONE_STRIDED
        assert products(two, 8, 8) == 4 * 25
        assert [products(taps, n, n) for n in (1, 2, 3, 4)] == [1, 4, 16, 25]

    def test_count_the_pairs_of_outputs_and_taps(self) -> None:
        """A convolution of ones counts the terms of its outputs."""
        for scheme in (Scheme.TAPS, Scheme.TAPS_STRIDED):
            for edges in ((1, 1), (2, 3), (4, 7), (8, 5)):
                ones, zero = torch.ones(1, 1, *edges), torch.zeros(1)
                y = by_torch(
                    scheme,
                    ones,
                    torch.ones(1, 1, 3, 3),
                    zero,
                    torch.tensor(0.0).expand(1, 1, *map(scheme.outputs, edges)),
                )[0]
                assert products(scheme, *edges) == y.sum()

    @pytest.mark.parametrize(
        ("change", "fits"),
        [
            ({}, True),
            ({"padding": "same"}, True),
            ({"padding": (1, 1), "stride": (1, 1)}, True),
            ({"stride": 2}, True),
            ({"stride": (2, 2), "padding": [1, 1]}, True),
            ({"stride": (2, 1)}, False),
            ({"stride": 3}, False),
            ({"stride": 2, "padding": 0}, False),
            ({"kernel": 1, "stride": 2, "padding": 0}, True),
            ({"kernel": 1, "stride": 2, "padding": 1}, False),
            ({"kernel": 1, "padding": 0}, False),
            ({"kernel": 1, "padding": "same"}, False),
            ({"kernel": 5, "padding": 2}, False),
            ({"padding": 0}, False),
            ({"padding": "valid"}, False),
            ({"dilation": 2, "padding": 2}, False),
            ({"groups": 2}, False),
        ],
        ids=str,
    )
    def test_of_a_call(self, change: dict[str, Any], fits: bool) -> None:
        kernel = change.get("kernel", 3)
        arguments = {"padding": 1, **change}
        arguments.pop("kernel", None)
        weight = torch.zeros(32, 32 // change.get("groups", 1), kernel, kernel)
        call = convolution.Call.of(torch.zeros(2, 32, 8, 8), weight, **arguments)
        assert (call.scheme() is not None) == fits

    def test_few_channels_and_few_products_are_left_to_torch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scheme(inputs: int, outputs: int, edge: int = 8) -> int | None:
            x, weight = torch.zeros(1, inputs, edge, edge), torch.zeros(outputs, inputs, 3, 3)
            return convolution.Call.of(x, weight, padding=1).scheme()

        assert scheme(16, 16) is Scheme.F4
        assert scheme(3, 64) is scheme(64, 15) is None
        monkeypatch.setattr(convolution, "PRODUCTS", 9 * 64 * 16 * 16 + 1)
        assert scheme(16, 16) is None
        assert scheme(17, 16) is Scheme.F4


class Residual(nn.Module):
    """Convolutions with and without bias around a shortcut, one of them called as a function."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias)
        self.norm = nn.GroupNorm(1, outputs)
        self.weight = nn.Parameter(torch.randn(outputs, outputs, 3, 3) / (9 * outputs) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        return h + F.conv2d(h, self.weight, padding=1)


def task_of(model: nn.Module, **options: Any) -> Task:
    return Task(model, Layout.of(model), F.cross_entropy, **options)


def sample(model: nn.Module, shape: tuple[int, ...], number: int = 3) -> tuple[Task, Tensor, Batch]:
    task = task_of(model, channels_last=True)
    targets = torch.arange(number) % 3
    return task, task.layout.gather(model), Batch(drawn(number, *shape, seed=5), targets)


def errors(task: Task, x: Tensor, batch: Batch) -> tuple[float, float]:
    """The error of our gradient and of torch's, against double precision."""
    double = task_of(copy.deepcopy(task.model).double())
    exact = Autograd().gradient(double, x.double(), batch._replace(inputs=batch.inputs.double()))
    ours, theirs = build().gradient(task, x, batch), Autograd().gradient(task, x, batch)
    return away(ours, exact), away(theirs, exact)


def small_net(channels: int = 17) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, channels, 3, padding=1),
        nn.Tanh(),
        Residual(channels, channels + 3, bias=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels + 3, 3),
    )


@st.composite
def nets(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Any net of convolutions that fit, and some that do not, between smooth layers."""
    torch.manual_seed(draw(st.integers(0, 99)))
    shape = draw(st.integers(16, 36)), draw(st.integers(1, 12)), draw(st.integers(1, 12))
    parts: list[nn.Module] = []
    channels = shape[0]
    # A GroupNorm is never the first: torch 2.13 crashes in its backward pass if its input has its
    # channels innermost and needs no slope.
    learns = ["conv", "residual", "stride", "shortcut", "one", "few"]
    later = st.lists(st.sampled_from([*learns, "norm", "tanh", "pool"]), max_size=4)
    for kind in [draw(st.sampled_from(learns)), *draw(later)]:
        wide, bias = draw(st.integers(16, 36)), draw(st.booleans())
        if kind == "conv":
            parts.append(nn.Conv2d(channels, wide, 3, padding=1, bias=bias))
        elif kind == "residual":
            parts.append(Residual(channels, wide, bias=bias))
        elif kind == "stride":
            parts.append(nn.Conv2d(channels, wide, 3, stride=2, padding=1, bias=bias))
        elif kind == "shortcut":
            parts.append(nn.Conv2d(channels, wide, 1, stride=2, bias=bias))
        elif kind == "one":
            parts.append(nn.Conv2d(channels, wide, 1, bias=bias))
        elif kind == "few":
            wide = draw(st.integers(1, 15))
            parts.append(nn.Conv2d(channels, wide, 3, padding="same"))
        else:
            wide = channels
            layers = {"norm": nn.GroupNorm(1, channels), "tanh": nn.Tanh()}
            parts.append(layers.get(kind) or nn.AvgPool2d(2, ceil_mode=True))
        channels = wide
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*parts, pool, nn.Flatten(), nn.Linear(channels, 3)), shape


class TestGradients:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(net=nets(), number=st.integers(1, 7))
    def test_of_any_net(self, net: tuple[nn.Module, tuple[int, ...]], number: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(convolution, "PRODUCTS", 0)
            ours, theirs = errors(*sample(*net, number))
        note(f"error {ours:.1e}, torch's {theirs:.1e}")
        assert ours < max(2.5 * theirs, 3e-6)

    @pytest.mark.long
    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(net=nets(), number=st.integers(1, 7))
    def test_of_many_nets(self, net: tuple[nn.Module, tuple[int, ...]], number: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(convolution, "PRODUCTS", 0)
            ours, theirs = errors(*sample(*net, number))
        note(f"error {ours:.1e}, torch's {theirs:.1e}")
        assert ours < max(2.5 * theirs, 3e-6)

    @pytest.mark.long
    @pytest.mark.parametrize("stem", [3, 7])
    def test_of_a_resnet_at_its_start_and_after_some_steps(self, stem: int) -> None:
        """Here torch's own error decides, and no floor."""
        torch.manual_seed(0)
        model = ResNet18(stem=stem)
        task, x, _ = sample(model, (3, 32, 32))
        oracle = build()
        for steps in (0, 10):
            for k in range(steps):
                batch = Batch(drawn(20, 3, 32, 32, seed=k), torch.arange(20) % 10)
                x = x - 0.02 * oracle.gradient(task, x, batch)
            found = [
                errors(task, x, Batch(drawn(20, 3, 32, 32, seed=99 + k), torch.arange(20) % 10))
                for k in range(3)
            ]
            ours, theirs = (statistics.median(each) for each in zip(*found, strict=True))
            assert 1e-8 < ours < 2.5 * theirs, (steps, ours, theirs)

    def test_convolutions_are_replaced(self) -> None:
        task, x, batch = sample(small_net(), (16, 5, 5))
        counts = survey(task, batch)
        assert (counts.convolutions, counts.replaced) == (3, 3)
        assert counts.products == 3 * 9 * 25 * (16 * 17 + 17 * 20 + 20 * 20)
        assert counts.others == 3 * 20 * 3
        ours, theirs = build().gradient(task, x, batch), Autograd().gradient(task, x, batch)
        assert not torch.equal(ours, theirs)
        assert away(ours, theirs.double()) < 1e-5

    def test_frozen_weights_and_inputs_have_no_slopes(self) -> None:
        model = small_net()
        model[0].requires_grad_(False)
        model[2].first.weight.requires_grad_(False)
        ours, theirs = errors(*sample(model, (16, 5, 5)))
        assert ours < max(2.5 * theirs, 3e-6)

    @pytest.mark.usefixtures("two_threads")
    def test_two_threads_inside_a_convolution(self) -> None:
        """Torch's own layers may round otherwise on two threads, so a single layer is compared."""
        model = nn.Sequential(nn.Conv2d(40, 3, 3, padding=1), nn.Flatten(2))
        model[0] = nn.Conv2d(40, 33, 3, padding=1)
        task = Task(model, Layout.of(model), lambda outputs, targets: outputs.square().sum())
        x, batch = task.layout.gather(model), Batch(drawn(9, 40, 11, 11), torch.zeros(9))
        two = build().gradient(task, x, batch)
        torch.set_num_threads(1)
        assert torch.equal(build().gradient(task, x, batch), two)

    @pytest.mark.usefixtures("two_threads")
    @pytest.mark.parametrize("fails", [False, True])
    def test_torch_has_one_thread_beside_convolutions(
        self, monkeypatch: pytest.MonkeyPatch, fails: bool
    ) -> None:
        """So any number of threads has the bits of one."""
        seen: dict[str, set[int]] = {"torch": set(), "convolutions": set()}
        oracle, called = build(alone=True), Convolutions.backward

        def backward(self: Convolutions, *given: Any) -> Any:
            seen["torch"].add(torch.get_num_threads())
            seen["convolutions"].add(given[5])
            if fails:
                raise MemoryError
            return called(self, *given)

        monkeypatch.setattr(Convolutions, "backward", backward)
        given = sample(small_net(), (16, 9, 9))
        if fails:
            with pytest.raises(MemoryError):
                oracle.gradient(*given)
        else:
            two = oracle.gradient(*given)
        assert torch.get_num_threads() == 2
        assert seen == {"torch": {1}, "convolutions": {2}}
        if not fails:
            torch.set_num_threads(1)
            assert torch.equal(build().gradient(*given), two)

    @pytest.mark.usefixtures("two_threads")
    def test_torch_keeps_its_threads_where_they_are_many(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(winograd_oracle, "FEW", 1)
        seen = []
        model = nn.Sequential(small_net(), nn.Identity())
        model[1].register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
        build(alone=True).gradient(*sample(model, (16, 9, 9)))
        assert seen == [2]

    def test_torch_keeps_its_threads_where_it_has_work(self) -> None:
        """Convolutions of 1x1 and matrices are torch's."""
        for wide, alone in ((1, True), (40, False)):
            model = nn.Sequential(
                nn.Conv2d(16, 17, 3, padding=1),
                nn.Conv2d(17, wide, 1),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(wide, 3),
            )
            task, _, batch = sample(model, (16, 9, 9))
            counts = survey(task, batch)
            assert counts.others == 3 * (81 * 17 * wide + 3 * wide)
            assert counts.alone is alone

    def test_clients_on_threads_have_the_bits_of_one(self) -> None:
        oracle = build()

        def samples() -> list[tuple[Task, Tensor, Batch]]:
            return [sample(small_net(16 + i), (16, 6, 5)) for i in range(6)]

        alone = [oracle.gradient(*each) for each in samples()]
        # Each call has a model of its own, as threads of a run do: torch puts parameters into it.
        own = [each for _ in range(5) for each in samples()]
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda each: oracle.gradient(*each), own))
        for i, g in enumerate(together):
            assert torch.equal(g, alone[i % 6])

    def test_other_threads_keep_torchs_convolutions(self) -> None:
        task, x, batch = sample(small_net(), (16, 5, 5))
        right, seen = Autograd().gradient(task, x, batch), []
        other = task_of(small_net(), channels_last=True)

        class Calls(nn.Module):
            def forward(self, h: Tensor) -> Tensor:
                thread = threading.Thread(
                    target=lambda: seen.append(Autograd().gradient(other, x, batch))
                )
                thread.start()
                thread.join()
                return h

        model = nn.Sequential(*small_net(), Calls())
        build().gradient(task_of(model, channels_last=True), x, batch)
        assert torch.equal(seen[0], right)


class TestWhatIsLeftToTorch:
    """Where more than plain first-order gradients is asked for, bits are torch's."""

    def test_stacks_of_clients(self) -> None:
        task, x, batch = sample(small_net(), (16, 5, 5))
        task = replace(task, channels_last=False)  # vmap does not know the layout
        batch = batch._replace(inputs=batch.inputs.contiguous())
        rows = Batch(batch.inputs[None], batch.targets[None])
        ours = build().gradients(task, x[None], rows)
        assert torch.equal(ours, Autograd().gradients(task, x[None], rows))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_types(self, dtype: torch.dtype) -> None:
        task, x, batch = sample(small_net().to(dtype), (16, 5, 5))
        batch = batch._replace(inputs=batch.inputs.to(dtype))
        ours = build().gradient(task, x, batch)
        assert torch.equal(ours, Autograd().gradient(task, x, batch))

    @pytest.mark.parametrize("way", ["autocast", "flops", "func"])
    def test_under_other_eyes(self, way: str) -> None:
        task, x, batch = sample(small_net(), (16, 5, 5))

        def gradient(oracle: Any) -> Tensor:
            if way == "autocast":
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return oracle.gradient(task, x, batch)
            if way == "flops":
                with FlopCounterMode(display=False) as counter:
                    g = oracle.gradient(task, x, batch)
                flops.append(counter.get_total_flops())
                return g

            def own(y: Tensor) -> Tensor:
                return task.value(y, batch)

            return oracle.slope(lambda y: (y * torch.func.grad(own)(y.detach())).sum(), x)

        flops: list[int] = []
        assert torch.equal(gradient(build()), gradient(Autograd()))
        assert len(set(flops)) <= 1

    def test_slopes_that_are_differentiated_once_more(self) -> None:
        """A backward pass of ones own would drop what depends on the operands of its forward."""
        task, x, batch = sample(small_net(), (16, 5, 5))

        def bend(y: Tensor) -> Tensor:
            (g,) = torch.autograd.grad(task.value(y, batch), y, create_graph=True)
            return g.square().sum()

        double = task_of(copy.deepcopy(task.model).double())
        wide = batch._replace(inputs=batch.inputs.double())

        def exact(y: Tensor) -> Tensor:
            (g,) = torch.autograd.grad(double.value(y, wide), y, create_graph=True)
            return g.square().sum()

        right = Autograd().slope(exact, x.double())
        assert away(build().slope(bend, x), right) < 1e-5

    def test_forward_derivatives(self) -> None:
        task, x, batch = sample(small_net(), (16, 5, 5))
        task = replace(task, loss=lambda outputs, targets: outputs.square().sum())
        task.model[2] = nn.Conv2d(17, 20, 3, padding=1)
        task = replace(task, layout=Layout.of(task.model))
        x = task.layout.gather(task.model)

        def directional(y: Tensor) -> Tensor:
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(y, torch.ones_like(y))
                value = task.value(dual, batch)
                return torch.autograd.forward_ad.unpack_dual(value).tangent

        ours, theirs = (each.slope(directional, x) for each in (build(), Autograd()))
        assert torch.equal(ours, theirs)

    def test_a_single_image_without_a_batch(self) -> None:
        weight = torch.zeros(16, 16, 3, 3)
        assert convolution.Call.of(torch.zeros(16, 8, 8), weight, padding=1).scheme() is None

    def test_errors_are_torchs_own(self) -> None:
        task, x, batch = sample(small_net(), (16, 5, 5))
        wrong = batch._replace(inputs=torch.zeros(3, 19, 5, 5))
        with pytest.raises(RuntimeError, match="expected input"):
            build().gradient(task, x, wrong)


class TestNotFinite:
    """NaN and Inf appear where torch has them."""

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
    @pytest.mark.parametrize("where", ["input", "weight", "bias"])
    @pytest.mark.parametrize(("edge", "stride"), [(2, 1), (5, 1), (8, 1), (3, 2), (7, 2)])
    def test_in_outputs_and_slopes(self, value: float, where: str, edge: int, stride: int) -> None:
        model = nn.Sequential(
            nn.Conv2d(16, 20, 3, stride=stride, padding=1),
            nn.Conv2d(20, 16, 3, padding=1) if stride == 1 else nn.Conv2d(20, 16, 1, stride=2),
        )
        task = Task(model, Layout.of(model), lambda outputs, targets: outputs.square().mean())
        _, x, batch = sample(model, (16, edge, edge))
        if where == "input":
            batch.inputs[1, 3, 1, 0] = value
        else:
            x[7 if where == "weight" else 16 * 20 * 9 + 2] = value
        ours, theirs = build().gradient(task, x, batch), Autograd().gradient(task, x, batch)
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        close = (ours - theirs).abs() <= 1e-4 * theirs.abs() + 1e-6
        assert (same | close).all()
        assert not theirs.isfinite().all()

    def test_what_torch_hides_stays_hidden(self) -> None:
        """The infinite number meets one tile, and a net may cut it off."""

        class Cut(nn.Module):
            def forward(self, h: Tensor) -> Tensor:
                return h.clamp(-1, 1)

        model = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), Cut(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        task, x, batch = sample(model, (16, 8, 8))
        batch.inputs[0, 0, 4, 4] = float("inf")
        with torch.no_grad():
            right = task.forward(x, batch.inputs)
        seen: list[Tensor] = []
        build().slope(lambda y: seen.append(task.forward(y, batch.inputs)) or y.sum(), x)
        assert torch.equal(right.isfinite(), seen[0].isfinite())
        assert torch.allclose(seen[0], right, atol=1e-5)
