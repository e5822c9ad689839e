"""Gradients whose parts are written in place: nobody's slopes are lost or written over."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.gradients.task import Autograd, Batch, Task
from undrift.gradients.winograd import build_winograd as build
from undrift.gradients.winograd import convolution
from undrift.gradients.winograd.places import Places
from undrift.models.layout import Layout

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)


@pytest.fixture(autouse=True)
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets of these tests are smaller than what is worth it."""
    monkeypatch.setattr(convolution, "PRODUCTS", 0)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each convolution was lent a place."""
    seen: list[bool] = []
    lend = Places.lend

    def watched(self: Places, parameter: Tensor) -> Tensor | None:
        place = lend(self, parameter)
        seen.append(place is not None)
        return place

    monkeypatch.setattr(Places, "lend", watched)
    return seen


class Net(nn.Module):
    """Two convolutions, of which the second may be used in any way."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(16, 20, 3, stride=2, padding=1)
        self.idle = nn.Parameter(torch.ones(7))
        self.weight = nn.Parameter(torch.randn(20, 20, 3, 3) / 13)
        self.last = nn.Linear(20, 3)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        h = self.use(torch.tanh(self.first(x)), self.weight)
        return self.last(h.mean((2, 3)))


def once(h: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(h, weight, padding=1)


def twice(h: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(torch.tanh(F.conv2d(h, weight, padding=1)), weight, padding=1)


def in_parts(h: Tensor, weight: Tensor) -> Tensor:
    """Parts of a weight that overlap."""
    pieces = (F.conv2d(h, part, padding=1) for part in (weight[:16], weight[4:]))
    return torch.cat(list(pieces), 1)[:, 3:23]


def penalised(h: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(h, weight, padding=1) + weight.square().sum()


def transposed(h: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(h, weight.transpose(0, 1), padding=1)


def sample(use: Callable[[Tensor, Tensor], Tensor] = once) -> tuple[Task, Tensor, Batch]:
    model = Net(use)
    inputs = torch.randn(3, 16, 9, 9, generator=torch.Generator().manual_seed(1))
    task = Task(model, Layout.of(model), F.cross_entropy, channels_last=True)
    return task, task.layout.gather(model), Batch(inputs, torch.arange(3))


def exact(task: Task, x: Tensor, batch: Batch) -> Tensor:
    model = copy.deepcopy(task.model).double()
    double = Task(model, Layout.of(model), F.cross_entropy)
    wide = batch._replace(inputs=batch.inputs.double())
    return Autograd().gradient(double, x.double(), wide)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (once, [True, True]),
        (twice, [True, False, True]),
        (in_parts, [False, False, True]),
        (penalised, [True, True]),
        (transposed, [False, True]),
    ],
)
def test_any_use_of_a_weight(
    use: Callable[[Tensor, Tensor], Tensor], expected: list[bool], lent: list[bool]
) -> None:
    task, x, batch = sample(use)
    ours, right = build().gradient(task, x, batch), exact(task, x, batch)
    assert (ours.double() - right).norm() < 1e-6 * right.norm()
    assert lent == expected
    names = dict(zip(task.layout.names, ours.split(list(task.layout.sizes)), strict=True))
    assert not names["idle"].any()  # what the loss does not depend on


def test_gradients_do_not_share_memory() -> None:
    task, x, batch = sample()
    oracle = build()
    first = oracle.gradient(task, x, batch)
    before = first.clone()
    oracle.gradient(task, 2 * x, batch)
    assert torch.equal(first, before)


def test_a_leaf_that_is_split_twice_is_lent_nothing(lent: list[bool]) -> None:
    task, x, batch = sample()
    other = batch._replace(inputs=batch.inputs.flip(0) + 1)

    def both(y: Tensor) -> Tensor:
        return task.value(y, batch) + task.value(y, other)

    ours = build().slope(both, x)
    right = exact(task, x, batch) + exact(task, x, other)
    assert (ours.double() - right).norm() < 1e-6 * right.norm()
    assert not any(lent)


def test_terms_of_the_whole_vector_are_added() -> None:
    task, x, batch = sample()
    ours = build().slope(lambda y: task.value(y, batch) + 0.5 * y.square().sum(), x)
    right = exact(task, x, batch) + x.double()
    assert (ours.double() - right).norm() < 1e-6 * right.norm()


def test_a_gradient_inside_of_a_function_is_lent_nothing() -> None:
    """The outer backward pass would write over what the inner one has returned."""
    task, x, batch = sample()
    kept: list[Tensor] = []

    def value(y: Tensor) -> Tensor:
        loss = task.value(y, batch)
        kept.append(torch.autograd.grad(loss, y, retain_graph=True)[0])
        return 3 * loss

    outer = build().slope(value, x)
    torch.testing.assert_close(outer, 3 * kept[0], rtol=1e-4, atol=1e-6)


def test_other_splits_are_torchs() -> None:
    x = torch.arange(6.0)
    g = build().slope(lambda y: torch.split(y, 4)[1].square().sum(), x)
    assert g.tolist() == [0, 0, 0, 0, 8, 10]


def test_a_part_that_is_not_finite_has_torch_decide() -> None:
    task, x, batch = sample()
    x[-1] = float("inf")  # the last bias, whose slopes are copied
    ours, theirs = build().gradient(task, x, batch), Autograd().gradient(task, x, batch)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert theirs.isnan().any()
