"""`simulate(..., processes=n)` starts the other processes here; they do as this process does.

This process is rank 0 and holds the run that the caller iterates. The others build the same run and
wait for orders. Between rounds they wait on a pipe, for as long as the caller likes; when this
process ends, however it ends, so do they.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from undrift.check import require
from undrift.engine.processes.context import CONTEXT
from undrift.engine.processes.group import START
from undrift.engine.processes.interrupts import SIGNALS
from undrift.engine.processes.rendezvous import join, launched, local_store, meet
from undrift.engine.world import World
from undrift.errors import UndriftError, WorkerError

HERE = "127.0.0.1"
END = 1.0  # seconds that all processes together get to end by themselves
UNGUARDED = 77  # exit code of a child that found itself running the caller's script again


class SharedRun(Protocol):
    """Declares what this module uses of a run that several processes carry out."""

    @property
    def world(self) -> World:
        """Return the processes that share the run."""
        ...

    @property
    def state(self) -> Any:
        """Return the state, which all processes must ask for together."""
        ...

    @property
    def mean(self) -> Any:
        """Return the mean model, which all processes must ask for together."""
        ...

    def __next__(self) -> object:
        """Run a round."""
        ...

    def evaluate(self) -> object:
        """Evaluate the model on all processes."""
        ...

    def lead(self, tell: Callable[[str], None], end: Callable[[], None]) -> None:
        """Call `tell` before each step that the others take, too, and `end` after the last."""
        ...


R = TypeVar("R", bound=SharedRun)
Simulate = Callable[..., SharedRun]


def threads_for(processes: int) -> int:
    """Return the intra-op threads of each process that together fill the cores."""
    return max(1, (os.cpu_count() or 1) // processes)


def enter(simulate: Simulate, arguments: Mapping[str, Any]) -> World:
    """Return the processes that share a run: torchrun's, some started now, or this one alone."""
    processes, timeout = arguments["processes"], arguments["timeout"]
    if CONTEXT.worker_world is not None:
        return CONTEXT.worker_world
    if launched() and not (CONTEXT.pool is not None and CONTEXT.pool.running):
        world = join(timeout)
        fits = processes in (None, world.size)
        remedy = "leave processes out under torchrun"
        require(fits, "simulate", f"processes={world.size}, as launched", processes, remedy)
        world.limit(timeout)
        return world
    if processes is None or processes == 1:
        return World()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)  # this is a child in which the caller's script runs again
    if CONTEXT.pool is not None:
        CONTEXT.pool.stop()
    pool = CONTEXT.pool = WorkerPool(processes)
    try:
        return pool.start(simulate, arguments, timeout)
    except BaseException:
        pool.stop()
        raise


def follow(run: R) -> R:
    """Return the run; if this process has started others for it, they follow this process."""
    pool = CONTEXT.pool
    if pool is not None and run.world is pool.world:
        run.lead(pool.tell, pool.stop)
        weakref.finalize(run, pool.stop)
    return run


class _Job(NamedTuple):
    """Holds what a process of the pool has to know."""

    rank: int
    size: int
    port: int
    timeout: float
    simulate: Simulate
    arguments: dict[str, Any]


class WorkerPool:
    """Starts and stops the processes besides this one."""

    def __init__(self, processes: int) -> None:
        self.world: World | None = None
        self._size = processes
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._threads = torch.get_num_threads()

    @property
    def running(self) -> bool:
        """Return whether the processes have been started and not stopped."""
        return bool(self._processes)

    def start(self, simulate: Simulate, arguments: Mapping[str, Any], timeout: float) -> World:
        """Start the other processes and return the world once all have met."""
        main = getattr(sys.modules["__main__"], "__file__", None)
        importable = main is None or Path(main).exists()
        remedy = "save it to a file, or leave processes out"
        expected = f"a script in a file for processes={self._size}"
        require(importable, "simulate", expected, main, remedy)
        torch.set_num_threads(threads_for(self._size))
        # Starting takes its time even where the caller wants a hung process to be noticed soon.
        patience = max(timeout, START)
        store = local_store(self._size, patience)
        context = torch.multiprocessing.get_context("spawn")
        for rank in range(1, self._size):
            ours, theirs = context.Pipe()
            job = _Job(rank, self._size, store.port, timeout, simulate, dict(arguments))
            process = context.Process(target=_work, args=(theirs, job), daemon=True)
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
        common = PrefixStore("undrift", store)
        self.world = meet(common, 0, self._size, timeout, patience, self.watch, local=True)
        return self.world

    def watch(self) -> None:
        """Raise if one of the processes cannot come."""
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

    def tell(self, order: str) -> None:
        """Send an order, a name of `_work`'s table, to all processes."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # the round itself will find that a process is gone
                pipe.send(order)

    def stop(self) -> None:
        """End the processes; a second call does nothing."""
        if not self._processes:
            return
        if self.world is not None:
            self.world.close()
        for pipe in self._pipes:
            pipe.close()
        end = time.monotonic() + END
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._processes.clear()
        self._pipes.clear()
        torch.set_num_threads(self._threads)


def _work(pipe: Connection, job: _Job) -> None:
    """Join the others, build the same run, and obey rank 0's orders until it is gone."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when to stop
    torch.set_num_threads(threads_for(job.size))
    try:
        patience = max(job.timeout, START)
        limit = timedelta(seconds=patience)
        store = PrefixStore(
            "undrift", TCPStore(HERE, job.port, job.size, is_master=False, timeout=limit)
        )
        CONTEXT.worker_world = meet(store, job.rank, job.size, job.timeout, patience, local=True)
        run = job.simulate(**job.arguments)
        run.lead(lambda order: None, lambda: None)
        orders: dict[str, Callable[[], object]] = {
            "next": lambda: next(run),
            "state": lambda: run.state,
            "mean": lambda: run.mean,
            "evaluate": run.evaluate,
        }
        while True:
            orders[pipe.recv()]()
    except EOFError:  # rank 0 has closed the pipe, or is gone
        pass
    except Exception as error:  # rank 0 says all errors, so that they stand in one place
        with contextlib.suppress(OSError):
            pipe.send(str(error) or type(error).__name__)
    os._exit(0)
