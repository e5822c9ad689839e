"""Who takes part: each contestant's module, environment and set-up."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed import peers

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "undrift"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
FEDERATED = ("W1", "W1b10", "W1b100", "W2", "W3")


@dataclass(frozen=True)
class Contestant:
    module: str  # of benchmarks.speed.contestants
    set_up: str  # in words
    threads: int | None = None  # None leaves them to the contestant
    processes: int = 1
    variant: str = ""
    workloads: tuple[str, ...] = FEDERATED

    @property
    def peer(self) -> str | None:
        """Return the peer whose environment is needed, or None for this one."""
        return self.module if self.module in peers.PEERS else None

    @property
    def python(self) -> str:
        return sys.executable if self.peer is None else str(peers.python_of(self.peer))

    @property
    def missing(self) -> str | None:
        """Return why the contestant cannot play, if so."""
        if self.peer is None or peers.is_built(self.peer):
            return None
        build = f"python -m benchmarks.speed.peers build {self.peer}"
        return f"its environment is not there; run `{build}`"


ALL = f"{CORES} threads"
CONTESTANTS: dict[str, Contestant] = {
    REFERENCE: Contestant("undrift", "defaults", workloads=(*FEDERATED, "W1run", "G1", "A1")),
    "undrift-torch": Contestant(
        "undrift", "kernels=False", variant="torch", workloads=(*FEDERATED, "G1")
    ),
    "undrift-compile": Contestant(
        "undrift", "kernels=False, torch.compile", variant="compile", workloads=("W1", "W2")
    ),
    "undrift-full-precision": Contestant(
        "undrift", "full precision", variant="full-precision", workloads=("A1",)
    ),
    "deepcopy-1": Contestant("deepcopy", "1 thread", threads=1, workloads=(*FEDERATED, "W1run")),
    "deepcopy-threads": Contestant("deepcopy", ALL, threads=CORES, workloads=(*FEDERATED, "W1run")),
    "pfl-1": Contestant("pfl", "1 process, 1 thread", threads=1),
    "pfl-threads": Contestant("pfl", f"1 process, {ALL}", threads=CORES),
    "pfl-processes": Contestant("pfl", f"{CORES} processes", threads=1, processes=CORES),
    "flower": Contestant("flower", f"Ray, {CORES} actors", threads=1, processes=CORES),
    "fedlab-1": Contestant("fedlab", "1 thread", threads=1),
    "fedlab-threads": Contestant("fedlab", ALL, threads=CORES),
    "fedjax": Contestant("fedjax", "jit"),
}


def choose(names: list[str] | None) -> list[str]:
    """Return contestants by name, or all set-ups of a module; the reference comes first."""
    wanted = {REFERENCE}
    for name in names or [*CONTESTANTS]:
        found = {name} & CONTESTANTS.keys()
        found = found or {each for each, who in CONTESTANTS.items() if who.module == name}
        if not found:
            raise ValueError(
                f"A contestant needs to be one of {', '.join(CONTESTANTS)}, got {name!r}."
            )
        wanted |= found
    return [name for name in CONTESTANTS if name in wanted]
