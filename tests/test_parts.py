"""The small parts: vectors, GroupNorm, schedules, rules, checks of words."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import undrift as ud
from undrift import testing
from undrift.models.layout import Layout, sha256
from undrift.optim import rules
from undrift.optim.schedules import parse, resolve


def test_a_vector_is_a_view_of_the_model_and_back() -> None:
    model = testing.small_net()
    layout = Layout.of(model)
    x = layout.gather(model)
    bound = layout.bind(model, x)
    inputs = torch.randn(5, 6, dtype=torch.float64)
    model.eval(), bound.eval()
    assert torch.equal(bound(inputs), model(inputs))
    x.zero_()
    assert float(bound(inputs).detach().abs().max()) == 0.0
    assert float(model(inputs).detach().abs().max()) > 0.0
    views = layout.views(x)
    assert all(
        v.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for v in views.values()
    )


def test_frozen_and_tied_parameters() -> None:
    """A frozen layer stays out of the vector; a tied weight is in it once and moves both."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(6, 4)
            self.frozen.requires_grad_(False)
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.head = nn.Linear(4, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.two(torch.tanh(self.one(self.frozen(inputs)))))

    torch.manual_seed(0)
    model = Tied().double()
    assert Layout.of(model).size == 16 + 4 + 4 + 15
    ends = []
    for mode in ("loop", "stacked"):
        run = testing.start(ud.FedAvg(lr=0.1), model=model, mode=mode)
        ends.append(testing.finish(run))
        trained = run.model
        assert torch.equal(trained.frozen.weight, model.frozen.weight)
        assert torch.equal(trained.one.weight, trained.two.weight)
        assert not torch.equal(trained.one.weight, model.one.weight)
    assert float((ends[0] - ends[1]).abs().max()) < 1e-12


def test_batch_norm_becomes_group_norm_with_its_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Sequential(nn.BatchNorm2d(6)))
    nn.init.normal_(model[1].weight)
    converted = ud.group_norm(model, groups=4)
    assert isinstance(model[1], nn.BatchNorm2d), "the model given is left alone"
    assert isinstance(converted[1], nn.GroupNorm)
    assert converted[1].num_groups == 3, "the largest divisor of 6 up to 4"
    assert isinstance(converted[2][0], nn.GroupNorm)
    assert torch.equal(converted[1].weight, model[1].weight)
    Layout.of(converted)


def test_group_norm_models_train_in_both_modes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = ud.group_norm(net)
    ends = [
        testing.finish(testing.start(ud.FedAvg(lr=0.1), model=model, mode=mode))
        for mode in ("loop", "stacked")
    ]
    assert float((ends[0] - ends[1]).abs().max()) < 1e-12


def test_hash_tells_bits_and_dtype_apart() -> None:
    x = torch.tensor([1.0, 2.0])
    assert sha256(x) == sha256(x.clone())
    assert sha256(x) != sha256(x.double())
    assert sha256(x) != sha256(torch.tensor([1.0, 2.0000002]))


def test_schedules_are_floats_with_a_rule() -> None:
    decay = ud.exponential(0.1, 0.5)
    assert decay + 0.0 == 0.1
    assert [decay.at(t) for t in range(3)] == [0.1, 0.05, 0.025]
    steps = ud.piecewise(0.1, {50: 0.5, 150: 1.0})
    assert [steps.at(t) for t in (0, 49, 50, 149, 150)] == [0.1, 0.1, 0.5, 0.5, 1.0]
    assert pickle.loads(pickle.dumps(decay)) == decay
    assert decay != ud.exponential(0.1, 0.6)
    assert decay != 0.1
    assert ud.Schedule(lambda t: 0.1) != ud.Schedule(lambda t: 0.7)
    assert parse(repr(decay)) == decay
    assert parse(repr(steps)) == steps
    assert parse("0.25") == 0.25


def test_resolve_reaches_nested_values_and_checks_them_again() -> None:
    method = ud.FedAvg(lr=ud.exponential(0.1, 0.5), rule=ud.Momentum(ud.piecewise(0.5, {2: 0.9})))
    assert resolve(method, 2) == ud.FedAvg(lr=0.025, rule=ud.Momentum(0.9))
    assert resolve(ud.FedAvg(lr=0.1), 3) == ud.FedAvg(lr=0.1)
    with pytest.raises(ValueError, match="lam >= lr"):
        resolve(ud.FedSpeed(lr=0.1, lam=ud.exponential(1.0, 0.01)), 1)


def test_a_schedule_drives_the_run() -> None:
    decayed = testing.start(ud.FedAvg(lr=ud.exponential(0.1, 0.5)), rounds=2)
    by_hand = testing.start(ud.FedAvg(lr=0.1), rounds=2)
    next(decayed), next(by_hand)
    by_hand.algorithm = ud.FedAvg(lr=0.05)
    next(decayed), next(by_hand)
    assert torch.equal(decayed.x, by_hand.x)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ud.SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (ud.Momentum(0.8), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8)),
        (
            ud.Momentum(0.8, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True),
        ),
        (ud.Adam(0.8, 0.9, 1e-6), lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.9), 1e-6)),
    ],
    ids=["sgd", "momentum", "nesterov", "adam"],
)
def test_rules_equal_torch(ours: rules.Rule, theirs: object) -> None:
    y = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    p = nn.Parameter(y.clone())
    optimiser = theirs([p])  # type: ignore[operator]
    state = ours.init(y)
    for _ in range(7):
        p.grad = p.detach() ** 3 - 1
        d, state = ours(y**3 - 1, state)
        y = y - 0.1 * d
        optimiser.step()
        assert torch.allclose(y, p.detach(), rtol=1e-12)


def test_rules_have_names() -> None:
    assert rules.parse("momentum:0.8") == ud.Momentum(0.8)
    for known in (ud.SGD(), ud.Momentum(0.8), ud.Momentum(0.8, nesterov=True), ud.Adam(0.8)):
        assert rules.parse(str(known)) == known
    assert rules.parse("adam:0.8:0.9") == ud.Adam(0.8, 0.9)
    with pytest.raises(ValueError, match="nearest is 'momentum'"):
        rules.parse("momentun")
    with pytest.raises(ValueError, match="form such as"):
        rules.parse("momentum:a")


def test_every_method_is_exported_and_listed() -> None:
    for cls in ud.ALGORITHMS:
        assert getattr(ud, cls.__name__) is cls
        assert cls.__name__ in ud.__all__
        assert cls.__module__ == f"undrift.algorithms.{cls.__name__.lower()}"


def test_models_by_name() -> None:
    assert (
        sum(p.numel() for p in ud.models.build("logistic", shape=(64,), classes=10).parameters())
        == 650
    )
    assert ud.models.build("mlp", shape=(8, 8), classes=10)(torch.zeros(2, 8, 8)).shape == (2, 10)
