"""`undrift run --processes n`: the same command in n processes, started again when one is lost.

torch's own elastic agent does the work. A worker that ends with an error that would come again,
such as a diverged run, reports its exit code in a file and is not restarted; one that was lost is.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from undrift.engine.processes.rendezvous import launched, restarts
from undrift.engine.processes.workers import threads_for
from undrift.errors import WorkerError

RESTARTS = 3
_RESULT = "UNDRIFT_RESULT"  # the environment variable that names the folder of exit codes


def rank() -> int:
    """Of this process among those that torchrun has started; 0 when it is alone."""
    return int(os.environ["RANK"]) if launched() and "RANK" in os.environ else 0


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """A command line without an option and its value."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == option or argument.startswith(f"{option}="):
            skip = argument == option and not skip
            continue
        kept.append(argument)
    return kept


def in_processes(arguments: Sequence[str], processes: int, max_restarts: int) -> int:
    """Run `python -m undrift ARGUMENTS` in so many processes; the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    before = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_for(processes)))
    # Without it workers of a second attempt may read the addresses of the first, and fail again.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    logging.disable(logging.CRITICAL)  # of the agent, the only thing that this process still does
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder)
        os.environ[_RESULT] = folder
        given = ["--standalone", "--nproc-per-node", str(processes), "--monitor-interval", "0.1"]
        given += ["--max-restarts", str(max_restarts), "-m", "undrift", *arguments]
        try:
            run(parse_args(given))  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:  # it could not say it itself
                raise WorkerError(
                    f"Rank {rank} was killed by signal {-failure.exitcode}; start again with "
                    "--resume if it was saved.",
                    ranks=[rank],
                ) from None
            if _reported(result) is None:
                return failure.exitcode
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            return 128 + int(error.sigval)
        finally:
            os.environ.clear()
            os.environ.update(before)
            logging.disable(logging.NOTSET)
        return _reported(result) or 0


def end_with_parent() -> None:
    """In a worker of `in_processes`: end when the process that started it has gone."""
    if os.environ.get(_RESULT) is None or not launched():
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave(code: int, error: BaseException | None = None) -> None:
    """End this process: with the exit code, or with a report of it to whoever would restart it."""
    result = os.environ.get(_RESULT)
    lost = isinstance(error, WorkerError) and not error.final
    if result is None or not launched() or lost:
        sys.exit(code)
    file = Path(result) / str(restarts())
    if code or (rank() == 0 and not file.exists()):
        file.write_text(str(code))
    sys.exit(0)


def _reported(result: Path) -> int | None:
    """The exit code of the last attempt, if any of its processes could tell."""
    last = max(result.iterdir(), key=lambda file: int(file.name), default=None)
    return None if last is None else int(last.read_text())
