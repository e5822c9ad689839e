"""Gradients of linear chains written out, against autograd's."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import undrift as ud
from tests.support.problems import task_of
from undrift.gradients.mlp import Dense
from undrift.gradients.task import Autograd, Batch

CE = nn.functional.cross_entropy


@st.composite
def chains(draw: st.DrawFn) -> nn.Sequential:
    widths = draw(st.lists(st.integers(1, 7), min_size=2, max_size=5))
    parts: list[nn.Module] = [nn.Flatten()] if draw(st.booleans()) else []
    for i, (wide, narrow) in enumerate(pairwise(widths)):
        parts.append(nn.Linear(wide, narrow, bias=draw(st.booleans())))
        if i < len(widths) - 2:
            parts += draw(st.sampled_from([[], [nn.ReLU()], [nn.Tanh()], [nn.Sigmoid()]]))
    if draw(st.booleans()):
        parts = [nn.Sequential(*parts[:2]), nn.Identity(), *parts[2:]]
    return nn.Sequential(*parts)


class TestAgainstAutograd:
    @settings(max_examples=60, deadline=None)
    @given(chains(), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.integers(0, 999))
    def test_gradients_are_the_same(
        self, model: nn.Sequential, clients: int, samples: int, padded: bool, seed: int
    ) -> None:
        torch.manual_seed(seed)
        model = model.double()
        task = task_of(model)
        dense = Dense.of(task)
        assert dense is not None
        wide, classes = dense.layers[0].shape[1], dense.layers[-1].shape[0]
        x = torch.randn(clients, task.layout.size, dtype=torch.float64)
        inputs = torch.randn(clients, samples, wide, dtype=torch.float64)
        valid = (torch.rand(clients, samples) < 0.6).double() if padded else None
        batch = Batch(inputs, torch.randint(classes, (clients, samples)), valid)
        many = dense.gradients(task, x, batch)
        assert torch.allclose(many, Autograd().gradients(task, x, batch), rtol=0, atol=1e-12)
        for i in range(clients):
            own = Batch(**{name: leaf[i] for name, leaf in batch.present().items()})
            assert torch.allclose(dense.gradient(task, x[i], own), many[i], rtol=0, atol=1e-12)

    def test_a_stack_that_shares_its_model(self) -> None:
        """At the first step all clients are at the same x, which vmap hands over only once."""
        task = task_of(nn.Sequential(nn.Linear(3, 2)))
        x = torch.randn(task.layout.size)
        batch = Batch(torch.randn(4, 5, 3), torch.randint(2, (4, 5)))
        spread = Dense.of(task).gradients(task, x.expand(4, -1), batch)
        alike = Dense.of(task).gradients(task, x.expand(4, -1).contiguous(), batch)
        assert torch.equal(spread, alike)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    @pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
    def test_what_is_not_finite_goes_through_as_in_torch(self, bad: float, activation) -> None:
        torch.manual_seed(0)
        task = task_of(nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2)))
        x = torch.randn(1, task.layout.size)
        x[0, 1] = bad
        batch = Batch(torch.randn(1, 5, 3), torch.randint(2, (1, 5)))
        ours = Dense.of(task).gradients(task, x, batch)
        theirs = Autograd().gradients(task, x, batch)
        assert torch.equal(ours.isfinite(), theirs.isfinite())


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) * 2


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    return model


def shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "model",
    [
        Own(),
        hooked(),
        frozen(),
        shared(),
        nn.Linear(3, 2),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(1, 2)),
    ],
    ids=str,
)
def test_anything_else_is_left_to_autograd(model: nn.Module) -> None:
    assert Dense.of(task_of(model)) is None


def test_other_losses_are_left_to_autograd() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    assert Dense.of(task_of(model, nn.functional.mse_loss)) is None
    assert Dense.of(task_of(model, lambda outputs, targets: CE(outputs, targets))) is None
    assert Dense.of(task_of(model)) is not None


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_targets_that_are_no_labels_are_left_to_autograd(mode: str) -> None:
    """Probabilities as targets, which cross_entropy takes, too."""
    torch.manual_seed(0)
    pairs = [(torch.randn(6, 3), torch.randn(6, 2).softmax(1)) for _ in range(3)]
    options = {"work": ud.Steps(2), "rounds": 2, "batch_size": 4, "mode": mode}
    model = nn.Sequential(nn.Linear(3, 2))
    ends = []
    for loss in (CE, lambda outputs, targets: CE(outputs, targets)):
        run = ud.simulate(ud.FedAvg(lr=0.1), model, ud.Clients(pairs), loss=loss, **options)
        for _ in run:
            pass
        ends.append(run.x)
    assert torch.allclose(*ends, rtol=0, atol=1e-6)


def test_runs_take_it_where_it_fits() -> None:
    pairs = [(torch.randn(6, 3), torch.randint(2, (6,))) for _ in range(3)]
    options = {"loss": CE, "work": ud.Steps(2), "rounds": 1, "batch_size": 4}
    linear = nn.Sequential(nn.Linear(3, 2))
    run = ud.simulate(ud.FedAvg(lr=0.1), linear, ud.Clients(pairs), **options)
    assert isinstance(run._task.oracle, Dense)
    other = ud.simulate(ud.FedAvg(lr=0.1), Own(), ud.Clients(pairs), **options)
    assert isinstance(other._task.oracle, Autograd)


def test_parameters_beside_the_chain_are_left_to_autograd() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_parameter("spare", nn.Parameter(torch.zeros(4)))
    assert Dense.of(task_of(model)) is None


def test_backward_hooks_are_left_to_autograd() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_full_backward_pre_hook(lambda module, grads: None)
    assert Dense.of(task_of(model)) is None


def test_labels_may_be_bytes() -> None:
    task = task_of(nn.Sequential(nn.Linear(3, 2)))
    x, inputs = torch.randn(task.layout.size), torch.randn(5, 3)
    labels = torch.randint(2, (5,))
    dense = Dense.of(task)
    both = [dense.gradient(task, x, Batch(inputs, kind)) for kind in (labels, labels.byte())]
    assert torch.equal(*both)
