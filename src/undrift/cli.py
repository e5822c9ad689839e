"""The command line: `undrift run`, `undrift compare`, `undrift list`, `undrift data`."""

import inspect
import json
import re
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

import undrift as ud
from undrift import catalogue, launch, show, trial
from undrift.check import is_finite, nearest, require, require_choice
from undrift.data_command import data_app
from undrift.engine.meeting import TIMEOUT, joined, launched, restarted, speaking
from undrift.engine.simulate import require_shares
from undrift.options import (
    OUTPUT,
    Force,
    Json,
    MaxRestarts,
    Out,
    Processes,
    Quiet,
    Seed,
    Timeout,
    build,
    flags_of,
    setting,
    spell_out,
)

METHODS: dict[str, type] = {cls.__name__.lower(): cls for cls in ud.ALGORITHMS}

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
app.add_typer(data_app, name="data")


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
            Path | None,
            typer.Option(
                help="Folder to go on from; saves there, too, unless --checkpoint is given.",
                rich_help_panel=OUTPUT,
            ),
        ] = None,
        out: Out = None,
        force: Force = False,
        as_json: Json = False,
        quiet: Quiet = False,
        processes: Processes = None,
        max_restarts: MaxRestarts = launch.RESTARTS,
        timeout: Timeout = TIMEOUT,
        **options: Any,
    ) -> None:
        hyper = {name: options.pop(name) for name in (field.name for field in fields(cls))}
        require(max_restarts >= 0, "--max-restarts", "a number >= 0", max_restarts)
        require(is_finite(timeout) and timeout > 0, "--timeout", "seconds > 0", timeout)
        ground = setting(**options)
        ground.check([cls])
        kept = {
            "checkpoint": checkpoint or resume,
            "checkpoint_every": checkpoint_every,
            "resume": resume,
        }
        going_on = resume is not None or restarted()
        if _several(processes):
            require_shares(processes or 1, ground.prepare(seed)[1])
            ground.start(build(cls, hyper), seed)  # refuses bad input, once and not by everybody
            folder = trial.claim(out, method, force=force, going_on=going_on)
            _in_processes(folder, processes or 1, max_restarts if kept["checkpoint"] else 0)
        shared = {"timeout": timeout, "processes": processes if launched() else None}
        run = ground.start(build(cls, hyper), seed, **shared, **kept)
        head = run.world.head
        folder = trial.claim(out, method, force=force, going_on=going_on, write=head)
        journal = trial.Journal(folder / "records.jsonl" if head else None, after=run.record)
        console = Console(stderr=True, quiet=not head)
        console.print(f"{run.algorithm!r}, {run.mode} ({run.why})", highlight=False)
        if run.world.size > 1:
            again = f", going on from round {run.round}" if restarted() else ""
            console.print(f"{run.world.size} processes{again}", highlight=False)
        show.one_step([run.algorithm], console)
        stopped, diverged = False, None
        try:
            stopped = show.follow(run, journal.add, console, quiet=quiet or not head)
        except ud.DivergenceError as error:
            diverged = error  # shown after what was reached
        outcome = trial.Outcome(journal.records, run.totals)
        if outcome.records and head:
            show.table({cls.__name__: [outcome]}, ground, show.paper(stderr=as_json))
            show.plot({cls.__name__: [outcome]}, folder, console, cls.__name__)
        console.print(f"Records and plots: {folder}", highlight=False)
        if as_json:
            final = json.dumps(show.final(run, outcome))  # for which peers need each other
            if head:
                print(final)
        if diverged is not None:
            raise diverged
        if stopped:
            raise typer.Exit(130)

    command.__doc__ = (inspect.getdoc(cls) or "").splitlines()[0]
    return spell_out(speaking(command), flags_of(cls))


for _method, _cls in METHODS.items():
    run_app.command(_method)(_make_run(_cls))


def _several(processes: int | None) -> bool:
    """Whether this command is to start itself again in several processes."""
    if processes is None or launched():
        return False
    require(processes >= 1, "--processes", "a number >= 1", processes)
    return processes > 1


def _in_processes(folder: Path, processes: int, max_restarts: int) -> None:
    """Start this command again, in several processes, and end as they do."""
    arguments = launch.without_option(sys.argv[1:], "--processes")
    arguments = launch.without_option(arguments, "--out")
    code = launch.in_processes([*arguments, "--out", str(folder)], processes, max_restarts)
    raise typer.Exit(code)


