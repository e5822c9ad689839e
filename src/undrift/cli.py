"""The command line: `undrift run`, `undrift compare`, `undrift list`."""

import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

import undrift as ud
from undrift import catalogue, show, trial
from undrift.check import nearest
from undrift.rule import Rule
from undrift.rule import parse as parse_rule
from undrift.schedule import parse as parse_number

METHODS: dict[str, type] = {cls.__name__.lower(): cls for cls in ud.ALGORITHMS}
DEFAULT_LR = 0.1

app = typer.Typer(
    name="undrift",
    help="Training on heterogeneous data without client drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
run_app = typer.Typer(
    no_args_is_help=True,
    help="Train with one method. Example: undrift run fedspeed --lr 0.1 --rounds 50",
)
app.add_typer(run_app, name="run")

DATA, TRAINING, OUTPUT = "Data and clients", "Training", "Output"
Data = Annotated[str, typer.Option(help="digits.", rich_help_panel=DATA)]
Model = Annotated[str, typer.Option(help="logistic or mlp.", rich_help_panel=DATA)]
NumClients = Annotated[int, typer.Option("--clients", help="How many.", rich_help_panel=DATA)]
Partition = Annotated[str, typer.Option(help="dirichlet or iid.", rich_help_panel=DATA)]
DirAlpha = Annotated[
    float,
    typer.Option("--dirichlet", help="Label skew; smaller is worse.", rich_help_panel=DATA),
]
Rounds = Annotated[int, typer.Option(help="Communication rounds.", rich_help_panel=TRAINING)]
Seed = Annotated[int, typer.Option(help="Seed of everything.", rich_help_panel=TRAINING)]
Part = Annotated[
    str,
    typer.Option(help="Fraction (0.5; 1.0 is everybody) or count (10).", rich_help_panel=TRAINING),
]
WorkText = Annotated[
    str,
    typer.Option(
        help="steps:10, epochs:5, gaussian:MEAN:VARIANCE[:random] or uniform:LOW:HIGH[:random].",
        rich_help_panel=TRAINING,
    ),
]
Batch = Annotated[int, typer.Option(help="0: the whole local data.", rich_help_panel=TRAINING)]
Weights = Annotated[str, typer.Option(help="size or uniform.", rich_help_panel=TRAINING)]
Decay = Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=TRAINING)]
Clip = Annotated[
    float, typer.Option(help="Gradient norm limit; 0: none.", rich_help_panel=TRAINING)
]
ModeText = Annotated[str, typer.Option(help="auto, loop or stacked.", rich_help_panel=TRAINING)]
Target = Annotated[float, typer.Option(help="Accuracy to be reached.", rich_help_panel=OUTPUT)]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for records and plots; default: runs/...", rich_help_panel=OUTPUT),
]
Force = Annotated[bool, typer.Option("--force", help="Replace --out.", rich_help_panel=OUTPUT)]
Json = Annotated[bool, typer.Option("--json", help="Last line: JSON.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.", rich_help_panel=OUTPUT)]


def setting(
    data: Data = "digits",
    model: Model = "mlp",
    clients: NumClients = 20,
    partition: Partition = "dirichlet",
    dirichlet: DirAlpha = 0.3,
    rounds: Rounds = 50,
    participation: Part = "0.5",
    work: WorkText = "gaussian:20:100",
    batch_size: Batch = 20,
    weighting: Weights = "size",
    weight_decay: Decay = 0.0,
    clip: Clip = 0.0,
    mode: ModeText = "auto",
    target: Target = 0.8,
) -> trial.Setting:
    """What `run` and `compare` share; typer reads the options off this signature."""
    return trial.Setting(
        data=data,
        model=model,
        clients=clients,
        partition=partition,
        dirichlet=dirichlet,
        rounds=rounds,
        participation=participation,
        work=work,
        batch_size=batch_size or None,
        weighting=weighting,
        weight_decay=weight_decay,
        clip=clip or None,
        mode=mode,
        target=target,
    )


def _parser(annotation: Any) -> Any:
    """How the text of a hyper-parameter flag becomes its value."""
    known: dict[Any, Any] = {float: parse_number, Rule: parse_rule, int: int}
    return known.get(annotation, str)


