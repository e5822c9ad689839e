"""Running a paper at a scale: every panel is an experiment in a folder of its own."""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from undrift import __version__
from undrift.builder import processor_name
from undrift.check import require_choice
from undrift.config.experiment import Experiment
from undrift.data.places import PLACES, find
from undrift.data.remotes import BY_HAND, REMOTES
from undrift.engine.processes.rendezvous import code_digest
from undrift.papers.catalogue import PaperEntry
from undrift.papers.join import with_shipped
from undrift.papers.scales import PanelRun, is_at_hand, plan
from undrift.papers.store import (
    StoredPaper,
    fingerprint,
    kind_of,
    lost_trials,
    stored_cells,
    stored_panel,
    stored_trials,
)
from undrift.results.filenames import CHECKPOINTS, ENVIRONMENT, EXPERIMENT, TUNING
from undrift.results.trial import Trial, read_trial
from undrift.results.tuning import Tuning
from undrift.runs.build import counts_text, data_counts, resolve_experiment
from undrift.runs.folder import describe, lock, read_environment
from undrift.runs.jobs import ONLY_JOB, Job, jobs_in
from undrift.runs.jobs import jobs as planned_jobs
from undrift.runs.load import load_dataset
from undrift.runs.options import RunOptions
from undrift.runs.run_job import Observer, has_data_of
from undrift.runs.runner import run_experiment
from undrift.runs.spelling import Spelling
from undrift.runs.tuning_trials import read_tuning, tuning_trials

RESULTS = Path("runs") / "papers"  # below the current folder


def results_folder(
    entry: PaperEntry, scale: str, out: Path | None = None, *, tuned: bool = False
) -> Path:
    """Return the folder of a paper's runs at a scale."""
    return (out or RESULTS) / entry.document / entry.path.stem / kind_of(scale, tuned=tuned)


def results_file(
    entry: PaperEntry, scale: str, out: Path | None = None, *, tuned: bool = False
) -> Path:
    """Return the file that holds what the runs measured."""
    folder = results_folder(entry, scale, out, tuned=tuned)
    return folder.with_name(f"{folder.name}.json")


def run_paper(
    entry: PaperEntry,
    scale: str,
    *,
    seeds: int | Sequence[int] | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    force: bool = False,
    tune: bool = False,
    panels: Sequence[str] | None = None,
    observer: Observer | None = None,
    on_panel: Callable[[PanelRun, int, int], None] = lambda run, number, count: None,
) -> StoredPaper:
    """Run what is not finished, panel by panel, and return what was measured so far.

    Trials that an earlier start has finished are kept, also those of other seeds, and an
    interrupted one goes on from its last checkpoint. Everything that can be refused is refused
    before the first round. With `tune` each method runs at its tuned step size, beside the results
    at the printed ones. With `panels` only these are run, and the others keep what they have.
    """
    folder = results_folder(entry, scale, out, tuned=tune)
    planned = _runnable(entry, scale, seeds, tune=tune)
    runs = [_with_earlier_seeds(run, folder) for run in planned]
    wanted = _wanted(runs, panels)
    for run in wanted:
        _require_data(run)
    resumed = [_is_earlier(folder / run.folder, run.experiment, force=force) for run in runs]
    trials = {
        run.folder: _ended_trials(folder / run.folder) if resume else []
        for run, resume in zip(runs, resumed, strict=True)
    }
    command = f"undrift papers run {entry.name} --scale {scale}"
    command += " --tune" if tune else ""
    command += "".join(f" --panel {shlex.quote(panel)}" for panel in panels or ())
    command += "" if out is None else f" --out {out}"
    starts = [(run, each) for run, each in zip(runs, resumed, strict=True) if run in wanted]
    for number, (run, resume) in enumerate(starts, 1):
        on_panel(run, number, len(starts))
        place = folder / run.folder
        options = RunOptions(
            out=place,
            force=force,
            resume=place if resume else None,
            jobs=jobs,
            spelling=Spelling(flags=True, command=command),
            observer=observer or Observer(),
        )
        result = run_experiment(run.experiment, run.folder, options)
        trials[run.folder] = result.trials
        own = _stored(entry, scale, runs, trials, folder if tune else None)
        all_seeds = {seed for each in runs for seed in each.experiment.seeds}
        stored = with_shipped(entry, own, all_seeds)
        stored.write(results_file(entry, scale, out, tuned=tune))
        result.raise_if_stopped()
    return stored


