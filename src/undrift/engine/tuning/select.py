"""The choice of an execution: what computes gradients and how clients run, for speed alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from undrift.check import require
from undrift.core import Peer
from undrift.engine.execution.pool import Pool
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.plan import Plan, Planner
from undrift.engine.settings import Algorithm, ExecutionRecord, ExecutionRequest
from undrift.engine.tuning import calibrate
from undrift.engine.tuning.probe import Facts
from undrift.engine.tuning.rules import (
    STACKED_BYTES,
    STACKED_PEER_BYTES,
    Candidate,
    TrialRound,
    candidates,
    chunk_for,
    stack_for,
)
from undrift.engine.tuning.trials import federated_trial, peer_trial
from undrift.engine.tuning.watch import CostWatch
from undrift.gradients.compiled import Compiled
from undrift.gradients.kernels import Kernels, UnsupportedError, build, measure, read
from undrift.gradients.loops import CompiledLoops
from undrift.gradients.mlp import Dense
from undrift.gradients.task import Autograd, Batch, Oracle, Task
from undrift.gradients.winograd import (
    Survey,
    Winograd,
    build_winograd,
    has_wide_convolutions,
    survey,
)

TORCH_FLOPS = 1e10  # floating-point operations a second that torch reaches on small nets
WIDE_FLOPS = 6e10  # that it reaches in wide convolutions, on one core
STEP_SECONDS = 1.5e-3  # of calling a step that stacked clients share, beyond a kernel's
LEAST_STEP_SECONDS = 2e-5  # of a gradient, however many share a step
# Gradients by torch must take so many times as long as compiling a kernel does, which takes a third
# of torch's time or less. Whether a library is in the cache does not count, because equal calls
# must have equal results.
KERNEL_WORTH = 1.5
LOOP_SECONDS = 0.5  # of compiling the loop of local steps, besides the kernel
WINOGRAD_SECONDS = 20.0  # of torch that make compiling convolutions worth it, 10 s once a machine


@dataclass(frozen=True)
class ExecutionChoice:
    """Says how a run will be executed."""

    task: Task  # with the oracle and the layout of images
    candidate: Candidate
    gradients: str  # what computes them, for a reader
    watch: CostWatch | None = None  # compares the run with what its calibration found

    @property
    def kernels(self) -> bool:
        """Return whether compiled code takes part in gradients."""
        return self.compiled != 0

    @property
    def compiled(self) -> int:
        """Return a number for the compiled code: 1 is a kernel, 2 are convolutions, 0 is none."""
        oracle = self.task.oracle
        return 1 if isinstance(oracle, Kernels) else 2 if isinstance(oracle, Winograd) else 0

    @property
    def loops(self) -> bool:
        """Return whether local steps run in a compiled loop."""
        return self.task.loops is not None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Describes a run as far as its speed depends on it."""

    algorithm: Algorithm
    planner: Planner
    pool: Pool
    facts: Facts
    rounds: int
    single_process: bool  # several processes must choose the same, so they measure nothing

    def trial(self, task: Task) -> TrialRound:
        """Return a function that runs small rounds of the method."""
        if isinstance(self.algorithm, Peer):
            return peer_trial(self.algorithm, task, self.planner, self.pool, self.facts)
        return federated_trial(self.algorithm, task, self.planner, self.pool, self.facts)

    def seconds(self, products: int, speed: float = TORCH_FLOPS) -> float:
        """Return about what all gradients would take with torch, so many products a sample."""
        if not self.rounds:
            return 0.0
        first = self.planner.plan(0)
        call = max(LEAST_STEP_SECONDS, STEP_SECONDS / max(1, len(first.ids)))
        flops = 2.0 * products * self.planner.width
        return self.rounds * int(first.counts.sum()) * (flops / speed + call)

    def sample(self, task: Task) -> Batch:
        """Return a minibatch of the first client that is here."""
        inputs, targets, (samples,) = self.pool.samples(self.pool.clients.mine[:1])
        index = torch.from_numpy(samples[: self.planner.width]).to(inputs.device)
        key = None
        if task.randomness == "dropout":
            key = torch.zeros((), dtype=torch.int64, device=inputs.device)
        return Batch(task.prepared(inputs[index]), targets[index], None, key)

    @property
    def cohort(self) -> int:
        """Return the largest cohort of the first rounds."""
        rounds = range(min(self.rounds, 3))
        return max((len(self.planner.plan(t).ids) for t in rounds), default=0)


