"""MOON and FedMLB, which look into the model, on small nets and on ResNet-18; the models."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud
from tests.support.runs import distance
from undrift import testing
from undrift.algorithms.fedmlb import FedMLB
from undrift.algorithms.moon import MOON
from undrift.models.layout import Layout

SMOOTH = {"batch_size": None, "participation": 1.0}  # whole local data, no ragged minibatches


def net(dropout: float = 0.0, seed: int = 0) -> nn.Module:
    """Three blocks: two hidden layers and a classifier."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()


def images(clients: int = 2, n: int = 2) -> ud.Clients:
    rng = np.random.default_rng(0)
    pairs = [
        (
            torch.tensor(rng.normal(size=(n, 3, 32, 32)), dtype=torch.float32),
            torch.tensor(rng.integers(0, 10, n)),
        )
        for _ in range(clients)
    ]
    return ud.Clients(pairs)


def on_images(algorithm: Any, model: nn.Module, rounds: int = 1, **options: Any) -> ud.Run:
    return ud.simulate(
        algorithm,
        model,
        images(),
        loss=cross_entropy,
        work=ud.Steps(1),
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=100),
        mode="loop",
        **options,
    )


def average_into(server: nn.Module, models: Sequence[nn.Module], sizes: Sequence[int]) -> None:
    for mean, *own in zip(server.parameters(), *(y.parameters() for y in models), strict=True):
        mean.data = sum(n * p.data for n, p in zip(sizes, own, strict=True)) / sum(sizes)


def moon_box(
    mu: float, tau: float, lr: float, beta: float, steps: list[int], rounds: int
) -> Tensor:
    """MOON as naive loops over modules, with autograd as in any training script."""
    clients, server = testing.small_clients(), net()
    previous: dict[int, nn.Module] = {}
    sizes = [len(clients[i][1]) for i in range(4)]

    def features(model: nn.Module, inputs: Tensor) -> Tensor:
        return model[:5](inputs)  # everything before the classifier

    for _ in range(rounds):
        locals_ = []
        for i in range(4):
            inputs, targets = clients[i]
            y, prev = copy.deepcopy(server), previous.get(i, server)
            optimiser = torch.optim.SGD(y.parameters(), lr=lr, momentum=beta)
            for _ in range(steps[i]):
                z = features(y, inputs)
                with torch.no_grad():
                    z_glob, z_prev = features(server, inputs), features(prev, inputs)
                pos = torch.cosine_similarity(z, z_glob) / tau
                neg = torch.cosine_similarity(z, z_prev) / tau
                contrast = -torch.log(pos.exp() / (pos.exp() + neg.exp())).mean()
                loss = cross_entropy(y(inputs), targets) + mu * contrast
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            previous[i] = y
            locals_.append(y)
        average_into(server, locals_, sizes)
    return nn.utils.parameters_to_vector(server.parameters()).detach()


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("rule", [ud.SGD(), ud.Momentum(0.9)], ids=repr)
def test_moon_equals_its_box(mode: str, rule: Any) -> None:
    steps = [3, 2, 4, 1]
    run = testing.start(
        MOON(lr=0.2, mu=0.7, tau=0.5, rule=rule),
        model=net(),
        mode=mode,
        work=ud.Steps(steps),
        rounds=3,
        **SMOOTH,
    )
    beta = getattr(rule, "beta", 0.0)
    assert distance(testing.finish(run), moon_box(0.7, 0.5, 0.2, beta, steps, 3)) < 1e-10


def test_moon_without_contrast_is_fedavg() -> None:
    for mode in ("loop", "stacked"):
        ends = [
            testing.finish(testing.start(algorithm, mode=mode))
            for algorithm in (
                MOON(lr=0.1, mu=0.0),
                ud.FedAvg(lr=0.1, rule=ud.Momentum(0.9)),
            )
        ]
        assert distance(*ends) < 1e-12


def test_moons_term_is_log_two_without_gradient_at_the_start() -> None:
    """First participation: prev = global, so one step is FedAvg's, whatever mu."""
    one = {"work": ud.Steps(1), "rounds": 1}
    ends = [
        testing.finish(testing.start(algorithm, model=net(dropout=0.3), **one))
        for algorithm in (MOON(lr=0.1, mu=50.0), ud.FedAvg(lr=0.1))
    ]
    assert distance(*ends) < 1e-12
    z = torch.randn(4, 7)
    term = nn.functional.softplus(
        (torch.cosine_similarity(z, z) - torch.cosine_similarity(z, z)) / 0.5
    )
    assert torch.allclose(term, torch.full((4,), math.log(2)))


def test_moon_keeps_each_clients_last_model() -> None:
    sent: dict[int, Tensor] = {}
    run = testing.start(MOON(lr=0.1), rounds=1, tap=lambda u: sent.__setitem__(u.client, u.upload))
    start = run.x.clone()
    testing.finish(run)
    for i, prev in run.client_states.items():
        assert distance(prev, start + sent[i]) < 1e-12


def mlb_box(lam1: float, lam2: float, t: float, lr: float, steps: int, rounds: int) -> Tensor:
    """FedMLB as naive loops: hybrids are modules that chain local and frozen blocks."""
    clients, server = testing.small_clients(), net()
    sizes = [len(clients[i][1]) for i in range(4)]
    cuts = [1, 4]  # hybrid l: local layers up to the l-th linear, then the server's
    for _ in range(rounds):
        locals_ = []
        for i in range(4):
            inputs, targets = clients[i]
            y, frozen = copy.deepcopy(server), copy.deepcopy(server).requires_grad_(False)
            for _ in range(steps):
                logits = y(inputs)
                loss = cross_entropy(logits, targets)
                for cut in cuts:
                    hybrid = frozen[cut:](y[:cut](inputs))
                    teacher = (hybrid / t).softmax(1)
                    student = (logits / t).log_softmax(1)
                    kl = (teacher * (teacher.log() - student)).sum(1).mean()
                    loss = loss + (lam1 * cross_entropy(hybrid, targets) + lam2 * kl) / len(cuts)
                grads = torch.autograd.grad(loss, list(y.parameters()))
                for parameter, g in zip(y.parameters(), grads, strict=True):
                    parameter.data -= lr * g
            locals_.append(y)
        average_into(server, locals_, sizes)
    return nn.utils.parameters_to_vector(server.parameters()).detach()


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedmlb_equals_its_box(mode: str) -> None:
    run = testing.start(
        FedMLB(lr=0.2, lam1=0.8, lam2=0.6, temperature=2.0),
        model=net(),
        mode=mode,
        work=ud.Steps(3),
        rounds=3,
        **SMOOTH,
    )
    assert distance(testing.finish(run), mlb_box(0.8, 0.6, 2.0, 0.2, 3, 3)) < 1e-10


def test_fedmlb_without_branches_is_fedavg() -> None:
    for mode in ("loop", "stacked"):
        ends = [
            testing.finish(testing.start(algorithm, mode=mode))
            for algorithm in (FedMLB(lr=0.1, lam1=0.0, lam2=0.0), ud.FedAvg(lr=0.1))
        ]
        assert distance(*ends) < 1e-12


def test_at_the_start_every_hybrid_is_the_local_model() -> None:
    """local = global: each hybrid loss is the main loss and each KL is zero."""
    seen: list[tuple[float, float]] = []

    class Looks(ud.FedAvg):
        def local(self, down: Tensor, client: Any, steps: Any) -> Any:
            def step(y: Tensor, f: Any) -> Tensor:
                for level in range(int(f.level.max())):
                    mixed = f.outputs(torch.where(f.level <= level, y, down))
                    same = distance(mixed.logits, f.outputs(y).logits)
                    seen.append((float(mixed.loss - f(y)), same))
                return y

            return steps(step, down) - down, client

    testing.finish(testing.start(Looks(lr=0.1), model=net(dropout=0.3)))
    assert seen
    assert max(abs(a) + b for a, b in seen) < 1e-12


def test_weight_decay_is_not_in_the_hybrid_losses() -> None:
    """Outputs.loss is of the data alone, also when the objective is regularised."""
    ends = [
        testing.finish(
            testing.start(FedMLB(lr=0.1, lam2=0.0), model=net(), rounds=1, work=ud.Steps(1),
                          weight_decay=decay)
        )
        for decay in (0.0, 0.5)
    ]  # fmt: skip
    start = testing.start(ud.FedAvg(lr=0.1), model=net()).x
    assert distance(ends[0] - ends[1], 0.1 * 0.5 * start) < 1e-12


def test_models_without_what_is_asked_are_refused_before_any_work() -> None:
    flat = nn.Linear(6, 3).double()
    with pytest.raises(ValueError, match=r"MOON needs a model with features.*hidden layer"):
        testing.start(MOON(lr=0.1), model=flat)
    with pytest.raises(ValueError, match="FedMLB needs a model of two or more trained blocks"):
        testing.start(FedMLB(lr=0.1), model=nn.Sequential(flat))


@pytest.mark.parametrize("stem", [3, pytest.param(7, marks=pytest.mark.long)])
def test_moon_and_fedmlb_run_on_resnet18(stem: int) -> None:
    torch.manual_seed(0)
    model = ud.models.build("resnet18-gn", shape=(3, 32, 32), classes=10, stem=stem, projection=256)
    first = on_images(MOON(lr=0.01), model)
    plain = on_images(ud.FedAvg(lr=0.01), model)
    next(first), next(plain)
    assert distance(first.x, plain.x) < 1e-6, "log 2: no gradient in the first step"
    if stem == 3:
        return
    branched = on_images(FedMLB(lr=0.01), model)
    next(branched)
    assert branched.x.isfinite().all()
    moved = (branched.x - plain.x).abs()
    level = Layout.of(model).level
    assert all(float(moved[level == block].max()) > 0 for block in range(5))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"stem": 3}, 11_173_962),
        ({"stem": 7}, 11_181_642),
        ({"stem": 3, "projection": 256}, 11_173_962 - 5_130 + 262_656 + 131_328 + 2_570),
    ],
)
def test_resnet18_has_the_documents_parameters(options: dict[str, int], count: int) -> None:
    model = ud.models.build("resnet18-gn", shape=(3, 32, 32), classes=10, **options)
    assert sum(p.numel() for p in model.parameters()) == count
    assert Layout.of(model).levels[0] == 0
    assert set(Layout.of(model).levels) == set(range(6)), "five blocks and the classifier"


def test_a_model_names_its_own_blocks_and_classifier() -> None:
    class Own(nn.Module):
        blocks = ("body",)

        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(4, 3)  # registered first, run last
            self.body = nn.Linear(6, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.classifier(torch.tanh(self.body(inputs)))

    torch.manual_seed(0)
    model = Own().double()
    assert Layout.of(model).levels == (1, 1, 0, 0)
    for algorithm in (MOON(lr=0.05), FedMLB(lr=0.05)):
        ends = [
            testing.finish(testing.start(algorithm, model=model, mode=mode))
            for mode in ("loop", "stacked")
        ]
        assert distance(*ends) < 1e-12


def test_schedules_reach_the_new_methods() -> None:
    changing = MOON(lr=0.1, mu=ud.piecewise(1.0, {2: 0.0}))
    constant = replace(changing, mu=1.0)
    ends = [testing.finish(testing.start(a, model=net(), rounds=4)) for a in (changing, constant)]
    assert distance(*ends) > 1e-9


def _unflattened(x: Tensor) -> nn.Module:
    model = net()
    nn.utils.vector_to_parameters(x, model.parameters())
    return model


def _moon_term(y: Tensor, x: Tensor, prev: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    z, z_glob, z_prev = (_unflattened(v)[:5](data[0]) for v in (y, x, prev))
    a, b = torch.cosine_similarity(z, z_glob), torch.cosine_similarity(z, z_prev)
    return 0.7 * -torch.log((a / 0.5).exp() / ((a / 0.5).exp() + (b / 0.5).exp())).mean()


def _mlb_term(y: Tensor, x: Tensor, prev: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    local, frozen, total = _unflattened(y), _unflattened(x), torch.zeros(()).double()
    for cut in (1, 4):
        hybrid = frozen[cut:](local[:cut](data[0]))
        p, q = hybrid.softmax(1), local(data[0]).softmax(1)
        total = total + cross_entropy(hybrid, data[1]) + (p * (p / q).log()).sum(1).mean()
    return total / 2


def _square(weight: float) -> Any:
    return lambda y, x, prev, data: 0.5 * weight * (y - x).dot(y - x)


@pytest.mark.parametrize(
    ("algorithm", "term"),
    [
        (ud.FedProx(lr=0.2, mu=0.6), _square(0.6)),
        (ud.FedACG(lr=0.2, beta=0.4), _square(0.4)),
        (ud.FedSpeed(lr=0.2, lam=2.0, perturbation=False), _square(0.5)),
        (MOON(lr=0.2, mu=0.7, rule=ud.SGD()), _moon_term),
        (FedMLB(lr=0.2), _mlb_term),
    ],
    ids=["fedprox", "fedacg", "fedspeed", "moon", "fedmlb"],
)
def test_regularisers_by_finite_differences(algorithm: Any, term: Any) -> None:
    """The second local step, y1 -> y2, is along the gradient of F + term at y1, away from x."""
    clients, sent = testing.small_clients((9,)), []
    prev = nn.utils.parameters_to_vector(net(seed=5).parameters()).detach()
    for steps in (1, 2):
        run = testing.start(
            algorithm, model=net(), clients=clients, work=ud.Steps(steps), rounds=1,
            tap=lambda u: sent.append(u.upload), **SMOOTH,
        )  # fmt: skip
        x = run.x.clone()
        if isinstance(algorithm, MOON):
            run.client_states[0] = prev
        next(run)
    y, taken = x + sent[0], (sent[0] - sent[1]) / algorithm.lr

    def objective(v: Tensor) -> Tensor:
        loss = cross_entropy(_unflattened(v)(clients[0][0]), clients[0][1])
        return loss + term(v, x, prev, clients[0])

    h, basis = 1e-5, torch.eye(len(y), dtype=torch.float64)
    with torch.no_grad():
        slopes = [(objective(y + h * e) - objective(y - h * e)) / (2 * h) for e in basis]
    assert distance(taken, torch.stack(slopes)) < 1e-8
