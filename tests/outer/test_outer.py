"""`Outer` in one process: what a script may do with it, and what it is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud
from tests.support import outer as support
from tests.support.outer import after, batch, vector

ACCEPTED = {name: m for name, m in support.METHODS.items() if not support.refused(m)}
REFUSED = {name: m for name, m in support.METHODS.items() if support.refused(m)}


@pytest.mark.parametrize("name", ACCEPTED)
def test_one_process_ends_where_the_simulation_does(name: str) -> None:
    method = ACCEPTED[name]
    expected = support.simulated(method, 1)
    outer = support.trained(method, 0, 1)
    x = expected[0] if isinstance(method, ud.Peer) else expected
    assert torch.allclose(outer.server.x, x, rtol=0, atol=1e-12)
    assert torch.allclose(outer.average(), x, rtol=0, atol=1e-12)
    assert torch.equal(outer.server.x, torch.cat([p.reshape(-1) for p in parameters(outer)]))
    assert (outer.t, outer.bytes_sent) == (support.ROUNDS, 0)
    if not outer.needs_closure:
        again = support.trained(method, 0, 1, closure=False)
        assert torch.equal(again.server.x, outer.server.x)
    resumed = support.trained(method, 0, 1, interrupt=support.saved_and_loaded)
    assert torch.equal(resumed.server.x, outer.server.x)


def parameters(outer: ud.Outer) -> list[Tensor]:
    return [p.detach() for p in outer.param_groups[0]["params"]]


def test_methods_that_need_a_closure_are_those_that_look_elsewhere() -> None:
    reasons = {type(m).__name__: ud.Outer(support.net(), m, 2).needs_closure for m in SERVERS}
    assert {name for name, reason in reasons.items() if "2 gradients" in reason} == {
        "FedSpeed",
        "FedSAM",
        "MoFedSAM",
        "FedGamma",
    }
    assert {name for name, reason in reasons.items() if "other points" in reason} == {
        "FedACG",
        "FedPD",
    }
    model = support.net()
    outer = ud.Outer(model, ud.FedSpeed(lr=0.1), 2)
    support.closure_of(model, batch())()
    sentence = "needs a closure for FedSpeed, which asks for 2 gradients a step; pass one"
    with pytest.raises(ValueError, match=sentence):
        outer.step()


SERVERS = [m for m in support.DEFAULTS if isinstance(m, ud.Federated) and not support.refused(m)]


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_ask_for_more_are_refused(name: str) -> None:
    what = "all local data" if "full" in name or "Lin" in name or "Scaffold" in name else "model"
    who = type(REFUSED[name]).__name__
    with pytest.raises(ValueError, match=f"gradients of minibatches only, got {who}, .*{what}"):
        ud.Outer(support.net(), REFUSED[name], 3)


# What a closure may do


def test_accumulation_in_the_closure_is_the_gradient_of_the_whole_batch() -> None:
    whole, parts = support.net(), support.net()
    one, two = ud.Outer(whole, ud.FedSpeed(lr=0.1), 2), ud.Outer(parts, ud.FedSpeed(lr=0.1), 2)

    def accumulate(k: int) -> Callable[[], Tensor]:
        inputs, targets = batch(k)

        def closure() -> Tensor:
            total = torch.zeros(())
            for half in (slice(0, 4), slice(4, 8)):
                loss = cross_entropy(parts(inputs[half]), targets[half]) / 2
                loss.backward()
                total = total + loss.detach()
            return total

        return closure

    expected = after(one, whole, 4)
    assert torch.allclose(after(two, parts, 4, accumulate), expected, rtol=0, atol=1e-14)


def test_clipping_in_the_closure_is_that_of_a_plain_loop() -> None:
    model, plain = support.net(), support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.5), every=3)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.5)

    def clipped(of: nn.Module, k: int) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            of.zero_grad()
            loss = support.closure_of(of, batch(k))()
            nn.utils.clip_grad_norm_(of.parameters(), 0.1)
            return loss

        return closure

    for k in range(6):
        sgd.step(clipped(plain, k))
    x = after(outer, model, 6, lambda k: clipped(model, k))
    assert torch.allclose(x, vector(plain), rtol=0, atol=1e-14)
    assert not torch.allclose(x, after(ud.Outer(plain, ud.FedAvg(lr=0.5), 3), plain, 6))


def test_autocast_in_the_closure_is_that_of_a_plain_loop() -> None:
    model, plain, exact = (support.net(dtype=torch.float32) for _ in range(3))
    outer, seen = ud.Outer(model, ud.FedAvg(lr=0.5), every=2), set()

    def casting(of: nn.Module, k: int, wanted: bool = True) -> Callable[[], Tensor]:
        inputs, targets = batch(k)

        def closure() -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=wanted):
                outputs = of(inputs.float())
            seen.add(outputs.dtype)
            loss = cross_entropy(outputs.float(), targets)
            loss.backward()
            return loss

        return closure

    x = after(outer, model, 5, lambda k: casting(model, k))
    assert seen == {torch.bfloat16}
    assert x.dtype == torch.float32
    for net, wanted in ((plain, True), (exact, False)):
        sgd = torch.optim.SGD(net.parameters(), lr=0.5)
        for k in range(5):
            sgd.zero_grad()
            casting(net, k, wanted)()
            sgd.step()
    assert torch.allclose(x, vector(plain), rtol=0, atol=1e-6)
    assert not torch.allclose(x, vector(exact), rtol=0, atol=1e-4)


@pytest.mark.long
def test_compiled_models_take_the_same_path() -> None:
    model, plain = support.net(), support.net()
    compiled = torch.compile(model)
    outer = ud.Outer(model, ud.FedSpeed(lr=0.1), every=2)
    x = after(outer, model, 5, lambda k: support.closure_of(compiled, batch(k)))
    expected = after(ud.Outer(plain, ud.FedSpeed(lr=0.1), every=2), plain, 5)
    assert torch.allclose(x, expected, rtol=0, atol=1e-12)


class Tied(nn.Module):
    """Holds a weight that serves twice, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen, self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.head = nn.Linear(6, 3)
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(torch.tanh(self.one(torch.tanh(self.frozen(x))))))


