"""What the boxes of the gossip family share: problems, links, and the comparison round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from undrift import keyed, topology
from undrift.testing import small_clients, small_net

SEED = 7
SIZES = [4, 9, 6, 16, 5]  # unequal, so that the stacked mode has to mask its padding
ROUNDS = 3


def minibatch(n: int, size: int | None, t: int, i: int, k: int) -> np.ndarray:
    """Which of client i's n samples step k of round t sees: slices of reshuffled epochs."""
    if size is None or size >= n:
        return np.arange(n)
    epoch, place = divmod(k, -(-n // size))
    order = keyed.generator(SEED, "batches", t, i, epoch).permutation(n)
    return order[place * size : (place + 1) * size]


@dataclass(frozen=True)
class Bench:
    """A problem as the simulator takes it, and its gradients in plain numpy or torch."""

    model: nn.Module
    clients: ud.Clients
    loss: Callable[..., Any]
    batch_size: int | None
    slope: Callable[..., np.ndarray]  # of (x, inputs, targets, client)
    weight_decay: float = 0.0

    @property
    def x0(self) -> np.ndarray:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().numpy().copy()

    def g(self, i: int, t: int, k: int, x: np.ndarray) -> np.ndarray:
        """Gradient of client i on the minibatch of step k in round t; the start is t = -1."""
        inputs, targets = self.clients[i]
        seen = minibatch(len(targets), self.batch_size, t, i, k)
        slope = self.slope(x, inputs.numpy()[seen], targets.numpy()[seen], i)
        return slope + self.weight_decay * x


def _linear(problem: ud.data.Quadratics) -> nn.Module:
    model = problem.model()
    with torch.no_grad():  # not 0: x and the increments must not be confused
        model.weight.copy_(torch.tensor([[0.7, -1.1, 0.4]]))
    return model


def _exact() -> Bench:
    problem = ud.data.quadratics(5, 3, samples=SIZES, seed=3)
    A, b = problem.A.numpy(), problem.b.numpy()

    def slope(x, inputs, targets, i):
        return A[i] @ (x - b[i])

    return Bench(_linear(problem), problem.clients, problem.loss, None, slope)


def _noisy() -> Bench:
    problem = ud.data.quadratics(5, 3, samples=SIZES, noise=0.5, seed=4)

    def slope(x, inputs, targets, i):
        return inputs.T @ (inputs @ x - targets[:, 0]) / len(inputs)

    return Bench(_linear(problem), problem.clients, problem.loss, 4, slope)


def _net() -> Bench:
    model, mirror = small_net(dropout=0.0), small_net(seed=1, dropout=0.0)

    def slope(x, inputs, targets, i):
        nn.utils.vector_to_parameters(torch.tensor(x), mirror.parameters())
        mirror.zero_grad()
        loss = nn.functional.cross_entropy(mirror(torch.tensor(inputs)), torch.tensor(targets))
        loss.backward()
        return torch.cat([p.grad.flatten() for p in mirror.parameters()]).numpy()

    loss = nn.functional.cross_entropy
    return Bench(model, small_clients((11, 7, 16, 9, 5)), loss, 4, slope, weight_decay=0.05)


BENCHES = {"exact": _exact(), "noisy": _noisy(), "net": _net()}

# A matrix of our own, unlike any that a maker gives: rows sum to one, symmetric, not regular.
OWN = np.array(
    [
        [0.5, 0.3, 0.0, 0.2, 0.0],
        [0.3, 0.3, 0.4, 0.0, 0.0],
        [0.0, 0.4, 0.2, 0.1, 0.3],
        [0.2, 0.0, 0.1, 0.7, 0.0],
        [0.0, 0.0, 0.3, 0.0, 0.7],
    ]
)
LINKS = {
    "own": topology.Topology(OWN),
    "ring": topology.ring(5),
    "star": topology.star(5, mixing="metropolis"),
    "cycle": topology.Cycle((topology.grid(1, 5), topology.complete(5), topology.Topology(OWN))),
    "dropped": topology.DroppedLinks(topology.complete(5), 0.5, seed=2),
}
MODES = {
    "loop": {"mode": "loop"},
    "stacked": {"mode": "stacked"},
    "groups": {"mode": "stacked", "execution": ud.ExecutionOptions(chunk_size=2)},
}


@dataclass(frozen=True)
class GossipCase:
    """A setting in which a box and the class are compared after every round."""

    bench: str
    links: str
    mode: str

    def __str__(self) -> str:
        return f"{self.bench}-{self.links}-{self.mode}"

    def run(self, algorithm: Any, K: Sequence[int]) -> ud.Run:
        bench = BENCHES[self.bench]
        return ud.simulate(
            algorithm,
            bench.model,
            bench.clients,
            loss=bench.loss,
            work=ud.Steps(list(K)),
            rounds=ROUNDS,
            batch_size=bench.batch_size,
            topology=LINKS[self.links],
            weight_decay=bench.weight_decay,
            seed=SEED,
            evaluation=ud.EvaluationOptions(every=ROUNDS),
            **MODES[self.mode],
        )

    def given(self) -> dict[str, Any]:
        """The same setting as plain numbers, for the box; a W for every round."""
        bench = BENCHES[self.bench]
        Ws = [LINKS[self.links].at(t).W for t in range(ROUNDS)]
        return {"Ws": Ws, "g": bench.g, "x0": bench.x0}

    def compare(self, run: ud.Run, rounds: Iterable[dict[str, Any]]) -> None:
        """Every field of the state after every round, to rounding."""
        played = 0
        for _, expected in zip(run, rounds, strict=True):
            assert run.state._fields == tuple(expected)
            for name, rows in expected.items():
                actual = getattr(run.state, name).numpy()
                assert actual.shape == np.shape(rows)
                assert np.abs(actual - np.array(rows)).max() < 1e-12, (name, run.round)
            played += 1
        assert played == ROUNDS


# Every kind of links, every mode, every problem; not every combination of the three.
ALL = [GossipCase("exact", links, "stacked") for links in LINKS]
ALL += [GossipCase("exact", "own", "loop"), GossipCase("exact", "dropped", "groups")]
ALL += [GossipCase("noisy", "cycle", mode) for mode in ("loop", "groups")]
ALL += [GossipCase("net", "own", mode) for mode in MODES]
everywhere = pytest.mark.parametrize("case", ALL, ids=str)
# For the rarer options: links that change or the net, and nodes one at a time or in groups.
HARDEST = [
    GossipCase("exact", "dropped", "groups"),
    GossipCase("noisy", "cycle", "loop"),
    GossipCase("noisy", "cycle", "groups"),
    GossipCase("net", "own", "groups"),
]
hardest = pytest.mark.parametrize("case", HARDEST, ids=str)


def hard(parameters: Mapping[str, Any]) -> bool:
    """Return whether links change or gradients are a net's, and nodes are not stacked at once."""
    return parameters["case"] in HARDEST
