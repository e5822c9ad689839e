"""Fuzz every reader of foreign bytes with atheris, and write what came of it.

    python -m benchmarks.fuzz --seconds 600 --out fuzz.json            # all targets, two at a time
    python -m benchmarks.fuzz --targets idx records --seconds 60
    python -m benchmarks.fuzz --table fuzz.json                        # the table of the docs

A target fails if it raises anything but a typed error, takes 2 GB, or takes 20 s for one input; the
input is kept beside the results. Results are written after each target, and targets that are in
the file already are not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Instrumenting all of the package would take a minute for each target.
INSTRUMENTED = [
    "undrift.untrusted", "undrift.data.formats", "undrift.config", "undrift.results",
    "undrift.optim.schedules", "undrift.fleet", "undrift.runs.partition", "undrift.runs.jobs",
    "undrift.runs.folder", "undrift.engine.checkpoint", "undrift.engine.processes.transport",
    "undrift.states", "undrift.federation.messages", "tomllib", "pickle", "tarfile", "zipfile",
    "gzip",
]  # fmt: skip
MEMORY, SLOWEST, LONGEST = 2048, 20, 65536  # megabytes, seconds and bytes of one input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=600, help="of each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"))
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
    elif options.one:
        fuzz(options.one, rest)
    else:
        run_all(options)


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz one target in this process until it fails or its time is over."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from benchmarks.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


def run_all(options: argparse.Namespace) -> None:
    """Run the targets that have no result yet, some at a time."""
    from benchmarks.fuzz.targets import TARGETS

    results = json.loads(options.out.read_text()) if options.out.is_file() else {}
    wanted = [n for n in options.targets or TARGETS if n not in results]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {name: pool.submit(run_one, name, options) for name in wanted}
        for name, pending in runs.items():
            results[name] = pending.result()
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(name, results[name], flush=True)
    if any(each["failure"] for each in results.values()):
        sys.exit(1)


def run_one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what came of one target: seconds, inputs, and the failure if there was one."""
    from benchmarks.fuzz.targets import TARGETS

    failures = options.out.parent / "fuzz-failures"
    failures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "corpus"
        corpus.mkdir()
        for i, seed in enumerate(TARGETS[name].seeds()):
            (corpus / f"seed-{i}").write_bytes(seed)
        words = Path(place) / "words"
        words.write_text("".join(f"{json.dumps(word)}\n" for word in TARGETS[name].words))
        command = [
            sys.executable, "-m", "benchmarks.fuzz", "--one", name, str(corpus),
            f"-max_total_time={options.seconds}", f"-rss_limit_mb={MEMORY}",
            f"-timeout={SLOWEST}", f"-max_len={LONGEST}",
            f"-artifact_prefix={failures / name}-", "-print_final_stats=1", "-close_fd_mask=1",
        ]  # fmt: skip
        if TARGETS[name].words:
            command.append(f"-dict={words}")
        before, start = _cpu(), time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        seconds = time.perf_counter() - start
    counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    return {
        "seconds": round(seconds),
        "cpu_seconds": round(_cpu() - before) if options.jobs == 1 else None,
        "inputs": int(counted[1]) if counted else 0,
        "branches": int(covered[-1]) if covered else 0,
        "failure": _told(done.stderr) if done.returncode else None,
    }


def _told(output: str) -> str:
    """Return the end of what a target printed when it failed."""
    lines = [line for line in output.splitlines() if not line.startswith("INFO: ")]
    return "\n".join(lines)[-3000:]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(results: dict[str, Any]) -> str:
    """Return the results as a table of Markdown."""
    lines = ["| target | seconds | inputs | branches reached | failures |", "|---|---|---|---|---|"]
    for name, each in results.items():
        failed = "none" if each["failure"] is None else "**1**"
        row = (name, f"{each['seconds']:,}", f"{each['inputs']:,}", f"{each['branches']:,}", failed)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
