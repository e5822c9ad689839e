"""Local steps in compiled loops: every method as without them, and where there are none."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.algorithms.reductions import PARTIAL, SAME_ANYWHERE, UNEQUAL
from tests.support.methods import DEFAULTS, VARIANTS
from tests.support.system import ROOT
from undrift import testing, tree
from undrift.data.prepare import Images
from undrift.engine import simulate as simulate_module
from undrift.engine.execution import compiled
from undrift.engine.settings import ExecutionRecord
from undrift.engine.world import World
from undrift.errors import DivergenceError
from undrift.gradients.kernels import UnsupportedError
from undrift.gradients.loops import run as loop_run
from undrift.testing import finish, small_clients, small_net, start

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
CLOSE = 1e-6  # largest distance from a run without loops, as a share of the largest number
ADDING = ud.MOON, ud.FedMLB  # to the loss, so they have no kernel
AT_EVERY_STEP = ud.DSGD, ud.GTSGD
AT_THE_FIRST = ud.NetFleet, ud.LDSGD
SIGNS = ud.SignSGD, ud.SSDM, ud.EFSignSGD, ud.CascadingSSDM, ud.Marsit  # which may flip


def like(*, loops: bool, mode: str = "loop") -> ExecutionRecord:
    return ExecutionRecord(mode=mode, channels_last=False, kernels=True, loops=loops)


def small(algorithm: Any = None, *, loops: bool = True, **options: Any) -> ud.Run:
    """Return a run of the small net with a kernel: dropout, ragged minibatches, unequal work."""
    execution = options.pop("execution", ud.ExecutionOptions())
    record = like(loops=loops, mode=options.get("mode", "loop"))
    given = {"dtype": torch.float32, "kernels": "require", **options}
    execution = replace(execution, like=record)
    return start(algorithm or ud.FedAvg(lr=0.1), execution=execution, **given)


def states(run: ud.Run) -> list[Tensor]:
    return tree.leaves((run.state, [run.client_states[i] for i in sorted(run.client_states)]))


def assert_same(one: ud.Run, other: ud.Run) -> None:
    for a, b in zip(states(one), states(other), strict=True):
        scale = float(b.abs().max()) if b.numel() else 0.0
        assert not b.numel() or float((a - b).abs().max()) <= CLOSE * max(1.0, scale)
    counted = ("gradients", "samples", "bytes_up", "bytes_down")
    for field in counted:
        assert getattr(one.totals, field, None) == getattr(other.totals, field, None), field


def both(algorithm: Any, rounds: int | None = None, **options: Any) -> tuple[ud.Run, ud.Run]:
    """Return a run with loops and one without, both at their end."""
    runs = tuple(small(algorithm, loops=loops, **options) for loops in (True, False))
    for run in runs:
        for _ in range(rounds or run.rounds):
            next(run)
    assert not runs[1].execution.loops
    return runs[0], runs[1]


class TestMethods:
    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    @pytest.mark.parametrize(
        "algorithm",
        [
            *DEFAULTS,
            *(pytest.param(each, marks=pytest.mark.long) for each in VARIANTS),
        ],
        ids=repr,
    )
    def test_every_method_goes_as_without_a_loop(self, algorithm: Any, mode: str) -> None:
        if isinstance(algorithm, ADDING):
            net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Linear(5, 3))
            run = small(algorithm, kernels="always", model=net, mode=mode)
            assert not run.execution.loops
            assert run.gradients.endswith("adds to the loss)")
            return
        first = isinstance(algorithm, AT_THE_FIRST)
        one, other = both(algorithm, rounds=1 if isinstance(algorithm, SIGNS) else 3, mode=mode)
        assert one.execution.loops is not isinstance(algorithm, AT_EVERY_STEP)
        if isinstance(algorithm, AT_EVERY_STEP):
            assert "steps one by one (comm.mix inside a step needs tensors" in one.gradients
        else:
            steps = "local steps but the first of a round" if first else "local steps"
            assert f"; {steps} in one compiled loop" in one.gradients
        assert_same(one, other)

    def test_the_page_counts_the_methods_that_run_all_steps_in_the_loop(self) -> None:
        others = len({*ADDING, *AT_EVERY_STEP, *AT_THE_FIRST})
        count = len(ud.ALGORITHMS)
        said = f"Of the {count} methods {count - others} run all local steps in the loop."
        assert said in (ROOT / "docs" / "kernels.md").read_text()

    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    @pytest.mark.parametrize("name", ["FedAvg", "FedSpeed", "NetFleet", "FedaGrac"])
    def test_clip_and_decay(self, name: str, mode: str) -> None:
        assert_same(*both(getattr(ud, name)(lr=0.1), clip=0.05, weight_decay=0.1, mode=mode))

    def test_every_operation_rounds_as_in_torch(self) -> None:
        assert_same(*both(Everything(lr=0.1), mode="stacked"))
        assert_same(*both(Everything(lr=0.1), mode="loop"))

    def test_leaves_that_change_places(self) -> None:
        assert_same(*both(Swapping(lr=0.1)))

    @pytest.mark.parametrize("wrap", [ud.Accelerated, None])
    def test_wrapped_methods(self, wrap: Any) -> None:
        method = wrap(ud.FedDyn(lr=0.1)) if wrap else ud.Compressed(ud.FedAvg(lr=0.1), ud.TopK(k=5))
        one, other = both(method, mode="stacked")
        assert one.execution.loops
        assert_same(one, other)

    def test_a_tap_sees_the_same(self) -> None:
        seen: dict[bool, list[Any]] = {True: [], False: []}
        for loops, uploads in seen.items():
            finish(small(ud.Scaffold(lr=0.1), loops=loops, tap=uploads.append, mode="stacked"))
        for a, b in zip(seen[True], seen[False], strict=True):
            assert (a.client, a.weight) == (b.client, b.weight)
            assert float((a.y - b.y).abs().max()) < CLOSE
            assert torch.equal(a.start, b.start)


@dataclass(frozen=True)
class Everything(ud.FedAvg):
    """Uses each operation that can be traced, on vectors and on single numbers."""

    def local(self, down: Any, client: Any, steps: Any) -> Any:
        x = down
        share = 1 / steps.count

        def step(carry: Any, f: Any) -> Any:
            y, m, s = carry
            g = f.grad(y).clone().detach()
            n = torch.linalg.vector_norm(g) + 1e-3
            a = torch.where(g > 0.01, g, -g) - torch.where(n <= 0.5, n, torch.ones_like(n))
            b = (g.abs() + 1.0).sqrt() + torch.sqrt(1.0 + g.square()) - torch.zeros_like(g)
            c = g.mul(2).div(3).add(m, alpha=0.5).sub(share * x, alpha=2) + 1.0 / (2.0 + g**2)
            d = torch.lerp(a, b, 0.3) + a.lerp(c, 0.7) + a.lerp(x, share)
            e = torch.where(b >= c, b, torch.where(a < c, c, a)) + (n * n).neg().reciprocal()
            e = torch.where(e == g, a, e) + torch.where(g != e, a, b)
            s = 0.5**s + s * share
            y = y - self.lr * 0.01 * (d + e / n - x * s)
            return y, 0.9 * m + g / s, s

        y, m, s = steps(step, (x, torch.zeros_like(x), x.new_ones(())))
        return y - x + 1e-3 * m * s, client


@dataclass(frozen=True)
class Swapping(ud.FedAvg):
    """Passes on its leaves in another order, one of them without a change."""

    def local(self, down: Any, client: Any, steps: Any) -> Any:
        def step(carry: Any, f: Any) -> Any:
            y, z, kept, s, t = carry
            return z - self.lr * f.grad(z), y, kept, t + 1.0, s

        x, zero = down, down.new_zeros(())
        y, z, kept, s, t = steps(step, (x, x + 0.1, x - 1.0, zero, zero + 0.5))
        return 0.5 * (y + z) - x - 0.05 + 1e-3 * (s - t) * (kept - x + 1.0), client


DAILY = ud.FedSpeed, ud.Scaffold, ud.NetFleet, ud.Marsit
NOT_HERE = (
    testing.check_is_a_value,  # which runs nothing
    testing.check_increments,  # whose loss has no kernel
    testing.check_state,  # which asks for float64, too
    testing.check_precision,
)
CONTRACT = [
    pytest.param(
        algorithm,
        check,
        id=f"{type(algorithm).__name__}-{check.__name__}",
        marks=() if isinstance(algorithm, DAILY) else pytest.mark.long,
    )
    for algorithm in DEFAULTS
    if not isinstance(algorithm, (*ADDING, *AT_EVERY_STEP))
    for check in testing.checks_for(algorithm)
    if check not in NOT_HERE
]


class TestContract:
    @pytest.mark.parametrize(("algorithm", "check"), CONTRACT)
    def test_with_loops(self, algorithm: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """In float32, which is what kernels have, so results differ by 1e-6 instead of 1e-12."""
        begin, apart = testing.start, testing._apart

        def with_loops(algorithm: Any, **options: Any) -> ud.Run:
            clients = options.get("clients")
            if clients is not None:
                sizes = tuple(int(n) for n in clients.sizes)
                options["clients"] = small_clients(sizes, dtype=torch.float32)
            run = begin(algorithm, **{"dtype": torch.float32, "kernels": "require", **options})
            assert run.execution.loops
            return run

        monkeypatch.setattr(testing, "start", with_loops)
        monkeypatch.setattr(testing, "_apart", lambda a, b: apart(a, b) * 1e-6)
        check(algorithm)

    @pytest.mark.parametrize("name", SAME_ANYWHERE)
    def test_reductions_with_loops(self, name: str) -> None:
        options = {"participation": PARTIAL, "weighting": UNEQUAL, "rounds": 3, "mode": "stacked"}
        one, other = (small(each, **options) for each in SAME_ANYWHERE[name])
        assert one.execution.loops
        assert other.execution.loops
        assert float((finish(one) - finish(other)).abs().max()) < CLOSE


class TestExecution:
    def test_a_schedule_compiles_nothing_new(self) -> None:
        run = small(ud.FedSpeed(lr=ud.exponential(0.1, 0.9), rho=ud.exponential(0.2, 0.5)))
        assert run._task.loops.variants == 1
        finish(run)
        assert run._task.loops.variants == 1

    def test_clients_of_unequal_work_share_a_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each ends with its own last step, where stacks without a loop would wait for others."""
        run = small(mode="stacked")
        object.__setattr__(run._executor, "row_cost", 1e9)
        plan = run._planner.plan(0)
        own = np.arange(len(plan.ids))
        assert len(set(plan.counts)) > 1
        assert [len(group) for group in run._executor._groups(plan, own)] == [len(own)]
        watched = run._executor._groups(plan, own, observed=True)
        assert len(watched) == len(set(plan.counts))
        calls: list[int] = []
        counted = _counted(loop_run.CompiledLoops.run, calls)
        monkeypatch.setattr(loop_run.CompiledLoops, "run", counted)
        next(run)
        assert len(calls) == 1

    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    def test_schedules_are_followed(self, mode: str) -> None:
        assert_same(*both(ud.FedProx(lr=ud.exponential(0.3, 0.5), mu=0.2), mode=mode))

    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    def test_steps_may_take_several_calls(self, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = ud.FedaGrac(lr=0.1)  # which tells the first step of a pass, not of a call
        whole = finish(small(algorithm, mode=mode))
        monkeypatch.setattr(loop_run, "CALL_PRODUCTS", 1.0)
        calls = []
        monkeypatch.setattr(
            loop_run.CompiledLoops, "run", _counted(loop_run.CompiledLoops.run, calls)
        )
        assert torch.equal(finish(small(algorithm, mode=mode)), whole)
        assert len(calls) > 4 * 3

    def test_threads_do_not_change_a_bit(self) -> None:
        for mode, reference in (("threads", "loop"), ("stacked", "stacked")):
            options = {"mode": mode, "execution": ud.ExecutionOptions(threads=3)}
            alone = {"mode": reference, "execution": ud.ExecutionOptions(threads=1)}
            method = ud.FedSpeed(lr=0.1)
            assert torch.equal(finish(small(method, **options)), finish(small(method, **alone)))

    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    @pytest.mark.parametrize("many", [False, True])
    def test_stored_samples_are_prepared(
        self, mode: str, many: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if many:
            monkeypatch.setattr(compiled, "GATHERED_BYTES", 1)  # a call for each step
        one, other = both(ud.FedAvg(lr=0.1), mode=mode, **images())
        assert one.execution.loops
        assert_same(one, other)

    def test_augmentation_is_left_to_torch(self) -> None:
        run = small(**images(Images(crop=1)))
        assert not run.execution.loops
        assert "steps one by one (augmentation draws for every step)" in run.gradients
        finish(run)

    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    def test_a_client_whose_loop_fails_is_repeated(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It alone, from its first step on, and nothing is counted twice."""
        right = small(ud.Scaffold(lr=0.1), mode=mode)
        finish(right)
        run, repeated = loop_run.CompiledLoops.run, []

        def failing(self: Any, program: Any, kernels: Any, arguments: Any, samples: Any) -> Tensor:
            status = run(self, program, kernels, arguments, samples)
            repeated.append(len(status))
            status[0] = 3
            for carry in arguments.carries:
                carry[0] = float("nan")
            return status

        monkeypatch.setattr(loop_run.CompiledLoops, "run", failing)
        broken = small(ud.Scaffold(lr=0.1), mode=mode)
        finish(broken)
        assert repeated
        assert_same(broken, right)

    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    def test_a_client_that_is_not_finite_is_named_as_before(self, mode: str) -> None:
        clients = small_clients(dtype=torch.float32)
        inputs = clients.inputs.clone()
        inputs[clients.of(1)[0]] = 3e38  # finite, as data must be, but not its outputs
        parts = [clients.of(i) for i in range(len(clients))]
        torch.manual_seed(0)
        options = {
            "model": nn.Sequential(nn.Linear(6, 3)),
            "clients": ud.Clients.split(inputs, clients.targets, parts),
            "participation": 1.0,
        }
        said = set()
        for loops in (True, False):
            run = small(ud.FedAvg(lr=1e5), loops=loops, mode=mode, **options)
            assert run.execution.loops is loops
            with pytest.raises(DivergenceError) as raised:
                finish(run)
            said.add(str(raised.value))
        assert len(said) == 1
        assert "client 1" in said.pop()

    def test_a_method_with_a_state_of_its_own_runs_step_by_step(self) -> None:
        @dataclass(frozen=True)
        class Cooling(ud.FedAvg):
            def local(self, down: Any, client: Any, steps: Any) -> Any:
                taken: list[int] = []

                def step(y: Any, f: Any) -> Any:
                    taken.append(1)
                    return y - self.lr / len(taken) * f.grad(y)

                return steps(step, down) - down, client

        run = small(Cooling(lr=0.1))
        assert not run.execution.loops
        assert "steps one by one (a step that changes from call to call)" in run.gradients


def _counted(function: Any, calls: list[int]) -> Any:
    def counted(*given: Any) -> Any:
        calls.append(1)
        return function(*given)

    return counted


def images(prepare: Images = Images(mean=(0.4,), std=(0.3,))) -> dict[str, Any]:
    """Return a net and four clients with images of bytes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3))
    noise = torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (43, 1, 5, 5), generator=noise, dtype=torch.uint8)
    targets = torch.randint(3, (43,), generator=noise)
    parts = np.split(np.arange(43), [11, 18, 34])
    return {"model": net, "clients": ud.Clients.split(pixels, targets, parts, prepare=prepare)}


