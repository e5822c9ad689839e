"""Running a paper at a scale: every panel is an experiment in a folder of its own."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from undrift import __version__
from undrift.config.experiment import Experiment
from undrift.papers.catalogue import PaperEntry
from undrift.papers.file import Paper
from undrift.papers.scales import PanelRun, is_at_hand, plan
from undrift.papers.store import StoredPaper, fingerprint, stored_panel, stored_trials
from undrift.results.filenames import ENVIRONMENT, EXPERIMENT
from undrift.results.trial import Trial
from undrift.runs.build import resolve_experiment
from undrift.runs.folder import describe, read_environment
from undrift.runs.run_job import Observer
from undrift.runs.runner import RunOptions, run_experiment
from undrift.runs.spelling import FLAGS

RESULTS = Path("runs") / "papers"  # below the current folder


def results_folder(entry: PaperEntry, scale: str, out: Path | None = None) -> Path:
    """Return the folder of a paper's runs at a scale."""
    return (out or RESULTS) / entry.document / entry.path.stem / scale


def results_file(entry: PaperEntry, scale: str, out: Path | None = None) -> Path:
    """Return the file that holds what the runs measured."""
    return results_folder(entry, scale, out).with_suffix(".json")


def run_paper(
    entry: PaperEntry,
    scale: str,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    out: Path | None = None,
    force: bool = False,
    observer: Observer | None = None,
    on_panel: Callable[[PanelRun, int, int], None] = lambda run, number, count: None,
) -> StoredPaper:
    """Run what is not finished, panel by panel, and return what was measured so far.

    Panels that an earlier start has finished are kept, and an interrupted job goes on from its
    last checkpoint. Everything that can be refused is refused before the first round.
    """
    paper = entry.paper
    runs = _runnable(entry, scale, seeds)
    folder = results_folder(entry, scale, out)
    resumed = [_earlier(folder / run.folder, run.experiment, force=force) for run in runs]
    stored = _stored(entry, paper, scale, [])
    done: list[tuple[PanelRun, Sequence[Trial]]] = []
    for number, (run, resume) in enumerate(zip(runs, resumed, strict=True), 1):
        on_panel(run, number, len(runs))
        place = folder / run.folder
        options = RunOptions(
            out=place,
            force=force,
            resume=place if resume else None,
            jobs=jobs,
            spelling=FLAGS,
            observer=observer or Observer(),
        )
        result = run_experiment(run.experiment, run.folder, options)
        done.append((run, result.trials))
        stored = _stored(entry, paper, scale, done)
        stored.write(results_file(entry, scale, out))
        if result.stopped:
            raise KeyboardInterrupt
    return stored


def _runnable(entry: PaperEntry, scale: str, seeds: int | None) -> list[PanelRun]:
    """Return what is run, or raise if the paper cannot be run here."""
    paper = entry.paper
    if paper.kind == "command":
        raise ValueError(
            f"papers run needs an experiment, got {entry.name}, which another command measures: "
            f"{paper.command}."
        )
    if paper.kind == "impossible":
        raise ValueError(f"papers run needs an experiment, got {entry.name}: {paper.why}")
    runs = plan(paper, scale, seeds)
    if not runs:
        hours = max(each.hours for each in paper.small.left_out) if paper.small else 0.0
        raise ValueError(
            f"{entry.name} has no cell that two cores finish in an hour (about {hours:g} hours); "
            "run it with --scale full."
        )
    for run in runs:
        _require_data(run)
    return runs


def _require_data(run: PanelRun) -> None:
    """Raise if the data of a panel are not here and cannot be downloaded."""
    from undrift.data.datasets import PUBLISHED
    from undrift.data.remotes import BY_HAND, REMOTES

    data = run.experiment.data
    name = data.name
    if data.folder is None and not is_at_hand(data) and name not in REMOTES:
        place = PUBLISHED[name].folders[0]
        raise ValueError(
            f"The panel {run.panel!r} needs {name}, which is not on this machine: {BY_HAND[name]} "
            f"Put it into $UNDRIFT_DATA/{place}."
        )


def _earlier(place: Path, experiment: Experiment, *, force: bool) -> bool:
    """Return whether a folder holds this experiment, and give it the seeds of this start."""
    if force or not (place / EXPERIMENT).is_file() or not (place / ENVIRONMENT).is_file():
        return False
    earlier, new = Experiment.read(place / EXPERIMENT), resolve_experiment(experiment)
    if earlier.model_copy(update={"seeds": new.seeds}) != new:
        raise ValueError(
            f"papers run needs a folder of this version of the file, got {str(place)!r} with "
            "another's results; replace them with --force, or choose another --out."
        )
    if earlier.seeds != new.seeds:
        describe(place, new, read_environment(place))
    return True


def _stored(
    entry: PaperEntry, paper: Paper, scale: str, done: Sequence[tuple[PanelRun, Sequence[Trial]]]
) -> StoredPaper:
    return StoredPaper(
        name=entry.name,
        item=paper.item,
        scale=scale,
        fingerprint=fingerprint(paper, scale),
        undrift=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        panels=[stored_panel(run, trials) for run, trials in done],
        trials=[each for run, trials in done for each in stored_trials(paper, run, trials)],
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )
