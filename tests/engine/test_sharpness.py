"""Sharpness against closed forms: quadratics have a constant Hessian and a known ascent step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support.problems import bed, gradients
from undrift import testing
from undrift.engine import sharpness
from undrift.engine.sharpness import RADIUS, SAMPLES, largest_eigenvalue

ON = ud.EvaluationOptions(sharpness=True)


def matrix_with(eigenvalues: list[float], seed: int = 0) -> Tensor:
    """Return a symmetric matrix with these eigenvalues and random eigenvectors."""
    rng = np.random.default_rng(seed)
    Q = torch.from_numpy(np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))[0])
    return Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.T


@pytest.mark.parametrize(
    ("eigenvalues", "largest"),
    [
        ([5.0, 2.0, 1.0], 5.0),
        ([3.0, -1.0, 0.5], 3.0),
        ([1.0, -4.0, 0.5], 1.0),  # the largest in absolute value is another
        ([-1.0, -4.0, -2.0], -1.0),
        ([0.0, 0.0], 0.0),
        ([2.0, 2.0, 0.0], 2.0),
    ],
)
def test_the_largest_eigenvalue_is_found_whatever_the_signs(
    eigenvalues: list[float], largest: float
) -> None:
    H = matrix_with(eigenvalues)
    start = torch.from_numpy(np.random.default_rng(1).normal(size=len(eigenvalues)))
    found = largest_eigenvalue(lambda v: H @ v, start, iterations=500, tolerance=1e-14)
    assert found == pytest.approx(largest, abs=1e-9)


def test_power_iteration_ends_at_its_tolerance_and_at_its_limit() -> None:
    H, asked = matrix_with([5.0, 2.0, 1.0]), []

    def product(v: Tensor) -> Tensor:
        asked.append(v)
        return H @ v

    start = torch.ones(3, dtype=torch.float64)
    assert largest_eigenvalue(product, start) == pytest.approx(5.0, rel=1e-3)
    assert len(asked) < 20
    asked.clear()
    largest_eigenvalue(product, start, iterations=2, tolerance=0.0)
    assert len(asked) == 2
    assert np.isnan(largest_eigenvalue(lambda v: v * torch.nan, start))


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_sharpness_of_quadratics(weighting: str) -> None:
    """F(x) = sum w_i (x - b_i)' A_i (x - b_i) / 2 rises by r ||g|| + r^2 g'Hg / 2 ||g||^2."""
    problem = bed()
    run = ud.simulate(
        ud.FedAvg(lr=0.05),
        problem.model(),
        problem.clients,
        loss=problem.loss,
        work=ud.Steps(3),
        rounds=1,
        weighting=weighting,  # type: ignore[arg-type]
        weight_decay=0.2,  # which is of the method, not of the loss
        evaluation=ON,
    )
    (record,) = run
    w = run._planner.population
    H = sum(weight * A for weight, A in zip(w, problem.A, strict=True))
    g = torch.tensor(w) @ gradients(problem, run.x)
    rise = RADIUS * g.norm() + RADIUS**2 / 2 * (g @ H @ g) / g.square().sum()
    assert record.sharpness == pytest.approx(float(rise), rel=1e-9)
    exact = float(torch.linalg.eigvalsh(H)[-1])
    assert record.hessian == pytest.approx(exact, rel=5e-3)
    finer = largest_eigenvalue(
        lambda v: sharpness._SecondOrder(run.sample_evaluator(), 2).hessian(run.x, v),
        torch.ones_like(run.x),
        tolerance=1e-13,
    )
    assert finer == pytest.approx(exact, rel=1e-9)


def test_at_the_optimum_the_gradient_may_have_no_direction() -> None:
    clients = ud.Clients([(torch.ones(4, 1), torch.zeros(4, 1))])
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        model,
        clients,
        loss=nn.functional.mse_loss,
        work=ud.Steps(1),
        rounds=1,
        evaluation=ON,
    )
    (record,) = run
    assert record.sharpness is None
    assert record.hessian == pytest.approx(2.0)


def test_a_linear_loss_has_no_curvature() -> None:
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        nn.Linear(2, 1, bias=False),
        ud.Clients([(torch.ones(4, 2), torch.zeros(4, 1))]),
        loss=lambda outputs, targets: outputs.mean(),
        work=ud.Steps(1),
        rounds=1,
        evaluation=ON,
    )
    (record,) = run
    assert record.hessian == 0.0
    assert record.sharpness == pytest.approx(RADIUS * 2**0.5, rel=1e-5)


def test_the_hessian_of_a_net_is_that_of_torch() -> None:
    """With dropout off, in batches, against torch.func.hessian on all data at once."""
    clients = testing.small_clients()
    evaluation = ud.EvaluationOptions(sharpness=True, batch_size=3)
    run = testing.start(ud.FedAvg(lr=0.1), clients=clients, rounds=1, evaluation=evaluation)
    (record,) = run
    task = run._task
    task.model.eval()

    def loss(x: Tensor) -> Tensor:
        return sum(  # type: ignore[return-value]
            float(w) * task.loss(task.forward(x, clients[i][0]), clients[i][1])
            for i, w in enumerate(run._planner.population)
        )

    exact = torch.linalg.eigvalsh(torch.func.hessian(loss)(run.x))
    g = torch.func.grad(loss)(run.x)
    rise = float(loss(run.x + RADIUS * g / g.norm()) - loss(run.x))
    assert record.hessian == pytest.approx(float(exact[-1]), rel=0.02)
    assert record.sharpness == pytest.approx(rise, rel=1e-9)


def test_measuring_changes_nothing_and_is_off_unless_asked_for() -> None:
    plain, measured = (
        testing.start(ud.FedAvg(lr=0.1), rounds=2, evaluation=options)
        for options in (ud.EvaluationOptions(), ud.EvaluationOptions(sharpness=True, every=2))
    )
    assert torch.equal(testing.finish(plain), testing.finish(measured))
    assert plain.records[-1].sharpness is plain.records[-1].hessian is None
    first, last = measured.records
    assert first.sharpness is first.hessian is None
    assert last.sharpness is not None
    assert last.hessian is not None
    assert measured._task.model.training


def test_peers_are_measured_at_their_mean() -> None:
    problem = bed()
    run = ud.simulate(
        ud.DSGD(lr=0.05),
        problem.model(),
        problem.clients,
        loss=problem.loss,
        topology=ud.topology.ring(5),
        work=ud.Steps(1),
        rounds=2,
        evaluation=ON,
    )
    *_, record = run
    g, H = gradients(problem, run.mean).mean(0), problem.A.mean(0)
    rise = RADIUS * g.norm() + RADIUS**2 / 2 * (g @ H @ g) / g.square().sum()
    assert record.sharpness == pytest.approx(float(rise), rel=1e-9)


@pytest.mark.parametrize(("weighting", "share"), [("uniform", 0.5), ("size", 100 / 3100)])
def test_large_data_are_sampled_as_the_objective_weighs_them(weighting: str, share: float) -> None:
    """Client i has the target i, so that the mean target is the share of the second."""
    sizes = (3000, 100)
    pairs = [(torch.zeros(n, 1), torch.full((n, 1), float(i))) for i, n in enumerate(sizes)]
    runs = [
        ud.simulate(
            ud.FedAvg(lr=0.1),
            nn.Linear(1, 1),
            ud.Clients(pairs, test=(torch.ones(2, 1), torch.ones(2, 1))),
            loss=nn.functional.mse_loss,
            work=ud.Steps(1),
            rounds=1,
            weighting=weighting,  # type: ignore[arg-type]
            seed=seed,
            evaluation=ON,
        )
        for seed in (0, 0, 1)
    ]
    samples = [run.sample_evaluator() for run in runs]
    targets = [each.clients.targets for each in samples]
    assert all(len(each) == SAMPLES for each in targets)
    assert torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])
    assert all(abs(float(each.mean()) - share) < 0.1 for each in targets)
    assert samples[0].clients.test is None


def test_a_loss_that_is_no_mean_sees_all_samples_at_once() -> None:
    def worst(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none").logsumexp(0)

    clients = testing.small_clients()
    run = testing.start(ud.FedAvg(lr=0.1), clients=clients, rounds=1, loss=worst, evaluation=ON)
    (record,) = run
    task = run._task
    task.model.eval()

    def loss(x: Tensor) -> Tensor:
        return sum(  # type: ignore[return-value]
            float(w) * worst(task.forward(x, clients[i][0]), clients[i][1])
            for i, w in enumerate(run._planner.population)
        )

    g = torch.func.grad(loss)(run.x)
    rise = float(loss(run.x + RADIUS * g / g.norm()) - loss(run.x))
    assert record.sharpness == pytest.approx(rise, rel=1e-9)


class Once(torch.autograd.Function):
    """Has no second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * grad


class Square(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return Once.apply(super().forward(inputs))  # type: ignore[no-any-return, no-untyped-call]


def test_a_model_without_second_derivatives_is_named() -> None:
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        Square(2, 1),
        ud.Clients([(torch.ones(4, 2), torch.zeros(4, 1))]),
        loss=nn.functional.mse_loss,
        work=ud.Steps(1),
        rounds=1,
        mode="loop",
        evaluation=ON,
    )
    with pytest.raises(ud.UndriftError, match="needs a model that torch can differentiate twice"):
        next(run)
