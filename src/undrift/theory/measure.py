"""Constants of a problem, measured along a short trajectory of FedAvg.

    L       largest |eigenvalue| of the Hessian of F_i over points and some clients, by power
            iteration: a lower bound of the theorems' L, which can refute and never certify
    sigma   root of E||g_i - grad F_i||^2 of a minibatch gradient, the largest of points and clients
    zeta    root of mean_i ||grad F_i - grad F||^2, the largest of the points, equal weights

The theorems assume the three at all points, so that what is found at some points is a lower bound
of each. Intervals are of sampling: Student's t over minibatches for sigma, over clients for zeta
where not all clients were asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undrift import keyed
from undrift.algorithms.fedavg import FedAvg
from undrift.check import is_whole, require, require_positive
from undrift.core import Vector
from undrift.data.clients import Clients
from undrift.data.work import Steps
from undrift.engine.settings import EvaluationOptions
from undrift.engine.sharpness import dominant_eigenvalue
from undrift.engine.simulate import simulate
from undrift.errors import UndriftError
from undrift.gradients.task import Batch, Task
from undrift.models.layout import Layout, eval_mode
from undrift.theory.judgement import Constants

CLIENTS = 20  # most clients whose gradients are taken
CURVATURE_CLIENTS = 3  # of them, those whose Hessian is taken; any subset gives a lower bound
ITERATIONS, TOLERANCE = 40, 1e-3  # of a power iteration
GRAPH = 256  # most samples of one graph, which second derivatives keep for two passes back
# Functions whose derivative jumps, by torch's names; what ends in an underscore works in place.
_KINKS = """
    relu relu6 leaky_relu prelu rrelu threshold hardtanh hardswish hardsigmoid hardshrink softshrink
    selu abs absolute clamp clip maximum minimum max min amax amin sign round floor ceil max_pool1d
    max_pool2d max_pool3d l1_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss
    triplet_margin_loss
"""
KINKS = frozenset(_KINKS.split())


@dataclass(frozen=True)
class Measurement:
    """Holds a measured constant with its 95 % interval; `high` is infinite for a lower bound."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".3g"
        return f"{self.value:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


@dataclass(frozen=True)
class Estimate:
    """Holds measured constants, where they were measured and how long that took."""

    L: Measurement
    sigma: Measurement
    zeta: Measurement
    points: int
    clients: int  # whose gradients were taken
    batch_size: int | None
    seconds: float
    kinks: tuple[str, ...] = ()  # functions of the model that are not smooth

    def constants(self, *, gap: float = math.nan) -> Constants:
        """Return the constants for theorems, marked as measured; gap is F(x0) - F*."""
        return Constants(self.L.value, self.sigma.value, self.zeta.value, gap, measured=True)

    @property
    def sentence(self) -> str:
        """Return what was found and what it is worth."""
        text = (
            f"At {self.points} points and {self.clients} clients: L >= {self.L.value:.3g}, sigma "
            f"{self.sigma}, zeta {self.zeta}, in {self.seconds:.1f} s. L can refute a condition "
            "and never certify one."
        )
        if self.kinks:
            text += f" The model has {', '.join(self.kinks)}, so no L exists: this one is between."
        return text


def estimate(
    model: nn.Module,
    clients: Clients,
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    lr: float = 0.05,
    batch_size: int | None = 32,
    points: int = 4,
    steps: int = 10,
    batches: int = 24,
    seed: int = 0,
    smooth: bool = True,
) -> Estimate:
    """Return the constants that theorems assume, measured at the points of a short run.

    The points are the first model and those after each of `points - 1` rounds of FedAvg with
    `steps` local steps at `lr`. sigma is that of minibatches of `batch_size`, from `batches` of
    them; with None it is zero. A model whose gradient jumps is refused; `smooth=False` measures it
    between the kinks all the same, which is no L of any theorem.
    """
    _check(clients, lr, batch_size, points, steps, batches)
    begin = time.perf_counter()
    task = Task(model, Layout.of(model), loss, prepare=clients.prepare)
    kinks = find_kinks(task, clients)
    if kinks and smooth:
        raise UndriftError(
            f"estimate needs a model and a loss with a Lipschitz gradient, got one with "
            f"{', '.join(kinks)}, whose derivative jumps, so that no L exists; take smooth "
            "functions (GELU, Softplus, Tanh, average pooling), or pass smooth=False for the "
            "curvature between the kinks, which certifies nothing and refutes nothing."
        )
    rng = keyed.generator(seed, "theory")
    asked = np.sort(rng.permutation(len(clients))[:CLIENTS])
    measured = _Measured(task, clients, batch_size, rng)
    models = list(_trajectory(model, clients, loss, lr, batch_size, points, steps, seed))
    with eval_mode(model):
        sigma = _largest(measured.sigma(x, int(i), batches) for x in models for i in asked)
        zeta = _largest(measured.zeta(x, asked) for x in models)
        some = asked[:CURVATURE_CLIENTS]
        L = max(measured.curvature(x, int(i)) for x in models for i in some)
    if not L > 0:
        raise UndriftError(
            f"estimate needs a loss with curvature, got a Hessian of {L:g} at {points} points; "
            "move the first model away from a plateau or check the loss."
        )
    return Estimate(
        Measurement(L, L, math.inf),
        sigma,
        zeta,
        len(models),
        len(asked),
        batch_size,
        time.perf_counter() - begin,
        kinks,
    )


