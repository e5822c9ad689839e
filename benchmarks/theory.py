"""Bounds beside measurements: the figures and tables of docs/theory/*.md.

    python -m benchmarks.theory                  # all systems, about a minute on two idle cores
    python -m benchmarks.theory marsit netfleet  # some of them
    python -m benchmarks.theory fedacg --rounds 100 --seeds 1

Three problems: quadratics whose constants are exact; logistic regression on 4,000 samples of a9a,
whose L is the largest eigenvalue of X'X / (4 n), whose minibatch noise is at most sqrt(14 / batch)
(each row has at most 14 ones) and whose zeta is at most 2 sqrt(L); and a net of tanh on digits,
whose constants are measured (`ud.theory.estimate`), so that its bound is an estimate. Four clients,
minibatches of 8 (quadratics: 1), hyper-parameters within the conditions of the theorem. Measured is
the mean over rounds so far of the quantity that the theorem bounds, the mean over seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

import undrift as ud
from undrift.files import write_atomic
from undrift.gradients.task import Batch, Task
from undrift.models.layout import Layout
from undrift.report import style
from undrift.theory import Bound, Constants, fedacg, fedagrac, fedspeed, marsit, netfleet

DOCS = Path(__file__).parents[1] / "docs" / "theory"
CLIENTS, STEPS = 4, 4
UNEQUAL = [2, 2, 4, 16]  # local steps of FedaGrac's clients
BEGIN, END = "<!-- measured -->", "<!-- end -->"


@dataclass(frozen=True)
class Problem:
    """Holds clients, the objective's constants and its derivatives."""

    name: str
    clients: ud.Clients
    model: Callable[[], nn.Module]
    loss: Any
    batch: int
    constants: Constants
    minimum: float  # of F
    losses_at_minimum: Sequence[float] | None  # F_i there; None where it is not known
    rounds: int = 200
    seeds: int = 2

    @cached_property
    def task(self) -> Task:
        model = self.model()
        return Task(model, Layout.of(model), self.loss)

    @cached_property
    def batches(self) -> list[Batch]:
        return [Batch(*self.clients[i]) for i in range(len(self.clients))]

    def values(self, x: Tensor) -> list[float]:
        """Return F_i(x)."""
        with torch.no_grad():
            return [float(self.task.value(x, batch)) for batch in self.batches]

    def gradient(self, x: Tensor) -> Tensor:
        """Return grad F(x) with equal weights."""
        return torch.stack([self.task.gradient(x, batch) for batch in self.batches]).mean(0)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model().parameters())

    def runs(self, method: Any, seed: int, steps: Any = STEPS, **options: Any) -> Iterator[Any]:
        """Yield the run before the first and after every round."""
        run = ud.simulate(
            method,
            self.model(),
            self.clients,
            loss=self.loss,
            work=ud.Steps(steps),
            rounds=self.rounds,
            batch_size=self.batch,
            weighting="uniform",
            evaluation=ud.EvaluationOptions(every=self.rounds),
            kernels=False,
            mode="stacked",
            seed=seed,
            **options,
        )
        yield run
        for _ in run:
            yield run