def choose_execution(
    workload: Workload, task: Task, request: ExecutionRequest, record: ExecutionRecord | None
) -> ExecutionChoice:
    """Choose mode, layout and oracle; `record` is how the run was executed before, if it was."""
    if request.options.compile:
        expected = "a loss that is the mean over the samples of a minibatch"
        separable = workload.facts.separable
        require(separable, "compile=True", expected, "another", "leave compile out")
    wanted_kernels = request.kernels
    request = request.repeating(record)
    dense = Dense.of(task)
    if dense is not None:
        task = replace(task, oracle=dense)
    oracle, loops, gradients = _compiled_code(workload, task, request)
    if oracle is not None:
        task = replace(task, oracle=oracle, loops=loops)
    elif wanted_kernels and not request.kernels:
        gradients = "torch (as it was begun)"
    compiled = request.options.compile and dense is None and oracle is None
    kernels = isinstance(oracle, Kernels)
    # Trials measure the CPU's time, which says nothing of another device.
    on_cpu = task.layout.device.type == "cpu"
    measured = workload.single_process and not compiled and not kernels and on_cpu
    candidate, watch = _candidate(workload, task, request, record, measured=measured)
    if isinstance(oracle, Winograd) and candidate.mode == "stacked":
        task, gradients = replace(task, oracle=Autograd()), "torch (clients are stacked)"
    layout = request.options.channels_last
    innermost = candidate.channels_last if layout is None else layout
    innermost = innermost and candidate.mode != "stacked"  # vmap does not know the layout
    if compiled:
        task, gradients = replace(task, oracle=Compiled()), "torch.compile"
    return ExecutionChoice(replace(task, channels_last=innermost), candidate, gradients, watch)


def _candidate(
    workload: Workload,
    task: Task,
    request: ExecutionRequest,
    record: ExecutionRecord | None,
    *,
    measured: bool,
) -> tuple[Candidate, CostWatch | None]:
    """Return the recorded mode if it is possible, else the fastest by measurement or by rules."""
    trial = workload.trial(task)
    possible = candidates(
        request.mode,
        facts=workload.facts,
        task=task,
        planner=workload.planner,
        trial=trial,
        chunk=_chunk(workload, task, request.options.chunk_size),
        threads=request.options.threads,
        cohort=workload.cohort if workload.single_process else 1,
    )
    same = [each for each in possible if record is not None and each.mode == record.mode]
    chosen = (same or possible)[0]
    if not measured or not calibrate.wanted(workload.rounds, workload.planner, possible):
        return chosen, None
    calibration = calibrate.Calibration(
        candidates=possible,
        task=task,
        planner=workload.planner,
        pool=workload.pool,
        trial=trial,
        method=_name(workload.algorithm),
    )
    if record is None:
        return calibration.fastest()
    return chosen, calibration.watch(replace(chosen, channels_last=record.channels_last))


def _chunk(workload: Workload, task: Task, chunk_size: int | None) -> int:
    """Return how many clients are stacked."""
    if chunk_size is not None:
        return chunk_size
    facts, planner = workload.facts, workload.planner
    if isinstance(workload.algorithm, Peer):
        return chunk_for(facts, task, planner, workload.pool, STACKED_PEER_BYTES)
    chunk = chunk_for(facts, task, planner, workload.pool, STACKED_BYTES)
    return min(chunk, stack_for(facts, task, planner, workload.pool))


