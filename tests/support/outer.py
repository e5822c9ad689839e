"""`Outer` on the batches that a simulation draws, for comparisons of the two."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud
from tests.support.methods import DEFAULTS, VARIANTS
from undrift import testing
from undrift.engine.execution.tables import minibatch_table
from undrift.engine.plan import Assignment

SEED, ROUNDS = 3, 3
UNEQUAL = (3, 5, 2, 6)  # local steps of each rank
METHODS = {
    **{repr(method): method for method in (*DEFAULTS, *VARIANTS)},
    "compressed": ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4)),
    "error feedback": ud.Compressed(ud.Scaffold(lr=0.1), ud.ScaledSign(), error_feedback=True),
    "accelerated": ud.Accelerated(ud.FedAvg(lr=0.1)),
    "schedule": ud.FedAvg(lr=ud.exponential(0.1, 0.9), rule=ud.Momentum(0.9)),
    "several passes": ud.FedPD(lr=0.1, p=0.5),
}


def refused(method: Any) -> bool:
    """Return whether the method asks for more than gradients of minibatches."""
    looks = isinstance(method, ud.MOON | ud.FedMLB | ud.FedLin)
    full = isinstance(method, ud.FedaGrac) and method.start == "full"
    return looks or full or (isinstance(method, ud.Scaffold) and method.option == "I")


def steps_of(method: Any, size: int) -> list[int]:
    """Return the local steps of each rank, unequal where the method allows it."""
    together = isinstance(method, ud.AllReduce) or (
        isinstance(method, ud.Peer) and method.every_step
    )
    return [3] * size if together else list(UNEQUAL[:size])


def net(**options: Any) -> nn.Module:
    """Return the small net without dropout."""
    return testing.small_net(dropout=0.0, **options)


def links(method: Any, size: int) -> dict[str, Any]:
    """Return the topology of a gossip method."""
    return {"topology": ud.topology.ring(size)} if isinstance(method, ud.Gossip) else {}


def simulated(method: Any, size: int, **options: Any) -> Tensor:
    """Return x of the server or (m, D) of all nodes, as `simulate` in a loop gives it."""
    clients = testing.small_clients((11, 7, 16, 9)[:size])
    peers = isinstance(method, ud.Peer)
    settings = {"work": ud.Steps(steps_of(method, size)), "participation": 1.0} | options
    run = testing.start(
        method,
        model=net(),
        clients=clients,
        rounds=ROUNDS,
        seed=SEED,
        kernels=False,
        **links(method, size),
        **({} if peers else {"weighting": "size"}),
        **settings,
    )
    return testing.finish(run)


class Batches:
    """Yields the minibatches of one client as a simulation would draw them."""

    def __init__(self, rank: int, size: int, count: int) -> None:
        self._clients = testing.small_clients((11, 7, 16, 9)[:size])
        self.samples = int(self._clients.sizes[rank])
        self._rank, self._count = rank, count

    def of(self, t: int, passed: int = 0, count: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one pass of a round; t = -1 has the one of a node's start."""
        count = self._count if count is None else count
        ids = np.array([self._rank])
        assignment = Assignment(
            t=t, ids=ids, counts=np.array([count]), mean_count=1.0, seed=SEED, batch_size=4, width=4
        )
        held = [self._clients.of(self._rank)]
        table = minibatch_table(assignment, held, passed, torch.device("cpu"))
        for k in range(count):
            index = table.index[0, k, : int(table.lengths[0, k])]
            yield self._clients.inputs[index], self._clients.targets[index]


def closure_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """Return a closure on one batch."""

    def closure() -> Tensor:
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    return closure


def batch(k: int = 0, n: int = 8) -> tuple[Tensor, Tensor]:
    """Return some samples."""
    rng = torch.Generator().manual_seed(k)
    return torch.randn(n, 6, generator=rng).double(), torch.randint(3, (n,), generator=rng)


def vector(model: nn.Module) -> Tensor:
    """Return the model's parameters, those that are trained."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def after(
    outer: ud.Outer, model: nn.Module, steps: int, make: Callable[[int], Any] | None = None
) -> Tensor:
    """Return the model after some steps with closures."""
    for k in range(steps):
        outer.step(closure_of(model, batch(k)) if make is None else make(k))
    return vector(model).clone()


def saved_and_loaded(outer: ud.Outer, model: nn.Module) -> tuple[ud.Outer, nn.Module]:
    """Return another Outer and model that go on from a saved state, as a new process would."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "outer": outer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    method, size = outer._method, outer._world.size
    every = saved["outer"]["every"]
    fresh = net(seed=7)
    fresh.load_state_dict(saved["model"])
    weight = {} if isinstance(method, ud.Peer) else {"weight": outer._shares[outer._world.rank]}
    again = ud.Outer(fresh, method, every, seed=SEED, **weight, **links(method, size))
    again.load_state_dict(saved["outer"])
    return again, fresh


def trained(
    method: Any,
    rank: int,
    size: int,
    *,
    closure: bool = True,
    every: list[int] | None = None,
    inner: Callable[[Any], torch.optim.Optimizer] | None = None,
    interrupt: Callable[[ud.Outer, nn.Module], tuple[ud.Outer, nn.Module]] | None = None,
    **options: Any,
) -> ud.Outer:
    """Return Outer after all rounds; `interrupt` may replace it after the second step of any."""
    every = steps_of(method, size) if every is None else every
    model, batches = net(seed=rank), Batches(rank, size, every[rank])  # rank 0's weights are taken
    peers = isinstance(method, ud.Peer)
    outer = ud.Outer(
        model,
        method,
        every,
        seed=SEED,
        inner=None if inner is None else inner(model.parameters()),
        **({} if peers else {"weight": batches.samples}),
        **links(method, size),
        **options,
    )

    def step(batch: tuple[Tensor, Tensor]) -> None:
        if closure:
            outer.step(closure_of(model, batch))
            return
        outer.zero_grad()
        closure_of(model, batch)()
        outer.step()

    if "before its first round" in outer.needs_closure:
        for batch in batches.of(-1, count=1):
            step(batch)
        assert outer.steps == 0
    for t in range(ROUNDS):
        passed = 0
        while outer.t == t:
            for k, batch in enumerate(batches.of(t, passed)):
                step(batch)
                if k == 1 and interrupt is not None:
                    outer, model = interrupt(outer, model)
            passed += 1
    return outer
