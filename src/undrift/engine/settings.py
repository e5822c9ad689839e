"""These values say what a run is asked to do and how it was executed; they are passed whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import nn

from undrift.aggregation.attacks import Attack
from undrift.aggregation.policy import OnBad
from undrift.aggregation.robust import Aggregation
from undrift.comm.routes import Route
from undrift.core import Federated, Peer, Vector
from undrift.data.clients import Clients
from undrift.data.work import Work, parse_work
from undrift.engine.execution.cohort import Tap
from undrift.engine.execution.executor import Mode
from undrift.engine.participation import AnyParticipation, Weighting
from undrift.fleet import Fleet
from undrift.tasks import Loss, MetricSet
from undrift.topology import Links
from undrift.topology import parse as parse_topology

if TYPE_CHECKING:
    from undrift.engine.clock import Clock
    from undrift.engine.tuning.probe import Facts
    from undrift.engine.tuning.watch import CostWatch
    from undrift.gradients.kernels import ForwardKernel

Algorithm = Federated[Any, Any, Any, Any] | Peer[Any]
KernelChoice = bool | Literal["always", "require"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Says what is evaluated, how often and on how many samples.

    What is left open (None) is decided from counts so that evaluation stays below a fifth of the
    work (docs/evaluation.md); what is given is done.

    every: rounds between evaluations on the test set; the last round is always evaluated. Without
        a test set the training objective is reported.
    first: whether the first round is evaluated as well; by default if `every` is left open.
    samples: of the test set, or of the training objective; all unless a run is very short.
    batch_size: samples of one forward pass; by default as many as fit the processor's cache.
    train_loss: whether to evaluate the objective on all training data as well.
    node_accuracy: for peers, whether to evaluate each node's own model as well, True on as many
        samples as the mean model. By default the nodes share these samples, each has some.
    node_samples: samples of each node's own model.
    gradient_norm: for peers, whether to compute the gradient of the mean model on all data.
    sharpness: whether to measure how sharp the loss is around the model: the rise of the loss one
        ascent step away and the largest eigenvalue of its Hessian, on 512 training samples.
    client_metrics: whether to measure the model on each client's own samples as well: those of the
        test where clients own some, else of the validation, else of the training set.
    """

    every: int | None = None
    first: bool | None = None
    samples: int | None = None
    batch_size: int | None = None
    train_loss: bool = False
    node_accuracy: bool | None = None
    node_samples: int | None = None
    gradient_norm: bool = False
    sharpness: bool = False
    client_metrics: bool = False

    def due(self, round: int, rounds: int) -> bool:
        """Return whether this round of so many is evaluated."""
        regular = round % (self.every or 1) == 0
        return regular or round == rounds or (round == 1 and bool(self.first))


@dataclass(frozen=True, kw_only=True)
class ExecutionRecord:
    """Says how a run is executed; the first four fields decide the bits of its results."""

    mode: Mode
    channels_last: bool  # whether images go through the model with their channels innermost
    kernels: bool  # whether compiled code takes part in gradients
    loops: bool = False  # whether local steps run in a loop compiled for the method
    why: str = field(default="", compare=False)  # the reason for the mode, for a reader
    gradients: str = field(default="", compare=False)  # what computes gradients, for a reader

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON takes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ExecutionRecord | None:
        """Return the record that `to_dict` made, which may stand among others; None without one."""
        if "mode" not in fields:
            return None
        text = {name: fields.get(name, "") for name in ("why", "gradients")}
        return cls(
            mode=fields["mode"],
            channels_last=bool(fields.get("channels_last")),
            kernels=bool(fields.get("kernels")),
            loops=bool(fields.get("loops")),
            **text,
        )


