"""Traces of steps: which methods have one, what is recorded, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support.methods import DEFAULTS, VARIANTS
from undrift import dry, tree
from undrift.core import Cohort, Peer, Prelude
from undrift.gradients.loops.emit import emit_loop
from undrift.gradients.loops.trace import Program, trace_program
from undrift.gradients.loops.traced import UntraceableError
from undrift.gradients.task import Task
from undrift.models.layout import Layout

SIZE = 21
AT_EVERY_STEP = ud.DSGD, ud.GTSGD
AT_THE_FIRST = ud.NetFleet, ud.LDSGD
ADDING = ud.MOON, ud.FedMLB


def task_of(**options: Any) -> Task:
    net = nn.Linear(6, 3)
    return Task(net, Layout.of(net), nn.functional.cross_entropy, **options)


class TracingLoop(dry.ZeroLoop):
    """Traces each step that it is given and takes none."""

    def __init__(self, x: Tensor, task: Task) -> None:
        super().__init__(x)
        self.task, self.outcomes = task, list[Program | str]()

    def __call__(self, step: Callable[..., Any], init: Any) -> Any:
        try:
            self.outcomes.append(trace_program(step, init, self.task, self.t))
        except UntraceableError as error:
            self.outcomes.append(str(error))
        return init


class OneNode:
    """Is the `Comm` of a single node, which refuses what is no tensor as the real one does."""

    size = 1

    def mix(self, values: Any) -> Any:
        if not all(isinstance(leaf, Tensor) for leaf in tree.leaves(values)):
            raise TypeError("comm.mix needs tensors")
        return values

    def reduce(self, v: Tensor, how: Any) -> Tensor:
        return v


def outcome_of(algorithm: Any, **options: Any) -> Program | str:
    """Return what the last pass of a method's round is traced to, or why it is not."""
    x, task = torch.zeros(SIZE), task_of(**options)
    loop = TracingLoop(x, task)
    if isinstance(algorithm, Peer):
        algorithm.round(algorithm.init(x, dry.ZeroObjective(x)), loop, OneNode())
        return loop.outcomes[-1]
    server = algorithm.init(x)
    client = algorithm.init_client(x, algorithm.broadcast(server))
    if isinstance(algorithm, Prelude) and algorithm.asks != "nobody":
        answer, client = algorithm.answer(algorithm.ask(server), client, loop)
        server = algorithm.hear(server, answer, Cohort(t=0, population=1, size=1, mass=1.0))
    algorithm.local(algorithm.broadcast(server), client, loop)
    return loop.outcomes[-1]


def traced(step: Callable[..., Any], init: Any = None, **options: Any) -> Program:
    return trace_program(step, torch.zeros(SIZE) if init is None else init, task_of(**options), 0)


class TestMethods:
    @pytest.mark.parametrize("algorithm", [*DEFAULTS, *VARIANTS], ids=repr)
    def test_every_method_has_a_trace_or_a_reason(self, algorithm: Any) -> None:
        outcome = outcome_of(algorithm)
        if isinstance(algorithm, AT_EVERY_STEP):
            assert outcome == "comm.mix needs tensors"
        elif isinstance(algorithm, ADDING):
            assert outcome in ("the model's outputs in a step", "`level` in a step")
        else:
            assert isinstance(outcome, Program), outcome
            meets = isinstance(algorithm, AT_THE_FIRST) and algorithm.meetings == 1
            assert (outcome.first is None) is (meets and getattr(algorithm, "form", "cta") == "cta")

    def test_fedagrac_tells_its_first_step_apart(self) -> None:
        program = outcome_of(ud.FedaGrac(lr=0.1))
        assert isinstance(program, Program)
        assert len(program.variants) == 2
        assert len({variant.structure for variant in program.variants}) == 2

    def test_gossip_at_two_steps_cannot_be_traced(self) -> None:
        assert "k than to tell the first step" in str(outcome_of(ud.LDSGD(lr=0.1, gossip=2)))

    @pytest.mark.parametrize(
        ("algorithm", "gradients"),
        [(ud.FedAvg(lr=0.1), 1), (ud.FedSpeed(lr=0.1), 2), (ud.FedSAM(lr=0.1, ascent="data"), 2)],
    )
    def test_gradients_are_counted(self, algorithm: Any, gradients: int) -> None:
        program = outcome_of(algorithm)
        assert isinstance(program, Program)
        assert program.later.gradients == gradients

    def test_numbers_are_arguments(self) -> None:
        """So a schedule, another decay or another clip is the same code."""
        methods = ud.FedSpeed(lr=0.1), ud.FedSpeed(lr=0.05, rho=0.3, alpha=0.2, lam=4.0)
        programs = [
            outcome_of(method, weight_decay=decay, clip=clip)
            for method, decay, clip in zip(methods, (0.1, 1.0), (0.5, 1.0), strict=True)
        ]
        one, other = programs
        assert isinstance(one, Program)
        assert isinstance(other, Program)
        assert one.structure == other.structure
        assert one.later.numbers != other.later.numbers
        assert 0.05 in other.later.numbers

    def test_decay_and_clip_are_in_the_trace(self) -> None:
        plain, wrapped = (
            outcome_of(ud.FedAvg(lr=0.1), **options)
            for options in ({}, {"weight_decay": 0.1, "clip": 1.0})
        )
        assert isinstance(plain, Program)
        assert isinstance(wrapped, Program)
        assert "norm" not in {node.op for node in plain.later.structure.nodes}
        assert {"norm", "where"} <= {node.op for node in wrapped.later.structure.nodes}


