"""The folder of an experiment: claimed once, described, and read back."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.engine.meeting import restarted
from undrift.errors import UndriftError
from undrift.experiment import Experiment
from undrift.result import Trial, read_trial, read_trials, write_whole
from undrift.sweep import SEARCH, jobs, read_choice

EXPERIMENT, ENVIRONMENT = "experiment.toml", "environment.json"
CURVES, PARTITION, REPORT = "curves.png", "partition.png", "report.html"
DEALT = "partition.json"  # (clients, labels) samples
MODEL = "model.safetensors"
CHECKPOINTS, FIGURES, TRACKED = "checkpoints", "figures", "tracked"
_OURS = {EXPERIMENT, ENVIRONMENT, CURVES, PARTITION, REPORT, DEALT, MODEL, SEARCH}
_SUFFIXES = (".jsonl", ".csv", ".part")


def _written_here(path: Path) -> bool:
    if path.is_dir():
        return path.name in (CHECKPOINTS, FIGURES, TRACKED)
    if path.suffix == ".json" and path.with_suffix(".jsonl").exists():
        return True
    heat = path.suffix == ".png" and path.name.startswith("heat-")
    named = path.name in _OURS or path.name.endswith(f"-{MODEL}")
    return path.is_file() and (path.suffix in _SUFFIXES or named or heat)


def claim(out: Path | None, name: str, *, force: bool = False, write: bool = True) -> Path:
    """The folder to write to; never one that holds something else, unless told so.

    Of several processes one writes; for the others there is nothing to claim.
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
    if out.exists() and any(out.iterdir()):
        _clear(out, force=force)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--out needs a folder that can be made, got {str(out)!r}: {error.strerror}."
        ) from error
    return out


def _clear(out: Path, *, force: bool) -> None:
    ours = [path for path in out.iterdir() if _written_here(path)]
    foreign = [path.name for path in out.iterdir() if path not in ours]
    if foreign or not force:
        resumable = (out / EXPERIMENT).is_file()
        ways = [
            "choose another name",
            *([f"go on with --resume {out}"] if resumable else []),
            *([] if foreign else ["replace it with --force"]),
        ]
        kept = f" (--force does not touch {foreign[0]!r})" if foreign else ""
        raise ValueError(
            f"--out needs a new folder, got {str(out)!r} with files in it; "
            f"{', or '.join([', '.join(ways[:-1]), ways[-1]]) if len(ways) > 1 else ways[0]}{kept}."
        )
    for path in ours:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def describe(folder: Path, experiment: Experiment, environment: Mapping[str, Any]) -> None:
    """Write what is run and with what, before it is."""
    again = f"# Repeat with: {repeat(folder)}\n\n"
    head = again if again.count("\n") == 2 else ""  # a folder may have any name
    write_whole(folder / EXPERIMENT, head + experiment.to_toml())
    write_whole(folder / ENVIRONMENT, json.dumps(environment, indent=1) + "\n")


def repeat(folder: Path) -> str:
    """The command that runs a folder's experiment anew."""
    search = read_choice(folder)
    if search is None:
        return shlex.join(["undrift", "run", str(folder / EXPERIMENT)])
    path = str(folder / EXPERIMENT)
    return shlex.join(["undrift", "sweep", path, "--search", str(search.count)])


@dataclass(frozen=True)
class Results:
    """What a folder holds."""

    folder: Path
    experiment: Experiment | None  # None for records without it
    environment: Mapping[str, Any]
    trials: Sequence[Trial]


def read(folder: str | Path) -> Results:
    """An experiment's folder with all that was recorded so far."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"A report needs a folder of results, got {str(folder)!r}.")
    experiment = None
    if (folder / EXPERIMENT).is_file():
        experiment = Experiment.read(folder / EXPERIMENT)
        found = [read_trial(folder, job.name) for job in jobs(experiment, read_choice(folder))]
        trials = [trial for trial in found if trial is not None]
    else:
        trials = read_trials(folder)
    if not trials:
        raise ValueError(
            f"A report needs records, got none in {str(folder)!r}; name a folder that `undrift "
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