def quadratic() -> Problem:
    p = ud.data.known_constants(CLIENTS, sigma=1.0, zeta=0.5)
    x0, best = torch.zeros_like(p.A), p.optimum()
    at_best = [0.5 * float((p.A * (best - b).square()).sum()) for b in p.b]
    constants = Constants(p.L, p.sigma, p.zeta, p.gap(x0))
    return Problem(
        "quadratics", p.clients, p.model, p.loss, 1, constants, float(np.mean(at_best)), at_best
    )


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean logistic loss for targets -1 and 1."""
    return F.softplus(-targets * outputs).mean()


def zero_linear(dim: int) -> nn.Module:
    linear = nn.Linear(dim, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(linear.weight)
    return linear


def a9a(samples: int = 4000) -> Problem:
    inputs, labels = (part[:samples] for part in ud.data.load("a9a").train)
    parts = ud.data.dirichlet(labels, CLIENTS, 0.3, seed=0)
    x, y = inputs.double(), (2 * labels.double() - 1)[:, None]
    clients = ud.Clients([(x[part], y[part]) for part in map(torch.as_tensor, parts)])
    L = max(
        float(torch.linalg.eigvalsh(clients[i][0].T @ clients[i][0])[-1]) / len(clients[i][1]) / 4
        for i in range(CLIENTS)
    )
    batch, ones = 8, float(x.square().sum(1).max())
    constants = Constants(L, math.sqrt(ones / batch), 2 * math.sqrt(L))
    model = partial(zero_linear, x.shape[1])
    problem = Problem("a9a, logistic", clients, model, logistic, batch, constants, 0.0, None)

    def both(v: Any) -> tuple[float, Any]:
        point = torch.from_numpy(v)
        return float(np.mean(problem.values(point))), problem.gradient(point).numpy()

    start = np.zeros(x.shape[1])
    found = minimize(both, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    at_best = problem.values(torch.from_numpy(found.x))
    gap = both(start)[0] - found.fun
    return replace(
        problem,
        constants=replace(constants, gap=gap),
        minimum=float(found.fun),
        losses_at_minimum=at_best,
    )


def tanh_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()


def net() -> Problem:
    inputs, labels = ud.data.digits().train
    parts = ud.data.dirichlet(labels, CLIENTS, 0.3, seed=0)
    pairs = [(inputs[part].double(), labels[part]) for part in map(torch.as_tensor, parts)]
    clients = ud.Clients(pairs)
    found = ud.theory.estimate(tanh_net(), clients, loss=F.cross_entropy, batch_size=8, lr=0.1)
    print(found.sentence)
    problem = Problem(
        "net on digits", clients, tanh_net, F.cross_entropy, 8, found.constants(), 0.0, None
    )
    x0 = nn.utils.parameters_to_vector(tanh_net().parameters()).detach()
    gap = float(np.mean(problem.values(x0)))  # F* >= 0
    return replace(problem, constants=found.constants(gap=gap))


@dataclass(frozen=True)
class Curves:
    """Holds one panel: a quantity by rounds, and its bound by rounds or for all of them."""

    title: str
    measured: dict[str, list[float]]
    bound: list[float] | None
    setting: str
    estimated: bool = False


def running_mean(square: Callable[[Any], float], each: Iterator[Any]) -> list[float]:
    """Return the mean over the rounds so far of what is read at the beginning of each."""
    values = [square(run) for run in each][:-1]
    return list(np.cumsum(values) / np.arange(1, len(values) + 1))


def averaged(curves: Sequence[list[float]]) -> list[float]:
    return list(np.mean(curves, axis=0))


def panel(
    problem: Problem,
    setting: str,
    run: Callable[[int], Iterator[Any]],
    square: Callable[[Any], float],
    bound: Callable[[int], Bound],
) -> Curves:
    """Return the curves of a method on a problem, beside its bound at every round."""
    curves = [running_mean(square, run(seed)) for seed in range(problem.seeds)]
    bounds = [bound(t) for t in range(1, problem.rounds + 1)]
    assert not bounds[-1].void, bounds[-1].void
    values = [each.value for each in bounds]
    return Curves(
        problem.name, {"measured": averaged(curves)}, values, setting, bounds[-1].estimated
    )


def fedspeed_panel(problem: Problem) -> Curves:
    c = problem.constants
    advice = fedspeed.recommended(c, steps=STEPS, rounds=problem.rounds, clients=CLIENTS)
    lam, lr = advice.parameters["lam"], advice.parameters["lr"]
    method = ud.FedSpeed(lr=lr, lam=lam, perturbation=False)

    def square(run: Any) -> float:
        z = fedspeed.auxiliary(run.state.x, run.state.g_hat, lr=lr, lam=lam, steps=STEPS)
        return float(problem.gradient(z).square().sum())

    def bound(t: int) -> Bound:
        return fedspeed.bound(c, lr=lr, lam=lam, steps=STEPS, rounds=t, clients=CLIENTS)

    setting = f"lam {lam:.2g}, lr {lr:.2g}, K {STEPS}"
    return panel(problem, setting, partial(problem.runs, method), square, bound)


def fedacg_panel(problem: Problem) -> Curves:
    c, known = problem.constants, {"lam": 0.85, "steps": STEPS, "clients": CLIENTS}
    lr = fedacg.recommended(c, rounds=problem.rounds, **known).parameters["lr"]

    def square(run: Any) -> float:
        return float(problem.gradient(run.state.x + 0.85 * run.state.m).square().sum())

    def bound(t: int) -> Bound:
        return fedacg.bound(c, lr=lr, rounds=t, **known)

    method = ud.FedACG(lr=lr, lam=0.85, beta=0.0)
    setting = f"lam 0.85, lr {lr:.2g}, K {STEPS}"
    return panel(problem, setting, partial(problem.runs, method), square, bound)


def marsit_panel(problem: Problem, period: int = 4) -> Curves:
    c, D = problem.constants, problem.parameters
    lr = min(math.sqrt(CLIENTS / problem.rounds), marsit.largest_step(c.L, period) / 2)
    server_lr = 1 / math.sqrt(problem.rounds * D)
    method = ud.Marsit(lr=lr, server_lr=server_lr, period=period)

    def square(run: Any) -> float:
        return float(problem.gradient(run.state.x[0]).square().sum())

    def bound(t: int) -> Bound:
        steps = {"lr": lr, "server_lr": server_lr, "period": period}
        return marsit.bound(c, rounds=t, clients=CLIENTS, parameters=D, **steps)

    runs = partial(problem.runs, method, steps=1, allreduce="ring")
    setting = f"lr {lr:.2g}, server_lr {server_lr:.2g}, period {period}"
    return panel(problem, setting, runs, square, bound)


def netfleet_panel(problem: Problem) -> Curves:
    c, topology = problem.constants, ud.topology.ring(CLIENTS)
    known = {"steps": STEPS, "nodes": CLIENTS, "eigenvalue": 1 - topology.spectral_gap}
    lr = netfleet.largest_step(c, **known)
    method = ud.NetFleet(lr=lr)
    spreads = []

    def square(run: Any) -> float:
        x, y = run.state.x, run.state.y
        if not spreads:
            spreads.append(float((y - y.mean(0)).square().sum()))
        mean = x.mean(0)
        consensus = float((x - mean).square().sum(1).mean())
        return float(problem.gradient(mean).square().sum()) + c.L**2 * consensus

    def bound(t: int) -> Bound:
        return netfleet.bound(c, lr=lr, rounds=t, tracker_spread=spreads[0], **known)

    setting = f"ring of {CLIENTS}, lr {lr:.2g}, K {STEPS}"
    return panel(problem, setting, partial(problem.runs, method, topology=topology), square, bound)


def fedagrac_panel(problem: Problem) -> Curves:
    """Theorems 4.2 and 4.3 are orders; the bound is Theorem 4.1's, of the limit of FedAvg."""
    lr = 0.2 / (problem.constants.L * max(UNEQUAL))
    methods = {"FedAvg": ud.FedAvg(lr=lr), "FedaGrac": ud.FedaGrac(lr=lr, lam=1.0)}
    curves = {}
    for name, method in methods.items():
        runs = [
            [np.mean(problem.values(run.x)) - problem.minimum for run in each][:-1]
            for each in (problem.runs(method, seed, steps=UNEQUAL) for seed in range(problem.seeds))
        ]
        curves[name] = averaged(runs)
    at_best = problem.losses_at_minimum
    bound = None
    if at_best is not None:
        bound = [fedagrac.theorem_4_1(at_best, steps=UNEQUAL).value] * problem.rounds
    return Curves(problem.name, curves, bound, f"lr {lr:.2g}, K {UNEQUAL}")


