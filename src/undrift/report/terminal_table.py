"""The table of results: a row for each method, for a terminal, as text and as HTML."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from undrift.config.experiment import Evaluation, Experiment
from undrift.report.collect import best_cells, cell_of, cell_text, left_out
from undrift.report.json_summary import metrics_of, peer_figures
from undrift.results.metrics import primary, rounds_to
from undrift.results.record import CLIENTS, plain
from undrift.results.trial import CellScore, Trial

Methods = Mapping[str, Sequence[Trial]]  # the seeds of each method
NOTES = {  # smoothing -> what the first figure of the table is
    "raw": "{}: mean of the evaluations on the test set in the last ten rounds",
    "ema": "{}: moving average (EMA 0.9) of the evaluations on the test set, targets as well",
    "window": "{}: mean of the evaluations in the last ten rounds, targets as well",
    "best": "{}: best of all evaluations on the test set, targets as well",
}
WIDTH = 180  # A table that no terminal cuts has so many columns of characters.


@dataclass(frozen=True)
class ResultsTable:
    """Holds the cells of the table, and shows them as rich's table, as text or as HTML."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str  # what its first figure is, and in further lines what the table does not show
    title: str = "Result"

    def rich(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=Text(self.title))
        for i, name in enumerate(self.columns):
            table.add_column(Text(name), justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def text(self) -> str:
        """Return the table and its note as plain text."""
        console = Console(file=io.StringIO(), width=WIDTH)
        console.print(self.rich())
        if self.note:
            console.print(self.note, highlight=False, markup=False)
        written = console.file.getvalue()  # type: ignore[attr-defined]
        return str(written).rstrip()

    def html(self) -> str:
        """Return the table and its note for a notebook."""
        head = _html_row(self.columns, "th")
        body = "\n".join(_html_row(row, "td") for row in self.rows)
        return (
            f"<table><thead>{head}</thead>\n<tbody>{body}</tbody></table>\n"
            f"<div>{html.escape(self.note).replace(chr(10), '<br>')}</div>"
        )


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def results_table(trials: Sequence[Trial], experiment: Experiment | None) -> ResultsTable:
    """Return the table of an experiment: each method at the best cell of its sweep."""
    swept = [] if experiment is None else experiment.sweep.paths
    evaluation = Evaluation() if experiment is None else experiment.evaluation
    methods = best_cells(trials, evaluation.smoothing)
    table = methods_table(methods, evaluation, swept)
    chosen = len(trials) > sum(map(len, methods.values()))
    score = CellScore.of(trials, evaluation.smoothing)
    if not chosen or not score.validated:
        return table
    by = score.metric.replace("_", " ", 1)
    figure, *others = table.note.split("\n")
    return replace(table, note="\n".join([f"{figure}; cells are chosen by {by}", *others]))


def methods_table(
    methods: Methods, evaluation: Evaluation, swept: Sequence[str] = ()
) -> ResultsTable:
    """Return the table of these methods; `swept` are the fields whose values a column shows."""
    figures = {name: peer_figures(seeds) for name, seeds in methods.items()}
    peers = _telling(figures.values())
    timed = any(trial.total("simulated_seconds") for seeds in methods.values() for trial in seeds)
    drifts = _drift_names(methods)
    shown = [trial for seeds in methods.values() for trial in seeds]
    records = [record for trial in shown for record in trial.records]
    main = primary(records) if records else "accuracy"
    targets = evaluation.target if main == "accuracy" else []
    others = [name for name in metrics_of(shown) if name != main]
    by_client = any(record.client_metrics for record in records)
    columns = [
        "method",
        *_cell_heading(swept),
        "accuracy %" if main == "accuracy" else main,
        *(f"rounds to {100 * target:g} %" for target in targets),
        *others,
        *((f"clients' {main}: mean ± std, worst 10 %",) if by_client else ()),
        *("MB sent", "gradients", "s (training + tests)"),
        *drifts,
        *(("simulated s", "in use %") if timed else ()),
        *(PEER_COLUMNS[key][0] for key in peers),
    ]
    rows = [
        [
            name,
            *([_cell(seeds[0], swept)] if swept else []),
            _figure(seeds, evaluation.smoothing, main),
            *(_reached(seeds, target, evaluation.smoothing) for target in targets),
            *(_other_metric(seeds, evaluation.smoothing, name) for name in others),
            *((_by_client(seeds, main),) if by_client else ()),
            spread_text([trial.megabytes for trial in seeds], "{:.2f}".format),
            f"{np.mean([trial.total('gradients') for trial in seeds]):.0f}",
            _seconds(seeds),
            *(_drift(seeds, drift) for drift in drifts),
            *(_clock(seeds) if timed else ()),
            *(PEER_COLUMNS[key][1](figures[name].get(key)) for key in peers),
        ]
        for name, seeds in methods.items()
    ]
    note = "\n".join([NOTES[evaluation.smoothing].format(main), *left_out(methods)])
    return ResultsTable(columns, rows, note)


def spread_text(values: Sequence[float], show: Callable[[float], str] = "{:.1f}".format) -> str:
    """Return the mean, and with several seeds the standard deviation over them."""
    mean = show(float(np.mean(values)))
    return mean if len(values) == 1 else f"{mean} ± {show(float(np.std(values, ddof=1)))}"


def _cell_heading(swept: Sequence[str]) -> list[str]:
    if not swept:
        return []
    return [swept[0].rpartition(".")[2]] if len(swept) == 1 else ["at"]


def _cell(trial: Trial, swept: Sequence[str]) -> str:
    """Return what the sweep has set: the value of one field, or names and values of several."""
    if len(swept) == 1:
        return str(next(iter(cell_of(trial).values()), "-"))
    return cell_text(trial)


def _figure(seeds: Sequence[Trial], smoothing: str, metric: str) -> str:
    """Return the smoothed metric over the seeds that have one, and what became of the others."""
    sound = [trial for trial in seeds if trial.status != "diverged" and trial.records]
    if not sound:
        return "diverged" if any(trial.status == "diverged" for trial in seeds) else "-"
    if metric == "accuracy":
        shown = spread_text([100 * (t.reached(smoothing) or 0.0) for t in sound], "{:.2f}".format)
    else:
        shown = _other_metric(sound, smoothing, metric)
    diverged = sum(trial.status == "diverged" for trial in seeds)
    stopped = [trial.records[-1].round for trial in sound if trial.status == "stopped"]
    notes = [f"{diverged} of {len(seeds)} diverged"] if diverged else []
    notes += [f"stopped after {min(stopped)}"] if stopped else []
    return f"{shown} ({', '.join(notes)})" if notes else shown


def _other_metric(seeds: Sequence[Trial], smoothing: str, metric: str) -> str:
    """Return the mean of a metric over the seeds that have it."""
    values = [value for t in seeds if (value := t.reached(smoothing, metric)) is not None]
    return spread_text(values, plain) if values else "-"


def _by_client(seeds: Sequence[Trial], metric: str) -> str:
    """Return how the metric spreads over the clients, as the mean over seeds of each figure."""
    scale, form = (100, "{:.1f}".format) if metric == "accuracy" else (1, plain)
    figures = []
    for figure in ("mean", "std", "worst"):
        recent = [trial.recent(f"{CLIENTS}{metric}_{figure}") for trial in seeds]
        known = [value for value in recent if value is not None]
        if not known:
            return "-"
        figures.append(form(float(scale * np.mean(known))))
    undefined = max(int(t.recent(f"{CLIENTS}{metric}_undefined") or 0) for t in seeds)
    note = f" ({undefined} undefined)" if undefined else ""
    return f"{figures[0]} ± {figures[1]}, {figures[2]}{note}"


def _reached(seeds: Sequence[Trial], target: float, smoothing: str) -> str:
    """Return the rounds to a target accuracy, or that some seed has not reached it."""
    rounds = [rounds_to(trial.records, target, smoothing) for trial in seeds]
    reached = [count for count in rounds if count is not None]
    most = max((record.round for trial in seeds for record in trial.records[-1:]), default=0)
    return f"> {most}" if len(reached) < len(rounds) else spread_text(reached)


def _drift_names(methods: Methods) -> list[str]:
    drifts = [trial.facts.get("drift", {}) for seeds in methods.values() for trial in seeds]
    return [name for name in ("divergence", "cosine") if any(name in each for each in drifts)]


def _drift(seeds: Sequence[Trial], name: str) -> str:
    drifts = [trial.facts.get("drift", {}) for trial in seeds]
    values = [each[name] for each in drifts if name in each]
    return f"{np.mean(values):.3g}" if values else "-"


def _seconds(seeds: Sequence[Trial]) -> str:
    """Return the seconds in all, and those of training and of tests."""
    training, tests = (
        float(np.mean([trial.total(name) for trial in seeds]))
        for name in ("seconds", "evaluation_seconds")
    )
    return f"{training + tests:.1f} ({training:.1f} + {tests:.1f})"


def _clock(seeds: Sequence[Trial]) -> tuple[str, str]:
    """Return the simulated seconds of the whole run, and the share in which devices computed."""
    busy = [trial.recent("utilisation") or 0.0 for trial in seeds]
    seconds = [trial.total("simulated_seconds") for trial in seeds]
    return spread_text(seconds, plain), f"{100 * np.mean(busy):.1f}"


def _form(form: str, scale: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else form.format(scale * value)


PEER_COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "node_accuracy": ("nodes' own %", _form("{:.2f}", 100)),
    "consensus": ("consensus", _form("{:.2g}")),
    "bits": ("bits / hop", _form("{:.3g}")),
    "sign_matching": ("signs kept %", _form("{:.1f}", 100)),
}


def _telling(figures: Collection[Mapping[str, float]]) -> list[str]:
    """Return the peers' columns that say something.

    Peers that all agree have no consensus distance, and only some methods send signs.
    """
    apart = any(own.get("consensus", 0) > 0 for own in figures)
    signs = any("sign_matching" in own for own in figures)
    return ["node_accuracy", "consensus"] * apart + ["bits", "sign_matching"] * signs
