"""Sharpness of a minimum: the loss one ascent step away, and the Hessian's largest eigenvalue.

Both are of the loss F on a sample of the training data, without dropout and weight decay:

    rise      F(x + r g / ||g||) - F(x) with g = grad F(x), the ascent step of FedSpeed and SAM
    hessian   the largest eigenvalue of the second derivative of F at x, by power iteration
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift import keyed
from undrift.core import Vector
from undrift.data.clients import Clients
from undrift.engine.evaluate import ALL_AT_ONCE, Evaluator
from undrift.engine.world import World
from undrift.errors import UndriftError
from undrift.gradients.task import Task
from undrift.models.layout import eval_mode

SAMPLES = 512  # samples of the training data that stand for all of it
RADIUS = 0.1  # length of the ascent step, the rho_0 that FedSpeed's Table 2 finds best
ITERATIONS = 100  # most products of the Hessian with a vector in one power iteration
TOLERANCE = 1e-3  # relative change of the eigenvalue at which a power iteration ends
BATCH = 128  # most samples of one graph, which second derivatives keep for two passes back

Product = Callable[[Vector], Vector]


class Sharpness(NamedTuple):
    """Holds how sharp the loss is around a model."""

    rise: float | None  # None where the gradient is zero and has no direction
    hessian: float


def sampled(evaluator: Evaluator, seed: int) -> Evaluator:
    """Return the evaluator on the fixed sample of the training data, without its test set.

    Where the clients hold more than `SAMPLES` samples, that many are drawn with replacement, each
    with the probability of its weight in the objective; otherwise the sample is all data.
    """
    clients, population = evaluator.clients, evaluator.population
    if len(clients.index) > SAMPLES:
        rng = keyed.generator(seed, "training sample")
        owners = rng.choice(len(clients), size=SAMPLES, p=population / population.sum())
        places = rng.integers(clients.sizes[owners])
        index = torch.from_numpy(clients.index[clients.offsets[owners] + places])
        pair = clients.inputs[index], clients.targets[index]
        clients, population = Clients([pair]), np.ones(1)
    return replace(evaluator, clients=clients, population=population, world=World())


def sharpness(evaluator: Evaluator, x: Vector, seed: int) -> Sharpness:
    """Return the sharpness at x on the data of the evaluator; the seed is of the first vector."""
    # A loss that is not a mean over samples must see all of them at once.
    whole = evaluator.batch == ALL_AT_ONCE
    smooth = _SecondOrder(evaluator, ALL_AT_ONCE if whole else min(evaluator.batch, BATCH))
    gradient = smooth.gradient(x)
    length = torch.linalg.vector_norm(gradient.double())
    rise = None
    if length > 0:
        before, after = (
            evaluator.score(y, on_training_data=True).loss
            for y in (x, x + RADIUS * (gradient / length.to(x.dtype)))
        )
        rise = after - before
    start = torch.from_numpy(keyed.generator(seed, "hessian").standard_normal(len(x))).to(x)
    return Sharpness(rise, largest_eigenvalue(lambda v: smooth.hessian(x, v), start))


def largest_eigenvalue(
    product: Product,
    start: Vector,
    *,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
) -> float:
    """Return the largest eigenvalue of a symmetric matrix from its products with vectors.

    Power iteration finds the eigenvalue that is largest in absolute value. If that is negative, a
    second iteration on the matrix less that eigenvalue finds the largest one.
    """
    extreme = dominant_eigenvalue(product, start, iterations, tolerance)
    if not extreme < 0:
        return extreme
    shifted = dominant_eigenvalue(lambda v: product(v) - extreme * v, start, iterations, tolerance)
    return shifted + extreme


def dominant_eigenvalue(product: Product, v: Vector, iterations: int, tolerance: float) -> float:
    """Return the eigenvalue that is largest in absolute value, by Rayleigh quotients."""
    eigenvalue = 0.0
    for _ in range(iterations):
        v = v / torch.linalg.vector_norm(v)
        image = product(v)
        before, eigenvalue = eigenvalue, float(v.double() @ image.double())
        # An image of zero, or one that is not finite, has no direction to go on in.
        if not torch.linalg.vector_norm(image) > 0 or not image.isfinite().all():
            return eigenvalue
        if abs(eigenvalue - before) <= tolerance * abs(eigenvalue):
            return eigenvalue
        v = image
    return eigenvalue


def _says_no_derivative(message: str) -> bool:
    """Return whether torch says that an operation has no second derivative."""
    return any(word in message for word in ("derivative", "differentiat"))


class _SecondOrder:
    """Computes derivatives of the loss on an evaluator's training data, batch by batch."""

    def __init__(self, evaluator: Evaluator, batch: int) -> None:
        self._task: Task = evaluator.task
        self._batches = list(evaluator.training_batches(batch))

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient at x."""
        return self._sum(x, lambda gradient, leaf: gradient)

    def hessian(self, x: Vector, v: Vector) -> Vector:
        """Return the product of the second derivative at x with v."""

        def product(gradient: Tensor, leaf: Tensor) -> Tensor:
            if not gradient.requires_grad:  # the loss is linear in x
                return torch.zeros_like(v)
            return torch.autograd.grad(gradient, leaf, v)[0]

        try:
            return self._sum(x, product, create_graph=True)
        except RuntimeError as error:
            if not _says_no_derivative(str(error)):
                raise
            raise UndriftError(
                f"evaluation.sharpness needs a model that torch can differentiate twice, got "
                f"{str(error).splitlines()[0]!r}; leave it out for this model."
            ) from error

    def _sum(
        self, x: Vector, part: Callable[[Tensor, Tensor], Tensor], *, create_graph: bool = False
    ) -> Vector:
        """Return the weighted sum over batches of what `part` makes of gradient and leaf."""
        task, total = self._task, torch.zeros_like(x)
        with eval_mode(task.model), torch.enable_grad():
            for weight, inputs, targets in self._batches:
                leaf = x.detach().requires_grad_()
                outputs = task.forward(leaf, task.prepared(inputs))
                loss = task.loss(outputs, task.cast(targets))
                (gradient,) = torch.autograd.grad(loss, leaf, create_graph=create_graph)
                total = total + weight * part(gradient, leaf).detach()
        return total