def _with_earlier_seeds(run: PanelRun, folder: Path) -> PanelRun:
    """Return the panel with the seeds that its folder has, too."""
    place = folder / run.folder
    if not (place / EXPERIMENT).is_file():
        return run
    seeds = sorted({*Experiment.read(place / EXPERIMENT).seeds, *run.experiment.seeds})
    return replace(run, experiment=run.experiment.changed({"seeds": seeds}))


def _ended_trials(place: Path) -> Sequence[Trial]:
    """Return what an earlier start has finished."""
    written = _written_trials(place, Experiment.read(place / EXPERIMENT))
    return [trial for _, trial in written if trial.ended]


def _written_trials(place: Path, experiment: Experiment) -> list[tuple[Job, Trial]]:
    """Return the jobs of a folder that were started, each with its trial."""
    found = [(job, read_trial(place, job.name)) for job in jobs_in(place, experiment)]
    return [(job, trial) for job, trial in found if trial is not None]


def _runnable(
    entry: PaperEntry, scale: str, seeds: int | Sequence[int] | None, *, tune: bool
) -> list[PanelRun]:
    """Return what is run, or raise if the paper cannot be run here."""
    paper = entry.paper
    if paper.kind == "command":
        raise ValueError(
            f"papers run needs an experiment, got {entry.name}, which another command measures: "
            f"{paper.command}."
        )
    if paper.kind == "impossible":
        raise ValueError(f"papers run needs an experiment, got {entry.name}: {paper.why}")
    runs = plan(paper, scale, seeds, tune=tune)
    if not runs:
        left_out = paper.small.left_out if paper.small else []
        hours = max((each.hours for each in left_out), default=0.0)
        raise ValueError(
            f"{entry.name} has no cell that two cores finish in an hour (about {hours:g} hours); "
            "run it with --scale full."
        )
    return runs


def _wanted(runs: Sequence[PanelRun], panels: Sequence[str] | None) -> list[PanelRun]:
    """Return the runs of these panels, all of them if none is named."""
    if panels is None:
        return list(runs)
    names = list(dict.fromkeys(run.panel for run in runs))
    for panel in panels:
        require_choice("papers run", "--panel", panel, names)
    return [run for run in runs if run.panel in panels]


def _require_data(run: PanelRun) -> None:
    """Raise if the data of a panel are not here, or too few, and cannot be downloaded."""
    data = run.experiment.data
    name = data.name
    if data.folder is not None or name in REMOTES or is_at_hand(data):
        return
    found, place = find(name), f"$UNDRIFT_DATA/{PLACES[name].folders[0]}"
    if found is None:
        needs = f"needs {name}, which is not on this machine"
    else:
        have = load_dataset(data).natural_clients or 0
        needs = f"needs {data.clients:,} natural clients of {name}, got {have:,} in {found}"
    raise ValueError(f"The panel {run.panel!r} {needs}; make {place} and {BY_HAND[name]}")


