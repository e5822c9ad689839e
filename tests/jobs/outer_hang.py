"""What `tests/outer/test_absence.py` runs in two processes: rank 1 comes to no meeting.

Rank 0 writes the error that it gets to FOLDER/found.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import undrift as ud
from tests.support import outer as support
from undrift.engine.processes.rendezvous import join
from undrift.errors import WorkerError


def main() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=1, timeout=6.0)
    world = join()
    found = Path(sys.argv[1]) / "found"
    if world.rank == 1:
        end = time.monotonic() + 60
        while not found.exists() and time.monotonic() < end:
            time.sleep(0.1)
        return
    batch = next(support.Batches(0, 2, 1).of(0))
    before = outer.server.x.clone()
    try:
        outer.step(support.closure_of(model, batch))
    except WorkerError as error:
        kept = bool((outer.server.x == before).all())
        found.write_text(f"{error} kept={kept}")
