"""Fuzz every reader of foreign bytes with atheris, and write what came of it.

    python -m benchmarks.fuzz --seconds 600 --out fuzz.json            # all targets, two at a time
    python -m benchmarks.fuzz --targets idx records --seconds 60
    python -m benchmarks.fuzz --table fuzz.json                        # the table of the docs

A target fails if it raises anything but a typed error, takes 2 GB, or takes 20 s for one input; the
input is kept beside the results. All seconds are CPU time, since other work may have the cores.
Targets take turns of a few minutes, after which results and the inputs that reached something new
are written, so that a run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Instrumenting all of the package would take a minute for each target.
INSTRUMENTED = [
    "undrift.untrusted", "undrift.data.formats", "undrift.config", "undrift.results",
    "undrift.optim.schedules", "undrift.fleet", "undrift.runs.partition", "undrift.runs.jobs",
    "undrift.runs.folder", "undrift.engine.checkpoint", "undrift.engine.processes.transport",
    "undrift.states", "undrift.federation.messages", "undrift.federation.sealed",
    "undrift.data.tables", "undrift.data.cache", "undrift.outer.checkpoints",
    "undrift.outer.saving", "undrift.runs.saved_model", "undrift.usercode.names",
    "undrift.papers.store", "undrift.runs.tuning_trials", "skops.io", "tomllib", "pickle",
    "tarfile", "zipfile", "gzip",
]  # fmt: skip
MEMORY, SLOWEST, LONGEST = 2048, 20, 65536  # megabytes, seconds and bytes of one input
HUNG = 3600  # seconds of the wall for one input, which may be waiting for a core or be stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=600, help="of CPU time of each target")
    parser.add_argument("--turn", type=int, default=150, help="seconds of CPU time of a turn")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"))
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
    elif options.one:
        fuzz(options.one, options.seconds, rest)
    else:
        run_all(options)


class SlowInput(BaseException):
    """Is raised inside a reader that takes too long; no reader catches it."""


def fuzz(name: str, seconds: int, arguments: list[str]) -> None:
    """Fuzz one target in this process until it fails or has used its CPU time."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from benchmarks.fuzz.targets import TARGETS

    def too_slow(*_: object) -> None:
        raise SlowInput(f"one input took {SLOWEST} s of CPU time")

    def one_input(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, SLOWEST)
        try:
            TARGETS[name](data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if time.process_time() >= end:
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer prints its figures and ends

    signal.signal(signal.SIGPROF, too_slow)
    atheris.Setup([sys.argv[0], *arguments], one_input)
    end = time.process_time() + seconds
    atheris.Fuzz()


def run_all(options: argparse.Namespace) -> None:
    """Give turns to the targets that have not had their time or failed, some at a time."""
    from benchmarks.fuzz.targets import TARGETS

    results: dict[str, Any] = {}
    if options.out.is_file():
        results = json.loads(options.out.read_text())
    start = {"seconds": 0, "inputs": 0, "branches": 0, "failure": None}
    with ThreadPoolExecutor(options.jobs) as pool:
        while wanted := [
            name
            for name in options.targets or TARGETS
            if (had := results.setdefault(name, dict(start)))["seconds"] < options.seconds
            and had["failure"] is None
        ]:
            turns = {pool.submit(turn, name, options): name for name in wanted}
            for ended in as_completed(turns):
                name, found, had = turns[ended], ended.result(), results[turns[ended]]
                had["seconds"] += found["seconds"]
                had["inputs"] += found["inputs"]
                had["branches"] = max(had["branches"], found["branches"])
                had["failure"] = found["failure"]
                options.out.write_text(json.dumps(results, indent=1) + "\n")
                print(name, had, flush=True)
    if any(each["failure"] for each in results.values()):
        sys.exit(1)


def turn(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what came of one turn: seconds, inputs, and the failure if there was one."""
    from benchmarks.fuzz.targets import TARGETS

    failures = options.out.parent / "fuzz-failures"
    corpus = options.out.parent / "fuzz-corpus" / name
    for folder in (failures, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{i}").write_bytes(seed)
    seconds = min(options.turn, options.seconds)
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as log:
        words = Path(place) / "words"
        words.write_text("".join(f"{json.dumps(word)}\n" for word in TARGETS[name].words))
        command = [
            sys.executable, "-m", "benchmarks.fuzz", "--one", name, "--seconds", str(seconds),
            str(corpus), f"-rss_limit_mb={MEMORY}", f"-timeout={HUNG}", f"-max_len={LONGEST}",
            f"-artifact_prefix={failures / name}-", "-print_final_stats=1",
        ]  # fmt: skip
        if TARGETS[name].words:
            command.append(f"-dict={words}")
        child = subprocess.run(command, stdout=log, stderr=log)
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", output)
    covered = re.findall(r"cov: (\d+)", output)
    return {
        "seconds": seconds,  # without those of the start
        "inputs": int(counted[1]) if counted else 0,
        "branches": int(covered[-1]) if covered else 0,
        "failure": _told(output) if child.returncode else None,
    }


def _told(output: str) -> str:
    """Return the end of what a target printed when it failed."""
    lines = [line for line in output.splitlines() if not line.startswith("INFO: ")]
    return "\n".join(lines)[-3000:]


def table(results: dict[str, Any]) -> str:
    """Return the results as a table of Markdown."""
    lines = [
        "| target | seconds of CPU | inputs | branches reached | failures |",
        "|---|---|---|---|---|",
    ]
    for name, each in sorted(results.items()):
        failed = "none" if each["failure"] is None else "**1**"
        row = (name, f"{each['seconds']:,}", f"{each['inputs']:,}", f"{each['branches']:,}", failed)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
