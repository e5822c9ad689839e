"""The folder of an experiment: claimed once, described, and read back."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.engine.checkpoint.lock import LOCK, FolderLock
from undrift.engine.processes.rendezvous import restarted
from undrift.errors import UndriftError
from undrift.files import target_name
from undrift.results.filenames import (
    AGREED,
    CHECKPOINTS,
    CLIENT_METRICS,
    CURVES,
    DRIFT,
    EARLIER,
    ENVIRONMENT,
    EXPERIMENT,
    FIGURES,
    LABEL_COUNTS,
    MODEL,
    PARTITION,
    REPORT,
    SEARCH,
    SURFACE,
    SURFACE_PICTURE,
    TRACKED,
    TUNED,
    TUNING,
)
from undrift.results.trial import read_trial, read_trials, write_result
from undrift.runs.jobs import jobs_in, read_choice
from undrift.runs.partition import read_partition
from undrift.runs.result import ExperimentResult
from undrift.runs.spelling import KEYWORDS, Spelling
from undrift.runs.tuning_trials import read_tuning
from undrift.untrusted import read_json
from undrift.usercode.load import without_imports
from undrift.usercode.names import Trust, require_trust, require_unchanged

_EXPERIMENT_FILES = (
    *(EXPERIMENT, ENVIRONMENT, CURVES, REPORT, LABEL_COUNTS, MODEL, SEARCH, TUNED),
    *(CLIENT_METRICS, AGREED),
)
_TRIAL_SUFFIXES = (
    *(".json", ".jsonl", ".csv", DRIFT, SURFACE, SURFACE_PICTURE),
    *(f"-{MODEL}", f"-{CLIENT_METRICS}"),
)
_PICTURES = (".png", ".pdf", ".svg")
_MOST_NAMED = 5  # folders with records, below one that has none
_SERVICES = {"tensorboard", "mlflow", "wandb"}


def choose_folder(out: Path | None, name: str) -> Path:
    """Return the folder to write to: `out`, or the first free one of `runs/NAME-1` and so on."""
    if out is not None:
        return out
    numbered = (Path("runs") / f"{name}-{i}" for i in range(1, 10**6))
    free = next(path for path in numbered if not path.exists())
    last = Path("runs") / f"{name}-{int(free.name.rpartition('-')[2]) - 1}"
    # A process that was started again goes on in the folder that it had claimed before.
    return last if restarted() and last.exists() else free


def claim(
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
    reads: Sequence[Path] = (),
    spelling: Spelling = KEYWORDS,
) -> None:
    """Make the folder, and refuse one that holds anything.

    A folder with files is taken if the run goes on in it (`resume`), or if `force` allows to remove
    what an earlier run has written; what the run itself `reads` is never removed. Messages name
    the options in the caller's `spelling`.
    """
    _require_folder(out, spelling)
    if out.exists() and _names_in(out) - {LOCK} and not resume:
        _clear(out, force=force, reads=reads, spelling=spelling)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(out, error, spelling) from error


def _require_folder(out: Path, spelling: Spelling) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{spelling.option('out')} needs a folder, got the file {str(out)!r}.")


def _unusable(out: Path, error: OSError, spelling: Spelling) -> ValueError:
    """Return the error for a folder that cannot be made, or not be written to."""
    name = spelling.option("out")
    return ValueError(
        f"{name} needs a folder that can be made, got {str(out)!r}: {error.strerror}."
    )


def lock(out: Path, spelling: Spelling = KEYWORDS) -> FolderLock:
    """Return the lock of a folder of results, which is made where it is missing."""
    _require_folder(out, spelling)
    try:
        return FolderLock(out, again=restarted())
    except OSError as error:
        raise _unusable(out, error, spelling) from error


def _clear(out: Path, *, force: bool, reads: Sequence[Path], spelling: Spelling) -> None:
    """Remove what an earlier run has written; raise if there is anything else, or no `force`."""
    own_files = _own_files(out)
    foreign = sorted(_names_in(out) - {path.name for path in own_files} - {LOCK})
    if foreign or not force:
        remedies = ["choose another name"]
        if (out / ENVIRONMENT).is_file():
            search = (out / SEARCH).is_file()
            remedies.append(f"go on with {spelling.resume(out, search=search)}")
        if not foreign:
            remedies.append(f"replace it with {spelling.switch('force')}")
        name = spelling.option("force")
        untouched = f" ({name} does not touch {foreign[0]!r})" if foreign else ""
        raise ValueError(
            f"{spelling.option('out')} needs a new folder, got {str(out)!r} with files in it; "
            f"{', or '.join(remedies)}{untouched}."
        )
    for path in reads:
        inside = path.resolve().is_relative_to(out.resolve())
        expected = f"to leave {path}, which the run reads"
        remedy = f"choose another {spelling.option('out')}"
        require(not inside, spelling.option("force"), expected, str(out), remedy)
    for path in own_files:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _own_files(out: Path) -> set[Path]:
    """Return what a run has written into a folder: nothing, unless it holds an experiment."""
    if _names_in(out) - {LOCK} == {PARTITION}:  # `undrift data show` has written it.
        return {out / PARTITION}
    if not all((out / name).is_file() for name in (EXPERIMENT, ENVIRONMENT)):
        return set()
    trials = {path.stem for path in out.glob("*.json") if path.with_suffix(".jsonl").is_file()}
    of_trials = (f"{trial}{suffix}" for trial in trials for suffix in _TRIAL_SUFFIXES)
    names = {*_EXPERIMENT_FILES, *of_trials}
    paths = {out / name for name in names}
    paths |= {path for path in out.iterdir() if target_name(path) in names}
    paths |= set(out.glob("heat-*.png"))
    paths |= {path for trial in trials for path in out.glob(f"{trial}{EARLIER}*")}
    saved = _names_in(out / CHECKPOINTS)
    if {target_name(Path(name)) or name for name in saved} <= trials:
        paths.add(out / CHECKPOINTS)
    if _names_in(out / TRACKED) <= _SERVICES:
        paths.add(out / TRACKED)
    if all(Path(name).suffix in _PICTURES for name in _names_in(out / FIGURES)):
        paths.add(out / FIGURES)
    tuning = out / TUNING
    if tuning.is_dir() and set(tuning.iterdir()) <= _own_files(tuning):
        paths.add(tuning)
    return {path for path in paths if path.exists()}


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def describe(
    folder: Path, experiment: Experiment, environment: Mapping[str, Any], search: int | None = None
) -> None:
    """Write what is run and with what; `search` is the number of cells that a search chooses."""
    write_result(folder / EXPERIMENT, experiment_text(folder, experiment, search))
    write_result(folder / ENVIRONMENT, json.dumps(environment, indent=1) + "\n")


def experiment_text(folder: Path, experiment: Experiment, search: int | None = None) -> str:
    """Return the text of a folder's `experiment.toml`, headed by the command that repeats it."""
    federated = bool(experiment.federation.sites)
    comment = f"# Repeat with: {repeat_command(folder, search, federated=federated)}\n\n"
    # The name of a folder may have line breaks, which would end the comment.
    return (comment if comment.count("\n") == 2 else "") + experiment.to_toml()


