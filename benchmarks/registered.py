"""A million registered clients: start, memory, seconds a round, and going on after a kill.

    python -m benchmarks.registered [--registered 1000000] [--rounds 1000] [--json FILE]
                                    [--picture docs/registered.svg]

SCAFFOLD with 1,000 parameters, 1,000 clients a round, two samples a client, one step; states on
disk, a checkpoint ten times (after every hundredth of 1,000 rounds), one thread. Each line is a
process of its own. Those of 10^3 and of 10^6 clients take turns of ten rounds, so that other work
on the machine slows both alike. Another one of 10^6 is killed (SIGKILL) between two checkpoints in
the middle and resumed by the last, which must end with the hash of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.soak import resident_bytes
from torch import nn

import undrift as ud
from undrift.engine.checkpoint import store

FEATURES, CLASSES, POOL, SAMPLES = 99, 10, 20_000, 2
WARM_UP = 20
SAVES = 10  # of a run
TURN = 10  # rounds
WAITING = "waiting\n"  # says a process that has had its turn


def clients(registered: int) -> ud.Clients:
    """Return clients that each hold two samples of one pool."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((POOL, FEATURES), dtype=np.float32))
    targets = torch.from_numpy(rng.integers(0, CLASSES, POOL))
    parts = list(rng.integers(0, POOL, (registered, SAMPLES)))
    return ud.Clients.split(inputs, targets, parts)


def run(
    registered: int, rounds: int, folder: Path, kill: int, wait: Callable[[], None]
) -> dict[str, Any]:
    """Run all rounds, or until the kill, and return what was measured; `wait` ends a turn."""
    wall, cpu = time.perf_counter(), time.process_time()
    torch.set_num_threads(1)  # so that CPU times say the same whatever else runs
    torch.manual_seed(0)
    started = ud.simulate(
        ud.Scaffold(lr=0.1),
        nn.Linear(FEATURES, CLASSES),
        clients(registered),
        loss=F.cross_entropy,
        work=ud.Steps(1),
        rounds=rounds,
        batch_size=SAMPLES,
        participation=min(1000, registered),
        mode="stacked",
        kernels=False,
        evaluation=ud.EvaluationOptions(every=rounds),
        checkpoint=folder,
        checkpoint_every=max(1, rounds // SAVES),
        resume=folder if folder.exists() and any(folder.glob("round-*")) else None,
    )
    start = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    first, seconds, cpus, memory = started.round, [], [], []
    saves: set[int] = set()
    wait()
    cpu = time.process_time()
    for record in started:
        if record.round == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        now = time.process_time()
        cpus.append(now - cpu)
        cpu = now
        saves.update(number for number in store.saved_rounds(folder) if number > first)
        seconds.append(record.seconds)
        memory.append(resident_bytes() / 1e9)
        if record.round % TURN == 0:
            wait()
            cpu = time.process_time()
    return {
        "registered": registered,
        "first_round": first + 1,
        "start_wall": start["wall"],
        "start_cpu": start["cpu"],
        "round_wall": statistics.median(seconds[WARM_UP:]),
        "round_cpu": statistics.median(cpus[WARM_UP:]),
        "mean_cpu": statistics.mean(cpus[WARM_UP:]),  # with the saves
        "saves": sorted(saves),
        "cpus": cpus,
        "memory_gb": memory,
        "all_seconds": sum(seconds),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "states": len(started.client_states),
        "disk_gb": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9,
        "model_sha256": started.model_sha256,
    }


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw the CPU time of a round, as a median of fifty, and the memory against rounds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(6, 4), sharex=True, layout="constrained")
    for line in lines:
        rounds = line["first_round"] + np.arange(len(line["cpus"]))
        windows = np.lib.stride_tricks.sliding_window_view(1e3 * np.array(line["cpus"]), 50)
        label = f"{line['registered']:,} clients"
        axes[0].plot(rounds[49:], np.median(windows, axis=1), label=label)
        axes[1].plot(rounds, line["memory_gb"], label=label)
    axes[0].set_ylabel("CPU time of a round, ms")
    axes[1].set_ylabel("memory, GB")
    axes[1].set_xlabel("round")
    for each in axes:
        each.set_ylim(bottom=0)
        each.legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def wait() -> None:
    """Wait in this process until its next turn."""
    print(WAITING, end="", flush=True)
    sys.stdin.readline()


class Measured:
    """Measures in a process of its own, in turns."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "benchmarks.registered", "--one", *map(str, arguments)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._said = self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    @property
    def waiting(self) -> bool:
        """Return whether it has a turn left."""
        return self._said == WAITING

    def turn(self) -> None:
        """Let it have a turn if it has one left."""
        if self.waiting:
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._said = self._hear()

    def result(self) -> dict[str, Any] | None:
        """Let it have all its turns, and return what it measured; None if it was killed."""
        while self.waiting:
            self.turn()
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return None
        if code:
            sys.exit(f"A process ended with {code}.")
        return dict(json.loads(self._said))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registered", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        registered, rounds, folder, kill = options.one
        print(json.dumps(run(int(registered), int(rounds), Path(folder), int(kill), wait)))
        return
    rounds, most = options.rounds, options.registered
    kill = rounds // 2 + rounds // SAVES // 2
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        started = [Measured(n, rounds, folder / str(n), 0) for n in (1000, most)]
        while any(each.waiting for each in started):
            for each in started:
                each.turn()
        few, many = (each.result() for each in started)
        killed = Measured(most, rounds, folder / "killed", kill).result()
        resumed = Measured(most, rounds, folder / "killed", 0).result()
    assert killed is None, "it ended before it was killed"
    if few is None or many is None or resumed is None:
        sys.exit("A process was killed that should not have been.")
    for line in (few, many, resumed):
        print(
            f"{line['registered']:>8} clients, from round {line['first_round']}: start "
            f"{line['start_wall']:.2f} s ({line['start_cpu']:.2f} s of CPU), round "
            f"{1e3 * line['round_wall']:.1f} ms ({1e3 * line['round_cpu']:.1f} ms of CPU, "
            f"{1e3 * line['mean_cpu']:.1f} on average with {len(line['saves'])} saves), peak "
            f"{line['peak_gb']:.2f} GB, {line['states']} states, {line['disk_gb']:.2f} GB on disk"
        )
    ratios = [many[name] / few[name] for name in ("round_wall", "round_cpu", "mean_cpu")]
    print(
        f"A round of many costs {ratios[0]:.2f} times that of few ({ratios[1]:.2f} of CPU time, "
        f"{ratios[2]:.2f} with the saves)."
    )
    same = many["model_sha256"] == resumed["model_sha256"]
    print(f"Killed in round {kill} and resumed: {'the same' if same else 'ANOTHER'} hash.")
    if options.json is not None:
        options.json.write_text(json.dumps([few, many, resumed], indent=1) + "\n")
    if options.picture is not None:
        draw([few, many], options.picture)
    sys.exit(not same)


if __name__ == "__main__":
    main()
