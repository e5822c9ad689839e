"""Steps of `Outer` in blocks of coordinates: whole vectors' numbers, in memory of their own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import undrift as ud
from tests.support import outer as support
from tests.support.outer import after, batch, vector
from undrift.engine.execution import memory
from undrift.gradients.loops.trace import TracedObjective, trace_step
from undrift.gradients.loops.traced import Tape
from undrift.outer import blocked_round, blocks, compiled

METHODS = {n: m for n, m in support.METHODS.items() if not support.refused(m)}
COMPILED = (
    ud.DiLoCo(lr=0.01),
    ud.FedSpeed(lr=0.1),
    ud.Marsit(lr=0.1, server_lr=0.01, rule=ud.Momentum(0.9)),
    ud.NetFleet(lr=0.1),
)


def trained(method: Any, steps: int = 8, every: int = 3, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the model in float32 in the middle of a round, and the state after the last one."""
    model = support.net().float()
    if options.pop("adam", False):
        options["inner"] = torch.optim.AdamW(model.parameters(), lr=0.01)
    outer = ud.Outer(model, method, every, **support.links(method, 1), **options)
    for k in range(steps):
        inputs, targets = batch(k)

        def closure(inputs: Tensor = inputs.float(), targets: Tensor = targets) -> Tensor:
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        outer.step(closure)
    return vector(model).clone(), outer.server.x.clone()


@pytest.fixture
def whole_vectors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `trained` with steps that are run as their methods are written."""

    def run(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        with monkeypatch.context() as patch:
            patch.setattr(blocked_round.BlockedRound, "_trace", lambda self: None)
            return trained(*args, **options)

    return run


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of seven coordinates, so that each has several parameters or a part of one."""
    monkeypatch.setattr(blocks, "BLOCK", 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.parametrize("name", METHODS)
def test_blocks_have_the_numbers_of_whole_vectors(
    name: str, whole_vectors: Any, short_blocks: None
) -> None:
    for got, expected in zip(trained(METHODS[name]), whole_vectors(METHODS[name]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", [ud.DiLoCo(lr=1.0), ud.FedProx(lr=1.0), ud.Marsit(lr=1.0)])
def test_blocks_take_the_steps_of_an_inner_optimiser(
    method: Any, whole_vectors: Any, short_blocks: None
) -> None:
    expected = whole_vectors(method, adam=True)
    for got, one in zip(trained(method, adam=True), expected, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", COMPILED, ids=lambda method: type(method).__name__)
def test_compiled_passes_have_the_numbers_of_whole_vectors(
    method: Any, whole_vectors: Any, short_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    make = compiled._function

    def counted(source: str) -> Any:
        built.append(make(source))
        return built[-1]

    monkeypatch.setattr(compiled, "_function", counted)
    monkeypatch.setattr(compiled, "LEAST", 1)
    found = trained(method)
    if None in built:
        pytest.skip("this machine has no compiler")
    assert built
    for got, expected in zip(found, whole_vectors(method), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_a_step_changes_its_own_memory_and_nobody_elses() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.DiLoCo(lr=0.01), 10)
    before = outer.server.x.clone()
    support.after(outer, model, 2)
    first = outer._rounds._round.carry[0].data_ptr()  # type: ignore[union-attr]
    saved = outer.state_dict()
    copy = [leaf.clone() for leaf in saved["round"]["carry"]]
    support.after(outer, model, 2)
    assert outer._rounds._round.carry[0].data_ptr() == first  # type: ignore[union-attr]
    assert torch.equal(outer.server.x, before)
    assert all(map(torch.equal, saved["round"]["carry"], copy))


def test_a_step_that_is_interrupted_while_it_writes_ends_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), 3)
    support.after(outer, model, 5)
    store = blocks.StepValues.store

    def torn(self: Any, targets: Any) -> None:
        store(self, targets[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blocks.StepValues, "store", torn)
        with pytest.raises(KeyboardInterrupt):
            support.after(outer, model, 1)
    assert torch.equal(vector(model), outer.server.x)
    found = support.after(outer, model, 3)
    fresh = support.net()
    again = ud.Outer(fresh, ud.FedAvg(lr=0.1), 3)
    support.after(again, fresh, 3)
    assert torch.equal(found, support.after(again, fresh, 3))


@pytest.mark.parametrize("least", [1, 2**20], ids=["compiled", "torch"])
def test_a_block_is_written_when_all_of_its_values_are_computed(
    least: int, short_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "LEAST", least)
    a, b, g = torch.arange(20.0), torch.arange(20.0) + 100, torch.ones(20)

    def step(carry: Any, f: Any) -> Any:
        return carry[1] - 2 * f.grad(carry[0]), carry[0]  # the two change places

    data = TracedObjective(Tape(20), 0, first=False)
    traced = trace_step(step, (a, b), data, data)
    cut = blocks.Blocks([4, 13, 3])
    values = blocks.StepValues(traced, (a, b), cut)
    gradient = next(i for i, node in enumerate(values.nodes) if node.op == "gradient")
    values.give(gradient, cut.of_parameters(torch.split(g, [4, 13, 3])))
    memory = [cut.of_vector(a), cut.of_vector(b)]
    values.store(list(zip(traced.structure.outputs, memory, strict=True)))
    assert torch.equal(a, torch.arange(20.0) + 98)
    assert torch.equal(b, torch.arange(20.0))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("method", [ud.Marsit(lr=0.1), ud.FedSpeed(lr=0.1)], ids=repr)
def test_a_round_that_is_over_leaves_no_memory_to_the_collector(
    method: Any, no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[Any] = []
    enter = blocked_round.BlockedRound._enter

    def noted(self: Any) -> None:
        rounds.append(weakref.ref(self))
        enter(self)

    monkeypatch.setattr(blocked_round.BlockedRound, "_enter", noted)
    model = support.net()
    after(ud.Outer(model, method, 2), model, 4)
    assert rounds
    assert [each() for each in rounds] == [None] * len(rounds)


def test_freed_memory_is_kept_while_a_large_model_has_an_outer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(memory, "_MALLOPT", lambda name, value: told.append((name, value)))
    small = ud.Outer(support.net(), ud.FedAvg(lr=0.1), 2)
    assert not told
    large = torch.nn.Linear(512, 512)
    outer = ud.Outer(large, ud.FedAvg(lr=0.1), 2)
    assert told == list(memory._KEPT)
    told.clear()
    del outer
    gc.collect()
    assert told == list(memory._USUAL)
    assert small.t == 0
