"""Server rules, normalised averaging, FedLin and the sharpness-aware methods: contract, reductions,
closed forms and costs. Their boxes are in tests/algorithms/boxes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.algorithms.reductions import (
    PARTIAL,
    STEPS,
    TIGHT,
    UNEQUAL,
    Plain,
    Runner,
    four_copies,
    on_the_stacked_net,
    orthogonal,
    quadratics,
    rotated,
    shifted,
    trajectory_end,
    vector,
)
from tests.support.problems import bed, gradients
from tests.support.runs import distance, on_net, on_quadratics, start_on_quadratics
from undrift import FedAvg, FedProx, FedSpeed, Momentum, Scaffold, Schedule, testing
from undrift.algorithms.diloco import DiLoCo
from undrift.algorithms.fedacg import FedACG
from undrift.algorithms.fedadagrad import FedAdagrad
from undrift.algorithms.fedadam import FedAdam
from undrift.algorithms.fedavgm import FedAvgM
from undrift.algorithms.fedcm import FedCM
from undrift.algorithms.fedgamma import FedGamma
from undrift.algorithms.fedlin import FedLin
from undrift.algorithms.fednova import FedNova
from undrift.algorithms.fedsam import FedSAM
from undrift.algorithms.fedyogi import FedYogi
from undrift.algorithms.mofedsam import MoFedSAM
from undrift.testing import small_clients, small_net

COORDINATEWISE = (FedAdam, FedYogi, FedAdagrad)
METHODS = [
    FedAvgM(lr=0.1),
    FedAdam(lr=0.1),
    FedYogi(lr=0.1),
    FedAdagrad(lr=0.1),
    FedNova(lr=0.1, mu=0.5, rho=0.6),
    FedLin(lr=0.1),
    FedSAM(lr=0.1),
    MoFedSAM(lr=0.1),
    FedGamma(lr=0.1),
]
methods = pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)


# tests/algorithms/test_contract.py checks every registered class at its defaults.
UNCHECKED = [a for a in METHODS if type(a) not in ud.ALGORITHMS or a != type(a)(lr=0.1)]


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("algorithm", UNCHECKED, ids=lambda a: type(a).__name__)
def test_contract(algorithm: Any, check: Any) -> None:
    check(algorithm)


BAD = [
    (DiLoCo, {"beta": 1.0}, r"DiLoCo needs beta in \[0, 1\), got 1.0"),
    (DiLoCo, {"server_lr": -1.0}, "DiLoCo needs server_lr >= 0"),
    (FedAvgM, {"beta": 1.0}, r"FedAvgM needs beta in \[0, 1\), got 1.0"),
    (FedAvgM, {"server_lr": -1.0}, "FedAvgM needs server_lr >= 0"),
    *((cls, {"tau": 0.0}, f"{cls.__name__} needs tau > 0") for cls in COORDINATEWISE),
    *((cls, {"beta1": 1.0}, f"{cls.__name__} needs beta1 in") for cls in COORDINATEWISE),
    *((cls, {"server_lr": -0.1}, f"{cls.__name__} needs server_lr >= 0") for cls in COORDINATEWISE),
    (FedAdam, {"beta2": 1.0}, "FedAdam needs beta2 in"),
    (FedYogi, {"beta2": -0.1}, "FedYogi needs beta2 in"),
    (FedNova, {"mu": -1.0}, "FedNova needs mu >= 0"),
    (FedNova, {"rho": 1.0}, "FedNova needs rho in"),
    (FedNova, {"mu": 10.0}, r"FedNova needs lr \* mu < 1, got 1.0; lower mu or lr"),
    (FedSAM, {"rho": -0.1}, "FedSAM needs rho >= 0"),
    (MoFedSAM, {"rho": -0.1}, "MoFedSAM needs rho >= 0"),
    (MoFedSAM, {"alpha": 0.0}, "MoFedSAM needs alpha in"),
    (FedGamma, {"rho": -0.1}, "FedGamma needs rho >= 0"),
    (FedGamma, {"server_lr": -0.1}, "FedGamma needs server_lr >= 0"),
    *((type(a), {"lr": 0.0}, f"{type(a).__name__} needs lr > 0") for a in METHODS),
]


@pytest.mark.parametrize(("cls", "options", "message"), BAD)
def test_bad_hyper_parameters_are_refused(cls: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**{"lr": 0.1, **options})


# Reductions


@pytest.fixture(params=["quadratics-loop", "net-loop", "net-stacked"])
def on(request: pytest.FixtureRequest) -> Runner:
    """Three rounds with unequal work, absences and unequal weights; the net has ragged minibatches
    and dropout."""
    task, mode = request.param.split("-")

    def run(algorithm: Any, **options: Any) -> ud.Run:
        settings = {"rounds": 3, "work": ud.Steps(STEPS), "participation": PARTIAL}
        options = {**settings, "weighting": UNEQUAL, **options}
        if task == "net":
            return on_net(algorithm, mode=mode, **options)
        return on_quadratics(algorithm, quadratics(), mode=mode, **options)

    return run


T = 1e8
SAME = {
    "FedAvgM(beta=0, mu) = FedProx(mu)": (
        FedAvgM(lr=0.3, beta=0, mu=0.4),
        FedProx(lr=0.3, mu=0.4),
    ),
    "FedAvgM(beta=0) = FedAvg": (
        FedAvgM(lr=0.3, beta=0, server_lr=0.6, rule=Momentum(0.5)),
        FedAvg(lr=0.3, server_lr=0.6, rule=Momentum(0.5)),
    ),
    "DiLoCo = FedAvgM with Nesterov, AdamW and kept moments": (
        DiLoCo(lr=0.02),
        FedAvgM(lr=0.02, beta=0.9, server_lr=0.7, nesterov=True, rule=ud.AdamW(), keep_rule=True),
    ),
    "DiLoCo(beta=0, server_lr=1) = FedAvg with kept moments": (
        DiLoCo(lr=0.1, beta=0, server_lr=1, rule=Momentum(0.5)),
        FedAvg(lr=0.1, rule=Momentum(0.5), keep_rule=True),
    ),
    "FedProx(mu=0) = FedAvg with kept moments": (
        FedProx(lr=0.1, mu=0, rule=Momentum(0.5), keep_rule=True),
        FedAvg(lr=0.1, rule=Momentum(0.5), keep_rule=True),
    ),
    "FedACG(lam=0, beta=0) = FedAvg with kept moments": (
        FedACG(lr=0.1, lam=0, beta=0, rule=Momentum(0.5), keep_rule=True),
        FedAvg(lr=0.1, rule=Momentum(0.5), keep_rule=True),
    ),
    "FedSAM(rho=0) = FedAvg": (FedSAM(lr=0.3, rho=0), FedAvg(lr=0.3)),
    "FedSAM = FedSpeed with alpha=1 and nothing else": (
        FedSAM(lr=0.3, rho=0.2),
        FedSpeed(lr=0.3, rho=0.2, alpha=1, correction=False, prox=False),
    ),
    "MoFedSAM(rho=0) = FedCM": (MoFedSAM(lr=0.3, rho=0, alpha=0.3), FedCM(lr=0.3, alpha=0.3)),
    "MoFedSAM(alpha=1) = FedSAM": (MoFedSAM(lr=0.3, rho=0.2, alpha=1), FedSAM(lr=0.3, rho=0.2)),
    "FedGamma(rho=0) = Scaffold": (
        FedGamma(lr=0.3, rho=0, server_lr=0.7),
        Scaffold(lr=0.3, server_lr=0.7),
    ),
    # For tau -> infinity v is the tau^2 it starts at, which Adam forgets at the rate of beta2.
    "FedAdagrad(tau=inf) = FedAvg": (FedAdagrad(lr=0.3, tau=T, server_lr=2 * T), FedAvg(lr=0.3)),
    "FedYogi(tau=inf) = FedAvgM": (
        FedYogi(lr=0.3, beta1=0.6, tau=T, server_lr=2 * T),
        FedAvgM(lr=0.3, beta=0.6, server_lr=0.4),
    ),
    "FedAdam(tau=inf) = FedAvgM": (
        FedAdam(
            lr=0.3,
            beta1=0.6,
            beta2=0.5,
            tau=T,
            server_lr=Schedule(lambda t: T * (1 + 0.5 ** ((t + 1) / 2))),
        ),
        FedAvgM(lr=0.3, beta=0.6, server_lr=0.4),
    ),
    "FedAdam(beta2=0, tau=inf) = FedAvgM": (
        FedAdam(lr=0.3, beta1=0.6, beta2=0, tau=T, server_lr=T),
        FedAvgM(lr=0.3, beta=0.6, server_lr=0.4),
    ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.wide(daily=on_the_stacked_net)
def test_same_for_any_work_participation_and_weights(name: str, on: Runner) -> None:
    one, other = SAME[name]
    assert distance(on(one).x, on(other).x) < (1e-6 if "inf" in name else TIGHT)


SAME_FOR_EQUAL_WORK = {
    "FedNova = FedAvg": (FedNova(lr=0.3), FedAvg(lr=0.3)),
    "FedNova(mu) = FedProx": (FedNova(lr=0.3, mu=0.7), FedProx(lr=0.3, mu=0.7)),
    "FedNova(rho) = FedAvg with momentum": (
        FedNova(lr=0.3, rho=0.8),
        FedAvg(lr=0.3, rule=Momentum(0.8)),
    ),
}


@pytest.mark.parametrize("name", SAME_FOR_EQUAL_WORK)
def test_same_for_equal_work(name: str, on: Runner) -> None:
    one, other = SAME_FOR_EQUAL_WORK[name]
    assert distance(on(one, work=ud.Steps(3)).x, on(other, work=ud.Steps(3)).x) < TIGHT
    assert distance(on(one).x, on(other).x) > 1e-4


@pytest.mark.parametrize("algorithm", [FedNova(lr=0.3, mu=0.7, rho=0.8), FedLin(lr=0.3)], ids=repr)
def test_one_step_is_fedavg(algorithm: Any, on: Runner) -> None:
    """FedLin's corrections cancel in the mean, whatever the minibatches and masks are."""
    one, other = on(algorithm, work=ud.Steps(1)), on(FedAvg(lr=0.3), work=ud.Steps(1))
    assert distance(one.x, other.x) < TIGHT


FIRST_ROUNDS = [
    (FedAvgM(lr=0.3, server_lr=0.7), FedAvg(lr=0.3, server_lr=0.7)),
    (MoFedSAM(lr=0.3, rho=0.2, alpha=0.4), FedSAM(lr=0.3 * 0.4, rho=0.2)),
    (FedGamma(lr=0.3, rho=0.2), FedSAM(lr=0.3, rho=0.2)),
]


@pytest.mark.parametrize(("one", "other"), FIRST_ROUNDS, ids=["FedAvgM", "MoFedSAM", "FedGamma"])
def test_first_round_has_no_memory_yet(one: Any, other: Any, on: Runner) -> None:
    options = {"participation": [[0, 1, 3], [0, 1]]}
    assert distance(on(one, rounds=1, **options).x, on(other, rounds=1, **options).x) < TIGHT
    assert distance(on(one, rounds=2, **options).x, on(other, rounds=2, **options).x) > 1e-4


FIRST_V = {
    FedAdam: lambda d, tau: 0.7 * tau**2 + 0.3 * d**2,
    FedYogi: lambda d, tau: tau**2 - 0.3 * d**2 * (tau**2 - d**2).sign(),
    FedAdagrad: lambda d, tau: tau**2 + d**2,
}


@pytest.mark.parametrize("cls", FIRST_V)
def test_first_adaptive_round_in_closed_form(cls: Any, on: Runner) -> None:
    """v starts at tau^2, m at zero, and nothing is corrected for it."""
    tau = 0.05
    options = {} if cls is FedAdagrad else {"beta2": 0.7}
    x0, x1 = on(FedAvg(lr=0.3), rounds=0).x, on(FedAvg(lr=0.3), rounds=1).x
    run = on(cls(lr=0.3, server_lr=0.2, beta1=0.6, tau=tau, **options), rounds=1)
    d = x1 - x0
    expected = x0 + 0.2 * 0.4 * d / (FIRST_V[cls](d, tau).sqrt() + tau)
    assert distance(run.x, expected) < TIGHT


