"""`simulate(..., processes=n)`: the other processes are started here, and do as this one does.

This process is rank 0 and holds the run that the caller iterates. The others build the same run and
wait for what they have to do with it. Between rounds they wait on a pipe, for as long as the caller
likes; when this process ends, however it ends, so do they.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from undrift.check import require
from undrift.engine.processes.rendezvous import join, launched, meet
from undrift.engine.run import Run
from undrift.engine.world import World
from undrift.errors import UndriftError, WorkerError

Simulate = Callable[..., Run]
HERE = "127.0.0.1"
START = 120.0  # seconds that a process may take to start
UNGUARDED = 77  # exit code of a child that found itself running the caller's script again

_pool: WorkerPool | None = None  # of the run that was started last
_worker_world: World | None = None  # in a child: the world it was started for


def threads_for(processes: int) -> int:
    """Intra-op threads of each process, so that together they have no more than the cores."""
    return max(1, (os.cpu_count() or 1) // processes)


def enter(simulate: Simulate, arguments: Mapping[str, Any]) -> World:
    """The processes that share a run: torchrun's, some that are started now, or this one alone."""
    global _pool
    processes, timeout = arguments["processes"], arguments["timeout"]
    if _worker_world is not None:
        return _worker_world
    if launched() and not (_pool is not None and _pool.running):
        world = join(timeout)
        fits = processes in (None, world.size)
        remedy = "leave processes out under torchrun"
        require(fits, "simulate", f"processes={world.size}, as launched", processes, remedy)
        return world
    if processes is None or processes == 1:
        return World()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)  # a child in which the caller's script runs again
    if _pool is not None:
        _pool.stop()
    _pool = WorkerPool(processes)
    try:
        return _pool.start(simulate, arguments, timeout)
    except BaseException:
        _pool.stop()
        raise


def follow(run: Run) -> Run:
    """The run, led by this process if it has started others for it."""
    if _pool is not None and run.world is _pool.world:
        run.lead(_pool.tell, _pool.stop)
        weakref.finalize(run, _pool.stop)
    return run


class WorkerPool:
    """The processes besides this one."""

    def __init__(self, processes: int) -> None:
        self.world: World | None = None
        self._size = processes
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._threads = torch.get_num_threads()

    @property
    def running(self) -> bool:
        return bool(self._processes)

    def start(self, simulate: Simulate, arguments: Mapping[str, Any], timeout: float) -> World:
        """Start the others and meet them."""
        main = getattr(sys.modules["__main__"], "__file__", None)
        importable = main is None or Path(main).exists()
        remedy = "save it to a file, or leave processes out"
        expected = f"a script in a file for processes={self._size}"
        require(importable, "simulate", expected, main, remedy)
        torch.set_num_threads(threads_for(self._size))
        limit = timedelta(seconds=timeout)
        store = TCPStore(HERE, 0, self._size, is_master=True, timeout=limit, wait_for_workers=False)
        context = torch.multiprocessing.get_context("spawn")
        for rank in range(1, self._size):
            ours, theirs = context.Pipe()
            about = theirs, rank, self._size, store.port, timeout, simulate, dict(arguments)
            process = context.Process(target=_work, args=about, daemon=True)
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"processes={self._size} needs everything to be importable by other processes, "
                    f"got {error}; define functions and classes at the top level of a module, or "
                    "start the script with torchrun."
                ) from error
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        # However soon a process is to count as hung, this long it may take to start.
        patience = max(timeout, START)
        common = PrefixStore("undrift", store)
        self.world = meet(common, 0, self._size, timeout, patience, self.watch)
        return self.world

    def watch(self) -> None:
        """Raise when one of them cannot come."""
        for rank, (pipe, process) in enumerate(zip(self._pipes, self._processes, strict=True), 1):
            if pipe.poll():
                with contextlib.suppress(EOFError, OSError):
                    raise WorkerError(f"Rank {rank} failed: {pipe.recv()}", ranks=[rank])
            if process.exitcode == UNGUARDED:
                raise UndriftError(
                    f"processes={self._size} needs a script that can be imported, got one that "
                    "starts its work again in every process; put the work under "
                    "`if __name__ == '__main__':`."
                )
            if process.exitcode is not None:
                raise WorkerError(
                    f"Rank {rank} ended before it had joined, with exit code {process.exitcode}; "
                    "look at its output above.",
                    ranks=[rank],
                )

    def tell(self, what: str) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it is gone, which the round will tell
                pipe.send(what)

    def stop(self) -> None:
        """Let them go; safe to call again."""
        if not self._processes:
            return
        if self.world is not None:
            self.world.close()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes.clear()
        self._pipes.clear()
        torch.set_num_threads(self._threads)


def _work(
    pipe: Connection,
    rank: int,
    size: int,
    port: int,
    timeout: float,
    simulate: Simulate,
    arguments: dict[str, Any],
) -> None:
    """A child: join, build the same run, and do with it what rank 0 does."""
    global _worker_world
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when to stop
    torch.set_num_threads(threads_for(size))
    try:
        limit = timedelta(seconds=max(timeout, START))
        store = TCPStore(HERE, port, size, is_master=False, timeout=limit)
        patience = max(timeout, START)
        _worker_world = meet(PrefixStore("undrift", store), rank, size, timeout, patience)
        run = simulate(**arguments)
        run.lead(lambda what: None, lambda: None)
        duties: dict[str, Callable[[], object]] = {
            "next": lambda: next(run),
            "state": lambda: run.state,
            "mean": lambda: run.mean,
            "evaluate": run.evaluate,
        }
        while True:
            duties[pipe.recv()]()
    except EOFError:  # rank 0 has let it go, or is gone
        pass
    except Exception as error:  # rank 0 says it, in one place
        with contextlib.suppress(OSError):
            pipe.send(str(error) or type(error).__name__)
    os._exit(0)
