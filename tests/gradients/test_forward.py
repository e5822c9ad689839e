"""Losses and hits by a compiled forward pass against torch's, for many models at once."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.gradients.test_kernels import LOSSES, NETS, chains, kernel_task, net
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


def forward_of(model: nn.Module, shape: Any, outputs: int, loss: Any) -> tuple[Task, ForwardKernel]:
    task = kernel_task(model, loss)
    targets = () if loss is F.cross_entropy else (outputs,)
    return task, build_forward(read(task, shape, targets))


def samples_of(task: Task, shape: Any, outputs: int, count: int, seed: int = 0) -> Any:
    noise = torch.Generator().manual_seed(seed)
    x = task.layout.gather(task.model)
    x = x + 0.1 * torch.randn(MODELS, len(x), generator=noise)
    inputs = torch.randn(count, *shape, generator=noise)
    if task.loss is F.cross_entropy:
        return x, inputs, torch.randint(outputs, (count,), generator=noise)
    return x, inputs, torch.rand(count, outputs, generator=noise)


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
        assert again is not None and torch.equal(found.losses, again.losses)
        assert (found.hits is None) == (task.loss is not F.cross_entropy)
        for i in range(MODELS):
            rows = slice(None) if index is None else index[i]
            losses, best = by_torch(task, x[i], inputs[rows], targets[rows])
            assert torch.allclose(found.losses[i], losses, rtol=1e-5, atol=2e-6)
            if found.hits is not None:
                assert torch.equal(found.hits[i].bool(), best == targets[rows])


@pytest.mark.parametrize("name", NETS)
def test_losses_and_hits_are_torchs(name: str) -> None:
    model, shape, outputs = net(name)
    task, kernel = forward_of(model, shape, outputs, F.cross_entropy)
    for count in (1, 7, SAMPLES):
        assert_torchs(task, kernel, *samples_of(task, shape, outputs, count))


@pytest.mark.parametrize("loss", LOSSES[1:])
def test_losses_of_numbers(loss: Any) -> None:
    model, shape, outputs = net("perceptron")
    task, kernel = forward_of(model, shape, outputs, loss)
    assert_torchs(task, kernel, *samples_of(task, shape, outputs, SAMPLES))
    x, inputs, targets = samples_of(task, shape, outputs, 5)
    inputs[0] *= 1e3  # logits far from zero
    assert_torchs(task, kernel, x, inputs, targets)


def test_what_it_leaves_to_torch() -> None:
    model, shape, outputs = net("logistic")
    task, kernel = forward_of(model, shape, outputs, F.cross_entropy)
    x, inputs, targets = samples_of(task, shape, outputs, 9)
    assert kernel(x, inputs, targets, None, 1) is not None
    assert kernel(x, inputs.double(), targets, None, 1) is None
    assert kernel(x, inputs[:, :, 1:], targets, None, 1) is None
    assert kernel(x, inputs, torch.where(targets == 3, -100, targets) - 1, None, 1) is None
    for bad in (torch.nan, torch.inf):
        inputs[8, 0, 0, 0] = bad
        assert kernel(x, inputs, targets, None, 1) is None


def test_ties_go_to_the_first_class_as_in_torch() -> None:
    model, shape, outputs = net("logistic")
    task, kernel = forward_of(model, shape, outputs, F.cross_entropy)
    x, inputs, _ = samples_of(task, shape, outputs, outputs)
    targets = torch.arange(outputs)
    found = kernel(torch.zeros_like(x), inputs, targets, None, 1)
    assert found is not None and found.hits is not None
    assert found.hits[0].tolist() == [1] + [0] * (outputs - 1)


def test_a_kernel_of_another_net_is_refused() -> None:
    model, shape, outputs = net("logistic")
    task, kernel = forward_of(model, shape, outputs, F.cross_entropy)
    _, inputs, targets = samples_of(task, shape, outputs, 9)
    check_forward(kernel, task, inputs, targets)
    other = kernel_task(nn.Sequential(*model, nn.Softplus()))
    with pytest.raises(UnsupportedError, match="a loss that differs from torch's by"):
        check_forward(kernel, other, inputs, targets)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(chains(), st.integers(0, 10**6), st.sampled_from(LOSSES), st.integers(1, 300))
def test_any_chain(chain: Any, seed: int, loss: Any, samples: int) -> None:
    model, shape, outputs = chain
    torch.manual_seed(seed)
    task, kernel = forward_of(model, shape, outputs, loss)
    assert_torchs(task, kernel, *samples_of(task, shape, outputs, samples, seed))
