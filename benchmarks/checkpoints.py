"""What checkpoints cost: the share of a run that goes into saving, at the default interval.

    python -m benchmarks.checkpoints [--seconds 300] [--json FILE]

SCAFFOLD with 1,000 parameters and 10^5 clients, of which 1,000 take part in a round, saved by time
as the command line saves (every 60 s). Counted are the seconds of the saves, of the trial before
the first and of writing states to disk between them, against the seconds of the whole run. A run
that has ended needs no checkpoint; what one costs that a signal asks for is told besides.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.registered import CLASSES, FEATURES, SAMPLES, clients
from torch import nn

import undrift as ud
from undrift.engine.checkpoint import trial
from undrift.engine.checkpoint.client_states import StoredStates
from undrift.engine.resume import Resumable

CLIENTS, COHORT, ROUNDS = 10**5, 1000, 10**6


class Watch:
    """Adds up the seconds of calls; those inside of each other are counted once."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a watch around it."""

        def watched(*arguments: Any, **options: Any) -> Any:
            self._depth += 1
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.calls.append(time.perf_counter() - begin)

        return watched


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    saves, everything = Watch(), Watch()
    Resumable._write = everything.around(saves.around(Resumable._write))  # type: ignore[method-assign]
    trial.write = everything.around(trial.write)
    StoredStates._write_new = everything.around(StoredStates._write_new)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        run = ud.simulate(
            ud.Scaffold(lr=0.1),
            nn.Linear(FEATURES, CLASSES),
            clients(CLIENTS),
            loss=F.cross_entropy,
            work=ud.Steps(1),
            rounds=ROUNDS,
            batch_size=SAMPLES,
            participation=COHORT,
            evaluation=ud.EvaluationOptions(every=ROUNDS),
            checkpoint=folder,
            checkpoint_every=None,
        )
        begin = time.perf_counter()
        while time.perf_counter() - begin < options.seconds:
            next(run)
        total = time.perf_counter() - begin
        spent, due = sum(everything.calls), len(saves.calls)
        run.save()
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        states = len(run.client_states)
    print(
        f"{run.round} rounds in {total:.0f} s, {states} states: {due} saves took "
        f"{', '.join(f'{seconds:.2f}' for seconds in saves.calls[:due]) or 0} s, all writing "
        f"{spent:.2f} s, {100 * spent / total:.2f} % of the run; one for a signal "
        f"{saves.calls[due]:.2f} s; {disk / 1e6:.0f} MB on disk."
    )
    if options.json is not None:
        found = {
            "rounds": run.round,
            "seconds": total,
            "saves": saves.calls,
            "share": spent / total,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