def compare(
    methods: Annotated[list[str], typer.Argument(help="Names, as `undrift list` shows them.")],
    lr: Annotated[
        str | None,
        typer.Option(
            help="Grid of learning rates, the same for all. Default: 0.1; 0.001,0.01,0.1 where "
            "signs are sent."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions, the same seeds for all.")] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A method's own value, e.g. --set fedspeed.lam=5"),
    ] = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    processes: Processes = None,
    timeout: Timeout = TIMEOUT,
    **options: Any,
) -> None:
    """Compare methods on the same data, cohorts and batches.

    Example: undrift compare fedavg scaffold fedspeed --lr 0.03,0.1,0.3 --seeds 3
    """
    ground = setting(**options)
    classes = [_known(method) for method in dict.fromkeys(methods)]
    ground.check(classes)
    signs = any(issubclass(cls, ud.AllReduce) for cls in classes)
    lr = lr or ("0.001,0.01,0.1" if signs else "0.1")
    grid = [text.strip() for text in re.split(r",(?![^(]*\))", lr) if text.strip()]
    if seeds < 1 or not grid:
        raise ValueError(f"compare needs seeds >= 1 and a learning rate, got {seeds} and {lr!r}.")
    own = _own_values(set_ or [], classes)
    plan = [
        (cls, rate, seed, build(cls, {"lr": rate, **own.get(cls, {})}))
        for cls in classes
        for rate in grid
        for seed in range(seeds)
    ]
    for _, _, seed, algorithm in plan:  # everything is checked before the first run
        if seed == 0:
            ground.start(algorithm, seed, timeout=timeout)
    head = launch.rank() == 0
    folder = trial.claim(out, "compare", force=force, write=head)
    if _several(processes):
        require_shares(processes or 1, ground.prepare(0)[1])
        _in_processes(folder, processes or 1, 0)
    console = Console(stderr=True, quiet=not head)
    show.one_step([algorithm for _, _, _, algorithm in plan], console)
    tried: dict[str, dict[str, list[trial.Outcome]]] = {cls.__name__: {} for cls in classes}
    with show.bar(console, quiet=quiet or not head) as progress:
        task = progress.add_task("", total=len(plan) * ground.rounds, accuracy="-")
        for cls, rate, seed, algorithm in plan:
            path = folder / f"{cls.__name__.lower()}-lr{rate}-seed{seed}.jsonl"
            journal = trial.Journal(path if head else None)
            label = f"{cls.__name__} lr {rate} seed {seed}"
            try:
                for record in ground.start(algorithm, seed, timeout=timeout):
                    journal.add(record)
                    shown = show.percent(record.accuracy)
                    progress.update(task, description=label, advance=1, accuracy=shown)
            except ud.DivergenceError as error:
                console.print(f"{label}: {error}", highlight=False)
                progress.update(task, advance=ground.rounds - len(journal.records))
            tried[cls.__name__].setdefault(rate, []).append(trial.Outcome(journal.records))
    if head:
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
    console = show.paper(stderr=as_json)
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
                **show.peer_figures(outcomes),
                "rounds_to_target": [outcome.rounds_to(ground.target) for outcome in outcomes],
                "bytes": [round(outcome.megabytes * 1e6) for outcome in outcomes],
                "gradients": [outcome.total("gradients") for outcome in outcomes],
                "seconds": [outcome.total("seconds") for outcome in outcomes],
                "simulated_seconds": [outcome.total("simulated_seconds") for outcome in outcomes],
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
        if name == "lr":
            raise ValueError(
                "--set needs values other than lr, whose grid is --lr for all methods."
            )
        if get_type_hints(cls)[name] is bool:
            require_choice("--set", target, value.lower(), ("true", "false"))
            own.setdefault(cls, {})[name] = value.lower() == "true"
        else:
            own.setdefault(cls, {})[name] = value
    return own


app.command()(spell_out(speaking(compare)))


@app.command("list")
def list_methods() -> None:
    """All methods: paper, traffic and gradients as measured by a dry run, and state."""
    console = show.paper()
    shown = Table(title="Methods")
    shown.add_column("name", no_wrap=True)
    shown.add_column("family", no_wrap=True)
    shown.add_column("paper")
    for column in ("traffic / FedAvg", "gradients / step"):
        shown.add_column(column, justify="right")
    for column in ("client state", "server state"):
        shown.add_column(column)
    for e in catalogue.entries(ud.ALGORITHMS):
        cost = f"{e.traffic:.3g}", f"{e.gradients:.3g}"
        shown.add_row(e.name, e.family, e.paper, *cost, e.client_state, e.server_state)
    console.print(shown)
    console.print(
        "Traffic of peers: one exchange on a ring of four.\n"
        "Hyper-parameters: undrift run NAME --help",
        style="dim",
    )


def main() -> None:
    """Entry point: user errors become one sentence and exit code 2, never a traceback."""
    arguments = sys.argv[1:]
    launch.end_with_parent()
    try:
        if len(arguments) > 1 and arguments[0] == "run" and not arguments[1].startswith("-"):
            arguments[1] = _known(arguments[1]).__name__.lower()
        app(arguments)
    except (ValueError, ud.UndriftError, OSError, ImportError) as error:
        # Rank 0 hears of every process's error and says it; unless it is rank 0 that is lost.
        heard = launch.rank() != 0 and joined() and 0 not in getattr(error, "ranks", [])
        paper = Console(stderr=True, quiet=heard)
        paper.print(f"Error: {error}", style="red", highlight=False, markup=False)
        launch.leave(2 if isinstance(error, ValueError) else 1, error)
    except KeyboardInterrupt:
        Console(stderr=True, quiet=launch.rank() != 0).print("Stopped; what was done is kept.")
        launch.leave(130)
    except Exception as error:
        if not launched():
            raise
        traceback.print_exc()  # a defect, which would come again
        launch.leave(1, error)
    except SystemExit as end:
        launch.leave(end.code if isinstance(end.code, int) else 0)