def _is_earlier(place: Path, experiment: Experiment, *, force: bool) -> bool:
    """Return whether a folder holds this experiment, and give it the seeds of this start.

    With `force` the results of another experiment, or of another part of a data set, are replaced;
    they are refused without it.
    """
    if not (place / EXPERIMENT).is_file() or not (place / ENVIRONMENT).is_file():
        return False
    earlier, new = Experiment.read(place / EXPERIMENT), resolve_experiment(experiment)
    # How often a run was saved changes no result.
    every = {"checkpoint_every": new.engine.checkpoint_every}
    same = {"seeds": new.seeds, "engine": earlier.engine.model_copy(update=every)}
    if earlier.model_copy(update=same) != new:
        if force:
            return False
        raise ValueError(
            f"papers run needs a folder of this version of the file, got {str(place)!r} with "
            "another's results; replace them with --force, or choose another --out."
        )
    others = [(j, t) for j, t in _written_trials(place, earlier) if not has_data_of(t, j)]
    if others:
        if force:
            return False
        job, trial = others[0]
        data = job.experiment.data
        raise ValueError(
            f"papers run needs the part of {data.name} that {str(place)!r} was made with, "
            f"{counts_text(trial.facts['data'])}, got {counts_text(data_counts(data))}; restore "
            "the data, replace the results with --force, or choose another --out."
        )
    if earlier.seeds != new.seeds:
        with closing(lock(place)):
            _rename_only_trial(place, jobs_in(place, earlier), jobs_in(place, new))
            describe(place, new, read_environment(place))
    return True


def _rename_only_trial(place: Path, earlier: Sequence[Job], new: Sequence[Job]) -> None:
    """Give the only trial of a folder the name that it has among several."""
    if len(earlier) != 1 or len(new) == 1:
        return
    name = next(job.name for job in new if job.seed == earlier[0].seed)
    for path in (*place.glob(f"{ONLY_JOB}.*"), place / CHECKPOINTS / ONLY_JOB):
        if path.exists():
            path.rename(path.with_name(path.name.replace(ONLY_JOB, name, 1)))


def _stored(
    entry: PaperEntry,
    scale: str,
    runs: Sequence[PanelRun],
    trials: Mapping[str, Sequence[Trial]],
    tuned: Path | None,
) -> StoredPaper:
    """Return what was measured; `tuned` is the folder of tuned runs, which says what was tried."""
    paper = entry.paper
    done = [(run, [t for t in trials[run.folder] if t.ended]) for run in runs]
    tunings = {
        run.folder: None if tuned is None else read_tuning(tuned / run.folder, run.experiment)
        for run, ended in done
        if ended
    }
    kept = [(run, ended, tunings[run.folder]) for run, ended in done if ended]
    measured = [
        each
        for run, ended, tuning in kept
        for each in (*stored_trials(paper, run, ended), *lost_trials(paper, run, tuning))
    ]
    return StoredPaper(
        name=entry.name,
        item=paper.item,
        scale=scale,
        fingerprint=fingerprint(paper, scale, tuned=tuned is not None),
        undrift=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        panels=[stored_panel(run, ended) for run, ended, _ in kept],
        trials=measured,
        planned=sum(_planned(run.experiment) for run in runs),
        machine=f"{os.cpu_count()} cores, {processor_name()}",
        tuned=tuned is not None,
        code=code_digest()[:12],
        tuning_seconds=None
        if tuned is None
        else sum(_tuning_seconds(tuned / run.folder, run.experiment) for run, *_ in kept),
        tried=[cell for run, _, tuning in kept for cell in stored_cells(run, tuning)],
        sentences=_sentences(tunings.values()),
    )


def _tuning_seconds(folder: Path, experiment: Experiment) -> float:
    """Return the seconds of the trials by which the cells of a panel were chosen."""
    tried = tuning_trials(folder / TUNING, experiment).values()
    names = ("seconds", "evaluation_seconds")
    return round(sum(trial.total(n) for own in tried for trial in own for n in names), 3)


def _planned(experiment: Experiment) -> int:
    """Return how many trials an experiment compares, without those that tune it."""
    if experiment.sweep.tune:
        return len(experiment.methods) * len(experiment.seeds)
    return len(planned_jobs(experiment))


def _sentences(tunings: Iterable[Tuning | None]) -> list[str]:
    """Return what there is to say of the choices, each sentence once."""
    said = [sentence for each in tunings if each is not None for sentence in each.sentences]
    return list(dict.fromkeys(said))
