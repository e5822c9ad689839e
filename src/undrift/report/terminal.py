"""What a person sees of a run: progress, tables, where the plot went."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from undrift.config.experiment import Evaluation
from undrift.report import plots
from undrift.results.metrics import rounds_to
from undrift.results.trial import Trial
from undrift.runs.folder import CURVES

Trials = Mapping[str, Sequence[Trial]]  # per method, one per seed


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
    trials: Trials,
    evaluation: Evaluation,
    console: Console,
    *,
    heading: str = "",
    extra: Mapping[str, str] | None = None,
) -> None:
    """The final table; `extra` is one more column, the values chosen in a sweep."""
    shown = Table(title="Result")
    shown.add_column("method")
    if extra:
        shown.add_column(heading, justify="right")
    reached = [f"rounds to {100 * target:g} %" for target in evaluation.target]
    columns = ("accuracy %", *reached, "MB sent", "gradients", "s")
    figures = {name: peer_figures(seeds) for name, seeds in trials.items()}
    peers = _telling(figures.values())
    timed = any(trial.total("simulated_seconds") for seeds in trials.values() for trial in seeds)
    clock = ("simulated s", "in use %") if timed else ()
    drifts = _drift_names(trials)
    for column in (*columns, *drifts, *clock, *(PEER_COLUMNS[key][0] for key in peers)):
        shown.add_column(column, justify="right")
    for name, seeds in trials.items():
        shown.add_row(
            Text(name),
            *([Text(extra[name])] if extra else []),
            _accuracy(seeds),
            *(_reached(seeds, target, evaluation.smoothing) for target in evaluation.target),
            spread([trial.megabytes for trial in seeds], "{:.2f}"),
            f"{np.mean([trial.total('gradients') for trial in seeds]):.0f}",
            f"{np.mean([trial.total('seconds') for trial in seeds]):.1f}",
            *(_drift(seeds, name) for name in drifts),
            *(_clock(seeds) if timed else ()),
            *(PEER_COLUMNS[key][1](figures[name].get(key)) for key in peers),
        )
    console.print(shown)
    smoothed = "" if evaluation.smoothing == "raw" else f"; targets on its {evaluation.smoothing}"
    console.print(
        f"accuracy: mean of the last ten evaluations on the test set{smoothed}", style="dim"
    )


def _accuracy(seeds: Sequence[Trial]) -> str:
    """Of the seeds that have one, and what became of those that did not end well."""
    there = [trial for trial in seeds if trial.status != "diverged" and trial.records]
    if not there:
        return "diverged" if any(trial.status == "diverged" for trial in seeds) else "-"
    shown = spread([100 * trial.last for trial in there], "{:.2f}")
    diverged = sum(trial.status == "diverged" for trial in seeds)
    stopped = [trial.records[-1].round for trial in there if trial.status == "stopped"]
    notes = [f"{diverged} of {len(seeds)} diverged"] if diverged else []
    notes += [f"stopped after {min(stopped)}"] if stopped else []
    return f"{shown} ({', '.join(notes)})" if notes else shown


def _reached(seeds: Sequence[Trial], target: float, smoothing: str) -> str:
    rounds = [rounds_to(trial.records, target, smoothing) for trial in seeds]
    there = [r for r in rounds if r is not None]
    most = max((r.round for trial in seeds for r in trial.records[-1:]), default=0)
    return f"> {most}" if len(there) < len(rounds) else spread(there)


def _drift_names(trials: Trials) -> list[str]:
    told = [trial.facts.get("drift", {}) for seeds in trials.values() for trial in seeds]
    return [name for name in ("divergence", "cosine") if any(name in each for each in told)]


def _drift(seeds: Sequence[Trial], name: str) -> str:
    told = [trial.facts.get("drift", {}) for trial in seeds]
    values = [each[name] for each in told if name in each]
    return f"{np.mean(values):.3g}" if values else "-"


def _clock(seeds: Sequence[Trial]) -> tuple[str, str]:
    """Simulated seconds of the whole run, and the share of them in which devices computed."""
    busy = [trial.recent("utilisation") or 0.0 for trial in seeds]
    seconds = [trial.total("simulated_seconds") for trial in seeds]
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


def peer_figures(seeds: Sequence[Trial]) -> dict[str, float]:
    """Means over seeds of what only peers have."""
    found = {key: [trial.recent(key) for trial in seeds] for key in PEER_COLUMNS}
    return {
        key: float(np.mean([value for value in values if value is not None]))
        for key, values in found.items()
        if any(value is not None for value in values)
    }


def plot(trials: Trials, folder: Path, console: Console, title: str) -> None:
    runs = {name: [trial.records for trial in seeds] for name, seeds in trials.items()}
    if not plots.curves(runs, folder / CURVES, title):
        console.print(
            "No plot: matplotlib is not installed; pip install 'undrift[report]'.", markup=False
        )


def final(trial: Trial) -> dict[str, Any]:
    """What `--json` prints of one trial."""
    last = next((r for r in reversed(trial.records) if r.loss is not None), None)
    up, down = trial.total("bytes_up"), trial.total("bytes_down")
    return {
        "method": trial.method,
        "seed": trial.seed,
        "status": trial.status,
        "round": trial.records[-1].round if trial.records else 0,
        "loss": None if last is None else last.loss,
        "accuracy": None if last is None else last.accuracy,
        "bytes_up": round(up),
        "bytes_down": round(down),
        "bytes": round(up + down),
        "gradients": round(trial.total("gradients")),
        "seconds": trial.total("seconds"),
        "simulated_seconds": trial.total("simulated_seconds") or None,
        "reason": trial.reason,
        **peer_figures([trial]),
        "model_sha256": trial.model_sha256,
    }
