"""Running the jobs of an experiment into its folder; what was done before is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn
from undrift.core import Federated
from undrift.analysis.drift import Drift
from undrift.engine.run import Run
from undrift.engine.settings import ExecutionRecord
from undrift.engine.checkpoint.shards import saved
from undrift.errors import DivergenceError
from undrift.results.export import save_safetensors
from undrift.runs.folder import CHECKPOINTS, MODEL
from undrift.runs.build import start
from undrift.config.hyperparameters import hyper_parameters
from undrift.results.record import Record
from undrift.results.trial import Journal, Trial, read_trial, write_result
from undrift.results.strictjson import dumps_exactly, loads
from undrift.runs.jobs import ALONE, Job
from undrift.results.tracking import Tracker
from undrift.results.tracking import Trackers

Watch = Callable[[Run, Record | None], None]  # None: the run has been made and begins


@dataclass(frozen=True)
class Recorder:
    """Where records go: to the folder, and to whatever else follows them."""

    folder: Path
    writes: bool = True  # of several processes one does
    hashes: bool = False  # whether models are hashed also where that is dear
    trackers: Callable[[Job], list[Tracker]] = field(default=lambda job: [])
    repeats: Path | None = None  # the folder whose experiment is run anew

    def recorded_execution(self, job: Job) -> ExecutionRecord | None:
        """Return how the trial was executed before, so that it gives the same bits again."""
        if job.experiment.engine.mode != "auto" or job.experiment.engine.processes > 1:
            return None  # several processes all follow the same rules
        for folder in (self.folder, self.repeats):
            before = None if folder is None else read_trial(folder, job.name)
            record = None if before is None else ExecutionRecord.from_dict(before.facts)
            if record is not None:
                return record
        return None

    def earlier(self, job: Job) -> Trial | None:
        """The trial as an earlier start has left it."""
        return read_trial(self.folder, job.name)


def described(job: Job) -> Trial:
    """A trial before its first round."""
    algorithm = job.method.build()
    inner: Any = algorithm
    while hasattr(inner, "inner"):
        inner = inner.inner
    wrapped = {
        name: value
        for name in ("accelerate", "codec", "error_feedback")
        if (value := getattr(job.method, name))
    }
    return Trial(
        label=job.label,
        method=type(inner).__name__,
        settings={**hyper_parameters(inner), **wrapped},
        seed=job.seed,
        rounds=job.experiment.training.rounds,
        facts={"title": job.method.title, "cell": dict(job.cell)},
        name=job.name,
    )


def run_job(
    job: Job, recorder: Recorder, watch: Watch, *, going_on: bool = False, **options: Any
) -> Trial:
    """Run one job; a divergence is its result, an interrupt ends it as stopped and is raised."""
    options = {**_checkpoints(job, recorder.folder, going_on), "like": recorder.recorded_execution(job), **options}
    drift = _drift(job)
    if drift is not None:
        options["tap"] = drift
    with closing(start(job.experiment, job.method, job.seed, **options)) as run:
        return _follow(run, job, recorder, watch, drift)


def _drift(job: Job) -> Drift | None:
    """What taps the clients' models, where that is asked for and there is a server."""
    asked = job.experiment.evaluation.drift and issubclass(job.method.cls, Federated)
    return Drift() if asked else None


def _checkpoints(job: Job, folder: Path, going_on: bool) -> Mapping[str, Any]:
    every = job.experiment.engine.checkpoint_every
    if not every:
        return {}
    place = folder / CHECKPOINTS / job.name
    resume = place if going_on and saved(place) else None
    return {"checkpoint": place, "checkpoint_every": every, "resume": resume}


def _follow(
    run: Run, job: Job, recorder: Recorder, watch: Watch, drift: Drift | None = None
) -> Trial:
    writes = recorder.writes and run.world.head
    trial = described(job)
    facts = {**trial.facts, **run.execution.to_dict(), "processes": run.world.size}
    trial = replace(trial, facts=facts)  # from the start, so that what is killed goes on alike
    after = run.record
    journal = Journal(recorder.folder if writes else None, job.name, trial, after=after)
    tracker = Trackers(recorder.trackers(job) if writes else [])
    tracker.begin(replace(journal.trial, records=journal.records[:-1]))
    if after is not None:
        tracker.add(after)
    path = recorder.folder / f"{job.name}.drift.jsonl" if writes else None
    drifts = None if drift is None else DriftLog(drift, path, 0 if after is None else after.round)
    watch(run, None)

    def ended(status: Any, reason: str = "") -> Trial:
        if drifts is not None:
            facts["drift"] = drifts.recent()
        # Of peers in several processes it is of what all of them hold, which must be sent for it.
        cheap = run.world.size == 1 or isinstance(run.algorithm, Federated)
        hashed = status == "finished" and run.whole and (cheap or recorder.hashes)
        sha = run.model_sha256 if hashed else None
        if status == "finished" and job.experiment.engine.save_models:
            model = run.model  # for which peers in several processes need each other
            if writes:
                path = recorder.folder / f"{_prefix(job)}{MODEL}"
                _save_model(model, trial, path, {"round": str(run.round)}, sha)
        done = journal.end(status, reason, totals=run.totals, model_sha256=sha, facts=facts)
        tracker.end(done)
        return done

    try:
        for record in run:
            if drifts is not None:  # first: a checkpoint brings back its record, but not this
                drifts.add()
            journal.add(record)
            tracker.add(record)
            watch(run, record)
    except DivergenceError as error:
        return ended("diverged", str(error))
    except KeyboardInterrupt:
        ended("stopped")
        raise
    return ended("finished")


def _prefix(job: Job) -> str:
    return "" if job.name == ALONE else f"{job.name}-"


def _save_model(
    model: nn.Module, trial: Trial, path: Path, told: dict[str, str], sha: str | None
) -> None:
    told = told | {"label": trial.label, "seed": str(trial.seed)}
    save_safetensors(model, path, told | ({"sha256": sha} if sha else {}))


class DriftLog:
    """The drift of each round as a line of a file; going on keeps those of the rounds before."""

    def __init__(self, drift: Drift, path: Path | None, after: int) -> None:
        self._drift, self._path = drift, path
        self._rounds: list[dict[str, Any]] = []
        if path is not None and path.is_file():
            told = [loads(line) for line in path.read_text().splitlines()]
            self._rounds = [each for each in told if each["round"] <= after]
        self._write()

    def add(self) -> None:
        self._rounds.append(asdict(self._drift.rounds[-1]))
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            write_result(self._path, "".join(dumps_exactly(each) + "\n" for each in self._rounds))

    def recent(self) -> dict[str, float]:
        """Means over the last ten rounds of what could be measured."""
        found = {}
        for name in ("divergence", "cosine", "alignment"):
            told = [each[name] for each in self._rounds if each[name] is not None][-10:]
            if told:
                found[name] = sum(told) / len(told)
        return found
