"""`ExperimentResult` holds the trials of an experiment and makes their table, plot and report."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undrift.config.experiment import Experiment
from undrift.engine.processes.interrupts import StopSignal
from undrift.results.filenames import REPORT
from undrift.results.trial import Trial, by_label
from undrift.results.tuning import Tuning
from undrift.runs.partition import PartitionCounts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from undrift.report import Comparison
    from undrift.report.paired import PairedComparison


@dataclass(frozen=True, repr=False)
class ExperimentResult:
    """Holds the trials of an experiment and shows them.

        result = ud.run("experiment.toml")
        result                     # the table, in a terminal and in a notebook
        result.trials[0].records
        result.frame(), result.plot(), result.report("page.html")

    Of a sweep, `table`, `plot` and `report` show each method at the best of its cells; `trials` and
    `frame` have all of them. After tuning, all of them have the runs at the chosen cells; `paired`
    has the differences between methods, and `tuning` every cell that was tried.
    """

    folder: Path
    experiment: Experiment | None  # None if the folder holds records without an experiment
    trials: Sequence[Trial]
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""  # the command that repeats the experiment
    text: str = ""  # the experiment as its file has it
    partition: PartitionCounts | None = None
    head: bool = True  # whether this process is the one that prints and writes
    stopped: int = 0  # the signal that has stopped it, 0 for none
    tuning: Tuning | None = None  # every cell that was tried, if cells were tuned

    @property
    def single(self) -> bool:
        """Return whether one method was run with one seed and nothing was swept."""
        swept = self.experiment is not None and not self.experiment.sweep.empty
        return len(self.trials) == 1 and not swept

    def raise_if_stopped(self) -> None:
        """Raise the interrupt that has stopped the experiment, if one has."""
        if self.stopped:
            raise StopSignal(self.stopped)

    @property
    def smoothing(self) -> str:
        """Return the smoothing of the accuracies that are shown."""
        return "raw" if self.experiment is None else self.experiment.evaluation.smoothing

    @cached_property
    def paired(self) -> PairedComparison | None:
        """Return what a tuned comparison has shown, None if nothing was tuned."""
        from undrift.report.paired import paired_comparison

        if self.tuning is None or not any(trial.ended for trial in self.trials):
            return None
        seeds = () if self.experiment is None else self.experiment.seeds
        return paired_comparison(self.trials, self.smoothing, self.tuning, seeds)

    def table(self) -> str:
        """Return the tables that the command prints, and the sentences on them, as text."""
        from undrift.report.terminal_table import results_table

        text = results_table(self.trials, self.experiment).text()
        if self.paired is None:
            return text
        sentences = [*self.paired.findings, *self.paired.remarks]
        return "\n".join([text, self.paired.table().text(), *sentences])

    def frame(self) -> Any:
        """Return the records of all trials as a `pandas.DataFrame`, one row a round."""
        from undrift.report import notebook

        return notebook.frame(self.trials)

    def plot(self, metric: str = "accuracy", against: str = "round", **options: Any) -> Axes:
        """Return matplotlib's Axes with a curve for each method and seed; `ax=` draws on yours."""
        from undrift.report import notebook
        from undrift.report.collect import best_trials

        return notebook.plot(best_trials(self.trials, self.smoothing), metric, against, **options)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML page, by default into the folder, and return its path."""
        from undrift.report import write

        path = self.folder / REPORT if path is None else Path(path)
        write(self.comparison(), path)
        return path

    def comparison(self, shown: Sequence[Trial] | None = None) -> Comparison:
        """Return what a page shows: these trials, or each method at the best of its cells."""
        from undrift.report import Comparison
        from undrift.report.collect import best_trials, left_out, method_notes, title_of

        shown = best_trials(self.trials, self.smoothing) if shown is None else shown
        partition, experiment = self.partition, self.experiment
        warnings = [
            f"{trial.label}, seed {trial.seed}: {trial.facts['stalled']}"
            for trial in shown
            if trial.facts.get("stalled")
        ]
        warnings += left_out(by_label(shown))
        if damaged := sum(trial.damaged for trial in self.trials):
            warnings.append(f"{damaged} damaged lines of records were left out.")
        return Comparison(
            title=title_of(experiment, self.folder),
            trials=shown,
            target=None if experiment is None else experiment.evaluation.target,
            smoothing=self.smoothing,
            command=self.command,
            experiment=self.text,
            environment=self.environment,
            notes={} if experiment is None else method_notes(experiment, shown, self.trials),
            partition=None if partition is None else partition.counts,
            labels=() if partition is None else partition.labels,
            warnings=warnings,
            paired=self.paired,
        )

    def __repr__(self) -> str:
        return f"{self.table()}\nRecords and plots: {self.folder}"

    def _repr_html_(self) -> str:
        from undrift.report.terminal_table import results_table

        shown = results_table(self.trials, self.experiment).html()
        if self.paired is None:
            return shown
        sentences = [*self.paired.findings, *self.paired.remarks]
        lines = "\n".join(f"<p>{html.escape(text)}</p>" for text in sentences)
        return f"{shown}\n{self.paired.table().html()}\n{lines}"