@pytest.mark.parametrize(
    "algorithm",
    [cls(lr=0.3, server_lr=0) for cls in (FedAvgM, FedGamma, *COORDINATEWISE)],
    ids=repr,
)
def test_server_that_does_not_move_leaves_the_start(algorithm: Any) -> None:
    problem = quadratics()
    run = on_quadratics(algorithm, problem, rounds=3, participation=PARTIAL)
    assert torch.equal(run.x, problem.x0)


@pytest.fixture(params=["quadratics-stacked", "net-loop"])
def plain(request: pytest.FixtureRequest) -> Plain:
    """Whole local data and no dropout, so that torch.optim can follow by hand."""
    return Plain(*request.param.split("-"))


OPTIMISERS = {
    "FedAvgM": (
        FedAvgM(lr=0.4, beta=0.7, server_lr=0.6),
        torch.optim.SGD,
        {"lr": 0.4 * 0.6, "momentum": 0.7},
    ),
    "FedAdagrad": (
        FedAdagrad(lr=1.0, server_lr=0.2, tau=0.3),
        torch.optim.Adagrad,
        {"lr": 0.2, "eps": 0.3, "initial_accumulator_value": 0.3**2},
    ),
    "FedNova": (FedNova(lr=0.4, mu=0.5, rho=0.6), torch.optim.SGD, {"lr": 0.4}),
    "FedLin": (FedLin(lr=0.4), torch.optim.SGD, {"lr": 0.4}),
    "FedGamma": (FedGamma(lr=0.4, rho=0), torch.optim.SGD, {"lr": 0.4}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_one_step_of_everybody_is_the_optimiser(name: str, plain: Plain) -> None:
    algorithm, optimiser, options = OPTIMISERS[name]
    run = plain.run(algorithm, rounds=5, work=ud.Steps(1), weighting=UNEQUAL)
    expected = plain.by_hand(optimiser, 5, UNEQUAL, **options)
    assert distance(run.x, expected) < TIGHT


@methods
def test_identical_clients_are_one_client(algorithm: Any) -> None:
    plain = Plain("quadratics", "stacked")
    many, one = four_copies(plain)
    options = {"rounds": 3, "work": ud.Steps(3)}
    expected = plain.run(algorithm, one, **options).x
    actual = plain.run(algorithm, many, **options, weighting=UNEQUAL).x
    assert distance(actual, expected) < TIGHT


@methods
def test_shift_and_rotation_of_the_problem(algorithm: Any) -> None:
    """A shift moves every trajectory; a rotation turns those that do not know their coordinates."""
    problem, v, Q = quadratics(), 5 * vector(8), orthogonal()
    x = trajectory_end(algorithm, problem)
    assert distance(x, problem.x0) > 1e-2
    assert distance(trajectory_end(algorithm, shifted(problem, v)), x + v) < TIGHT
    gap = distance(trajectory_end(algorithm, rotated(problem, Q)), Q @ x)
    assert gap > 1e-2 if isinstance(algorithm, COORDINATEWISE) else gap < TIGHT


# Closed forms on quadratics, from a start that is not zero

PROBLEM = replace(quadratics(), **vars(bed(4, seed=2, condition=2.5)))
A, B = PROBLEM.A, PROBLEM.b
N, D = B.shape
EYE = torch.eye(D, dtype=A.dtype)
UNIFORM = [0.25] * 4
WORK = [3, 1, 2, 5]

weights = pytest.mark.parametrize("w", [UNIFORM, UNEQUAL], ids=["uniform", "unequal"])
# A cohort that always returns is a population of its own, with its weights renormalised.
settings = pytest.mark.parametrize(
    ("w", "cohort"),
    [(UNIFORM, [0, 1, 2, 3]), (UNEQUAL, [0, 1, 2, 3]), (UNEQUAL, [3, 0, 2])],
    ids=["uniform", "unequal", "partial"],
)


def unequal_run(
    algorithm: Any, *, rounds: int, w: Sequence[float] = UNEQUAL, **options: Any
) -> ud.Run:
    """Return a run before its first round, with unequal work and weights."""
    options = {"work": ud.Steps(WORK), "mode": "loop", **options}
    problem = options.pop("problem", PROBLEM)
    return start_on_quadratics(algorithm, problem, rounds=rounds, weighting=w, **options)


def end(algorithm: Any, **options: Any) -> Tensor:
    return testing.finish(unequal_run(algorithm, **options))


def share(w: Sequence[float], cohort: Sequence[int]) -> list[float]:
    return [w[i] if i in cohort else 0.0 for i in range(N)]


def weighted_mean(w: Sequence[float], rows: Tensor) -> Tensor:
    """Return sum_i w_i rows_i / sum_i w_i."""
    return torch.tensordot(torch.tensor(w, dtype=A.dtype) / sum(w), rows, 1)


def psi(curvature: Tensor, lr: float) -> Tensor:
    """(N, D, D) I - (I - lr H_i)^K_i."""
    pairs = zip(curvature, WORK, strict=True)
    return EYE - torch.stack([torch.linalg.matrix_power(EYE - lr * h, k) for h, k in pairs])


def balance(w: Sequence[float], pull: Tensor, b: Tensor = B) -> Tensor:
    """x with sum_i w_i pull_i (x - b_i) = 0."""
    return torch.linalg.solve(
        weighted_mean(w, pull), weighted_mean(w, torch.einsum("ijk,ik->ij", pull, b))
    )


def updates(run: ud.Run) -> Callable[[], Tensor]:
    """Advances the run by a round and gives its mean upload."""
    sent: list[Tensor] = []
    run._tap = lambda up: sent.append(up.weight * up.upload)

    def advance() -> Tensor:
        sent.clear()
        next(run)
        return sum(sent, torch.zeros_like(run.x))

    return advance


@settings
def test_fedavgm_has_the_fixed_point_of_fedavg(w: Any, cohort: Any) -> None:
    algorithm = FedAvgM(lr=0.8, beta=0.2, server_lr=0.7)
    x = end(algorithm, w=w, rounds=35, participation=[cohort] * 35)
    assert distance(x, balance(share(w, cohort), psi(A, 0.8))) < 1e-10
    assert distance(x, PROBLEM.optimum(share(w, cohort))) > 1e-2


@pytest.mark.parametrize("beta", [0.4, 0.8])
def test_fedavgm_moves_a_shadow_of_its_model_by_the_undamped_update(beta: float) -> None:
    """z = x + beta / (1 - beta) m obeys z' - z = D / (1 - beta)."""
    run = unequal_run(FedAvgM(lr=0.3, beta=beta), rounds=8, participation=PARTIAL * 2 + PARTIAL[:2])
    advance, z = updates(run), run.x
    for _ in range(8):
        d = advance()
        after = run.x + beta / (1 - beta) * run.state.m
        assert distance(after - z, d / (1 - beta)) < 1e-13
        z = after


def test_fedadam_without_memory_steps_by_the_sign_up_to_tau() -> None:
    run = unequal_run(FedAdam(lr=0.3, server_lr=0.2, beta1=0, beta2=0, tau=0.01), rounds=5)
    advance, x = updates(run), run.x
    for _ in range(5):
        d = advance()
        assert distance(run.x, x + 0.2 * d / (d.abs() + 0.01)) < 1e-14
        assert ((run.x - x).abs() < 0.2).all()
        x = run.x


def test_fedadam_accumulates_averages_of_updates_and_squares() -> None:
    """m and v as weighted sums over the whole history, not as a recursion."""
    run = unequal_run(FedAdam(lr=0.3, beta1=0.8, beta2=0.6, tau=0.1), rounds=6)
    advance = updates(run)
    d = torch.stack([advance() for _ in range(6)])
    age = torch.arange(5, -1, -1, dtype=A.dtype)[:, None]
    assert distance(run.state.m, (0.2 * 0.8**age * d).sum(0)) < 1e-14
    assert distance(run.state.v, 0.6**6 * 0.1**2 + (0.4 * 0.6**age * d**2).sum(0)) < 1e-14


@pytest.mark.parametrize("tau", [0.5, 0.02])
def test_fedyogi_moves_v_towards_the_square_by_a_fixed_share_of_it(tau: float) -> None:
    run = unequal_run(FedYogi(lr=0.3, beta2=0.9, tau=tau), rounds=6)
    advance, v = updates(run), run.state.v
    up, down = 0, 0
    for _ in range(6):
        d = advance()
        assert distance((run.state.v - v).abs(), 0.1 * d**2) < 1e-15
        assert ((run.state.v > v) == (d**2 > v)).all()
        up, down = up + int((d**2 > v).sum()), down + int((d**2 < v).sum())
        v = run.state.v
    assert (down if tau == 0.5 else up) > 0


def test_fedadagrad_never_forgets_a_square() -> None:
    run = unequal_run(FedAdagrad(lr=0.3, tau=0.1), rounds=6)
    advance, v = updates(run), run.state.v
    total = torch.full_like(v, 0.1**2)
    for _ in range(6):
        total = total + advance() ** 2
        assert (run.state.v > v).all()
        assert distance(run.state.v, total) < 1e-15
        v = run.state.v


@pytest.mark.parametrize("cls", COORDINATEWISE)
def test_adaptive_steps_do_not_depend_on_the_scale_of_the_updates(cls: Any) -> None:
    cohort = ud.Cohort(0, 4, 4, 1.0)

    def path(scale: float, tau: float) -> Tensor:
        algorithm = cls(lr=0.1, tau=tau)
        server, seen = algorithm.init(torch.zeros(D, dtype=A.dtype)), []
        for seed in range(5):
            server = algorithm.update(server, scale * vector(seed), cohort)
            seen.append(server.x)
        return torch.stack(seen)

    assert distance(path(1, 1e-12), path(1000, 1e-12)) < 1e-8
    assert distance(path(1, 1.0), path(1000, 1.0)) > 1e-2


# FedNova


def nova_factors(lr: float, mu: float, rho: float, k: Sequence[int] = WORK) -> list[float]:
    """a_i as the paper writes it, for momentum or prox."""
    if mu:
        assert not rho
        return [(1 - (1 - lr * mu) ** n) / (lr * mu) for n in k]
    return [(n - rho * (1 - rho**n) / (1 - rho)) / (1 - rho) for n in k]


def brute_force_factor(lr: float, mu: float, rho: float, k: int) -> float:
    """The displacements by one unit gradient at each step in turn, and none at the others."""
    total = 0.0
    for j in range(k):
        moved = m = 0.0
        for n in range(k):
            m = rho * m + (n == j)
            moved = moved - lr * (m + mu * moved)
        total -= moved / lr
    return total


NOVAS = [(0.0, 0.0), (0.0, 0.9), (0.0, 0.3), (2.0, 0.0), (0.1, 0.0), (2.0, 0.6), (0.5, 0.9)]


@pytest.mark.parametrize(("mu", "rho"), NOVAS)
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fednova_factor_is_the_sum_of_the_weights_of_the_gradients(
    mu: float, rho: float, mode: Any
) -> None:
    k, lr, seen = [1, 2, 9, 4], 0.3, {}
    run = unequal_run(
        FedNova(lr=lr, mu=mu, rho=rho),
        rounds=1,
        work=ud.Steps(k),
        mode=mode,
        tap=lambda up: seen.update({up.client: float(up.upload.a)}),
    )
    next(run)
    brute = [brute_force_factor(lr, mu, rho, n) for n in k]
    assert [seen[i] for i in range(N)] == pytest.approx(brute, rel=1e-13)
    if not (mu and rho):
        assert brute == pytest.approx(nova_factors(lr, mu, rho, k), rel=1e-12)


@pytest.mark.parametrize(("mu", "rho"), NOVAS)
def test_fednova_reads_a_constant_gradient_off_any_local_solver(mu: float, rho: float) -> None:
    """On linear objectives the direction is the gradient, whatever the number of steps."""
    clients = ud.Clients([(PROBLEM.clients[i][0], torch.zeros(16, 1)) for i in range(N)])
    seen: dict[int, Tensor] = {}
    run = ud.simulate(
        FedNova(lr=0.3, mu=mu, rho=rho),
        PROBLEM.model(),
        clients,
        loss=lambda outputs, targets: outputs.mean(),
        work=ud.Steps(WORK),
        rounds=1,
        weighting=UNEQUAL,
        mode="loop",
        tap=lambda up: seen.update({up.client: up.upload.x}),
    )
    x = run.x.clone()
    next(run)
    g = torch.stack([clients[i][0].mean(0) for i in range(N)])
    assert distance(torch.stack([seen[i] for i in range(N)]), -0.3 * g) < 1e-14
    factor = sum(
        w * brute_force_factor(0.3, mu, rho, k) for w, k in zip(UNEQUAL, WORK, strict=True)
    )
    assert distance(run.x, x - 0.3 * factor * weighted_mean(UNEQUAL, g)) < 1e-13


def nova_point(w: Sequence[float], lr: float, mu: float = 0.0) -> Tensor:
    pull = psi(A + mu * EYE, lr) @ torch.linalg.inv(A + mu * EYE) @ A
    return balance(w, pull / torch.tensor(nova_factors(lr, mu, 0.0), dtype=A.dtype)[:, None, None])


@settings
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_fednova_converges_to_its_biased_fixed_point(w: Any, cohort: Any, mu: float) -> None:
    x = end(FedNova(lr=0.8, mu=mu), w=w, rounds=35, participation=[cohort] * 35)
    w = share(w, cohort)
    assert distance(x, nova_point(w, 0.8, mu)) < 1e-10
    assert distance(x, PROBLEM.optimum(w)) > 1e-3
    assert distance(x, balance(w, psi(A, 0.8))) > 1e-2  # FedAvg's


@weights
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_fednova_with_a_small_step_stays_at_the_optimum_where_fedavg_does_not(
    w: Any, mu: float
) -> None:
    optimum, errors = PROBLEM.optimum(w), []
    for lr in (1e-3, 1e-4):
        fixed = nova_point(w, lr, mu)
        run = unequal_run(FedNova(lr=lr, mu=mu), w=w, rounds=1)
        run.state = run.state._replace(x=fixed)
        next(run)
        assert distance(run.x, fixed) < 1e-14  # stationary, so this is where it would end
        errors.append(distance(fixed, optimum))
    assert errors[1] < 1e-3
    assert errors[1] / errors[0] == pytest.approx(0.1, rel=0.05)  # the bias is linear in lr
    assert distance(balance(w, psi(A, 1e-4)), optimum) > 1e-2


def test_fednova_bias_can_exceed_that_of_fedavg() -> None:
    """FedNova is right for small steps only: with large ones either can be nearer."""
    problems = [bed(4, seed=seed, condition=2.5) for seed in range(12)]
    nova, avg = [], []
    for problem in problems:
        pull = psi(problem.A, 0.8)
        for gaps, factors in ((nova, WORK), (avg, [1] * N)):
            scaled = pull / torch.tensor(factors, dtype=A.dtype)[:, None, None]
            point = balance(UNIFORM, scaled, problem.b)
            gaps.append(distance(point, problem.optimum(UNIFORM)))
    nearer = {n < a for n, a in zip(nova, avg, strict=True)}
    assert nearer == {True, False}
    worst = max(range(12), key=lambda i: nova[i] - avg[i])
    for algorithm, gap in ((FedNova(lr=0.8), nova[worst]), (FedAvg(lr=0.8), avg[worst])):
        x = end(algorithm, problem=problems[worst], rounds=50, w=UNIFORM)
        assert distance(x, problems[worst].optimum(UNIFORM)) == pytest.approx(gap, rel=1e-8)


# FedLin


@settings
@pytest.mark.parametrize("work", [[3, 1, 2, 5], [1, 8, 1, 2]], ids=str)
def test_fedlin_converges_to_the_optimum(w: Any, cohort: Any, work: Any) -> None:
    run = unequal_run(
        FedLin(lr=1.5), w=w, rounds=35, work=ud.Steps(work), participation=[cohort] * 35
    )
    testing.finish(run)
    optimum = PROBLEM.optimum(share(w, cohort))
    assert distance(run.x, optimum) < 1e-10
    assert run.state.g.norm() < 1e-9
    assert set(run.client_states.values()) == {()}, "nothing is kept for the next round"


@weights
def test_fedlin_is_scaffold_with_fresh_variates(w: Any) -> None:
    x = PROBLEM.x0
    for _ in range(3):
        scaffold = unequal_run(Scaffold(lr=0.6 / 4), w=w, rounds=1, work=ud.Steps(4))
        scaffold.state = scaffold.state._replace(x=x, c=weighted_mean(w, gradients(PROBLEM, x)))
        scaffold.client_states = dict(enumerate(gradients(PROBLEM, x)))
        next(scaffold)
        x = scaffold.x
    assert distance(end(FedLin(lr=0.6), w=w, rounds=3, work=ud.Steps(4)), x) < 1e-13


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedlin_collects_full_gradients_from_minibatch_clients(mode: Any) -> None:
    """Minibatches and dropout in the steps; without dropout the mean gradient is exact."""
    model, clients = small_net(dropout=0), small_clients()
    run = on_net(FedLin(lr=0.3), mode=mode, rounds=1, model=model, weighting=UNEQUAL)
    for i, weight in enumerate(UNEQUAL):
        inputs, targets = clients[i]
        (weight * nn.functional.cross_entropy(model(inputs), targets)).backward()
    g = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(run.state.g, g) < 1e-14


# Sharpness-aware methods


def test_first_sharpness_aware_step() -> None:
    x, rho, lr = PROBLEM.x0, 0.3, 0.4
    g = gradients(PROBLEM, x)
    bent = torch.einsum("ijk,ik->ij", A, g)
    plain = {"w": UNEQUAL, "rounds": 1, "work": ud.Steps(1)}
    expected = x - lr * weighted_mean(UNEQUAL, g + rho * bent)  # (I + rho A) A (x - b)
    assert distance(end(FedSAM(lr=lr, rho=rho, normalise=False), **plain), expected) < 1e-14
    unit = bent / (g.norm(dim=1, keepdim=True) + 1e-7)
    expected = x - lr * weighted_mean(UNEQUAL, g + rho * unit)
    assert distance(end(FedSAM(lr=lr, rho=rho), **plain), expected) < 1e-14
    assert distance(end(FedGamma(lr=lr, rho=rho), **plain), expected) < 1e-14
    expected = x - 0.2 * lr * weighted_mean(UNEQUAL, g + rho * unit)
    assert distance(end(MoFedSAM(lr=lr, rho=rho, alpha=0.2), **plain), expected) < 1e-14


@settings
def test_fedsam_without_normalisation_is_fedavg_on_bent_quadratics(w: Any, cohort: Any) -> None:
    """Its direction is (I + rho A) A (y - b), so its fixed point is FedAvg's with that matrix."""
    algorithm = FedSAM(lr=0.6, rho=0.4, normalise=False)
    x = end(algorithm, w=w, rounds=35, participation=[cohort] * 35)
    w = share(w, cohort)
    assert distance(x, balance(w, psi(A + 0.4 * A @ A, 0.6))) < 1e-10
    assert distance(x, balance(w, psi(A, 0.6))) > 1e-3


@weights
def test_fedgamma_variates_are_mean_gradients_and_their_weighted_mean_is_the_servers(
    w: Any,
) -> None:
    lr, rho = 0.3, 0.2
    pairs = [list(p) for p in itertools.combinations(range(N), 2)]
    run = unequal_run(FedGamma(lr=lr, rho=rho), w=w, rounds=len(pairs), participation=pairs)
    c_i = torch.zeros(N, D, dtype=A.dtype)
    for cohort in pairs:
        x, c = run.state
        for i in cohort:
            y, total = x, torch.zeros_like(x)
            for _ in range(WORK[i]):
                g = A[i] @ (y - B[i])
                g = A[i] @ (y + rho * g / (g.norm() + 1e-7) - B[i])
                y, total = y - lr * (g - c_i[i] + c), total + g
            c_i[i] = total / WORK[i]
        next(run)
        assert all(distance(run.client_states[i], c_i[i]) < 1e-13 for i in cohort)
        assert distance(run.state.c, weighted_mean(w, c_i)) < 1e-13


# Costs


COSTS = [  # vectors down, vectors up, scalars up, gradients a step, gradients a round
    (DiLoCo(lr=0.1), 1, 1, 0, 1, 0),
    (FedAvgM(lr=0.1), 1, 1, 0, 1, 0),
    (FedAdam(lr=0.1), 1, 1, 0, 1, 0),
    (FedYogi(lr=0.1), 1, 1, 0, 1, 0),
    (FedAdagrad(lr=0.1), 1, 1, 0, 1, 0),
    (FedNova(lr=0.1), 1, 1, 1, 1, 0),
    (FedNova(lr=0.1, mu=0.1, rho=0.5), 1, 1, 1, 1, 0),
    (FedLin(lr=0.1), 2, 2, 0, 1, 1),
    (FedSAM(lr=0.1), 1, 1, 0, 2, 0),
    (MoFedSAM(lr=0.1), 2, 1, 0, 2, 0),
    (FedGamma(lr=0.1), 2, 2, 0, 2, 0),
]


@pytest.mark.parametrize(
    ("algorithm", "down", "up", "scalars", "per_step", "per_round"), COSTS, ids=repr
)
@pytest.mark.parametrize(("mode", "dtype"), [("loop", torch.float32), ("stacked", torch.float64)])
def test_bytes_and_gradients_are_those_of_the_cost_table(
    algorithm: Any,
    down: int,
    up: int,
    scalars: int,
    per_step: int,
    per_round: int,
    mode: Any,
    dtype: torch.dtype,
) -> None:
    present = [[0, 1, 3], [2], [0, 1, 2, 3]]
    problem = bed(4, dtype=dtype)
    options = {"problem": problem, "mode": mode, "participation": present}
    size = dtype.itemsize
    for record, cohort in zip(unequal_run(algorithm, rounds=3, **options), present, strict=True):
        assert record.bytes_down == len(cohort) * down * D * size
        assert record.bytes_up == len(cohort) * (up * D + scalars) * size
        steps = sum(WORK[i] for i in cohort)
        assert record.gradients == per_step * steps + per_round * len(cohort)
        assert record.samples == record.gradients * 16


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedlin_pays_for_one_pass_over_the_local_data(mode: Any) -> None:
    options = {"rounds": 1, "mode": mode, "batch_size": 6}  # slices of 6, 6 and 4 samples
    plain, full = (
        next(unequal_run(FedAvg(lr=0.1), **options)),
        next(unequal_run(FedLin(lr=0.1), **options)),
    )
    assert full.gradients - plain.gradients == 3 * N
    assert full.samples - plain.samples == 16 * N


@methods
def test_only_fedgamma_holds_tensors_on_clients(algorithm: Any) -> None:
    held = next(iter(on_quadratics(algorithm, quadratics(), rounds=1).client_states.values()))
    assert (held != ()) == isinstance(algorithm, FedGamma)
