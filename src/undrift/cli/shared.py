"""The options that several commands have, each group once.

A group is a function whose signature typer reads and whose result is what the options stand for;
`spell_out` gives a command the options of its groups. Defaults are those of the experiment's
sections, repeated here because help must not wait for pydantic and torch; a test compares them.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from undrift.check import require
from undrift.cli.options import (
    AggregationOption,
    AllReduceOption,
    AttackOption,
    AugmentOption,
    AvailabilityOption,
    BatchSizeOption,
    ClientMetricsOption,
    ClientsOption,
    ClipOption,
    DataDirOption,
    DataOption,
    DeviceOption,
    DirichletOption,
    DriftOption,
    EarlyStoppingOption,
    EpochsOption,
    EvaluateEveryOption,
    FailuresOption,
    FleetOption,
    ForceOption,
    JobsOption,
    JsonOption,
    LossOption,
    MetricsOption,
    ModelOption,
    ModeOption,
    OnBadOption,
    OnlyOption,
    OutOption,
    ParticipationOption,
    PartitionOption,
    PrecisionOption,
    ProcessesOption,
    QuietOption,
    QuorumOption,
    ResumeOption,
    RoundsOption,
    SetOption,
    SlowdownOption,
    TargetOption,
    TaskOption,
    TestSamplesOption,
    TimeoutOption,
    TopologyOption,
    TraceOption,
    TracePeriodOption,
    TrackOption,
    TrainLossOption,
    TrainSamplesOption,
    TrustOption,
    ValidationOption,
    VerboseOption,
    WeightDecayOption,
    WeightingOption,
    WorkOption,
)
from undrift.engine.processes.interrupts import signal_of
from undrift.usercode.names import places_in

FIELDS = {  # option -> the field of an experiment that it sets
    "data": "data.name",
    "data_dir": "data.folder",
    "clients": "data.clients",
    "partition": "data.partition",
    "availability": "data.availability",
    "augment": "data.augment",
    "train_samples": "data.train_samples",
    "test_samples": "data.test_samples",
    "validation": "data.validation",
    "model": "model.name",
    "fleet": "fleet.kind",
    "slowdown": "fleet.slowdown",
    "failures": "fleet.failures",
    "trace": "fleet.trace",
    "trace_period": "fleet.trace_period",
    "task": "training.task",
    "loss": "training.loss",
    "rounds": "training.rounds",
    "participation": "training.participation",
    "work": "training.work",
    "early_stopping": "training.early_stopping",
    "batch_size": "training.batch_size",
    "weighting": "training.weighting",
    "topology": "training.topology",
    "allreduce": "training.allreduce",
    "on_bad": "training.on_bad",
    "quorum": "training.quorum",
    "aggregation": "training.aggregation",
    "attack": "training.attack",
    "weight_decay": "training.weight_decay",
    "clip": "training.clip",
    "mode": "engine.mode",
    "device": "engine.device",
    "precision": "engine.precision",
    "evaluate_every": "evaluation.every",
    "target": "evaluation.target",
    "metrics": "evaluation.metrics",
    "train_loss": "evaluation.train_loss",
    "client_metrics": "evaluation.client_metrics",
    "drift": "evaluation.drift",
    "timeout": "engine.timeout",
}


def experiment_options(
    data: DataOption = "digits",
    data_dir: DataDirOption = None,
    model: ModelOption = "mlp",
    clients: ClientsOption = None,
    partition: PartitionOption = "dirichlet",
    dirichlet: DirichletOption = None,
    availability: AvailabilityOption = None,
    augment: AugmentOption = True,
    train_samples: TrainSamplesOption = None,
    test_samples: TestSamplesOption = None,
    validation: ValidationOption = None,
    fleet: FleetOption = None,
    slowdown: SlowdownOption = None,
    failures: FailuresOption = 0.0,
    trace: TraceOption = None,
    trace_period: TracePeriodOption = None,
    task: TaskOption = None,
    loss: LossOption = None,
    rounds: RoundsOption = 50,
    participation: ParticipationOption = None,
    work: WorkOption = None,
    epochs: EpochsOption = None,
    early_stopping: EarlyStoppingOption = None,
    batch_size: BatchSizeOption = 20,
    weighting: WeightingOption = None,
    topology: TopologyOption = None,
    allreduce: AllReduceOption = None,
    on_bad: OnBadOption = "stop",
    quorum: QuorumOption = None,
    aggregation: AggregationOption = None,
    attack: AttackOption = None,
    weight_decay: WeightDecayOption = 0.0,
    clip: ClipOption = 0.0,
    mode: ModeOption = "auto",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    evaluate_every: EvaluateEveryOption = None,
    target: TargetOption = "0.8",
    metrics: MetricsOption = None,
    train_loss: TrainLossOption = False,
    client_metrics: ClientMetricsOption = False,
    drift: DriftOption = False,
    timeout: TimeoutOption = 1800.0,
) -> dict[str, Any]:
    """Return the sections of an experiment that these options are, without its methods."""
    values = dict(locals())
    from undrift.config.shorthand import parse_data, parse_model, parse_participation

    data_options = parse_data(data)
    values["model"], model_options = parse_model(model)
    values["work"] = with_epochs(work, epochs)
    values["partition"] = with_dirichlet(partition, dirichlet)
    values["participation"] = None if participation is None else parse_participation(participation)
    values["quorum"] = None if quorum is None else parse_participation(quorum, "quorum")
    values["target"] = _targets(target)
    sections: dict[str, Any] = {}
    for option, field in FIELDS.items():
        section, _, name = field.partition(".")
        sections.setdefault(section, {})[name] = values[option]
    sections["model"] |= model_options
    if "path" in data_options:
        del sections["data"]["name"]
        if partition == "dirichlet" and dirichlet is None:  # which stands for the table's own
            del sections["data"]["partition"]
    sections["data"] |= data_options
    return sections


def are_defaults(options: dict[str, Any]) -> bool:
    """Return whether these options of `experiment_options` are all at their defaults."""
    parameters = inspect.signature(experiment_options).parameters
    return all(options[name] == parameters[name].default for name in parameters)


def with_dirichlet(partition: str, dirichlet: float | None) -> str:
    """Return `--partition` and its short form `--dirichlet` as one."""
    bare = partition.startswith("dirichlet") and ":" not in partition
    remedy = "say it once, as --partition dirichlet:0.3"
    fits = dirichlet is None or bare
    require(fits, "--dirichlet", "a Dirichlet partition without a number", partition, remedy)
    return partition if dirichlet is None else f"{partition}:{dirichlet}"


def with_epochs(work: str | None, epochs: float | None) -> str | None:
    """Return `--work` and its short form `--epochs` as one."""
    remedy = "say it once, as --work epochs:5"
    require(work is None or epochs is None, "--epochs", "no --work beside it", work, remedy)
    return work if epochs is None else f"epochs:{epochs:g}"


def _targets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--target needs accuracies such as 0.8 or 0.8,0.85, got {text!r}; a table's column is "
            f"named beside its file, as in --data patients.csv:target={text}."
        ) from None


@dataclass(frozen=True)
class Output:
    """Holds the options of where results go and what is printed."""

    out: Path | None
    force: bool
    as_json: bool
    quiet: bool
    verbose: bool
    track: Sequence[str]
    processes: int | None
    jobs: int | None


def output_options(
    out: OutOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    track: TrackOption = None,
    processes: ProcessesOption = None,
    jobs: JobsOption = None,
) -> Output:
    """Return the options that every command has that runs something."""
    return Output(out, force, as_json, quiet, verbose, track or (), processes, jobs)


@dataclass(frozen=True)
class FileChanges:
    """Holds `--set`, `--resume`, `--only` and `--trust`."""

    changes: Sequence[str]
    resume: Path | None
    only: Sequence[str]
    trust: bool | set[str]  # all code that a file names, or that of these places


def file_options(
    set_: SetOption = None,
    resume: ResumeOption = None,
    only: OnlyOption = None,
    trust: TrustOption = False,
) -> FileChanges:
    """Return the options of commands that take an experiment's file."""
    return FileChanges(set_ or (), resume, only or (), trust or places_in(sys.argv[1:]))


@contextmanager
def signals_as_codes() -> Iterator[None]:
    """End the command with the code of the signal that stops it; typer knows Ctrl-C only."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(128 + signal_of(interrupt)) from None


def spell_out(
    command: Any, *groups: Callable[..., Any], flags: Sequence[inspect.Parameter] = ()
) -> Any:
    """Return the command with the options of the groups and `flags` in place of `**options`.

    typer reads the signature; the command gives each group its own with `pick`.
    """
    by_name = inspect.Parameter.KEYWORD_ONLY
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    arguments = [p for p in own if p.kind is not by_name]
    common = [p for group in groups for p in inspect.signature(group).parameters.values()]
    options = [*flags, *common, *(p for p in own if p.kind is by_name)]
    parameters = [*arguments, *(p.replace(kind=by_name) for p in options)]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def pick(options: dict[str, Any], group: Callable[..., Any]) -> dict[str, Any]:
    """Return those of the options that the group takes."""
    return {name: options[name] for name in inspect.signature(group).parameters if name in options}
