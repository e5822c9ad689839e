"""Checks that every algorithm of the contract must pass, for ours and for yours.

    from undrift.testing import check_algorithm
    check_algorithm(MyMethod(lr=0.1))

A check raises AssertionError with what was expected; `CHECKS` lists them for parametrised tests.
Checks run a small net on four unequal clients with ragged minibatches, dropout and, where the
method allows it, unequal work; peers are linked as a ring.
"""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift import tree
from undrift.core import AllReduce, Federated, Gossip, Peer
from undrift.data import Clients, Steps
from undrift.engine.execution.cohort import Upload
from undrift.engine.participation import FixedSize
from undrift.engine.run import Run
from undrift.engine.settings import EvaluationOptions, ExecutionOptions
from undrift.engine.simulate import simulate
from undrift.optim.schedules import Schedule
from undrift.topology import ring

Algorithm = Any  # Federated or Peer, and a dataclass: Python has no type for both
ROUNDS = 4


def check_algorithm(algorithm: Algorithm) -> None:
    """Run every check of the algorithm's family; the first that fails raises."""
    for check in checks_for(algorithm):
        check(algorithm)


def small_net(seed: int = 0, dropout: float = 0.3, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return a classifier of six inputs and three classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)
        return nn.Sequential(*layers).to(dtype)


def small_clients(
    sizes: tuple[int, ...] = (11, 7, 16, 9), seed: int = 0, dtype: torch.dtype = torch.float64
) -> Clients:
    """Return clients whose inputs and labels follow different laws."""
    rng = np.random.default_rng(seed)
    pairs = []
    for i, n in enumerate(sizes):
        inputs = torch.tensor(rng.normal(i * 0.5, 1.0, size=(n, 6)), dtype=dtype)
        targets = torch.tensor(rng.choice(3, n, p=np.roll([0.7, 0.2, 0.1], i)))
        pairs.append((inputs, targets))
    return Clients(pairs)


def start(algorithm: Algorithm, **options: Any) -> Run:
    """Return a run on the small problem, ready to be iterated."""
    dtype = options.pop("dtype", torch.float64)
    settings: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "work": Steps([3, 5, 2, 6]),
        "batch_size": 4,
        "rounds": ROUNDS,
        "mode": "loop",
        "evaluation": EvaluationOptions(every=ROUNDS),
        "seed": 3,
    }
    model = options.pop("model", None) or small_net(dtype=dtype)
    clients = options.pop("clients", None) or small_clients(dtype=dtype)
    if isinstance(algorithm, Peer):
        settings["topology"] = ring(len(clients)) if isinstance(algorithm, Gossip) else None
        together = algorithm.every_step or isinstance(algorithm, AllReduce)
        settings["work"] = Steps(3) if together or len(clients) != 4 else settings["work"]
    else:
        settings["participation"] = 3
    return simulate(algorithm, model, clients, **(settings | options))


def finish(run: Run) -> Tensor:
    """Run to the end and return x, that of the server or those of all nodes."""
    for _ in run:
        pass
    return run.x


def check_is_a_value(algorithm: Algorithm) -> None:
    """Check that it is a frozen dataclass that survives pickling: nothing hides in `self`."""
    assert isinstance(algorithm, Federated | Peer), "derive from Federated or Peer"
    frozen = dataclasses.is_dataclass(algorithm) and algorithm.__dataclass_params__.frozen
    assert frozen, f"{type(algorithm).__name__} must be a dataclass with frozen=True"
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm, "pickling must give an equal object"


def check_state(algorithm: Algorithm) -> None:
    """Check that states have the model as their field x, in its size and dtype."""
    for dtype in (torch.float32, torch.float64):
        run = start(algorithm, dtype=dtype, rounds=2)
        before = run.x.shape
        x = finish(run)
        assert x.shape == before, f"x changed its shape from {before} to {x.shape}"
        for state in (run.state, *run.client_states.values()):
            for name, leaf in tree.named_leaves(state).items():
                floating = leaf.is_floating_point()
                assert not floating or leaf.dtype == dtype, f"{name} is {leaf.dtype}, not {dtype}"