class TestRecord:
    def test_without_kernels_there_are_no_loops(self) -> None:
        run = start(ud.FedAvg(lr=0.1), dtype=torch.float32, kernels=False)
        assert not run.execution.loops
        assert run._task.loops is None

    def test_a_run_goes_on_as_it_was_begun(self, tmp_path: Path) -> None:
        whole = finish(small(rounds=4))
        options = {"dtype": torch.float32, "kernels": "require"}
        finish(start(ud.FedAvg(lr=0.1), rounds=2, checkpoint=tmp_path / "a", **options))
        rest = start(ud.FedAvg(lr=0.1), rounds=4, resume=tmp_path / "a", **options)
        assert rest.execution.loops
        assert torch.equal(finish(rest), whole)
        finish(small(rounds=2, loops=False, checkpoint=tmp_path / "b"))
        rest = start(ud.FedAvg(lr=0.1), rounds=4, resume=tmp_path / "b", **options)
        assert rest.execution.kernels
        assert not rest.execution.loops
        assert rest.gradients.endswith("; steps one by one (as it was begun)")

    def test_a_record_of_before_loops_has_none(self) -> None:
        fields = {"mode": "loop", "channels_last": False, "kernels": True}
        record = ExecutionRecord.from_dict(fields)
        assert record is not None
        assert not record.loops
        again = ExecutionRecord.from_dict(like(loops=True).to_dict())
        assert again is not None
        assert again.loops

    def test_a_loop_that_cannot_be_compiled_is_done_without(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: Any) -> Any:
            raise UnsupportedError("the compiler fails")

        monkeypatch.setattr(loop_run, "_build", fails)
        run = small()
        assert run.execution.kernels
        assert run.gradients.endswith("; steps one by one (the compiler fails)")
        assert torch.equal(finish(run), finish(small(loops=False)))

    def test_processes_of_which_one_has_no_loop_agree(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Two(World):
            def gather(self, numbers: Any) -> Any:
                return np.array([numbers, [1, 0]])

        chosen: list[tuple[bool, bool]] = []
        choose = simulate_module._choose

        def choosing(request: Any, setup: Any, *, kernels: bool = True, loops: bool = True) -> Any:
            chosen.append((kernels, loops))
            return choose(request, setup, kernels=kernels, loops=loops)

        monkeypatch.setattr(simulate_module, "_choose", choosing)
        request = simulate_module._request(
            algorithm=ud.FedAvg(lr=0.1),
            model=small_net(dtype=torch.float32),
            clients=small_clients(dtype=torch.float32),
            loss=nn.functional.cross_entropy,
            work=ud.Steps(2),
            rounds=2,
            kernels="always",
        )
        setup = simulate_module.prepare(request)
        first = choosing(request, setup)
        assert first.loops
        agreed = simulate_module._agree_on_kernels(request, setup, first, Two())
        assert chosen == [(True, True), (True, False)]
        assert agreed.kernels
        assert not agreed.loops
        assert agreed.gradients.endswith("steps one by one (a process cannot compile them)")
