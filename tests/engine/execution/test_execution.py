"""Threads, compilation and stacks: other ways to the same numbers."""

import copy
import importlib
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from tests.engine.convolutional import convolutional_net, convolutional_run, image_clients
from tests.support.runs import finished
from undrift.engine.execution import batches, memory, stacks
from undrift.engine.execution.lockstep import run_lockstep
from undrift.engine.execution.threads import Stopped, TaskCopies, ordered_thread_map
from undrift.engine.tuning import rules
from undrift.engine.world import World
from undrift.gradients.task import Task
from undrift.models.layout import Layout

simulate_module = importlib.import_module("undrift.engine.simulate")


class TestSideBySide:
    def test_results_come_in_the_order_of_the_jobs(self) -> None:
        def job(i: int):
            def run(stop: threading.Event) -> int:
                time.sleep(0.02 * (3 - i % 3))
                return i

            return run

        assert list(ordered_thread_map([job(i) for i in range(9)], 3)) == list(range(9))

    def test_as_many_run_at_a_time_as_there_are_threads(self) -> None:
        meeting = threading.Barrier(3, timeout=10)  # which breaks if fewer come
        assert len(list(ordered_thread_map([lambda stop: meeting.wait()] * 6, 3))) == 6

    def test_few_results_wait_for_whoever_takes_them(self) -> None:
        begun = []
        jobs = ((lambda stop, i=i: begun.append(i)) for i in range(100))
        results = ordered_thread_map(jobs, 2)
        next(results)
        assert len(begun) <= 4
        results.close()
        assert len(begun) <= 4

    def test_an_error_ends_the_others(self) -> None:
        begun, stopped = threading.Event(), threading.Event()

        def fails(stop: threading.Event) -> None:
            begun.wait(10)
            raise ValueError("first")

        def waits(stop: threading.Event) -> None:
            begun.set()
            stop.wait(10)
            stopped.set()
            raise Stopped

        with pytest.raises(ValueError, match="first"):
            list(ordered_thread_map([fails, waits], 2))
        assert stopped.is_set()

    def test_each_has_one_intra_op_thread_and_no_gradients(self) -> None:
        def seen(stop: threading.Event) -> tuple[int, bool]:
            return torch.get_num_threads(), torch.is_grad_enabled()

        assert list(ordered_thread_map([seen, seen], 2)) == [(1, False)] * 2


class TestTurns:
    def test_at_most_so_many_run_at_once_and_all_meet(self) -> None:
        running, most, lock = [], [], threading.Lock()
        results: dict[int, int] = {}

        def function(i: int):
            def turn(ask):
                total = 0
                for _ in range(3):
                    with lock:
                        running.append(i)
                        most.append(len(running))
                        assert (i + 2) % 6 not in running or i >= 4, "i and i + 2 never together"
                    time.sleep(0.002)
                    with lock:
                        running.remove(i)
                    total += ask(i)
                return total

            return turn

        def meet(asked: list[int]) -> list[int]:
            assert not running
            return [sum(asked)] * len(asked)

        run_lockstep([function(i) for i in range(6)], meet, results.__setitem__, at_once=2)
        assert results == dict.fromkeys(range(6), 45)
        assert max(most) == 2

    def test_an_error_among_several_ends_all(self) -> None:
        def fails(ask):
            raise ValueError("one of them")

        def asks(ask):
            return ask(1)

        with pytest.raises(ValueError, match="one of them"):
            run_lockstep([asks, fails, asks], lambda asked: asked, lambda i, r: None, at_once=2)


def test_copies_of_a_task_share_the_parameters_that_a_forward_pass_replaces() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    task = Task(model, Layout.of(model), nn.functional.cross_entropy)
    other = TaskCopies(task).several(2)[1].model
    assert other is not model
    assert other[0] is not model[0]
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours is theirs


