"""`undrift run --processes n`: the same command in n processes, started again when one is lost.

torch's own elastic agent does the work. A worker that ends with an error that would come again,
such as a diverged run, reports its exit code in a file and is not restarted; a lost worker is.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from undrift.engine.processes.group import STARTED_HERE
from undrift.engine.processes.rendezvous import launched, restarts
from undrift.engine.processes.workers import threads_for
from undrift.errors import WorkerError


def rank() -> int:
    """Return the rank of this process among torchrun's; 0 if torchrun has not started it."""
    return int(os.environ["RANK"]) if launched() and "RANK" in os.environ else 0


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option and its value."""
    rest, skip = [], False
    for argument in arguments:
        if skip or argument == option or argument.startswith(f"{option}="):
            skip = argument == option and not skip
            continue
        rest.append(argument)
    return rest


def in_processes(arguments: Sequence[str], processes: int, max_restarts: int) -> int:
    """Run `python -m undrift ARGUMENTS` in so many processes and return the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    before = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_for(processes)))
    # With a shared store, workers of a second attempt could read the addresses of the first.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    logging.disable(logging.CRITICAL)  # from here on only the agent runs in this process
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder)
        (result / "codes").mkdir()
        os.environ[STARTED_HERE] = str(result / "codes")
        # The agent uses a file and the workers the loopback, so that others can reach no port.
        options = ["--rdzv-backend", "c10d", "--rdzv-endpoint", str(result / "rendezvous")]
        options += ["--rdzv-conf", "store_type=file", "--local-addr", "127.0.0.1"]
        options += ["--rdzv-id", "undrift", "--nnodes", "1"]
        options += ["--nproc-per-node", str(processes), "--monitor-interval", "0.1"]
        options += ["--max-restarts", str(max_restarts), "-m", "undrift", *arguments]
        try:
            run(parse_args(options))  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:  # a killed process cannot report its end
                raise WorkerError(
                    f"Rank {rank} was killed by signal {-failure.exitcode}; start again with "
                    "--resume if it was saved.",
                    ranks=[rank],
                ) from None
            if _reported(result / "codes") is None:
                return failure.exitcode
        except SignalException as error:
            return 128 + int(error.sigval)
        finally:
            os.environ.clear()
            os.environ.update(before)
            logging.disable(logging.NOTSET)
        return _reported(result / "codes") or 0


def end_with_parent() -> None:
    """End a worker of `in_processes` when the process that started it has gone."""
    if os.environ.get(STARTED_HERE) is None or not launched():
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave(code: int, error: BaseException | None = None) -> None:
    """End this process with the code, or report the code to the agent that would restart it."""
    result = os.environ.get(STARTED_HERE)
    lost = isinstance(error, WorkerError) and not error.final
    if result is None or not launched() or lost:
        sys.exit(code)
    file = Path(result) / str(restarts())
    if code or (rank() == 0 and not file.exists()):
        file.write_text(str(code))
    sys.exit(0)


def _reported(result: Path) -> int | None:
    """Return the exit code of the last attempt, or None if none of its processes reported one."""
    last = max(result.iterdir(), key=lambda file: int(file.name), default=None)
    return None if last is None else int(last.read_text())