def find_kinks(task: Task, clients: Clients) -> tuple[str, ...]:
    """Return the functions of the model and its loss whose derivative jumps, by one forward."""
    inputs, targets = (each[:2] for each in clients[0])
    watch = _Watch()
    with eval_mode(task.model), torch.no_grad(), watch:
        outputs = task.model(task.prepared(inputs))
        task.loss(outputs, task.cast(targets))
    return tuple(sorted(watch.seen))


class _Watch(TorchFunctionMode):
    """Notes the functions that are called and whose derivative jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "").rstrip("_")
        if name in KINKS:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


class _Measured:
    """Computes gradients and Hessians of single clients."""

    def __init__(
        self, task: Task, clients: Clients, batch_size: int | None, rng: np.random.Generator
    ) -> None:
        self._task, self._clients, self._batch_size, self._rng = task, clients, batch_size, rng

    def sigma(self, x: Vector, client: int, batches: int) -> Measurement:
        """Return the noise of a client's minibatch gradients at x."""
        index = self._clients.of(client)
        size = len(index) if self._batch_size is None else min(self._batch_size, len(index))
        if size == len(index):
            return Measurement(0.0, 0.0, 0.0)
        full = self.gradient(x, index)
        squares = [
            float((self.gradient(x, self._rng.permutation(index)[:size]) - full).square().sum())
            for _ in range(batches)
        ]
        return _root(np.asarray(squares))

    def zeta(self, x: Vector, asked: NDArray[np.int64]) -> Measurement:
        """Return the spread of the clients' gradients at x."""
        rows = torch.stack([self.gradient(x, self._clients.of(int(i))) for i in asked]).double()
        squares = (rows - rows.mean(0)).square().sum(1).numpy()
        n = len(asked)
        if n == len(self._clients):
            exact = math.sqrt(float(squares.mean()))
            return Measurement(exact, exact, exact)
        return _root(squares * n / (n - 1))

    def curvature(self, x: Vector, client: int) -> float:
        """Return the largest |eigenvalue| of the Hessian of F_i at x."""
        start = torch.from_numpy(self._rng.standard_normal(len(x))).to(x)

        def product(v: Vector) -> Vector:
            return self._sum(x, self._clients.of(client), v)

        return abs(dominant_eigenvalue(product, start, ITERATIONS, TOLERANCE))

    def gradient(self, x: Vector, index: NDArray[np.int64]) -> Vector:
        """Return the gradient of the loss on these samples at x."""
        return self._sum(x, index, None)

    def _sum(self, x: Vector, index: NDArray[np.int64], v: Vector | None) -> Vector:
        total, task = torch.zeros_like(x), self._task
        for part in np.array_split(index, math.ceil(len(index) / GRAPH)):
            places = torch.from_numpy(part)
            inputs = task.prepared(self._clients.inputs[places])
            batch = Batch(inputs, task.cast(self._clients.targets[places]))
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                value = task.value(leaf, batch)
                (g,) = torch.autograd.grad(value, leaf, create_graph=v is not None)
                if v is not None:
                    g = torch.autograd.grad(g, leaf, v)[0] if g.requires_grad else g * 0
            total += g.detach() * (len(part) / len(index))
        return total


def _trajectory(
    model: nn.Module,
    clients: Clients,
    loss: Callable[[Tensor, Tensor], Tensor],
    lr: float,
    batch_size: int | None,
    points: int,
    steps: int,
    seed: int,
) -> Iterable[Vector]:
    """Yield the first model and those after each round of FedAvg."""
    run = simulate(
        FedAvg(lr=lr),
        model,
        clients,
        loss=loss,
        work=Steps(steps),
        rounds=max(1, points - 1),
        batch_size=batch_size,
        participation=min(CLIENTS, len(clients)),
        seed=seed,
        evaluation=EvaluationOptions(every=points),
        kernels=False,
    )
    yield run.x
    for _ in range(points - 1):
        next(run)
        yield run.x


def _root(squares: NDArray[np.float64]) -> Measurement:
    """Return the root of the mean of squares with its t interval."""
    from scipy import stats

    mean = float(squares.mean())
    half = float(stats.t.ppf(0.975, len(squares) - 1) * squares.std(ddof=1)) / math.sqrt(
        len(squares)
    )
    return Measurement(math.sqrt(mean), math.sqrt(max(0.0, mean - half)), math.sqrt(mean + half))


def _largest(found: Iterable[Measurement]) -> Measurement:
    return max(found, key=lambda each: each.value)


def _check(
    clients: Clients, lr: float, batch_size: int | None, points: int, steps: int, batches: int
) -> None:
    who = "estimate"
    require_positive(who, lr=lr)
    remedy = "heterogeneity is between clients"
    require(len(clients) >= 2, who, "two clients or more", len(clients), remedy)
    few = np.flatnonzero(clients.sizes < 2)
    if len(few):
        raise ValueError(
            f"estimate needs at least two samples a client for the noise of a minibatch, got "
            f"{int(clients.sizes[few[0]])} for client {int(few[0])}"
            f"{f' and {len(few) - 1} more' if len(few) > 1 else ''}; leave them out or join them."
        )
    for name, value, least in (("points", points, 2), ("steps", steps, 1), ("batches", batches, 2)):
        require(is_whole(value) and value >= least, who, f"{name} >= {least}", value)
    fits = batch_size is None or (is_whole(batch_size) and batch_size >= 1)
    require(fits, who, "batch_size >= 1, or None for all samples", batch_size)
