"""A torch optimiser that takes the local steps of a method."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support import outer as support
from tests.support.outer import after, batch, vector

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def with_inner(method: Any, make: Any, every: int = 3) -> tuple[nn.Module, Any, ud.Outer]:
    model = support.net()
    inner = make(model.parameters())
    return model, inner, ud.Outer(model, method, every, inner=inner)


def plain_step(model: nn.Module, optimiser: torch.optim.Optimizer, k: int) -> None:
    optimiser.zero_grad()
    support.closure_of(model, batch(k))()
    optimiser.step()


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("on", ["outer", "inner"])
def test_one_rank_is_the_plain_loop_and_schedulers_count_every_step(name: str, on: str) -> None:
    model, inner, outer = with_inner(ud.FedAvg(lr=0.3), OPTIMISERS[name])
    plain = support.net()
    optimiser = OPTIMISERS[name](plain.parameters())
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(each, 0.9)
        for each in (outer if on == "outer" else inner, optimiser)
    ]
    for k in range(7):
        plain_step(plain, optimiser, k)
        outer.step(support.closure_of(model, batch(k)))
        for scheduler in schedulers:
            scheduler.step()
        assert torch.allclose(vector(model), vector(plain), rtol=0, atol=1e-13)
    assert (
        outer.param_groups[0]["lr"]
        == optimiser.param_groups[0]["lr"]
        == inner.param_groups[0]["lr"]
    )
    assert outer.t == 2


def test_a_torch_adamw_is_the_rule_adamw() -> None:
    model, _, outer = with_inner(
        ud.DiLoCo(lr=7.0), lambda p: torch.optim.AdamW(p, 0.02, (0.9, 0.999), weight_decay=0.1)
    )
    other = support.net()
    ours = ud.Outer(other, ud.DiLoCo(lr=0.02, rule=ud.AdamW(decay=0.1)), 3)
    x = after(outer, model, 8)
    assert torch.allclose(x, after(ours, other, 8), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [ud.Marsit, ud.EFSignSGD], ids=lambda cls: cls.__name__)
def test_a_schedule_of_the_inner_optimiser_keeps_the_conservation_law(method: Any) -> None:
    """x - c moves by the inner optimiser's updates alone, whatever its learning rate does."""
    model, _, outer = with_inner(method(lr=0.5), OPTIMISERS["adamw"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(outer, lambda k: (1.0, 0.1, 3.0, 0.0)[k % 4])
    plain = support.net()
    optimiser = OPTIMISERS["adamw"](plain.parameters())
    owed = vector(model).clone()
    for k in range(12):
        if k % 3 == 0:
            start = vector(model).clone()
            nn.utils.vector_to_parameters(start.clone(), plain.parameters())
        optimiser.param_groups[0]["lr"] = outer.param_groups[0]["lr"]
        plain_step(plain, optimiser, k)
        outer.step(support.closure_of(model, batch(k)))
        scheduler.step()
        if k % 3 == 2:
            owed = owed - (start - vector(plain))
            left = outer.server.c if method is ud.Marsit else outer.server.e
            assert torch.allclose(outer.server.x - left, owed, rtol=0, atol=1e-12)
            assert left.abs().max() > 1e-3


SIGNS = {
    "SignSGD": ud.SignSGD(lr=0.5, server_lr=0.01),
    "SSDM": ud.SSDM(lr=0.5, server_lr=0.01),
    "SSDM max": ud.SSDM(lr=0.5, server_lr=0.01, scale="max"),
    "SSDM own": ud.SSDM(lr=0.5, server_lr=0.01, scale="own", norm="inf"),
    "CascadingSSDM": ud.CascadingSSDM(lr=0.5, server_lr=0.01),
}


@pytest.mark.parametrize("name", SIGNS)
def test_methods_that_owe_nothing_step_by_server_lr_whatever_the_schedule(name: str) -> None:
    """SSDM's m averages updates divided by lr, and signs of a vote are those of the update."""
    model, _, outer = with_inner(SIGNS[name], OPTIMISERS["adamw"])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
    plain = support.net()
    optimiser = OPTIMISERS["adamw"](plain.parameters())
    m = torch.zeros_like(vector(model))
    for _ in range(4):
        start = vector(model).clone()
        nn.utils.vector_to_parameters(start.clone(), plain.parameters())
        for k in range(3):
            optimiser.param_groups[0]["lr"] = outer.param_groups[0]["lr"]
            plain_step(plain, optimiser, k)
            outer.step(support.closure_of(model, batch(k)))
            scheduler.step()
        update, moved = start - vector(plain), start - vector(model)
        size = m.new_tensor(0.01)
        if name == "SignSGD":
            assert torch.equal(moved > 0, update >= 0)
        else:
            m = 0.9 * m + 0.1 * update / 0.5
            assert torch.allclose(outer.server.m, m, rtol=0, atol=1e-13)
            if name != "SSDM":
                size = 0.01 * (m.abs().max() if name == "SSDM own" else m.norm())
        assert torch.allclose(moved.abs(), size.expand_as(m), rtol=0, atol=1e-13)
    assert outer.param_groups[0]["lr"] == 0.02 * 0.5**12


@pytest.mark.parametrize(
    "lr", [ud.exponential(0.3, 0.5), ud.Schedule(lambda t: (0.3, 0.03)[t % 2])]
)
def test_a_schedule_of_a_methods_own_rate_keeps_it_too(lr: Any) -> None:
    model = support.net()
    method = ud.Marsit(lr=lr, server_lr=ud.exponential(0.01, 0.7), rule=ud.Momentum(0.9))
    outer = ud.Outer(model, method, 1)
    m = torch.zeros_like(vector(model))
    owed = vector(model).clone()
    for k in range(6):
        closure = support.closure_of(model, batch(k))
        model.zero_grad()
        closure()
        m = 0.9 * m + torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        owed = owed - lr.at(k) * m
        outer.step(closure)
        assert torch.allclose(outer.server.x - outer.server.c, owed, rtol=0, atol=1e-12)


def test_wrapped_methods_take_an_inner_optimiser() -> None:
    method = ud.Compressed(ud.DiLoCo(lr=1.0), ud.ScaledSign(), error_feedback=True)
    model, _, outer = with_inner(method, OPTIMISERS["adamw"])
    before = vector(model).clone()
    assert not torch.equal(after(outer, model, 3), before)


def test_a_state_in_the_middle_of_a_round_has_the_inner_optimisers() -> None:
    model, _, outer = with_inner(ud.DiLoCo(lr=1.0), OPTIMISERS["adamw"])
    after(outer, model, 4)
    state = copy.deepcopy(outer.state_dict())
    expected = after(outer, model, 5)
    again, _, loaded = with_inner(ud.DiLoCo(lr=1.0), OPTIMISERS["adamw"])
    loaded.load_state_dict(state)
    assert torch.equal(after(loaded, again, 5), expected)
    plain = ud.Outer(support.net(), ud.DiLoCo(lr=1.0), 3)
    with pytest.raises(
        ValueError, match="a state with an inner optimiser, or without one, as here"
    ):
        plain.load_state_dict(state)


def test_a_dropped_round_takes_the_inner_state_back() -> None:
    model, inner, outer = with_inner(ud.FedAvg(lr=1.0), OPTIMISERS["adamw"])
    after(outer, model, 3)
    state, x = copy.deepcopy(inner.state_dict()["state"]), vector(model).clone()

    def spoiled(k: int) -> Any:
        inputs, targets = batch(k)
        return support.closure_of(model, (inputs * float("nan"), targets))

    with pytest.raises(ud.errors.DivergenceError):
        after(outer, model, 3, spoiled)
    now = inner.state_dict()["state"]
    assert all(torch.equal(state[i][key], now[i][key]) for i in state for key in state[i])
    assert torch.equal(vector(model), x)
    assert torch.isfinite(after(outer, model, 3)).all()


def test_a_closure_that_raises_leaves_the_inner_state() -> None:
    model, inner, outer = with_inner(ud.FedAvg(lr=1.0), OPTIMISERS["adamw"])
    after(outer, model, 2)

    def broken() -> Tensor:
        support.closure_of(model, batch(9))()
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        outer.step(broken)
    assert all(int(each["step"]) == 2 for each in inner.state_dict()["state"].values())


def test_another_optimiser_beside_the_inner_one_is_found() -> None:
    model, _, outer = with_inner(ud.FedAvg(lr=1.0), OPTIMISERS["adamw"])
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    after(outer, model, 1)
    plain_step(model, other, 1)
    with pytest.raises(ValueError, match="the only one that changes"):
        after(outer, model, 1)


@pytest.mark.parametrize(
    ("method", "make", "sentence"),
    [
        (
            ud.FedSpeed(lr=0.1),
            OPTIMISERS["adamw"],
            r"may follow any rule for inner=, .* got FedSpeed",
        ),
        (ud.FedAvg(lr=0.1), lambda p: torch.optim.LBFGS(p), "one gradient a step, got LBFGS"),
        (ud.FedAvg(lr=0.1), lambda p: torch.optim.SGD(list(p)[:1], 0.1), "got 1 that are not the"),
        (ud.FedAvg(lr=0.1), lambda p: "adam", "such as torch.optim.AdamW.* got str"),
    ],
    ids=["algebra", "lbfgs", "parameters", "text"],
)
def test_inner_optimisers_that_do_not_fit_are_refused(
    method: Any, make: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        with_inner(method, make)
