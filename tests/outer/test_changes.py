"""What a script changes after `Outer` was made, and must not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from tests.support import outer as support
from tests.support.outer import after, batch, vector

OTHERS = "trainable parameters that the model had when it was made, 4 tensors, got"


def frozen(model: nn.Module) -> None:
    next(model.parameters()).requires_grad_(False)


def replaced(model: Any) -> None:
    model[0] = nn.Linear(6, 8).double()


def enlarged(model: Any) -> None:
    model.append(nn.Linear(3, 3).double())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (frozen, f"{OTHERS} 3 that are not the same; freeze, unfreeze and replace parameters"),
        (replaced, f"{OTHERS} 4 that are not the same"),
        (enlarged, f"{OTHERS} 6 that are not the same"),
        (nn.Module.float, r"as torch.float64 on cpu, as they were .* got torch.float32 on cpu for"),
        (lambda model: model.to("meta"), f"{OTHERS} 4 that are not the same"),
    ],
    ids=["frozen", "replaced", "enlarged", "dtype", "device"],
)
def test_other_parameters_than_those_it_was_given_are_refused(change: Any, sentence: str) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    after(outer, model, 1)
    change(model)
    with pytest.raises(ValueError, match=sentence):
        outer.step(lambda: torch.zeros(()))
    assert outer.steps == 1


def test_a_parameter_that_is_unfrozen_later_is_refused() -> None:
    model = support.net()
    frozen(model)
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    model.requires_grad_(True)
    with pytest.raises(ValueError, match="when it was made, 3 tensors, got 4 that are not"):
        after(outer, model, 1)
    frozen(model)
    after(outer, model, 1)
    assert outer.steps == 1


def test_a_conversion_that_is_taken_back_is_none() -> None:
    model, plain = support.net(dtype=torch.float32), support.net(dtype=torch.float32)
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    inputs, targets = batch()

    def make(of: nn.Module) -> Any:
        return lambda _: support.closure_of(of, (inputs.float(), targets))

    after(outer, model, 2, make(model))
    model.double()
    model.float()
    after(outer, model, 2, make(model))
    expected = after(ud.Outer(plain, ud.FedAvg(lr=0.1), 3), plain, 4, make(plain))
    assert torch.equal(vector(model), expected)


def test_a_torch_scheduler_beside_a_schedule_of_ours_is_refused() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=ud.exponential(0.1, 0.5)), every=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
    after(outer, model, 2)
    state = outer.state_dict()
    assert outer.param_groups[0]["lr"] == 0.1
    scheduler.step()
    sentence = r"one schedule of the .*, got lr=exponential\(0.1, 0.5\) of the method and 0.05 in"
    with pytest.raises(ValueError, match=sentence):
        after(outer, model, 1)
    outer.load_state_dict(state)
    after(outer, model, 4)
    assert (outer.t, outer.param_groups[0]["lr"]) == (3, 0.025)


def test_a_loss_in_the_place_of_a_closure_is_refused() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=2)
    sentence = r"needs a closure that computes .*, or nothing after loss.backward\(\), got Tensor"
    with pytest.raises(ValueError, match=sentence):
        outer.step(support.closure_of(model, batch())())