class TestThreads:
    @pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["plain", "dropout"])
    def test_the_same_bits_as_one_after_the_other(self, dropout: float) -> None:
        runs = [
            finished(
                convolutional_run(
                    model=convolutional_net(dropout=dropout),
                    mode=mode,
                    execution=ud.ExecutionOptions(threads=threads),
                )
            )
            for mode, threads in (("loop", None), ("threads", 2), ("threads", 4))
        ]
        assert len({run.model_sha256 for run in runs}) == 1
        bills = [(r.bytes_up, r.gradients, r.samples) for run in runs for r in run.records]
        assert bills[:3] == bills[3:6] == bills[6:]

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            (ud.NetFleet(lr=0.05), {"topology": ud.topology.ring(5)}),
            (ud.Marsit(lr=0.05, server_lr=0.01), {"work": ud.Steps(2)}),
        ],
        ids=["gossip", "one-bit"],
    )
    def test_peers_side_by_side_are_peers_in_turns(self, method, options) -> None:
        options = {"work": ud.Steps(3), **options}
        runs = [
            finished(
                convolutional_run(
                    method, mode=mode, execution=ud.ExecutionOptions(threads=3), **options
                )
            )
            for mode in ("loop", "threads")
        ]
        assert runs[0].model_sha256 == runs[1].model_sha256
        assert runs[0].totals.gradients == runs[1].totals.gradients

    def test_a_tap_sees_clients_in_the_same_order(self) -> None:
        seen: dict[str, list[int]] = {"loop": [], "threads": []}
        for mode, ids in seen.items():
            finished(
                convolutional_run(
                    mode=mode,
                    execution=ud.ExecutionOptions(threads=3),
                    tap=lambda up, ids=ids: ids.append(up.client),
                )
            )
        assert seen["loop"] == seen["threads"]
        assert len(seen["loop"]) == 15

    def test_bad_updates_are_named_as_in_the_loop(self) -> None:
        messages = []
        for mode in ("loop", "threads"):
            run = convolutional_run(
                ud.FedAvg(lr=1e30), mode=mode, execution=ud.ExecutionOptions(threads=2), rounds=20
            )
            with pytest.raises(ud.DivergenceError) as error:
                finished(run)
            messages.append(str(error.value))
        assert messages[0] == messages[1]

    def test_a_model_that_draws_by_itself_is_refused(self) -> None:
        class Noisy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = convolutional_net()

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.net(inputs + 0.1 * torch.randn_like(inputs))

        with pytest.raises(
            ud.UndriftError, match="mode='threads' is not possible: the model draws"
        ):
            convolutional_run(model=Noisy(), mode="threads")

    def test_convolutions_run_side_by_side_where_torch_has_threads(self, monkeypatch) -> None:
        assert convolutional_run(execution=ud.ExecutionOptions(threads=2)).mode == "stacked", (
            "so small that calling them is what costs"
        )
        monkeypatch.setattr(rules, "STEP_ELEMENTS", 1)
        assert convolutional_run(execution=ud.ExecutionOptions(threads=2)).mode == "threads"
        assert convolutional_run(execution=ud.ExecutionOptions(threads=1)).mode == "loop"
        assert (
            convolutional_run(
                model=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
                execution=ud.ExecutionOptions(threads=2),
            ).mode
            == "stacked"
        )

    def test_several_processes_do_not_choose_it_by_themselves(self, monkeypatch) -> None:
        """They would not all have as many cores, and must all choose the same."""
        monkeypatch.setattr(rules, "STEP_ELEMENTS", 1)
        seen = []
        monkeypatch.setattr(
            simulate_module, "enter", lambda *given: seen.append(1) or World(), raising=True
        )
        assert (
            convolutional_run(execution=ud.ExecutionOptions(threads=2), processes=2).mode == "loop"
        )
        assert seen

    def test_a_run_can_be_copied(self) -> None:
        run = convolutional_run(mode="threads", execution=ud.ExecutionOptions(threads=2))
        next(run)
        assert finished(copy.deepcopy(run)).model_sha256 == finished(run).model_sha256

    def test_no_rounds_and_no_cohorts_are_no_error(self) -> None:
        assert convolutional_run(participation=[], rounds=0).rounds == 0

    def test_a_models_own_functions_may_be_as_torch_had_them_first(self) -> None:
        """Which vmap and torch.func refuse: then clients run one after the other."""

        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, inputs):
                return 2 * inputs

            @staticmethod
            def backward(ctx, slopes):
                return 2 * slopes

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.body, self.head = nn.Linear(64, 5), nn.Linear(5, 3)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.head(torch.relu(Doubled.apply(self.body(inputs.flatten(1)))))

        for method in (ud.FedAvg(lr=0.1), ud.MOON(lr=0.1)):
            run = finished(
                convolutional_run(method, model=Net(), execution=ud.ExecutionOptions(threads=2))
            )
            assert run.mode == "threads"

    def test_the_callers_threads_come_back(self) -> None:
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(2)
            assert finished(convolutional_run(mode="threads")).mode == "threads"
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)


