"""A model as one vector: views, frozen and tied parameters, GroupNorm, hashes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undrift as ud
from undrift import testing
from undrift.models.layout import Layout, sha256


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


class Tied(nn.Module):
    """A net with a frozen layer and two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 4)
        self.frozen.requires_grad_(False)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(torch.tanh(self.one(self.frozen(inputs)))))


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_a_tied_weight_has_the_gradient_of_both_places(mode: str) -> None:
    torch.manual_seed(0)
    model, clients = Tied().double(), testing.small_clients((9,))
    options = {"batch_size": None, "work": ud.Steps(2), "rounds": 2, "participation": 1.0}
    run = testing.start(ud.FedAvg(lr=0.5), model=model, clients=clients, mode=mode, **options)
    found = testing.finish(run)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(4):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(clients[0][0]), clients[0][1]).backward()
        sgd.step()
    assert float((found - Layout.of(model).gather(model)).abs().max()) < 1e-12


def test_frozen_and_tied_parameters() -> None:
    """A frozen layer stays out of the vector; a tied weight is in it once and moves both."""
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