def test_frozen_parameters_stay_and_tied_ones_stay_tied() -> None:
    model, plain = Tied(), Tied()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=2)
    sgd = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    frozen = model.frozen.weight.clone()
    for k in range(4):
        sgd.zero_grad()
        support.closure_of(plain, batch(k))()
        sgd.step()
    assert torch.allclose(after(outer, model, 4), vector(plain), rtol=0, atol=1e-14)
    assert model.two.weight is model.one.weight
    assert torch.equal(model.frozen.weight, frozen)


def test_every_gradient_of_a_step_sees_the_same_dropout_masks() -> None:
    model = support.net()
    outer, drawn = ud.Outer(model, ud.FedSAM(lr=0.1), every=2), []

    def make(k: int) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            drawn.append(float(torch.rand(())))
            return support.closure_of(model, batch(k))()

        return closure

    after(outer, model, 3, make)
    assert drawn[0::2] == drawn[1::2]
    assert len(set(drawn)) == 3


# Learning rates


def test_a_torch_scheduler_changes_lr_at_meetings() -> None:
    model, other = support.net(), support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=2)
    scheduler = torch.optim.lr_scheduler.StepLR(outer, step_size=2, gamma=0.5)
    for k in range(6):
        outer.step(support.closure_of(model, batch(k)))
        scheduler.step()
    mine = ud.Outer(other, ud.FedAvg(lr=ud.exponential(0.1, 0.5)), every=2)
    assert torch.equal(after(mine, other, 6), vector(model))
    assert mine.metrics["lr"] == mine.param_groups[0]["lr"] == 0.025
    assert outer.metrics["lr"] == 0.025


def test_a_scheduler_reaches_the_method_in_a_wrapper() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.Compressed(ud.FedAvg(lr=0.1), ud.QSGD(bits=8)), every=1)
    outer.param_groups[0]["lr"] = 0.05
    after(outer, model, 1)
    assert outer.metrics["lr"] == 0.05


# What a script reads


def test_metrics_tell_of_the_last_round() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedSpeed(lr=0.1), every=2)
    losses = [float(outer.step(support.closure_of(model, batch(k))).detach()) for k in range(4)]
    assert (outer.metrics["round"], outer.metrics["gradients"]) == (2, 4)
    assert outer.metrics["loss"] == pytest.approx(sum(losses[2:]) / 2)
    assert outer.steps == 4
    outer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_between_meetings_the_model_is_the_local_iterate() -> None:
    model, plain = support.net(), support.net()
    outer = ud.Outer(model, ud.PSGD(lr=0.1), every=3)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    for k in range(4):
        sgd.zero_grad()
        support.closure_of(plain, batch(k))()
        sgd.step()
        outer.step(support.closure_of(model, batch(k)))
        assert torch.allclose(vector(model), vector(plain), rtol=0, atol=1e-14)


# What a script is told


