"""The options that `run` and `compare` share, as sections of an experiment."""

import inspect
from collections.abc import Sequence
from typing import Any

from undrift.check import require
from undrift.cli.options import (
    Augment,
    Batch,
    Clip,
    Data,
    DataDir,
    Decay,
    DevicesText,
    DirAlpha,
    DriftFlag,
    Every,
    Failures,
    Graph,
    Model,
    ModeText,
    NumClients,
    Part,
    Partition,
    Period,
    Rounds,
    RouteText,
    Slowdown,
    Target,
    TestSamples,
    There,
    TraceText,
    TrainLoss,
    Weights,
    WorkText,
)


def shared(
    data: Data = "digits",
    data_dir: DataDir = None,
    model: Model = "mlp",
    clients: NumClients = None,
    partition: Partition = "dirichlet",
    dirichlet: DirAlpha = None,
    availability: There = None,
    augment: Augment = True,
    test_samples: TestSamples = None,
    devices: DevicesText = None,
    slowdown: Slowdown = None,
    failures: Failures = 0.0,
    trace: TraceText = None,
    trace_period: Period = None,
    rounds: Rounds = 50,
    participation: Part = None,
    work: WorkText = None,
    batch_size: Batch = 20,
    weighting: Weights = None,
    topology: Graph = None,
    allreduce: RouteText = None,
    weight_decay: Decay = 0.0,
    clip: Clip = 0.0,
    mode: ModeText = "auto",
    evaluate_every: Every = 1,
    target: Target = "0.8",
    train_loss: TrainLoss = False,
    drift: DriftFlag = False,
) -> dict[str, Any]:
    """What `run` and `compare` share, as sections of an experiment; typer reads this signature."""
    from undrift.config.shorthand import parse_model, parse_participation

    name, options = parse_model(model)
    return {
        "data": {
            "name": data,
            "folder": data_dir,
            "clients": clients,
            "partition": dealt(partition, dirichlet),
            "availability": availability,
            "augment": augment,
            "test_samples": test_samples,
        },
        "model": {"name": name, **options},
        "training": {
            "rounds": rounds,
            "work": work,
            "batch_size": batch_size,
            "participation": None if participation is None else parse_participation(participation),
            "weighting": weighting,
            "weight_decay": weight_decay,
            "clip": clip,
            "topology": topology,
            "allreduce": allreduce,
        },
        "devices": {
            "kind": devices,
            "slowdown": slowdown,
            "failures": failures,
            "trace": trace,
            "trace_period": trace_period,
        },
        "evaluation": {
            "every": evaluate_every,
            "target": _targets(target),
            "train_loss": train_loss,
            "drift": drift,
        },
        "engine": {"mode": mode},
    }


def sections_given(options: dict[str, Any]) -> bool:
    """Whether any of the shared flags is not as it comes."""
    usual = {name: p.default for name, p in inspect.signature(shared).parameters.items()}
    return any(value != usual[name] for name, value in options.items())


def engine(
    processes: int | None, max_restarts: int, timeout: float, checkpoint_every: int = 0
) -> dict[str, Any]:
    """The section of an experiment that these flags are."""
    return {
        "processes": 1 if processes is None else processes,
        "max_restarts": max_restarts,
        "timeout": timeout,
        "checkpoint_every": checkpoint_every,
    }


def dealt(partition: str, dirichlet: float | None) -> str:
    """`--partition` and its short form `--dirichlet` as one."""
    bare = partition.startswith("dirichlet") and ":" not in partition
    remedy = "say it once, as --partition dirichlet:0.3"
    fits = dirichlet is None or bare
    require(fits, "--dirichlet", "a Dirichlet partition without a number", partition, remedy)
    return partition if dirichlet is None else f"{partition}:{dirichlet}"


def _targets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--target needs accuracies such as 0.8 or 0.8,0.85, got {text!r}."
        ) from None


def spell_out(command: Any, flags: Sequence[inspect.Parameter] = ()) -> Any:
    """Replace **options of a command by the flags given and those of `shared`, for typer."""
    by_name = inspect.Parameter.KEYWORD_ONLY
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    common = [p.replace(kind=by_name) for p in inspect.signature(shared).parameters.values()]
    first = [p for p in own if p.default is p.empty]
    rest = [p.replace(kind=by_name) for p in own if p.default is not p.empty]
    parameters = [*first, *flags, *common, *rest]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