def check_precision(algorithm: Algorithm) -> None:
    """Check that float32 follows float64."""
    single = finish(start(algorithm, dtype=torch.float32))
    double = finish(start(algorithm, dtype=torch.float64))
    assert _apart(single.double(), double) < 1e-4, "float32 and float64 disagree"


def check_stacked_equals_loop(algorithm: Algorithm) -> None:
    """Check that clients one at a time and under vmap agree, for unequal K_i and any chunk."""
    loop = start(algorithm)
    finish(loop)
    for chunk in (1, 2, 4):
        stacked = start(algorithm, mode="stacked", execution=ExecutionOptions(chunk_size=chunk))
        finish(stacked)
        pairs = [(loop.state, stacked.state)]
        pairs += [(loop.client_states[i], stacked.client_states[i]) for i in loop.client_states]
        for one, other in pairs:
            for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True):
                assert _apart(a, b) < 1e-12, f"stacked (chunks of {chunk}) and loop disagree"


def check_threads_equal_loop(algorithm: Algorithm) -> None:
    """Check that clients side by side and one at a time give the same, bit by bit."""
    options = {"mode": "threads", "execution": ExecutionOptions(threads=3)}
    loop, threads = start(algorithm), start(algorithm, **options)
    finish(loop)
    finish(threads)
    assert sorted(loop.client_states) == sorted(threads.client_states), "other clients have states"
    for run in (loop, threads):
        run.client_states = dict(sorted(run.client_states.items()))
    states = [(run.state, tuple(run.client_states.values())) for run in (loop, threads)]
    for a, b in zip(*map(tree.leaves, states), strict=True):
        assert torch.equal(a, b), "threads and loop disagree; does the method keep something?"


def check_no_mutation(algorithm: Algorithm) -> None:
    """Check that a round makes new states and leaves the old ones as they were."""
    run = start(algorithm)
    next(run)
    old = tree.leaves((run.state, tuple(run.client_states.values())))
    copies = [leaf.clone() for leaf in old]
    finish(run)
    for leaf, copy in zip(old, copies, strict=True):
        assert torch.equal(leaf, copy), "a state was changed in place; return a new one"


