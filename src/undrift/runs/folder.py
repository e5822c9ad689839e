"""The folder of an experiment: claimed once, described, and read back."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from undrift.check import require
from undrift.engine.processes.rendezvous import restarted
from undrift.errors import UndriftError
from undrift.config.experiment import Experiment
from undrift.files import target_name
from undrift.results.trial import Trial, read_trial, read_trials, write_result
from undrift.runs.jobs import SEARCH, jobs, read_choice

EXPERIMENT, ENVIRONMENT = "experiment.toml", "environment.json"
CURVES, PARTITION, REPORT = "curves.png", "partition.png", "report.html"
DEALT = "partition.json"  # (clients, labels) samples
MODEL = "model.safetensors"
CHECKPOINTS, FIGURES, TRACKED = "checkpoints", "figures", "tracked"
_FIXED = (EXPERIMENT, ENVIRONMENT, CURVES, REPORT, DEALT, MODEL, SEARCH)
_OF_A_TRIAL = (".json", ".jsonl", ".csv", ".drift.jsonl", f"-{MODEL}")
_PICTURES = (".png", ".pdf", ".svg")
_SERVICES = {"tensorboard", "mlflow", "wandb"}


def _ours(out: Path) -> set[Path]:
    """What a run has written into a folder; nothing, unless it holds an experiment of ours."""
    if [path.name for path in out.iterdir()] == [PARTITION]:  # of `undrift data show`
        return {out / PARTITION}
    if not all((out / name).is_file() for name in (EXPERIMENT, ENVIRONMENT)):
        return set()
    trials = {path.stem for path in out.glob("*.json") if path.with_suffix(".jsonl").is_file()}
    names = {*_FIXED, *(f"{trial}{suffix}" for trial in trials for suffix in _OF_A_TRIAL)}
    found = {out / name for name in names}
    found |= {path for path in out.iterdir() if target_name(path) in names}
    found |= set(out.glob("heat-*.png"))
    if _names(out / CHECKPOINTS) <= trials:
        found.add(out / CHECKPOINTS)
    if _names(out / TRACKED) <= _SERVICES:
        found.add(out / TRACKED)
    if all(Path(name).suffix in _PICTURES for name in _names(out / FIGURES)):
        found.add(out / FIGURES)
    return {path for path in found if path.exists()}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def claim(
    out: Path | None,
    name: str,
    *,
    force: bool = False,
    going_on: bool = False,
    write: bool = True,
    reads: Sequence[Path] = (),
) -> Path:
    """The folder to write to; never one that holds something else, unless told so.

    A run that goes on from a checkpoint may go on in its folder, too. Of several processes one
    writes; for the others there is nothing to claim. What the run itself `reads` is not removed by
    force.
    """
    if out is None:
        numbered = (Path("runs") / f"{name}-{i}" for i in range(1, 10**6))
        free = next(path for path in numbered if not path.exists())
        last = Path("runs") / f"{name}-{int(free.name.rpartition('-')[2]) - 1}"
        out = last if restarted() and last.exists() else free  # ours, before it was started again
    if not write or restarted():
        return out
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out needs a folder, got the file {str(out)!r}.")
    if out.exists() and any(out.iterdir()) and not going_on:
        _clear(out, force=force, reads=reads)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--out needs a folder that can be made, got {str(out)!r}: {error.strerror}."
        ) from error
    return out


def _clear(out: Path, *, force: bool, reads: Sequence[Path]) -> None:
    ours = _ours(out)
    foreign = sorted(path.name for path in out.iterdir() if path not in ours)
    if foreign or not force:
        resumable = (out / ENVIRONMENT).is_file()
        ways = ["choose another name"]
        ways += [f"go on with undrift run --resume {out}"] if resumable else []
        ways += [] if foreign else ["replace it with --force"]
        kept = f" (--force does not touch {foreign[0]!r})" if foreign else ""
        raise ValueError(
            f"--out needs a new folder, got {str(out)!r} with files in it; "
            f"{', or '.join(ways)}{kept}."
        )
    for path in reads:
        inside = path.resolve().is_relative_to(out.resolve())
        require(not inside, "--force", f"to leave {path}, which the run reads", str(out), _ELSE)
    for path in ours:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


_ELSE = "choose another --out"


def describe(
    folder: Path, experiment: Experiment, environment: Mapping[str, Any], search: int | None = None
) -> None:
    """Write what is run and with what, before it is; of a `search`, how many cells."""
    again = f"# Repeat with: {_again(folder, search)}\n\n"
    head = again if again.count("\n") == 2 else ""  # a folder may have any name
    write_result(folder / EXPERIMENT, head + experiment.to_toml())
    write_result(folder / ENVIRONMENT, json.dumps(environment, indent=1) + "\n")


def repeat(folder: Path) -> str:
    """The command that runs a folder's experiment anew."""
    choice = read_choice(folder)
    return _again(folder, None if choice is None else choice.count)


def _again(folder: Path, search: int | None) -> str:
    command = ["undrift", "run" if search is None else "sweep", str(folder / EXPERIMENT)]
    return shlex.join(command + ([] if search is None else ["--search", str(search)]))


@dataclass(frozen=True)
class Results:
    """What a folder holds."""

    folder: Path
    experiment: Experiment | None  # None for records without it
    environment: Mapping[str, Any]
    trials: Sequence[Trial]


def read(folder: str | Path, who: str = "A report") -> Results:
    """An experiment's folder with all that was recorded so far."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"{who} needs a folder of results, got {str(folder)!r}; name one that `undrift run` or "
            "`compare` has written."
        )
    experiment = None
    if (folder / EXPERIMENT).is_file():
        experiment = Experiment.read(folder / EXPERIMENT)
        found = [read_trial(folder, job.name) for job in jobs(experiment, read_choice(folder))]
        trials = [trial for trial in found if trial is not None]
    else:
        trials = read_trials(folder)
    if not trials:
        raise ValueError(
            f"{who} needs records, got none in {str(folder)!r}; name a folder that `undrift "
            "run` or `compare` has written."
        )
    return Results(folder, experiment, _environment(folder / ENVIRONMENT), trials)


def _environment(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise UndriftError(f"{path} needs to be JSON and is damaged: {error}.") from error