def _compiled_code(
    workload: Workload, task: Task, request: ExecutionRequest
) -> tuple[Oracle | None, CompiledLoops | None, str]:
    """Return an oracle with compiled code and loops, each where it pays, and a word on both.

    The oracle is a kernel for the whole net or, where there is none, torch with other convolutions.
    """
    if not request.kernels:
        return None, None, "torch (kernels are off)"
    sample = workload.sample(task)
    try:
        try:
            return _kernel(workload, task, request, sample)
        except UnsupportedError:
            usable = not request.options.compile and request.mode != "stacked"
            usable = usable and task.layout.device.type == "cpu" and task.precision is None
            counts = survey(task, sample) if usable and has_wide_convolutions(task.model) else None
            if counts is None or not counts.replaced:
                raise
            oracle, said = _convolutions(workload, request, counts)
            return oracle, None, said
    except UnsupportedError as error:
        if request.kernels == "require":
            raise ValueError(
                "kernels='require' needs a model, loss and machine that a kernel can be compiled "
                f"for, got {error}; use kernels=True to do without where it must."
            ) from error
        return None, None, f"torch (no kernel: {error})"


def _kernel(
    workload: Workload, task: Task, request: ExecutionRequest, sample: Batch
) -> tuple[Kernels | None, CompiledLoops | None, str]:
    """Return a kernel for the net and loops for the method, or raise `UnsupportedError`.

    There is neither if the run is too short.
    """
    chain = read(task, sample.inputs.shape[1:], sample.targets.shape[1:])
    loop = LOOP_SECONDS if request.loops else 0.0
    worth = KERNEL_WORTH * (chain.build_seconds + loop)
    if request.kernels is True and workload.seconds(chain.products) < worth:
        return None, None, "torch (too short a run to compile a kernel for)"
    kernels = build(task, chain, request.options.threads or torch.get_num_threads())
    with intra_op_threads(0):
        kernels.gain = measure(kernels, task, sample)
    loops = CompiledLoops()
    used = replace(task, oracle=kernels, loops=loops if request.loops else None)
    if not _uses(workload, used, kernels):
        raise UnsupportedError(f"{_name(workload.algorithm)} adds to the loss")
    gain = f"a compiled kernel, {kernels.gain:.1f}x as fast as torch"
    if loops.compiled:
        return kernels, loops, f"{gain}; {loops.outcome} in one compiled loop"
    reason = loops.outcome if request.loops else "as it was begun"
    return kernels, None, f"{gain}; steps one by one ({reason or 'the method takes none'})"


def _convolutions(
    workload: Workload, request: ExecutionRequest, counts: Survey
) -> tuple[Winograd | None, str]:
    """Return torch with compiled convolutions, None if the run is too short, or raise as above."""
    seconds = workload.seconds(counts.products, WIDE_FLOPS)
    if request.kernels is True and seconds < WINOGRAD_SECONDS:
        return None, "torch (too short a run to compile convolutions for)"
    oracle = build_winograd(alone=counts.alone)
    return oracle, f"torch, {counts.replaced} of {counts.convolutions} convolutions by Winograd"


def _uses(workload: Workload, task: Task, kernels: Kernels) -> bool:
    """Return whether the method asks for plain gradients in two steps of two clients."""
    before = kernels.calls
    clients = len(workload.planner.census)
    plan = Plan.equal(np.unique([0, clients - 1]), 2, clients)
    try:
        workload.trial(task)(plan, Candidate("loop", ""))
    except Exception:
        return True  # the run itself will raise it
    return kernels.calls > before


def _name(algorithm: object) -> str:
    """Return the name of a method and of those that it wraps."""
    inner = getattr(algorithm, "inner", None)
    return type(algorithm).__name__ + ("" if inner is None else f" of {_name(inner)}")