def test_a_closure_that_raises_leaves_the_last_meeting() -> None:
    model, plain = support.net(), support.net()
    outer = ud.Outer(model, ud.FedSpeed(lr=0.1), every=3)
    after(outer, model, 4)
    state = copy.deepcopy(outer.state_dict())

    def broken() -> Tensor:
        support.closure_of(model, batch(9))()
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        outer.step(broken)
    assert torch.equal(vector(model), outer.server.x)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(outer), strict=True))
    outer.step(support.closure_of(model, batch(4)))
    outer.step(support.closure_of(model, batch(5)))
    assert torch.equal(vector(model), after(ud.Outer(plain, ud.FedSpeed(lr=0.1), 3), plain, 6))


def leaves(of: Any) -> list[Tensor]:
    state = of if isinstance(of, dict) else of.state_dict()
    role, carry = state["role"], state["round"]["carry"]
    return [*role["server"], *role["client"], *carry]


@pytest.mark.parametrize(
    ("closure", "sentence"),
    [
        (lambda: None, "a closure that returns its loss, got NoneType; end it with `return loss`"),
        (lambda: torch.zeros(()), r"needs gradients, got none on any parameter; call loss.back"),
    ],
    ids=["no loss", "no backward"],
)
def test_a_closure_that_does_not_do_its_work_is_refused(closure: Any, sentence: str) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    with pytest.raises(ValueError, match=sentence):
        outer.step(closure)
    assert outer.steps == 0


def test_a_grad_scaler_is_refused() -> None:
    model = support.net(dtype=torch.float32)
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    scaler = torch.amp.GradScaler("cpu")
    inputs, targets = batch()
    scaler.scale(cross_entropy(model(inputs.float()), targets)).backward()
    with pytest.raises(
        ValueError, match=r"gradients without a GradScaler, .* got one; use autocast"
    ):
        scaler.step(outer)
    assert outer.steps == 0


def test_a_second_optimiser_on_the_same_parameters_is_found() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    adam = torch.optim.Adam(model.parameters())
    outer.step(support.closure_of(model, batch()))
    before = vector(model).clone()
    support.closure_of(model, batch(1))()
    adam.step()
    sentence = r"the only one that changes .* remove the other optimiser"
    with pytest.raises(ValueError, match=sentence):
        outer.step(support.closure_of(model, batch(1)))
    assert torch.equal(vector(model), before)
    with pytest.raises(ValueError, match="parameters that no other Outer moves"):
        ud.Outer(model, ud.FedAvg(lr=0.1), every=3)


def test_a_script_may_swap_weights_and_swap_them_back() -> None:
    model, plain = support.net(), support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    after(outer, model, 2)
    kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(support.net(seed=5).state_dict())
    model.load_state_dict(kept)
    outer.step(support.closure_of(model, batch(2)))
    assert torch.equal(vector(model), after(ud.Outer(plain, ud.FedAvg(lr=0.1), 3), plain, 3))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": 0}, r"one for each rank, or Seconds\(60\), got 0"),
        ({"every": [3, 3]}, r"every with 1 numbers, one for each rank, got \[3, 3\]"),
        ({"method": ud.FedAvg}, "a method object such as FedAvg"),
        ({"weight": -1.0}, "weight > 0, a finite number, got -1.0"),
        ({"topology": ud.topology.ring(1)}, "FedAvg needs no topology, it has a server"),
        ({"method": ud.DSGD(lr=0.1)}, "DSGD needs a topology such as"),
        ({"seed": 0.5}, "a whole number as seed, got 0.5"),
        ({"model": nn.Sequential(nn.BatchNorm1d(6))}, "layers without running statistics"),
        ({"model": lambda x: x}, "an nn.Module as model, got function"),
        ({"model": nn.Linear(6, 3, device="meta")}, "with values, got 'weight' on the meta device"),
        ({"method": ud.MOON(lr=0.1), "model": nn.Linear(6, 3)}, "got MOON, which asks for the out"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_bad_arguments_are_refused(options: dict[str, Any], sentence: str) -> None:
    settings = {"model": support.net(), "method": ud.FedAvg(lr=0.1), "every": 3} | options
    with pytest.raises(ValueError, match=sentence):
        ud.Outer(**settings)


def test_a_state_of_something_else_is_refused() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=3)
    with pytest.raises(ValueError, match=r"what Outer.state_dict"):
        outer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    with pytest.raises(ValueError, match=r"a state of every \[3\], got \[4\]"):
        outer.load_state_dict(ud.Outer(support.net(), ud.FedAvg(lr=0.1), 4).state_dict())
    small = ud.Outer(nn.Linear(6, 2).double(), ud.FedAvg(lr=0.1), 3)
    with pytest.raises(ValueError, match="the server's state of this method and model"):
        outer.load_state_dict(small.state_dict())
    with pytest.raises(ValueError, match="all parameters of its model at once"):
        outer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
