"""The form of uploads, answers and client states is found without anybody's data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import undrift as ud
from tests.support.methods import DEFAULTS, VARIANTS
from undrift import dry, testing, tree
from undrift.engine.execution.cohort import FederatedExecutor
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.round import federated_round
from undrift.engine.participation import parse, population_weights
from undrift.engine.plan import Planner
from undrift.engine.world import World
from undrift.gradients.task import Task
from undrift.models.layout import Layout

METHODS = [
    *(each for each in (*DEFAULTS, *VARIANTS) if isinstance(each, ud.Federated)),
    ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4)),
    ud.Compressed(ud.Scaffold(lr=0.1), ud.ScaledSign(), error_feedback=True),
    ud.Compressed(ud.FedNova(lr=0.1), ud.TopK(k=5), error_feedback=True),
    ud.Accelerated(ud.FedMLB(lr=0.1)),
    ud.Accelerated(ud.Compressed(ud.FedAvg(lr=0.1), ud.QSGD(bits=8))),
]
methods = pytest.mark.parametrize("algorithm", METHODS, ids=repr)


def form(values: Any) -> Any:
    """Structure, shapes and dtypes."""
    leaves, structure = pytree.tree_flatten(values)
    return structure, [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]


@methods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forms_are_those_of_a_real_round(algorithm: Any, dtype: torch.dtype) -> None:
    uploads: list[ud.Upload] = []
    run = testing.start(
        algorithm,
        model=testing.small_net(dtype=dtype),
        tap=uploads.append,
        participation=1.0,
        rounds=1,
    )
    testing.finish(run)
    x0 = run._x0
    assert form(dry.upload_form(algorithm, x0)) == form(uploads[0].upload)
    assert form(dry.client_form(algorithm, x0)) == form(run.client_states[0])
    record = run.records[0]
    wires = tree.nbytes(dry.wire_form(algorithm, x0)) * record.clients
    if isinstance(algorithm, ud.Prelude) and algorithm.asks != "nobody":
        wires += tree.nbytes(dry.answer_form(algorithm, x0)) * record.clients
    assert record.bytes_up == wires


@methods
def test_forms_hold_zeros(algorithm: Any) -> None:
    x0 = torch.randn(20)
    forms = [dry.upload_form(algorithm, x0), dry.client_form(algorithm, x0)]
    if isinstance(algorithm, ud.Prelude) and algorithm.asks != "nobody":
        forms.append(dry.answer_form(algorithm, x0))
    for leaf in tree.leaves(forms):
        assert not leaf.any()


class Untouchable:
    """Data that must not be looked at; who has whose is asked, and every rank has all."""

    clients = SimpleNamespace(rank_census=None)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"data was touched: {name}")


class Sizes:
    """A census without data."""

    sizes, availability = np.array([5, 8]), None

    def __len__(self) -> int:
        return 2


class SecondRank(World):
    """The second of two processes, of which the first has sent nothing but zeros."""

    rank, size = 1, 2

    def __init__(self) -> None:
        self.sums: list[Any] = []

    def gather(self, numbers: Any) -> Any:
        others = [0] * len(numbers)
        if len(numbers) > 1:  # what was found of uploads: the first process has the only one
            others[0] = 1
        return np.array([others, numbers])

    def sum(self, values: Any) -> Any:
        self.sums.append(values)
        return values


@methods
def test_a_rank_without_a_client_adds_zeros_and_reads_no_data(algorithm: Any) -> None:
    model = testing.small_net()
    task = Task(model, Layout.of(model), nn.functional.cross_entropy)
    weights = population_weights("size", Sizes.sizes)
    planner = Planner(Sizes(), weights, parse([[0]]), ud.Steps(2), 4, seed=0)
    world, x0 = SecondRank(), task.layout.gather(model)
    if dry.packs(algorithm, x0):
        pytest.skip("packed uploads travel as bytes, which processes/test_group.py counts")
    executor = FederatedExecutor(task, planner, Untouchable(), "loop", 1, world=world)
    meter = Meter(1)
    with torch.no_grad():
        server = algorithm.init(x0)
        result = federated_round(
            algorithm, executor, planner.plan(0), server=server, clients={}, x0=x0, meter=meter
        )
    assert result.states == {}
    expected = [dry.upload_form(algorithm, x0)]
    if isinstance(algorithm, ud.Prelude) and algorithm.asks != "nobody":
        expected.insert(0, dry.answer_form(algorithm, x0))
    assert [form(each) for each in world.sums] == [form(each) for each in expected]
    assert not any(leaf.any() for leaf in tree.leaves(world.sums))
    assert (meter.gradients, meter.bytes_up, meter.bytes_down) == (0, 0, 0)