def check_resume(algorithm: Algorithm) -> None:
    """Check that a run that is saved in the middle and resumed ends with the same bits."""
    uninterrupted = finish(start(algorithm))
    with tempfile.TemporaryDirectory() as folder:
        finish(start(algorithm, rounds=ROUNDS // 2, checkpoint=folder))
        resumed = finish(start(algorithm, resume=folder))
    same = torch.equal(uninterrupted, resumed)
    assert same, "the resumed run ends elsewhere; is all state in the tuples?"


def check_deterministic(algorithm: Algorithm) -> None:
    """Check that the same seed gives the same bits, in whatever order a cohort is listed."""
    cohorts = [[0, 2], [3, 1, 0], [1, 2], [3, 0]]
    ends = [
        finish(start(algorithm, participation=[order(c) for c in cohorts]))
        for order in (list, list, lambda c: c[::-1], sorted)
    ]
    assert all(torch.equal(ends[0], end) for end in ends[1:]), "runs with the same seed differ"


def check_schedules(algorithm: Algorithm) -> None:
    """Check that hyper-parameters as constant schedules are the same as the numbers."""
    plain = finish(start(algorithm))
    constants = {
        field.name: Schedule(lambda t, value=value: value)  # type: ignore[misc]
        for field in dataclasses.fields(algorithm)
        if isinstance(value := getattr(algorithm, field.name), float)
        and not isinstance(value, Schedule)
    }
    if _ends_at(plain, algorithm, constants):
        return
    for name, constant in constants.items():
        same = _ends_at(plain, algorithm, {name: constant})
        assert same, f"{name} as a schedule changes the result"
    raise AssertionError(f"{', '.join(constants)} as schedules change the result together")


def _ends_at(x: Tensor, algorithm: Algorithm, fields: dict[str, Schedule]) -> bool:
    """Return whether the algorithm ends with x, bit by bit, when it has other fields."""
    return torch.equal(finish(start(dataclasses.replace(algorithm, **fields))), x)


def check_repeatable(algorithm: Algorithm) -> None:
    """Check that the same seed gives the same bits, and another seed other minibatches."""
    ends = [finish(start(algorithm, seed=seed)) for seed in (3, 3, 4)]
    assert torch.equal(ends[0], ends[1]), "runs with the same seed differ"
    assert not torch.equal(ends[0], ends[2]), "runs with different seeds are the same"


def check_agreement(algorithm: Algorithm) -> None:
    """Check that all-reduce leaves the same model with every worker, whatever the route."""
    for route in ("ring", "segmented-ring:20", "torus:2x2", "tree", "server"):
        x = finish(start(algorithm, allreduce=route))
        assert bool((x == x[:1]).all()), f"workers end with different models on {route}"


def check_alone(algorithm: Algorithm) -> None:
    """Check that one node without any other works, and two."""
    for sizes in ((9,), (9, 6)):
        run = start(algorithm, clients=small_clients(sizes), work=Steps(3))
        assert finish(run).isfinite().all()


def check_zero_weight(algorithm: Algorithm) -> None:
    """Check that a client with weight zero changes nothing, whether it takes part or not."""
    weights = (1.0, 2.0, 0.0, 1.5)
    ends = [
        finish(start(algorithm, weighting=weights, participation=[cohort] * ROUNDS))
        for cohort in ([0, 1, 3], [0, 1, 2, 3])
    ]
    assert _apart(*ends) < 1e-12, "a client without weight changed the model"
    assert ends[1].isfinite().all()


def check_single_client(algorithm: Algorithm) -> None:
    """Check that cohorts of one client work, and a population of one."""
    assert finish(start(algorithm, participation=FixedSize(1))).isfinite().all()
    run = start(algorithm, clients=small_clients((9,)), work=Steps(3), participation=1.0)
    assert finish(run).isfinite().all()


def check_increments(algorithm: Any) -> None:
    """Check that uploads are increments: on a flat objective nothing is sent."""
    rule: Any = getattr(algorithm, "rule", None)
    if getattr(rule, "decay", 0.0):  # Decoupled decay moves the model on any objective.
        algorithm = replace(algorithm, rule=replace(rule, decay=0.0))
    sent: list[Upload] = []

    def flat(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.0 * outputs.sum()

    run = start(algorithm, loss=flat, tap=sent.append)
    finish(run)
    for upload in sent:
        for name, leaf in tree.named_leaves(upload.upload).items():
            if leaf.shape == run.x.shape:
                size = float(leaf.abs().max())
                assert size < 1e-12, f"upload {name!r} is {size:g} on a flat objective"


def _apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors."""
    return float((one - other).abs().max()) if one.numel() else 0.0


_EVERY = (
    check_is_a_value,
    check_state,
    check_stacked_equals_loop,
    check_threads_equal_loop,
    check_no_mutation,
    check_resume,
    check_schedules,
)
CHECKS: tuple[Callable[[Algorithm], None], ...] = (
    *_EVERY,
    check_precision,
    check_deterministic,
    check_zero_weight,
    check_single_client,
    check_increments,
)
GOSSIP_CHECKS = (*_EVERY, check_precision, check_repeatable, check_alone)
# Without the check of precision, because rounding may flip a sign.
ALLREDUCE_CHECKS = (*_EVERY, check_repeatable, check_agreement, check_alone)


def checks_for(algorithm: Algorithm) -> tuple[Callable[[Algorithm], None], ...]:
    """Return the checks of the algorithm's family."""
    if isinstance(algorithm, AllReduce):
        return ALLREDUCE_CHECKS
    return GOSSIP_CHECKS if isinstance(algorithm, Peer) else CHECKS