def repeat_command(folder: Path, search: int | None = None, *, federated: bool = False) -> str:
    """Return the command that runs a folder's experiment anew; one of sites needs its centre."""
    if federated:
        return "undrift federation run CENTRE"
    command = ["undrift", "run" if search is None else "sweep", str(folder / EXPERIMENT)]
    return shlex.join(command + ([] if search is None else ["--search", str(search)]))


def read(folder: str | Path, who: str = "A report") -> ExperimentResult:
    """Return what a folder of results holds so far; `who` needs it, in messages.

    Code that the folder names is not imported.
    """
    with without_imports():
        return _read(Path(folder), who)


def _read(folder: Path, who: str) -> ExperimentResult:
    if not folder.is_dir():
        raise ValueError(
            f"{who} needs a folder of results, got {str(folder)!r}; name one that `undrift run` or "
            "`compare` has written."
        )
    experiment, command, text, tuning = None, "", "", None
    if (folder / EXPERIMENT).is_file():
        experiment, choice = Experiment.read(folder / EXPERIMENT), read_choice(folder)
        earlier = [read_trial(folder, job.name) for job in jobs_in(folder, experiment)]
        trials = [trial for trial in earlier if trial is not None]
        count = None if choice is None else choice.count
        federated = bool(experiment.federation.sites)
        command = repeat_command(folder, count, federated=federated)
        text = (folder / EXPERIMENT).read_text(encoding="utf-8")
        tuning = read_tuning(folder, experiment) if experiment.sweep.tune else None
    else:
        trials = read_trials(folder)
    if not trials:
        raise ValueError(
            f"{who} needs records, got none in {str(folder)!r}; {_where_records_are(folder)}."
        )
    return ExperimentResult(
        folder,
        experiment,
        trials,
        environment=read_environment(folder),
        command=command,
        text=text,
        partition=read_partition(folder),
        tuning=tuning,
    )


def _where_records_are(folder: Path) -> str:
    """Return the remedy for a folder without records: the folders below it that have some."""
    trials = (path for path in folder.rglob("*.jsonl") if path.with_suffix(".json").is_file())
    below = sorted({str(path.parent) for path in trials if path.parent.name != TUNING})
    if not below:
        return "name a folder that `undrift run` or `compare` has written"
    more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
    return f"name one below it: {', '.join(below[:_MOST_NAMED])}{more}"


def read_environment(folder: Path) -> dict[str, Any]:
    """Return what a folder's experiment was run with, empty if the folder does not say it."""
    path = folder / ENVIRONMENT
    if not path.is_file():
        return {}
    try:
        return dict(read_json(path))
    except (TypeError, ValueError) as error:
        raise UndriftError(f"{path} needs to be JSON and is damaged: {error}.") from error


def read_experiment(
    folder: Path, spelling: Spelling = KEYWORDS, trust: Trust = False
) -> Experiment:
    """Return the experiment that a folder of results was made with, to go on with it.

    Code that it names must be trusted, and must be what the folder was made with.
    """
    path = folder / EXPERIMENT
    if not (path.is_file() and (folder / ENVIRONMENT).is_file()):
        raise ValueError(
            f"{spelling.option('resume')} needs a folder of results with its {EXPERIMENT}, got "
            f"{str(folder)!r}; name one that `undrift run`, `compare` or `sweep` has written."
        )
    return trusted_experiment(folder, trust)


def trusted_experiment(folder: Path, trust: Trust) -> Experiment:
    """Return the experiment of a folder, or raise unless the code that it names may be run."""
    path = folder / EXPERIMENT
    with without_imports():
        names = Experiment.read(path).code
    require_trust(names, trust, path)
    require_unchanged(read_environment(folder).get("code", {}), names, folder)
    return Experiment.read(path, trust=True)


def repeated(experiment: Experiment, files: Sequence[Path]) -> Path | None:
    """Return the folder of results whose experiment is run again, if a file names one."""
    for path in files:
        with suppress(ValueError), without_imports():
            if path.name == EXPERIMENT and Experiment.read(path) == experiment:
                return path.parent
    return None