class TestSteps:
    @pytest.mark.parametrize(
        ("asked", "first", "later"),
        [
            (lambda k: k == 0, True, False),
            (lambda k: k != 0, False, True),
            (lambda k: k > 0, False, True),
            (lambda k: k < 1, True, False),
            (lambda k: k >= 1, False, True),
            (lambda k: k <= 0, True, False),
            (lambda k: bool(k), False, True),
            (lambda k: k == -1, False, False),
            (lambda k: k >= 0, True, True),
        ],
    )
    def test_the_first_step_can_be_told(self, asked: Any, first: bool, later: bool) -> None:
        seen = []

        def step(y: Any, f: Any) -> Any:
            seen.append(asked(f.k))
            return y

        traced(step)
        assert seen == [later, first]

    @pytest.mark.parametrize(
        "asked",
        [
            lambda k: k == 3,
            lambda k: k < 2,
            lambda k: k % 2,
            lambda k: 1.0 / (k + 1),
            lambda k: 0.9**k,
            lambda k: f"{k}",
            lambda k: range(k),
            lambda k: {k: 1},
            lambda k: float(k),
        ],
    )
    def test_nothing_else_of_k_is_known(self, asked: Any) -> None:
        def step(y: Any, f: Any) -> Any:
            asked(f.k)
            return y

        with pytest.raises(UntraceableError):
            traced(step)

    @pytest.mark.parametrize(
        ("step", "said"),
        [
            (lambda y, f: y if y.norm() > 1 else 2 * y, "a decision on a value"),
            (lambda y, f: y * float(y.norm()), "a decision on a value"),
            (lambda y, f: print(y) or y, "a decision on a value, or its text"),
            (lambda y, f: y - f.outputs(y).loss, "the model's outputs"),
            (lambda y, f: y - f(y), "the value of the loss"),
            (lambda y, f: f.plus(lambda x: x.sum()).grad(y), "added to the loss"),
            (lambda y, f: y.flip(0), "`flip` of a vector"),
            (lambda y, f: torch.sort(y), "`sort`"),
            (lambda y, f: y + torch.randn(SIZE), "`randn` in a step"),
            (lambda y, f: y + torch.zeros(SIZE).normal_(), "`normal_` in a step"),
            (lambda y, f: torch.zeros(SIZE).add_(y), "`add_` in a step"),
            (lambda y, f: y + torch.zeros(SIZE, dtype=torch.float64), "torch.float64"),
            (lambda y, f: y + torch.zeros(1, SIZE), "shape"),
            (lambda y, f: y.norm(1), "a norm other than"),
            (lambda y, f: y.norm(), "changes its form"),
            (lambda y, f: (y, y), "changes its form"),
            (lambda y, f: y + (y > 0), "conditions and values"),
            (lambda y, f: y**3, "a power of a vector"),
            (lambda y, f: f.grad(y.norm()), "not a vector"),
            (lambda y, f: y.add(y, 2), "other arguments"),
            (lambda y, f: y + "1", "type str"),
            (lambda y, f: 1 / 0, "division by zero"),
        ],
    )
    def test_what_cannot_be_recorded_is_named(self, step: Any, said: str) -> None:
        with pytest.raises(UntraceableError, match=said):
            traced(step)

    def test_a_step_that_changes_from_call_to_call_is_refused(self) -> None:
        calls: list[int] = []

        def step(y: Any, f: Any) -> Any:
            calls.append(1)
            return y * (0.9 ** len(calls))

        with pytest.raises(UntraceableError, match="changes from call to call"):
            traced(step)

    def test_a_carry_of_other_things_than_tensors_is_refused(self) -> None:
        with pytest.raises(UntraceableError, match="other things than tensors"):
            traced(lambda carry, f: carry, (torch.zeros(SIZE), 1))

    def test_numbers_of_numpy_are_numbers(self) -> None:
        by = np.float64(0.5)
        program = traced(lambda y, f: by * y + y * by - y / by)
        assert program.later.numbers == (0.5, 0.5, 0.5)

    def test_a_value_that_is_made_twice_is_made_once(self) -> None:
        program = traced(lambda y, f: f.grad(y) + f.grad(y))
        assert [node.op for node in program.later.structure.nodes].count("gradient") == 1
        assert program.later.gradients == 2


class TestSource:
    def test_one_pass_makes_a_plain_step(self) -> None:
        source = emit_loop(traced(lambda y, f: y.sub(f.grad(y) + 1.0, alpha=0.1)).structure)
        assert source.count("for (long d = 0;") == 1
        assert "constexpr long BUFFERS = 1;" in source  # that of the gradient

    def test_what_nobody_needs_is_not_made(self) -> None:
        def step(y: Any, f: Any) -> Any:
            _ = f.grad(y).norm()
            return y * 2.0

        assert "call.gradient_at(" not in emit_loop(traced(step).structure)

    def test_a_vector_that_only_a_later_pass_needs_is_made_there(self) -> None:
        """FedSpeed's y - x is written before the second gradient and used after it."""

        def step(y: Any, f: Any) -> Any:
            away = y - 1.0
            g = f.grad(y)
            return y - f.grad(y + g) - away

        assert "constexpr long BUFFERS = 3;" in emit_loop(traced(step).structure)
