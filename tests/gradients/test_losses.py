"""Losses as people write them have the gradients of torch's functions, and sums are told."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift.gradients.losses import plain_loss
from undrift.testing import finish, start


class OwnCrossEntropy(nn.CrossEntropyLoss):
    """A subclass, which may do anything."""


def hooked() -> nn.Module:
    loss = nn.MSELoss()
    loss.register_forward_hook(lambda module, given, out: 2 * out)
    return loss


def replaced() -> nn.Module:
    loss = nn.MSELoss()
    loss.forward = lambda outputs, targets: outputs.sum()  # type: ignore[method-assign]
    return loss


@pytest.mark.parametrize(
    ("written", "function"),
    [
        (F.cross_entropy, F.cross_entropy),
        (nn.CrossEntropyLoss(), F.cross_entropy),
        (nn.MSELoss(), F.mse_loss),
        (nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits),
        (partial(F.cross_entropy), F.cross_entropy),
        (partial(F.cross_entropy, reduction="mean", label_smoothing=0.0), F.cross_entropy),
        (partial(partial(F.mse_loss, reduction="mean")), F.mse_loss),
    ],
)
def test_defaults_are_torchs_function(written: Any, function: Any) -> None:
    assert plain_loss(written) is function


@pytest.mark.parametrize(
    "written",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        nn.CrossEntropyLoss(ignore_index=2),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)),
        nn.L1Loss(reduction="sum"),
        OwnCrossEntropy(),
        hooked(),
        replaced(),
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, weight=torch.ones(3)),
        partial(F.cross_entropy, torch.zeros(2, 3)),
        partial(F.gaussian_nll_loss),
        lambda outputs, targets: F.cross_entropy(outputs, targets),
    ],
)
def test_what_differs_stays_as_it_is(written: Any) -> None:
    assert plain_loss(written) is written


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), partial(F.cross_entropy)])
def test_a_run_has_the_kernel_of_the_function(loss: Any) -> None:
    options = {"dtype": torch.float32, "kernels": "always"}
    run, plain = (
        start(ud.FedAvg(lr=0.1), loss=each, **options) for each in (loss, F.cross_entropy)
    )
    assert run.execution == plain.execution
    assert run.gradients.split(",")[0] == plain.gradients.split(",")[0]
    assert torch.equal(finish(run), finish(plain))


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


@pytest.mark.parametrize(
    "loss",
    [summed, nn.CrossEntropyLoss(reduction="sum"), partial(F.cross_entropy, reduction="sum")],
)
def test_a_sum_over_samples_is_told(loss: Any) -> None:
    with pytest.warns(UserWarning, match=r'got a sum, .*; use reduction="mean", or a smaller lr'):
        start(ud.FedAvg(lr=0.1), loss=loss)


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), lambda o, y: o.var()])
def test_other_losses_are_not(loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(ud.FedAvg(lr=0.1), loss=loss)
