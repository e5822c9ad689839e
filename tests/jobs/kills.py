"""Kills runs at chosen moments and resumes them: `python -m tests.jobs.kills POINTS SEED`.

A moment is before, after, or in the middle of a system call that writes, renames or removes a file,
of a round, or of a record that is written. For every method one run counts its moments; then copies
of this process run the same experiment again, each is killed (SIGKILL) at a moment drawn by chance,
every eighth in the middle of a line of records, and another copy resumes it. It must end with the
hash of the run that nobody killed, and the lines of records that were whole must keep their bytes.
A line of JSON tells each outcome.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.config.hyperparameters import METHODS
from undrift.engine.federated_run import FederatedRun
from undrift.engine.peer_run import PeerRun
from undrift.engine.resume import Resumable
from undrift.results.filenames import ENVIRONMENT, EXPERIMENT
from undrift.results.trial import Journal
from undrift.runs.options import RunOptions
from undrift.runs.runner import run_experiment

ROUNDS = 5
LINES = 8  # of so many points one is in the middle of a line of records
SLOW_LR = {"cascadingssdm": 1e-4}  # which diverges at the others' rate, as it must


def experiment(method: str) -> Experiment:
    """Return a small run that is saved after every round."""
    work = "steps:2" if issubclass(METHODS[method], ud.AllReduce) else "uniform:1:3"
    return Experiment.of(
        {
            "data": {"name": "digits", "clients": 6, "train_samples": 120},
            "training": {"rounds": ROUNDS, "work": work},
            "engine": {"checkpoint_every": 1, "kernels": False, "mode": "loop"},
            "methods": [{"name": method, "lr": SLOW_LR.get(method, 0.05)}],
        }
    )


class Killer:
    """Counts moments, and kills this process at one of them; -1 kills at none."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self.lines: list[int] = []  # the moments in the middle of a line of records
        self.active = False  # It begins with the records, when there is something to lose.

    def moment(self) -> bool:
        """Return whether this is the moment."""
        self.count += self.active
        return self.active and self.count - 1 == self.at

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a moment before it and one after it."""

        def watched(*arguments: Any, **options: Any) -> Any:
            if self.moment():
                die()
            result = function(*arguments, **options)
            if self.moment():
                die()
            return result

        return watched

    def torn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that writes bytes, with one more moment when half are written."""
        whole = self.around(function)

        def watched(target: Any, content: Any, *rest: Any) -> Any:
            if self.moment():
                function(target, content[: len(content) // 2], *rest)
                die()
            return whole(target, content, *rest)

        return watched

    def torn_line(self, add: Callable[..., None]) -> Callable[..., None]:
        """Return the function that adds a record, with one more moment in the middle of its line.

        Half of the line is in the file then, as where the system has written no more of it.
        """
        whole = self.around(add)

        def watched(journal: Journal, record: Any) -> None:
            self.lines.append(self.count)
            if self.moment():
                path = journal._path(".jsonl")
                begun = path.stat().st_size
                add(journal, record)
                os.truncate(path, (begun + path.stat().st_size) // 2)
                die()
            whole(journal, record)

        return watched

    def begin(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, after which moments count."""

        def watched(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            self.active = True
            return result

        return watched

    def install(self) -> None:
        """Watch all that a run does to its files."""
        for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
            setattr(os, name, self.around(getattr(os, name)))
        os.pwrite = self.torn(os.pwrite)
        Path.write_bytes = self.torn(Path.write_bytes)  # type: ignore[method-assign]
        for owner, name in (
            (FederatedRun, "_advance"),
            (PeerRun, "_advance"),
            (Resumable, "_write"),
        ):
            setattr(owner, name, self.around(getattr(owner, name)))
        Journal.add = self.torn_line(Journal.add)  # type: ignore[method-assign]
        Journal.__init__ = self.begin(Journal.__init__)  # type: ignore[method-assign]


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_copy(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return the signal that has ended a copy of this process, and what the work has returned."""
    reader, writer = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(reader)
        code = 1
        try:
            torch.set_num_threads(1)  # The threads of the original are not here.
            os.write(writer, json.dumps(work()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        told = file.read()
    _, status = os.waitpid(copy, 0)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return number, json.loads(told) if told else None


def run(method: str, folder: Path, at: int) -> dict[str, Any]:
    """Run or resume in this process and return the outcome."""
    killer = Killer(at)
    killer.install()
    begun = (folder / EXPERIMENT).is_file() and (folder / ENVIRONMENT).is_file()
    options = RunOptions(resume=folder, jobs=1) if begun else RunOptions(out=folder, jobs=1)
    (trial,) = run_experiment(experiment(method), method, options).trials
    rounds = [record.round for record in trial.records]
    return {
        "sha256": trial.model_sha256,
        "rounds": rounds,
        "moments": killer.count,
        "lines": killer.lines,
    }


def main() -> None:
    """Kill and resume; print a line for each point, and end with 1 if one is not as it must be."""
    points, seed = int(sys.argv[1]), int(sys.argv[2])
    methods, rng = sorted(METHODS), random.Random(seed)
    chosen = [methods[(i * len(methods)) // points % len(methods)] for i in range(points)]
    if points >= len(methods):
        chosen = [methods[i % len(methods)] for i in range(points)]
    wholes: dict[str, dict[str, Any]] = {}
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        for number, method in enumerate(chosen):
            if method not in wholes:
                folder = Path(place) / f"{method}-whole"
                ended, whole = in_copy(lambda m=method, f=folder: run(m, f, -1))
                assert ended == 0, method
                assert whole is not None, method
                wholes[method] = whole
            whole = wholes[method]
            folder, at = Path(place) / f"{method}-{number}", rng.randrange(whole["moments"])
            if number % LINES == LINES - 1:  # Chance alone would rarely find them.
                at = rng.choice(whole["lines"])
            ended, _ = in_copy(lambda m=method, f=folder, a=at: run(m, f, a))
            before, _, torn = (folder / "records.jsonl").read_bytes().rpartition(b"\n")
            _, found = in_copy(lambda m=method, f=folder: run(m, f, -1))
            same = found is not None and all(found[k] == whole[k] for k in ("sha256", "rounds"))
            kept = (folder / "records.jsonl").read_bytes().startswith(before)
            good = ended == signal.SIGKILL and same and kept
            failures += not good
            records = before.count(b"\n") + bool(before)
            told = {"method": method, "moment": at, "of": whole["moments"], "records": records}
            told |= {"torn": bool(torn), "kept": kept}
            print(json.dumps({**told, "survived": good}), flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
