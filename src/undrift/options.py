"""Options of the command line: the shared ones, and those made from a method's fields."""

import inspect
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from undrift import models, trial
from undrift.data import NAMES
from undrift.devices import MIXES, PRESETS
from undrift.rule import Rule
from undrift.rule import parse as parse_rule
from undrift.schedule import parse as parse_number

DEFAULT_LR = 0.1

DATA, TRAINING, OUTPUT = "Data and clients", "Training", "Output"
DEVICES, PROCESSES = "Devices", "Processes"
Data = Annotated[str, typer.Option(help=", ".join(NAMES) + ".", rich_help_panel=DATA)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder of data sets, looked into before $UNDRIFT_DATA and others.",
        rich_help_panel=DATA,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help=", ".join(models.MODELS) + "; options as in resnet18-gn:stem=7.", rich_help_panel=DATA
    ),
]
NumClients = Annotated[
    int | None,
    typer.Option(
        "--clients", help="How many. Default: 20, or all natural ones.", rich_help_panel=DATA
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        help="iid, dirichlet[:0.3], dirichlet-sequential[:0.3], dirichlet-per-class[:0.3], "
        "shards[:2], shards:2x200, classes:5, quantity:0.5, natural, replicated.",
        rich_help_panel=DATA,
    ),
]
DirAlpha = Annotated[
    float | None,
    typer.Option(
        "--dirichlet",
        help="Short for --partition dirichlet:ALPHA, 0.3 by default; smaller is more skewed.",
        rich_help_panel=DATA,
    ),
]
TestSamples = Annotated[
    int | None,
    typer.Option(help="Test on so many samples, drawn once, not on all.", rich_help_panel=DATA),
]
Augment = Annotated[
    bool, typer.Option(help="Crop and flip images as documented.", rich_help_panel=DATA)
]
Rounds = Annotated[int, typer.Option(help="Communication rounds.", rich_help_panel=TRAINING)]
Seed = Annotated[int, typer.Option(help="Seed of everything.", rich_help_panel=TRAINING)]
Part = Annotated[
    str | None,
    typer.Option(
        help="Fraction (1.0 is everybody) or count (1 is one client) of the clients that a server "
        "asks in a round. Default: 0.5.",
        rich_help_panel=TRAINING,
    ),
]
WorkText = Annotated[
    str | None,
    typer.Option(
        help="Local steps between communications: steps:10, epochs:5, "
        "gaussian:MEAN:VARIANCE[:random], uniform:LOW:HIGH[:random], or deadline:SECONDS[:EPOCHS], "
        "what --devices can do in time. Default: gaussian:20:100 with a server, steps:10 for "
        "gossip, steps:1 for all-reduce.",
        rich_help_panel=TRAINING,
    ),
]
DevicesText = Annotated[
    str | None,
    typer.Option(
        help="What clients run on, for a simulated clock: " + ", ".join((*PRESETS, *MIXES)) + "; "
        "in proportions, phone:9,gpu-node:1 (the first clients are phones); or a CSV file.",
        rich_help_panel=DEVICES,
    ),
]
Slowdown = Annotated[
    str | None,
    typer.Option(
        help="stragglers:0.1:5 (one in ten five times as slow) or jitter:0.3.",
        rich_help_panel=DEVICES,
    ),
]
Failures = Annotated[
    float,
    typer.Option(help="Probability that a client fails in a round.", rich_help_panel=DEVICES),
]
TraceText = Annotated[
    Path | None,
    typer.Option(help="CSV of client,start,end: when who is there.", rich_help_panel=DEVICES),
]
Period = Annotated[
    float | None,
    typer.Option(help="Seconds after which --trace repeats.", rich_help_panel=DEVICES),
]
Graph = Annotated[
    str | None,
    typer.Option(
        help="Links of gossip methods: erdos-renyi[:0.5], ring, torus[:4x5], grid, complete, star, "
        "exponential, barabasi-albert[:2], small-world[:4:0.1]; +metropolis for those weights.",
        rich_help_panel=TRAINING,
    ),
]
RouteText = Annotated[
    str | None,
    typer.Option(
        help="Route of all-reduce methods: ring, segmented-ring[:65536], torus[:2x4], tree, "
        "server.",
        rich_help_panel=TRAINING,
    ),
]
Batch = Annotated[int, typer.Option(help="0: the whole local data.", rich_help_panel=TRAINING)]
Weights = Annotated[
    str | None,
    typer.Option(help="size (default) or uniform; peers: uniform.", rich_help_panel=TRAINING),
]
Decay = Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=TRAINING)]
Clip = Annotated[
    float, typer.Option(help="Gradient norm limit; 0: none.", rich_help_panel=TRAINING)
]
Every = Annotated[
    int, typer.Option("--evaluate-every", help="Rounds between tests.", rich_help_panel=TRAINING)
]
ModeText = Annotated[str, typer.Option(help="auto, loop or stacked.", rich_help_panel=TRAINING)]
Target = Annotated[float, typer.Option(help="Accuracy to be reached.", rich_help_panel=OUTPUT)]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for records and plots; default: runs/...", rich_help_panel=OUTPUT),
]
Force = Annotated[bool, typer.Option("--force", help="Replace --out.", rich_help_panel=OUTPUT)]
Json = Annotated[bool, typer.Option("--json", help="Last line: JSON.", rich_help_panel=OUTPUT)]
Processes = Annotated[
    int | None,
    typer.Option(
        help="How many processes of this machine share the clients. On several machines: "
        "torchrun ... -m undrift run ...",
        rich_help_panel=PROCESSES,
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        help="How often --processes starts again from --checkpoint when one is lost.",
        rich_help_panel=PROCESSES,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        help="Seconds without an answer after which a process counts as hung.",
        rich_help_panel=PROCESSES,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.", rich_help_panel=OUTPUT)]


def setting(
    data: Data = "digits",
    data_dir: DataDir = None,
    model: Model = "mlp",
    clients: NumClients = None,
    partition: Partition = "dirichlet",
    dirichlet: DirAlpha = None,
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
    target: Target = 0.8,
) -> trial.Setting:
    """What `run` and `compare` share; typer reads the options off this signature."""
    return trial.Setting(
        data=data,
        data_dir=data_dir,
        model=model,
        clients=clients,
        partition=partition,
        dirichlet=dirichlet,
        augment=augment,
        test_samples=test_samples,
        devices=devices,
        slowdown=slowdown,
        failures=failures,
        trace=trace,
        trace_period=trace_period,
        rounds=rounds,
        participation=participation,
        work=work,
        batch_size=batch_size or None,
        weighting=weighting,
        topology=topology,
        allreduce=allreduce,
        weight_decay=weight_decay,
        clip=clip or None,
        mode=mode,
        evaluate_every=evaluate_every,
        target=target,
    )


def _parser(annotation: Any) -> Any:
    """How the text of a hyper-parameter flag becomes its value."""
    known: dict[Any, Any] = {float: parse_number, Rule: parse_rule, int: _parse_int}
    kind, optional = _required(annotation)
    parser = known.get(kind, str)
    return (lambda text: None if text.lower() == "none" else parser(text)) if optional else parser


def _required(annotation: Any) -> tuple[Any, bool]:
    """The type without None, and whether None was allowed."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return next(kind for kind in kinds if kind is not NoneType), NoneType in kinds


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"A hyper-parameter needs a whole number here, got {text!r}.") from error


def flags_of(cls: type) -> list[inspect.Parameter]:
    """One option per dataclass field of the method."""
    hints, flags = get_type_hints(cls), []
    for field in fields(cls):
        default = DEFAULT_LR if field.default is MISSING else field.default
        panel = f"{cls.__name__}'s hyper-parameters"
        if hints[field.name] is bool:
            kind: Any = Annotated[bool, typer.Option(rich_help_panel=panel)]
        else:
            default = str(default).lower() if default is None else str(default)
            hint, optional = _required(hints[field.name])
            choices = "|".join(map(str, get_args(hint))) or "sgd|momentum|adam"  # a rule
            metavar = "NUMBER" if hint in (float, int) else choices
            metavar += "|none" if optional else ""
            kind = Annotated[str, typer.Option(rich_help_panel=panel, metavar=metavar)]
        kind_of = inspect.Parameter.KEYWORD_ONLY
        flags.append(inspect.Parameter(field.name, kind_of, default=default, annotation=kind))
    return flags


def build(cls: type, texts: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    values = {
        name: value if isinstance(value, bool) else _parser(hints[name])(value)
        for name, value in texts.items()
    }
    return cls(**values)


def spell_out(command: Any, flags: Sequence[inspect.Parameter] = ()) -> Any:
    """Replace **options of a command by the flags given and those of `setting`, for typer."""
    by_name = inspect.Parameter.KEYWORD_ONLY
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    shared = [p.replace(kind=by_name) for p in inspect.signature(setting).parameters.values()]
    first = [p for p in own if p.default is p.empty]
    rest = [p.replace(kind=by_name) for p in own if p.default is not p.empty]
    parameters = [*first, *flags, *shared, *rest]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