class BestModel(NamedTuple):
    """Holds the best model of a run so far."""

    round: int
    metric: str
    value: float
    x: Vector
    stale: int = 0  # tests since then

    def facts(self) -> dict[str, Any]:
        """Return all but the model by name, as JSON takes them."""
        return {name: value for name, value in self._asdict().items() if name != "x"}

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts().items())
        return f"BestModel({facts}, x=<{self.x.numel():,} numbers>)"


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Says in detail how clients are run; None leaves the choice to the engine.

    threads: clients, or stacks of clients, that run at a time; by default as many as torch has
        intra-op threads.
    chunk_size: clients of a stack in the mode "stacked".
    channels_last: whether images go through the model with their channels innermost.
    compile: whether torch's compiler makes the gradients that no kernel makes. It takes a C++
        compiler and up to a minute before the first round, a few seconds when it has compiled the
        same before. It pays for convolutional nets of few channels, not for wide ones.
    like: an earlier run's `run.execution`. Where the options leave a choice, the run is executed in
        the same way, so that it gives the same bits.
    force_resume: whether to go on from a checkpoint of other code or of another experiment, with a
        warning that names the differences.
    """

    threads: int | None = None
    chunk_size: int | None = None
    channels_last: bool | None = None
    compile: bool = False
    like: ExecutionRecord | None = None
    force_resume: bool = False


@dataclass(frozen=True, kw_only=True)
class ExecutionRequest:
    """Holds all that a user asked for about the execution of a run."""

    mode: Literal["auto"] | Mode
    kernels: KernelChoice
    options: ExecutionOptions
    loops: bool = True  # whether local steps may be compiled where gradients are

    def repeating(self, record: ExecutionRecord | None) -> ExecutionRequest:
        """Return the request with its open choices made as in the record; the mode stays open."""
        if record is None:
            return self
        kernels: KernelChoice = "always" if record.kernels else False
        if self.kernels in (False, "require"):
            kernels = self.kernels
        layout = self.options.channels_last
        layout = record.channels_last if layout is None else layout
        options = replace(self.options, channels_last=layout)
        return replace(self, kernels=kernels, loops=self.loops and record.loops, options=options)


class RunSize(NamedTuple):
    """Holds how much a run computes, from counts alone, so that it is the same at every start."""

    seconds: float  # about what its gradients take with torch on one core
    large: bool  # whether the activations of a step are too many for several runs in memory


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """Holds the arguments of `simulate`, whose docstring explains them."""

    algorithm: Algorithm
    model: nn.Module
    clients: Clients
    loss: Loss | str | None
    task: str | None
    metrics: Any
    work: Work
    rounds: int
    batch_size: int | None
    participation: AnyParticipation
    weighting: Weighting | None
    topology: Links | None
    allreduce: str | Route | None
    fleet: Fleet | str | None
    on_bad: OnBad
    quorum: float | int | None
    aggregation: str | Aggregation | None
    attack: str | Attack | None
    seed: int
    weight_decay: float
    clip: float | None
    evaluation: EvaluationOptions
    mode: Literal["auto"] | Mode
    kernels: KernelChoice
    device: Any
    precision: str | None
    execution: ExecutionOptions
    checkpoint: str | Path | None
    checkpoint_every: int | None
    resume: str | Path | None
    tap: Tap | None
    early_stopping: Any
    progress: bool
    processes: int | None
    timeout: float

    @classmethod
    def of(cls, **arguments: Any) -> SimulationRequest:
        """Return the request of arguments, of which some may be the shell's words."""
        work, topology = arguments["work"], arguments["topology"]
        if isinstance(work, str):
            arguments["work"] = parse_work(work)
        if isinstance(topology, str) and isinstance(arguments["clients"], Clients):
            count, seed = len(arguments["clients"]), arguments["seed"]
            arguments["topology"] = parse_topology(topology, count, seed)
        return cls(**arguments)

    @property
    def requested_execution(self) -> ExecutionRequest:
        """Return what was asked for about the execution."""
        return ExecutionRequest(mode=self.mode, kernels=self.kernels, options=self.execution)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Holds what a run needs besides its method and its executor."""

    training: tuple[bool, ...]  # the training flag of each module of the user's model
    x0: Vector
    facts: Facts
    rounds: int
    evaluation: EvaluationOptions  # with nothing left open but what means all samples
    tests: str  # what is evaluated, by what and why so often, for a reader
    forward: ForwardKernel | None  # what evaluates models; None for torch
    execution: ExecutionRecord
    metrics: MetricSet = MetricSet()
    checkpoint_every: int | None = 1
    clock: Clock | None = None
    watch: CostWatch | None = None  # of what gradients cost
