"""The form of a method's messages and states, found without anybody's data.

A method runs one round with a loop that takes no step on an objective that is zero everywhere. What
it returns has the structure, the shapes and the dtypes of a real round's uploads, answers and
client states, and values that mean nothing. So whoever needs the form, such as a process without a
client in the cohort, need not look at a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from undrift import tree
from undrift.core import Cohort, Federated, Objective, Outputs, Prelude, Vector

T = TypeVar("T")


class ZeroObjective:
    """Is an `Objective` that is zero everywhere."""

    t, k = 0, 0

    def __init__(self, x: Vector) -> None:
        self.level = torch.zeros_like(x, dtype=torch.int64)

    def __call__(self, x: Vector) -> Tensor:
        return x.new_zeros(())

    def grad(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        return torch.zeros_like(x), torch.zeros_like(x)

    def outputs(self, x: Vector) -> Outputs:
        zero = x.new_zeros((1, 1))
        return Outputs(logits=zero, features=zero, loss=zero)

    def plus(self, term: Callable[[Vector], Tensor]) -> Self:
        return self


class ZeroLoop:
    """Is a `Loop` that takes no step and returns what it is given.

    The form of an upload is right if a method hands to its loop what it gets back, in form. Clients
    with different numbers of steps cannot be stacked otherwise, so methods do so anyway. Without
    `sizes` the model counts as one tensor, so a wire with a number for each tensor has one here.
    """

    t, mean_count = 0, 1.0

    def __init__(self, x: Vector, sizes: tuple[int, ...] = ()) -> None:
        self.count, self.full = x.new_ones(()), ZeroObjective(x)
        self.sizes = sizes or tuple(x.shape)

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        return init

    def draw(self, purpose: str, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


def client_form(algorithm: Federated[Any, Any, Any, Any], x0: Vector) -> Any:
    """Return a tree of zeros that has the form of a client's state between two rounds."""
    return _zeros(_round(algorithm, x0)[2])


def answer_form(algorithm: Prelude[Any, Any, Any, Any], x0: Vector) -> Any:
    """Return a tree of zeros that has the form of an answer to what the server asks."""
    return _zeros(_answered(algorithm, x0)[0])


def answered_form(algorithm: Prelude[Any, Any, Any, Any], x0: Vector) -> Any:
    """Return a tree of zeros that has the form of a client's state after its answer."""
    return _zeros(_answered(algorithm, x0)[1])


def wire_form(
    algorithm: Federated[Any, Any, Any, Any], x0: Vector, sizes: tuple[int, ...] = ()
) -> Any:
    """Return a tree of zeros that has the form of a packed upload, as it travels.

    `sizes` are the coordinates of each of the model's tensors, for wires that depend on them.
    """
    return _zeros(_round(algorithm, x0, sizes)[1])


def packs(algorithm: Federated[Any, Any, Any, Any], x0: Vector) -> bool:
    """Return whether something else than the upload travels."""
    upload, wire, _ = _round(algorithm, x0)
    return wire is not upload


def upload_form(algorithm: Federated[Any, Any, Any, Any], x0: Vector) -> Any:
    """Return a tree of zeros that has the form of an unpacked upload, as the server adds it up."""
    return _zeros(_round(algorithm, x0)[0])


def _round(
    algorithm: Federated[Any, Any, Any, Any], x0: Vector, sizes: tuple[int, ...] = ()
) -> tuple[Any, Any, Any]:
    """Return upload, wire and client state of a round without steps."""
    loop = ZeroLoop(x0, sizes)
    if isinstance(algorithm, Prelude) and algorithm.asks != "nobody":
        answer, client, server = _answered(algorithm, x0)
        server = algorithm.hear(server, answer, Cohort(t=0, population=1, size=1, mass=1.0))
    else:
        server = algorithm.init(x0)
        client = algorithm.init_client(x0, algorithm.broadcast(server))
    upload, client = algorithm.local(algorithm.broadcast(server), client, loop)
    wire, client = algorithm.pack(upload, client, loop)
    return algorithm.unpack(wire), wire, client


def _answered(algorithm: Prelude[Any, Any, Any, Any], x0: Vector) -> tuple[Any, Any, Any]:
    """Return answer, client state and server state of a prelude without steps."""
    server = algorithm.init(x0)
    client = algorithm.init_client(x0, algorithm.broadcast(server))
    answer, client = algorithm.answer(algorithm.ask(server), client, ZeroLoop(x0))
    return answer, client, server


def _zeros(values: T) -> T:
    return tree.map(torch.zeros_like, values)