class TestLayout:
    def test_channels_innermost_change_nothing_but_rounding(self) -> None:
        layers = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3), nn.Flatten()
        wide = nn.Sequential(*layers, nn.Linear(128, 3)).double()
        pairs = [(x.double(), y) for x, y in (image_clients()[i] for i in range(5))]
        given = ud.Clients(pairs)
        run = convolutional_run(model=wide, clients=given, mode="loop")
        assert run._task.channels_last
        other = convolutional_run(model=wide, clients=given, mode="stacked")
        assert not other._task.channels_last
        x, y = finished(run).x, finished(other).x
        assert torch.allclose(x, y, rtol=0, atol=1e-12)

    def test_stacked_clients_keep_the_usual_layout(self) -> None:
        run = convolutional_run(mode="stacked", execution=ud.ExecutionOptions(channels_last=True))
        assert not finished(run).execution.channels_last


class TestCompile:
    @pytest.mark.long
    def test_gradients_are_the_same(self) -> None:
        # Two shapes, whole and short minibatches, and keyed dropout.
        options = {"model": convolutional_net(dropout=0.5), "mode": "loop", "rounds": 2}
        plain, compiled = (
            finished(convolutional_run(**options)),
            finished(convolutional_run(execution=ud.ExecutionOptions(compile=True), **options)),
        )
        assert torch.allclose(plain.x, compiled.x, rtol=1e-4, atol=1e-5)
        assert not torch.equal(plain.x, convolutional_run(**options).x)

    def test_a_model_that_cannot_be_compiled_goes_on_without(self, monkeypatch) -> None:
        def broken(*args: object, **options: object) -> object:
            raise RuntimeError("no compiler\nand a long story")

        monkeypatch.setattr("torch._inductor.compile", broken)
        plain = finished(convolutional_run(mode="loop"))
        with pytest.warns(UserWarning, match="got RuntimeError: no compiler; going on without it"):
            run = finished(
                convolutional_run(mode="loop", execution=ud.ExecutionOptions(compile=True))
            )
        assert torch.allclose(run.x, plain.x, rtol=1e-5, atol=1e-6)  # short minibatches are padded

    def test_a_loss_over_the_whole_minibatch_is_refused(self) -> None:
        def worst(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, targets, reduction="none").max()

        with pytest.raises(ValueError, match="compile=True needs a loss that is the mean"):
            convolutional_run(loss=worst, execution=ud.ExecutionOptions(compile=True))


def test_plans_put_the_longest_first() -> None:
    from undrift.engine.plan import Plan

    plan = Plan.equal(np.arange(4), [2, 5, 2, 9], 4)
    order = [int(i) for (i,) in plan.by_falling_work(np.array([0, 1, 2, 3]))]
    assert order == [3, 1, 0, 2]


