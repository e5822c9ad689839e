"""The simulator: `simulate` returns a run, which is an iterator of records."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from undrift.aggregation.attacks import Attack
from undrift.aggregation.policy import OnBad
from undrift.aggregation.robust import Aggregation
from undrift.check import known_keywords
from undrift.comm.routes import Route
from undrift.core import Federated, Peer
from undrift.data.clients import Clients, Pair
from undrift.data.work import Work
from undrift.engine import participation as laws
from undrift.engine.checkpoint import shards
from undrift.engine.early_stopping import EarlyStopping
from undrift.engine.execution.cohort import FederatedExecutor, Tap
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.federated_run import FederatedRun
from undrift.engine.peer_run import PeerRun
from undrift.engine.processes.rendezvous import TIMEOUT, join, launched
from undrift.engine.processes.workers import enter, follow
from undrift.engine.run import Run
from undrift.engine.settings import (
    EvaluationOptions,
    ExecutionOptions,
    ExecutionRecord,
    KernelChoice,
    RunSettings,
    RunSize,
    SimulationRequest,
)
from undrift.engine.setup import Setup, prepare
from undrift.engine.tuning.frequency import (
    RunCounts,
    all_passes,
    count_run,
    describe,
    settle,
)
from undrift.engine.tuning.rules import THREADED_ELEMENTS, row_cost, worth_trimming
from undrift.engine.tuning.scoring import PendingScoring
from undrift.engine.tuning.select import ExecutionChoice, Workload, choose_execution
from undrift.engine.validate import require_enough_clients
from undrift.engine.world import World
from undrift.fleet import Fleet
from undrift.models.layout import raw_bytes
from undrift.tasks import Loss
from undrift.topology import Links


@known_keywords
def simulate(
    algorithm: Federated[Any, Any, Any, Any] | Peer[Any],
    model: nn.Module,
    clients: Clients,
    *,
    loss: Loss | str | None = None,
    task: str | None = None,
    metrics: Any = None,
    work: Work | str,
    rounds: int,
    batch_size: int | None = None,
    participation: laws.AnyParticipation = 1.0,
    weighting: laws.Weighting | None = None,
    topology: Links | str | None = None,
    allreduce: str | Route | None = None,
    fleet: Fleet | str | None = None,
    on_bad: OnBad = "stop",
    quorum: float | int | None = None,
    aggregation: str | Aggregation | None = None,
    attack: str | Attack | None = None,
    seed: int = 0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    evaluation: EvaluationOptions = EvaluationOptions(),
    mode: Literal["auto"] | Mode = "auto",
    kernels: KernelChoice = True,
    device: str | torch.device | None = None,
    precision: str | None = None,
    execution: ExecutionOptions = ExecutionOptions(),
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = 1,
    resume: str | Path | None = None,
    tap: Tap | None = None,
    early_stopping: EarlyStopping | int | None = None,
    progress: bool = False,
    processes: int | None = None,
    timeout: float = TIMEOUT,
) -> Run:
    """Return a run that trains a copy of `model` on `clients`; each iteration is one round.

    Everything is checked here, before the first round.

    task: "classification", "multi-label", "regression" or "language-modelling", which decides the
        loss and the metrics that are not given; by default what the targets are (docs/tasks.md).
    loss: a function of outputs and targets, mean over the samples, or a name such as "huber".
    metrics: functions of all outputs and targets of a test, objects of torchmetrics, or names such
        as "auroc"; one, a list, or a dictionary by name. They are in `record.metrics`.
    work: local steps of each client, e.g. `Epochs(5)`, `Steps(10)`, `GaussianSteps(500, 100)`,
        or in words "epochs:5".
    batch_size: samples per step; None takes that of the clients' DataLoaders, or else the whole
        local data, deterministically.
    participation: a fraction (float), a count (int), `Bernoulli(p)`, `WithReplacement(n)`, or
        explicit cohorts per round. 1.0 is everybody, 1 is one client.
    weighting: "size" (w_i = n_i / n, the default), "uniform", or one weight per client. Peers
        always weigh the same: theirs is "uniform".
    topology: the links of gossip methods, e.g. `topology.ring(8)`, which may vary from round to
        round, or in words "ring".
    allreduce: the route of all-reduce methods: "ring" (the default), "segmented-ring", "torus" or
        "torus:2x4", "tree", "server".
    fleet: simulated devices of the clients, in words ("phone:9,gpu-node:1") or as a `Fleet`, in
        which they may also be slow, fail or be away. Records gain a simulated clock. With
        `work=Deadline(60)` each client runs what its device can do in time.
    on_bad: what a bad update does, one that is not finite or far larger than the others: "stop"
        names the client and raises, "drop" leaves it out, as the record says (docs/robustness.md).
    quorum: clients that a round needs, a share (float) or a number (int) of those drawn; below it
        the round is void and the model stays as it is. With "drop" it is half of them by default.
    aggregation: a rule that bears attackers in place of the weighted mean: "median",
        "trimmed-mean:2", "geometric-median", "krum:2", "multi-krum:2", "centered-clipping".
    attack: what a share of the clients does, to try such a rule: "sign-flip:0.2", "gaussian:0.2",
        "alie:0.2", "inner-product:0.2", "scaling:0.2", "label-flip:0.2".
    weight_decay, clip: on the data gradient, the clip (global L2 norm) first.
    evaluation: what is evaluated and how often, e.g. `EvaluationOptions(every=10)`. By default so
        often that it stays below a fifth of the work; `run.tests` tells (docs/evaluation.md).
    mode: "loop" runs one client at a time, "threads" several side by side, "stacked" many under
        vmap; "auto" chooses what suits the model, for long runs by a short calibration whose result
        is kept. The results agree up to float rounding.
    kernels: whether C++ that is written and compiled for the model computes the gradients of small
        nets (docs/kernels.md), and the wide 3x3 convolutions of others, which takes some seconds
        once. Where that is not possible, or a run is short, torch computes them and
        `run.gradients` says why. "always" compiles for a short run, too; "require" raises where
        nothing can be compiled. Where the method's step can be traced, a client's local steps are
        one compiled loop around the kernel.
    device: the hardware that computes: "auto", "cpu", "cuda:0", "mps"; by default the model's own.
        Samples, states and draws are there, too; kernels are of the CPU (docs/devices.md).
    precision: "bf16" lets forward and backward passes compute in bfloat16 where torch does so.
    execution: details such as `ExecutionOptions(threads=2, chunk_size=8)`.
    checkpoint, checkpoint_every, resume: where to save, how often (None: by time), what to resume.
    tap: called with every client's `Upload`, in the order in which clients run; see `Drift`.
    early_stopping: tests without a better one after which the run stops, or an `EarlyStopping`; the
        best model is kept as `run.best` (docs/evaluation.md).
    progress: whether a bar shows the rounds, in a terminal or a notebook.
    processes: how many share the work, this one included; others are started and ended as needed.
        Under torchrun its processes do, on however many machines (docs/distributed.md).
    timeout: seconds without an answer after which another process counts as hung.
    """
    if batch_size is None and isinstance(clients, Clients):
        batch_size = clients.batch_size  # of the loaders that the samples came in
    arguments = dict(locals())
    request = SimulationRequest.of(**arguments)
    # Ranks with data of their own are asked before the run is built, others only if it can be.
    asked = enter(simulate, arguments) if _apart(clients) else None
    with (asked or World()).failure_scope():
        setup = prepare(request, asked)
        settled = _settled_evaluation(request, setup)
        choice = _choose(request, setup)
    world = asked or enter(simulate, arguments)  # from here on, other processes may take part
    require_enough_clients(world.size, clients, tap, attack)
    with world.failure_scope():
        if world.size > 1:
            world.require_same(_common_facts(request, setup))
            choice = _agree_on_kernels(request, setup, choice, world)
            world.share_model(setup.model)
        run = _build_run(request, setup, choice, settled, world)
        links = {}
        if isinstance(run, PeerRun):
            digest = setup.links.digest() if setup.links else "None"
            links = {"topology": digest, "allreduce": repr(setup.route)}
        known = {**links, **setup.policy.settings()}
        run.use_checkpoints(checkpoint, resume, force=execution.force_resume, **known)
        if early_stopping is not None:
            run.stop_early(EarlyStopping.of(early_stopping))
        if progress and world.head:
            run.show_progress()
        world.begin()
        return follow(run)


def check(
    algorithm: Federated[Any, Any, Any, Any] | Peer[Any],
    model: nn.Module,
    clients: Clients,
    **options: Any,
) -> RunCounts:
    """Raise what `simulate` would raise in one process for these arguments; start nothing.

    Return the counts of the run's work.
    """
    request = _request(algorithm=algorithm, model=model, clients=clients, **options)
    # One of several ranks with data of their own may find a fault that the others must hear of.
    with (join() if _apart(clients) else World()).failure_scope():
        return _checked(request)


def _apart(clients: object) -> bool:
    """Return whether every rank has data of its own."""
    return isinstance(clients, Clients) and clients.rank_census is not None


def _checked(request: SimulationRequest) -> RunCounts:
    setup = prepare(request)
    if request.mode != "auto" or request.kernels == "require" or request.execution.compile:
        _choose(request, setup)  # which refuses what the model does not allow
    return count_run(request, setup.planner, setup.facts)


def size(**arguments: Any) -> RunSize:
    """Return how large a run with these arguments of `simulate` is; start nothing."""
    request = _request(**arguments)
    setup = prepare(request)
    return RunSize(setup.seconds(request.rounds), setup.elements > THREADED_ELEMENTS)


def _request(**arguments: Any) -> SimulationRequest:
    """Return the request of some arguments, the others at their defaults."""
    parameters = inspect.signature(simulate).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return SimulationRequest.of(**{**defaults, **arguments})


def _choose(
    request: SimulationRequest, setup: Setup, *, kernels: bool = True, loops: bool = True
) -> ExecutionChoice:
    """Choose how clients are run and what computes gradients.

    `kernels=False` rules out kernels, `loops=False` loops that are compiled around them.
    """
    requested = request.requested_execution
    record = request.execution.like
    if request.resume is not None:
        record = shards.recorded_execution(Path(request.resume)) or record
    workload = Workload(
        algorithm=request.algorithm,
        planner=setup.planner,
        pool=setup.pool,
        facts=setup.facts,
        rounds=request.rounds,
        # Several processes must choose the same, on however many cores each of them is.
        single_process=request.processes in (None, 1) and not launched(),
    )
    requested = requested if kernels else replace(requested, kernels=False)
    requested = replace(requested, loops=loops)
    return choose_execution(workload, setup.task, requested, record)


def _agree_on_kernels(
    request: SimulationRequest, setup: Setup, choice: ExecutionChoice, world: World
) -> ExecutionChoice:
    """Return the choice without what one of the processes could not compile, say for want of g++.

    It is made again without kernels if one has none, and without loops if one has none.
    """
    compiled, loops = world.gather([choice.compiled, choice.loops]).T
    alike = bool((compiled == compiled[0]).all())
    if alike and (loops == loops[0]).all():
        return choice
    choice = _choose(request, setup, kernels=alike, loops=bool(loops.all()))
    said = "torch (no kernel: a process has none)"
    if alike:
        said = choice.gradients.replace("as it was begun", "a process cannot compile them")
    return replace(choice, gradients=said)


@dataclass(frozen=True)
class _SettledEvaluation:
    """Says how a run is evaluated, and by what."""

    options: EvaluationOptions
    tests: str  # in words
    scoring: PendingScoring


def _settled_evaluation(request: SimulationRequest, setup: Setup) -> _SettledEvaluation:
    """Return how the run is evaluated; what does it is being compiled meanwhile."""
    counts = [count_run(request, setup.planner, setup.facts)]
    options = settle(request.evaluation, counts)
    passes = all_passes(options, counts)
    # Kernels have no outputs, which most metrics need.
    kernels = request.kernels if setup.metrics.of_loss(setup.task.loss) else False
    scoring = PendingScoring(setup.task, setup.clients, kernels, passes)
    return _SettledEvaluation(options, describe(options, counts), scoring)


def _build_run(
    request: SimulationRequest,
    setup: Setup,
    choice: ExecutionChoice,
    evaluation: _SettledEvaluation,
    world: World,
) -> Run:
    """Return the run of this process."""
    threads = request.execution.threads or torch.get_num_threads()
    task = replace(choice.task, oracle=choice.task.oracle.with_threads(threads))
    scoring = evaluation.scoring.result()
    settings = RunSettings(
        training=tuple(part.training for part in request.model.modules()),
        x0=task.layout.unite(setup.model),
        facts=setup.facts,
        metrics=setup.metrics,
        rounds=request.rounds,
        evaluation=evaluation.options,
        tests=f"{evaluation.tests}, by {scoring.why}",
        forward=scoring.kernel,
        execution=ExecutionRecord(
            mode=choice.candidate.mode,
            channels_last=task.channels_last,
            kernels=choice.kernels,
            loops=choice.loops,
            why=choice.candidate.why,
            gradients=choice.gradients,
        ),
        checkpoint_every=request.checkpoint_every,
        clock=setup.clock,
        watch=choice.watch,
    )
    parts: dict[str, Any] = {
        "task": task,
        "planner": setup.planner,
        "pool": setup.pool,
        "mode": choice.candidate.mode,
        "chunk": choice.candidate.chunk,
        "world": world,
        "threads": threads,
    }
    if isinstance(request.algorithm, Peer):
        nodes = PeerExecutor(**parts, trim=worth_trimming(setup.facts, setup.planner))
        return PeerRun(request.algorithm, nodes, settings, setup.links, setup.route)
    price = row_cost(setup.facts, setup.planner)
    executor = FederatedExecutor(**parts, row_cost=price, policy=setup.policy)
    return FederatedRun(request.algorithm, executor, settings, request.tap)


def _common_facts(request: SimulationRequest, setup: Setup) -> dict[str, str]:
    """Return what processes must have in common before they can share a model or a score."""
    layout, evaluation = setup.task.layout, request.evaluation
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return {
        "the model's parameters": f"{shapes} {layout.dtype}",
        "the test set": _digest(request.clients, "test"),
        "the validation set": _digest(request.clients, "validation"),
        "train_loss": repr(evaluation.train_loss),
        "node_accuracy": repr((evaluation.node_accuracy, evaluation.node_samples)),
        "samples": repr(evaluation.samples),
        "gradient_norm": repr(evaluation.gradient_norm),
        "sharpness": repr(evaluation.sharpness),
        "whether there is a checkpoint": repr(request.checkpoint is not None),
        "whether there is a resume": repr(request.resume is not None),
    }


def _digest(clients: Clients, name: str) -> str:
    """Return a hash of samples that all processes evaluate, which is also one of none."""
    if clients.rank_census is not None:
        return repr(clients.counts(name))
    pair: Pair | None = getattr(clients, name)
    digest = hashlib.blake2b(digest_size=16)
    for tensor in pair or ():
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()