PANELS = {
    "fedspeed": (fedspeed_panel, "mean of ||grad F(z)||^2"),
    "fedacg": (fedacg_panel, "mean of ||grad F||^2"),
    "fedagrac": (fedagrac_panel, "F - F*"),
    "marsit": (marsit_panel, "mean of ||grad F||^2"),
    "netfleet": (netfleet_panel, "||grad||^2 + L^2 consensus"),
}


@cache
def problems() -> list[Problem]:
    return [quadratic(), a9a(), net()]


def draw(panels: Sequence[Curves], axis: str, path: Path) -> None:
    """Write the figure; a bound of measured constants is dotted."""
    with style.drawing({**style.PAPER, "svg.fonttype": "none"}):
        figure = style.new_figure((7.5, 2.4))
        for axes, each in zip(figure.subplots(1, len(panels)), panels, strict=True):
            for index, (name, curve) in enumerate(each.measured.items()):
                axes.plot(range(1, len(curve) + 1), curve, color=style.COLOURS[index], label=name)
            if each.bound is not None:
                look = ":" if each.estimated else "--"
                label = "bound, estimated" if each.estimated else "bound"
                axes.plot(
                    range(1, len(each.bound) + 1),
                    each.bound,
                    look,
                    color=style.COLOURS[4],
                    label=label,
                )
            axes.set(xscale="log", yscale="log", xlabel="rounds", title=each.title)
            axes.legend(frameon=False)
            style.trim(axes)
        figure.axes[0].set_ylabel(axis)
        style.save(figure, path, metadata={"Date": None, "Creator": None})


def table(panels: Sequence[Curves]) -> str:
    """Return the last values as a table in Markdown."""
    rounds = len(next(iter(panels[0].measured.values())))
    rows = [f"| problem | setting | after {rounds} rounds | bound |", "|---|---|---|---|"]
    for each in panels:
        ends = ", ".join(f"{name} {curve[-1]:.3g}" for name, curve in each.measured.items())
        bound = "none" if each.bound is None else f"{each.bound[-1]:.3g}"
        bound += " (estimated)" if each.estimated else ""
        rows.append(f"| {each.title} | {each.setting} | {ends} | {bound} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("systems", nargs="*", choices=[[], *PANELS], default=[], metavar="SYSTEM")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    for system in args.systems or PANELS:
        make, axis = PANELS[system]
        panels = [make(replace(p, rounds=args.rounds, seeds=args.seeds)) for p in problems()]
        draw(panels, axis, DOCS / f"{system}.svg")
        page, rows = DOCS / f"{system}.md", table(panels)
        print(f"{system}\n{rows}", flush=True)
        if page.is_file():
            before, rest = page.read_text().split(BEGIN)
            text = f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.split(END)[1]}"
            write_atomic(page, text)


if __name__ == "__main__":
    main()
