"""What `tests/outer/test_absence.py` runs in two processes for each case: `main` with a folder.

Rank 0 has the store and is gone before rank 1 has met it; rank 1 writes the error that it gets and
its seconds to FOLDER/CASE.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import undrift as ud
from tests.support import outer as support
from tests.support.forks import free_port

CASES = ("others have ended", "others were killed", "store was lost", "store was lost while early")
TIMEOUT = 2.0


def wait_for(path: Path) -> str:
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return path.read_text()


def written(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").replace(path)


def connect(folder: Path, case: str, rank: int) -> None:
    """Join by a file, which outlives rank 0, or by variables, so that rank 0 has the store."""
    if "store" not in case:
        store = f"file://{folder / case}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        return
    port = folder / f"{case}.port"
    if rank == 0:
        written(port, str(free_port()))
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": wait_for(port)}


def step(case: str) -> Callable[[], object]:
    """Return the only step of a rank."""
    model = support.net()
    # Only a rank that is early would have to wait so long.
    patience = 30.0 if case.endswith("early") else 0.2
    timeout = 60.0 if "ended" in case else TIMEOUT
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), 1, patience=patience, timeout=timeout)
    return lambda: outer.step(support.closure_of(model, support.batch()))


def main() -> None:
    folder, number = Path(sys.argv[1]), int(os.environ["RANK"])
    case, rank = CASES[number // 2], number % 2
    torch.set_num_threads(1)
    connect(folder, case, rank)
    take = step(case)
    gone = folder / f"{case}.gone"
    if rank == 0:
        if not case.endswith("early"):
            take()
        written(gone, "")
        if "ended" not in case:
            os._exit(0)  # at once, as a process that is killed
        return
    wait_for(gone)
    began, said = time.monotonic(), "nothing was raised"
    try:
        take()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    written(folder / case, f"{said} {time.monotonic() - began}")
