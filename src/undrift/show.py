"""What a person sees of a run: progress, tables, where the plot went."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from undrift import plot as pictures
from undrift.engine.run import Run
from undrift.record import Record
from undrift.trial import CURVES, Outcome, Setting

Outcomes = Mapping[str, Sequence[Outcome]]  # per method, one per seed


def paper(*, stderr: bool = False) -> Console:
    """A console for tables; not cut to 80 columns where nobody's terminal says so."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=160)


def bar(console: Console, *, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}"),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
    )


def follow(run: Run, add: Callable[[Record], None], console: Console, *, quiet: bool) -> bool:
    """Run to the end with a progress bar; True when the user stopped it."""
    with bar(console, quiet=quiet) as progress:
        task = progress.add_task("round", total=run.rounds, completed=run.round, accuracy="-")
        try:
            for record in run:
                add(record)
                progress.update(task, advance=1, accuracy=percent(record.accuracy))
        except KeyboardInterrupt:
            console.print(f"Stopped after round {run.round}; what was done is kept.")
            return True
    return False


def one_step(algorithms: Sequence[Any], console: Console) -> None:
    """Say of which methods `--work` is not the number of steps in a round."""
    for cls in dict.fromkeys(type(a) for a in algorithms if getattr(a, "every_step", False)):
        console.print(f"{cls.__name__} communicates at every step: one step a round.")


def percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.2f} %"


def spread(values: Sequence[float], form: str = "{:.1f}") -> str:
    """Mean, and standard deviation over seeds when there are several."""
    mean = form.format(np.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(np.std(values, ddof=1))}"


def table(
    outcomes: Outcomes, setting: Setting, console: Console, extra: Mapping[str, str] | None = None
) -> None:
    """The final table; `extra` is one more column, the learning rate chosen in a comparison."""
    shown = Table(title="Result")
    shown.add_column("method")
    if extra:
        shown.add_column("lr", justify="right")
    columns = ("accuracy %", f"rounds to {100 * setting.target:g} %", "MB sent", "gradients", "s")
    figures = {name: peer_figures(seeds) for name, seeds in outcomes.items()}
    peers = _telling(figures.values())
    timed = any(
        outcome.total("simulated_seconds") for seeds in outcomes.values() for outcome in seeds
    )
    clock = ("simulated s", "in use %") if timed else ()
    for column in (*columns, *clock, *(PEER_COLUMNS[key][0] for key in peers)):
        shown.add_column(column, justify="right")
    for name, seeds in outcomes.items():
        reached = [outcome.rounds_to(setting.target) for outcome in seeds]
        rounds = [r for r in reached if r is not None]
        diverged = any(len(outcome.records) < setting.rounds for outcome in seeds)
        accuracy = spread([100 * outcome.last for outcome in seeds], "{:.2f}")
        first = f"> {setting.rounds}" if len(rounds) < len(reached) else spread(rounds)
        shown.add_row(
            name,
            *([extra[name]] if extra else []),
            "diverged" if extra and diverged else accuracy,
            first,
            spread([outcome.megabytes for outcome in seeds], "{:.2f}"),
            f"{np.mean([outcome.total('gradients') for outcome in seeds]):.0f}",
            f"{np.mean([outcome.total('seconds') for outcome in seeds]):.1f}",
            *(_clock(seeds) if timed else ()),
            *(PEER_COLUMNS[key][1](figures[name].get(key)) for key in peers),
        )
    console.print(shown)
    console.print("accuracy: mean of the last ten evaluations on the test set", style="dim")


def _clock(seeds: Sequence[Outcome]) -> tuple[str, str]:
    """Simulated seconds of the whole run, and the share of them in which devices computed."""
    busy = [outcome.recent("utilisation") or 0.0 for outcome in seeds]
    seconds = [outcome.total("simulated_seconds") for outcome in seeds]
    return spread(seconds, "{:.4g}"), f"{100 * np.mean(busy):.1f}"


def _form(form: str, scale: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else form.format(scale * value)


PEER_COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "node_accuracy": ("nodes' own %", _form("{:.2f}", 100)),
    "consensus": ("consensus", _form("{:.2g}")),
    "bits": ("bits / hop", _form("{:.3g}")),
    "sign_matching": ("signs kept %", _form("{:.1f}", 100)),
}


def _telling(figures: Collection[Mapping[str, float]]) -> list[str]:
    """Columns that say something: no consensus where all agree, no signs where none are sent."""
    apart = any(own.get("consensus", 0) > 0 for own in figures)
    signs = any("sign_matching" in own for own in figures)
    return ["node_accuracy", "consensus"] * apart + ["bits", "sign_matching"] * signs


def peer_figures(seeds: Sequence[Outcome]) -> dict[str, float]:
    """Means over seeds of what only peers have."""
    found = {key: [outcome.recent(key) for outcome in seeds] for key in PEER_COLUMNS}
    return {
        key: float(np.mean([value for value in values if value is not None]))
        for key, values in found.items()
        if any(value is not None for value in values)
    }


def plot(outcomes: Outcomes, folder: Path, console: Console, title: str) -> None:
    runs = {name: [outcome.records for outcome in seeds] for name, seeds in outcomes.items()}
    if not pictures.curves(runs, folder / CURVES, title):
        console.print("No plot: matplotlib is not installed; pip install 'undrift[report]'.")


def final(run: Run, outcome: Outcome) -> dict[str, Any]:
    """What `--json` prints."""
    last = next((r for r in reversed(outcome.records) if r.loss is not None), None)
    return {
        "round": run.round,
        "loss": None if last is None else last.loss,
        "accuracy": None if last is None else last.accuracy,
        "bytes_up": run.totals.bytes_up,
        "bytes_down": run.totals.bytes_down,
        "bytes": run.totals.bytes_up + run.totals.bytes_down,
        "gradients": run.totals.gradients,
        "seconds": run.totals.seconds,
        "simulated_seconds": run.totals.simulated_seconds or None,
        **peer_figures([outcome]),
        "model_sha256": run.model_sha256 if run.whole else None,
    }