def _flags(cls: type) -> list[inspect.Parameter]:
    """One option per dataclass field of the method."""
    hints, flags = get_type_hints(cls), []
    for field in fields(cls):
        default = DEFAULT_LR if field.default is MISSING else field.default
        panel = f"{cls.__name__}'s hyper-parameters"
        if hints[field.name] is bool:
            kind: Any = Annotated[bool, typer.Option(rich_help_panel=panel)]
        else:
            default = str(default)
            metavar = "NUMBER" if hints[field.name] in (float, int) else "NAME"
            kind = Annotated[str, typer.Option(rich_help_panel=panel, metavar=metavar)]
        kind_of = inspect.Parameter.KEYWORD_ONLY
        flags.append(inspect.Parameter(field.name, kind_of, default=default, annotation=kind))
    return flags


def _build(cls: type, texts: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    values = {
        name: value if isinstance(value, bool) else _parser(hints[name])(value)
        for name, value in texts.items()
    }
    return cls(**values)


def _spell_out(command: Any, flags: Sequence[inspect.Parameter] = ()) -> Any:
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


def _make_run(cls: type) -> Any:
    """The command `undrift run <method>`; its flags come from the method's fields."""
    method = cls.__name__.lower()

    def command(
        *,
        seed: Seed = 0,
        checkpoint: Annotated[
            Path | None, typer.Option(help="Folder to save to.", rich_help_panel=OUTPUT)
        ] = None,
        checkpoint_every: Annotated[
            int, typer.Option(help="Rounds between saves.", rich_help_panel=OUTPUT)
        ] = 1,
        resume: Annotated[
            Path | None, typer.Option(help="Folder to go on from.", rich_help_panel=OUTPUT)
        ] = None,
        out: Out = None,
        force: Force = False,
        as_json: Json = False,
        quiet: Quiet = False,
        **options: Any,
    ) -> None:
        hyper = {name: options.pop(name) for name in (field.name for field in fields(cls))}
        ground = setting(**options)
        run = ground.start(
            _build(cls, hyper),
            seed,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            resume=resume,
        )
        folder = trial.claim(out, method, force=force, going_on=resume is not None)
        journal = trial.Journal(folder / "records.jsonl", after=run.record)
        console = Console(stderr=True)
        console.print(f"{run.algorithm!r}, {run.mode} ({run.why})", highlight=False)
        stopped = show.follow(run, journal.add, console, quiet=quiet)
        outcome = trial.Outcome(journal.records)
        if outcome.records:
            show.table({cls.__name__: [outcome]}, ground, Console(stderr=as_json))
            show.plot({cls.__name__: [outcome]}, folder, console, cls.__name__)
        console.print(f"Records and plots: {folder}", highlight=False)
        if as_json:
            print(json.dumps(show.final(run, outcome)))
        if stopped:
            raise typer.Exit(130)

    command.__doc__ = (inspect.getdoc(cls) or "").splitlines()[0]
    return _spell_out(command, _flags(cls))


for _method, _cls in METHODS.items():
    run_app.command(_method)(_make_run(_cls))


def compare(
    methods: Annotated[list[str], typer.Argument(help="Names, as `undrift list` shows them.")],
    lr: Annotated[str, typer.Option(help="Grid of learning rates, the same for all.")] = "0.1",
    seeds: Annotated[int, typer.Option(help="Repetitions, the same seeds for all.")] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A method's own value, e.g. --set fedspeed.lam=5"),
    ] = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compare methods on the same data, cohorts and batches.

    Example: undrift compare fedavg scaffold fedspeed --lr 0.03,0.1,0.3 --seeds 3
    """
    ground = setting(**options)
    grid = [text for text in lr.split(",") if text.strip()]
    if seeds < 1 or not grid:
        raise ValueError(f"compare needs seeds >= 1 and a learning rate, got {seeds} and {lr!r}.")
    classes = [_known(method) for method in dict.fromkeys(methods)]
    own = _own_values(set_ or [], classes)
    plan = [
        (cls, rate, seed, _build(cls, {"lr": rate, **own.get(cls, {})}))
        for cls in classes
        for rate in grid
        for seed in range(seeds)
    ]
    for _, _, seed, algorithm in plan:  # everything is checked before the first run
        if seed == 0:
            ground.start(algorithm, seed)
    folder = trial.claim(out, "compare", force=force)
    console = Console(stderr=True)
    tried: dict[str, dict[str, list[trial.Outcome]]] = {cls.__name__: {} for cls in classes}
    with show.bar(console, quiet=quiet) as progress:
        task = progress.add_task("", total=len(plan) * ground.rounds, accuracy="-")
        for cls, rate, seed, algorithm in plan:
            journal = trial.Journal(folder / f"{cls.__name__.lower()}-lr{rate}-seed{seed}.jsonl")
            label = f"{cls.__name__} lr {rate} seed {seed}"
            try:
                for record in ground.start(algorithm, seed):
                    journal.add(record)
                    shown = show.percent(record.accuracy)
                    progress.update(task, description=label, advance=1, accuracy=shown)
            except ud.DivergenceError as error:
                console.print(f"{label}: {error}", highlight=False)
                progress.update(task, advance=ground.rounds - len(journal.records))
            tried[cls.__name__].setdefault(rate, []).append(trial.Outcome(journal.records))
    _conclude(tried, ground, grid, folder, as_json=as_json)


def _conclude(
    tried: dict[str, dict[str, list[trial.Outcome]]],
    ground: trial.Setting,
    grid: list[str],
    folder: Path,
    *,
    as_json: bool,
) -> None:
    """Print the grid, then each method at its best learning rate."""
    console = Console(stderr=as_json)
    best = {
        name: max(rates, key=lambda rate: _mean_last(rates[rate], ground))
        for name, rates in tried.items()
    }
    if len(grid) > 1:
        shown = Table("method", *(f"lr {rate}" for rate in grid), title="Accuracy % at each lr")
        for name, rates in tried.items():
            cells = [f"{100 * _mean_last(rates[rate], ground):.2f}" for rate in grid]
            cells[grid.index(best[name])] += " *"
            shown.add_row(name, *cells)
        console.print(shown)
    chosen = {name: tried[name][best[name]] for name in tried}
    show.table(chosen, ground, console, extra=best)
    show.plot(chosen, folder, console, f"{ground.data}, {ground.clients} clients")
    console.print(f"Records and plots: {folder}", highlight=False)
    if as_json:
        summary = {
            name: {
                "lr": best[name],
                "accuracy": _mean_last(outcomes, ground),
                "rounds_to_target": [outcome.rounds_to(ground.target) for outcome in outcomes],
                "bytes": [round(outcome.megabytes * 1e6) for outcome in outcomes],
                "gradients": [outcome.total("gradients") for outcome in outcomes],
                "seconds": [outcome.total("seconds") for outcome in outcomes],
            }
            for name, outcomes in chosen.items()
        }
        print(json.dumps(summary))


def _mean_last(outcomes: list[trial.Outcome], ground: trial.Setting) -> float:
    """Mean over seeds; a run that diverged counts as nothing learned."""
    finished = [o.last if len(o.records) == ground.rounds else 0.0 for o in outcomes]
    return sum(finished) / len(finished)


def _known(method: str) -> type:
    if method.lower() not in METHODS:
        raise ValueError(f"Unknown method {method!r}{nearest(method, METHODS)}; see undrift list.")
    return METHODS[method.lower()]


def _own_values(texts: list[str], classes: list[type]) -> dict[type, dict[str, Any]]:
    own: dict[type, dict[str, Any]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        method, dot, name = target.partition(".")
        if not (equals and dot):
            raise ValueError(f"--set needs METHOD.NAME=VALUE, got {text!r}.")
        cls = _known(method)
        if cls not in classes:
            raise ValueError(f"--set needs a method of this comparison, got {method!r}.")
        names = [field.name for field in fields(cls)]
        if name not in names:
            raise ValueError(f"{cls.__name__} has no {name!r}{nearest(name, names)}.")
        is_flag = get_type_hints(cls)[name] is bool
        own.setdefault(cls, {})[name] = value.lower() in ("1", "true", "yes") if is_flag else value
    return own


app.command()(_spell_out(compare))


@app.command("list")
def list_methods() -> None:
    """All methods: paper, traffic and gradients as measured by a dry run, and state."""
    shown = Table("name", "family", "paper", title="Methods")
    for column in ("traffic / FedAvg", "gradients / step"):
        shown.add_column(column, justify="right")
    for column in ("client state", "server state"):
        shown.add_column(column)
    for e in catalogue.entries(ud.ALGORITHMS):
        cost = f"{e.traffic:.3g}", f"{e.gradients:.3g}"
        shown.add_row(e.name, e.family, e.paper, *cost, e.client_state, e.server_state)
    Console().print(shown)
    Console().print("Hyper-parameters: undrift run NAME --help", style="dim")


def main() -> None:
    """Entry point: user errors become one sentence and exit code 2, never a traceback."""
    arguments = sys.argv[1:]
    try:
        if len(arguments) > 1 and arguments[0] == "run" and not arguments[1].startswith("-"):
            arguments[1] = _known(arguments[1]).__name__.lower()
        app(arguments)
    except (ValueError, ud.UndriftError, OSError) as error:
        Console(stderr=True).print(f"Error: {error}", style="red", highlight=False, markup=False)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped; what was done is kept.")
        sys.exit(130)