class TestStacked:
    @pytest.mark.parametrize("model", ["convolutional", "linear"])
    def test_stacks_side_by_side_give_the_same_bits(self, model: str) -> None:
        linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        net = linear if model == "linear" else convolutional_net(dropout=0.5)
        runs = [
            finished(
                convolutional_run(
                    model=net,
                    mode="stacked",
                    execution=ud.ExecutionOptions(chunk_size=2, threads=threads),
                )
            )
            for threads in (1, 2, 4)
        ]
        assert len({run.model_sha256 for run in runs}) == 1

    def test_stacks_are_of_like_size_and_do_not_depend_on_threads(self) -> None:
        many = image_clients(70, shape=(4,))
        net = nn.Sequential(nn.Linear(4, 3))
        run = convolutional_run(
            model=net,
            clients=many,
            work=ud.Steps(1),
            execution=ud.ExecutionOptions(chunk_size=50),
            mode="stacked",
        )
        groups = run._executor._groups(run._planner.plan(0), np.arange(70))
        assert [len(positions) for positions in groups] == [35, 35]

    def test_without_torchs_inner_parts_the_bits_are_the_same(self, monkeypatch) -> None:
        runs = [finished(convolutional_run(mode="stacked"))]
        monkeypatch.setattr(batches, "only_vmap", lambda: None)
        runs.append(finished(convolutional_run(mode="stacked")))
        assert runs[0].model_sha256 == runs[1].model_sha256

    def test_they_are_there(self) -> None:
        """With the torch we pin; elsewhere half a millisecond a step is all that is lost."""
        levels = []

        def one(x: torch.Tensor) -> torch.Tensor:
            levels.append(stacks.only_vmap())
            return torch.func.vmap(lambda y: (levels.append(stacks.only_vmap()), y)[1])(x)

        torch.func.vmap(one)(torch.zeros(2, 3))
        assert levels == [1, None]
        assert stacks.only_vmap() is None

    def test_a_method_may_differentiate_the_objective_itself(self) -> None:
        """Inside torch.func.grad there is more than the one vmap."""

        @dataclass(frozen=True)
        class ByHand(ud.FedAvg):
            def local(self, down, client, steps):
                def step(y, f):
                    return y - self.lr * torch.func.grad(lambda x: f(x))(y)

                return steps(step, down) - down, client

        ends = [
            finished(convolutional_run(method(lr=0.1), mode=mode, batch_size=None)).x
            for method in (ud.FedAvg, ByHand)
            for mode in ("loop", "stacked")
        ]
        for end in ends[1:]:
            assert torch.allclose(end, ends[0], rtol=1e-4, atol=1e-6)


class TestMemory:
    @pytest.fixture
    def told(self, monkeypatch) -> list[tuple[int, int]]:
        calls: list[tuple[int, int]] = []
        monkeypatch.setattr(memory, "_MALLOPT", lambda name, value: calls.append((name, value)))
        return calls

    def test_it_is_kept_for_big_vectors_while_a_round_is_played(self, told) -> None:
        with memory.retain_freed_memory(memory.LARGE_BYTES):
            assert told == list(memory._KEPT)
        assert told[2:] == list(memory._USUAL)

    def test_small_vectors_change_nothing(self, told) -> None:
        finished(convolutional_run())
        assert not told

    def test_the_last_of_several_runs_restores_it(self, told) -> None:
        with memory.retain_freed_memory(2**30), memory.retain_freed_memory(2**30):
            told.clear()
        assert told == [*memory._KEPT, *memory._USUAL]

    def test_an_error_restores_it(self, told) -> None:
        with pytest.raises(KeyError), memory.retain_freed_memory(2**30):
            raise KeyError
        assert told[-3:] == list(memory._USUAL)

    def test_without_glibc_nothing_happens(self, monkeypatch) -> None:
        monkeypatch.setattr(memory, "_MALLOPT", None)
        monkeypatch.setattr(memory, "_MALLOC_TRIM", None)
        with memory.retain_freed_memory(2**30):
            memory.trim_memory()
