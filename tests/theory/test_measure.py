"""Measured constants: what is known is found, and what cannot be measured is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.theory import Verdict, estimate, marsit


def test_constants_that_are_known_are_found() -> None:
    problem = ud.data.known_constants(4, L=2.0, sigma=3.0, zeta=0.7)
    found = estimate(problem.model(), problem.clients, loss=problem.loss, batch_size=1, batches=60)
    assert found.L.value == pytest.approx(2.0, rel=1e-2)
    assert found.L.value <= 2.0 + 1e-9
    assert found.L.high == math.inf
    assert found.zeta.value == pytest.approx(0.7, rel=1e-6)
    assert found.zeta.low == found.zeta.high
    assert found.sigma.value == pytest.approx(3.0, rel=0.25)
    assert found.sigma.low < found.sigma.value < found.sigma.high
    assert found.points == 4
    assert "L can refute a condition and never certify one" in found.sentence


def test_larger_minibatches_have_less_noise_and_all_samples_none() -> None:
    problem = ud.data.known_constants(2, sigma=4.0)
    known = {"loss": problem.loss, "points": 2}
    four = estimate(problem.model(), problem.clients, batch_size=4, batches=80, **known)
    whole = estimate(problem.model(), problem.clients, batch_size=None, **known)
    assert four.sigma.value == pytest.approx(2.0, rel=0.25)
    assert whole.sigma.value == 0


def test_many_clients_are_sampled_with_an_interval() -> None:
    problem = ud.data.known_constants(60, zeta=1.0, samples=4)
    found = estimate(problem.model(), problem.clients, loss=problem.loss, points=2, batch_size=2)
    assert found.clients == 20
    assert found.zeta.low < found.zeta.value < found.zeta.high
    assert found.zeta.value == pytest.approx(1.0, rel=0.3)


def test_measured_constants_judge_a_theorem() -> None:
    problem = ud.data.known_constants(2)
    found = estimate(problem.model(), problem.clients, loss=problem.loss, points=2)
    constants = found.constants(gap=1.0)
    verdicts = [
        marsit.conditions(constants, lr=lr, period=2, rounds=9)[0].verdict for lr in (0.01, 5.0)
    ]
    assert verdicts == [Verdict.UNKNOWN, Verdict.VIOLATED]


def images(clients: int = 2, samples: int = 8) -> ud.Clients:
    generator = torch.Generator().manual_seed(0)
    return ud.Clients(
        [
            (
                torch.randn(samples, 1, 4, 4, generator=generator),
                torch.randint(3, (samples,), generator=generator),
            )
            for _ in range(clients)
        ]
    )


def net(activation: nn.Module, *more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*more, nn.Flatten(), nn.LazyLinear(6), activation, nn.Linear(6, 3))


def ready(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model(torch.zeros(1, 1, 4, 4))
    return model


def test_a_smooth_net_is_measured_and_the_same_twice() -> None:
    model, known = ready(net(nn.Tanh())), {"loss": nn.functional.cross_entropy, "points": 2}
    one, two = (estimate(model, images(), batch_size=4, **known) for _ in range(2))
    assert (one.L, one.sigma, one.zeta) == (two.L, two.sigma, two.zeta)
    assert one.L.value > 0


@pytest.mark.parametrize(
    ("model", "kink"),
    [(net(nn.ReLU()), "relu"), (net(nn.Tanh(), nn.MaxPool2d(2)), "max_pool2d")],
)
def test_a_model_that_is_not_smooth_is_refused_with_its_function(model, kink) -> None:
    known = {"loss": nn.functional.cross_entropy, "points": 2}
    with pytest.raises(ud.UndriftError, match=f"Lipschitz gradient, got one with .*{kink}"):
        estimate(ready(model), images(), **known)
    found = estimate(model, images(), smooth=False, **known)
    assert kink in found.kinks
    assert "no L exists" in found.sentence


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (images(1), {}, "two clients or more, got 1; heterogeneity is between clients"),
        (images(3, samples=1), {}, "two samples a client .* got 1 for client 0 and 2 more"),
        (images(), {"points": 1}, "points >= 2, got 1"),
        (images(), {"batch_size": 0}, "batch_size >= 1, or None"),
        (images(), {"lr": 0.0}, "lr > 0"),
    ],
)
def test_bad_input_gets_one_sentence(clients, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(ready(net(nn.Tanh())), clients, loss=nn.functional.cross_entropy, **options)


def test_a_loss_without_curvature_is_refused() -> None:
    pair = torch.ones(4, 2), torch.zeros(4, 1)
    model = nn.Linear(2, 1, bias=False)
    with pytest.raises(ud.UndriftError, match="needs a loss with curvature"):
        estimate(model, ud.Clients([pair, pair]), loss=lambda outputs, targets: outputs.mean())
