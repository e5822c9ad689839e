"""Losses and hits by a compiled forward pass against torch's, for many models at once."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.support.forward_nets import CLASSES, NETS, SHAPE, net, task_of
from undrift.gradients.kernels import (
    ForwardKernel,
    UnsupportedError,
    build_forward,
    check_forward,
    read,
)
from undrift.gradients.task import Task, per_sample
from undrift.models.layout import eval_mode

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
MODELS, SAMPLES = 3, 150  # more samples than a core takes at a time
LOSSES = F.cross_entropy, F.binary_cross_entropy_with_logits, F.mse_loss
PARTS = st.sampled_from(
    [nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Tanh(), nn.Dropout(0.4),
     nn.Dropout2d(0.4), nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2, padding=1)]
)  # fmt: skip


def forward_of(model: nn.Module, loss: Any = F.cross_entropy) -> tuple[Task, ForwardKernel]:
    task = task_of(model, loss)
    targets = () if loss is F.cross_entropy else (CLASSES,)
    return task, build_forward(read(task, SHAPE, targets))


def samples_of(task: Task, count: int, seed: int = 0) -> Any:
    noise = torch.Generator().manual_seed(seed)
    x = task.layout.gather(task.model)
    x = x + 0.1 * torch.randn(MODELS, len(x), generator=noise)
    inputs = torch.randn(count, *SHAPE, generator=noise)
    if task.loss is F.cross_entropy:
        return x, inputs, torch.randint(CLASSES, (count,), generator=noise)
    return x, inputs, torch.rand(count, CLASSES, generator=noise)


def by_torch(task: Task, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    with eval_mode(task.model), torch.no_grad():
        outputs = task.forward(x, inputs)
        return per_sample(task.loss, outputs, targets), outputs.argmax(1)


def assert_torchs(task: Task, kernel: ForwardKernel, x: Tensor, inputs: Any, targets: Any) -> None:
    """Every model on all samples, and each on samples of its own."""
    draw = torch.Generator().manual_seed(1)
    own = torch.randint(len(targets), (MODELS, len(targets) + 3), generator=draw)
    for index in (None, own):
        found = kernel(x, inputs, targets, index, 2)
        assert found is not None
        again = kernel(x, inputs, targets, index, 1)
        assert again is not None
        assert torch.equal(found.losses, again.losses)
        assert (found.hits is None) == (task.loss is not F.cross_entropy)
        for i in range(MODELS):
            rows = slice(None) if index is None else index[i]
            losses, best = by_torch(task, x[i], inputs[rows], targets[rows])
            assert torch.allclose(found.losses[i], losses, rtol=1e-5, atol=2e-6)
            if found.hits is not None:
                assert torch.equal(found.hits[i].bool(), best == targets[rows])


@pytest.mark.parametrize("name", NETS)
def test_losses_and_hits_are_torchs(name: str) -> None:
    task, kernel = forward_of(net(*NETS[name]))
    for count in (1, 7, SAMPLES):
        assert_torchs(task, kernel, *samples_of(task, count))


@pytest.mark.parametrize("loss", LOSSES[1:])
def test_losses_of_numbers(loss: Any) -> None:
    task, kernel = forward_of(net(*NETS["perceptron"]), loss)
    assert_torchs(task, kernel, *samples_of(task, SAMPLES))
    x, inputs, targets = samples_of(task, 5)
    inputs[0] *= 1e3  # logits far from zero
    assert_torchs(task, kernel, x, inputs, targets)


def test_what_it_leaves_to_torch() -> None:
    task, kernel = forward_of(net())
    x, inputs, targets = samples_of(task, 9)
    assert kernel(x, inputs, targets, None, 1) is not None
    assert kernel(x, inputs.double(), targets, None, 1) is None
    assert kernel(x, inputs[:, :, 1:], targets, None, 1) is None
    assert kernel(x, inputs, torch.where(targets == 3, -100, targets) - 1, None, 1) is None
    for bad in (torch.nan, torch.inf):
        inputs[8, 0, 0, 0] = bad
        assert kernel(x, inputs, targets, None, 1) is None


def test_ties_go_to_the_first_class_as_in_torch() -> None:
    task, kernel = forward_of(net())
    x, inputs, _ = samples_of(task, CLASSES)
    targets = torch.arange(CLASSES)
    found = kernel(torch.zeros_like(x), inputs, targets, None, 1)
    assert found is not None
    assert found.hits is not None
    assert found.hits[0].tolist() == [1] + [0] * (CLASSES - 1)


def test_a_kernel_of_another_net_is_refused() -> None:
    task, kernel = forward_of(net())
    _, inputs, targets = samples_of(task, 9)
    check_forward(kernel, task, inputs, targets)
    other = task_of(nn.Sequential(*task.model.children(), nn.Softplus()))
    with pytest.raises(UnsupportedError, match="a loss that differs from torch's by"):
        check_forward(kernel, other, inputs, targets)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(
    st.lists(PARTS, max_size=5), st.integers(0, 10**6), st.sampled_from(LOSSES), st.integers(1, 300)
)
def test_any_chain(parts: list[nn.Module], seed: int, loss: Any, samples: int) -> None:
    task, kernel = forward_of(net(*copy.deepcopy(parts)), loss)
    assert_torchs(task, kernel, *samples_of(task, samples, seed))
