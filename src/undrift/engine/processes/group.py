"""One of several processes, over torch.distributed, and how they find out who is missing.

A process that fails leaves a note in the common store and closes its connections, so that the
others, wherever they wait, end at once and can say who failed and why. A process that is killed or
hangs leaves no note; then the others mark themselves alive in the store, and a process without a
mark is named.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

from undrift import tree
from undrift.engine.processes.transport import (
    Incoming,
    LostError,
    Outgoing,
    Transport,
    backend_message,
)
from undrift.engine.world import DifferentError, TogetherError, World
from undrift.errors import WorkerError

T = TypeVar("T")
STARTED_HERE = "UNDRIFT_RESULT"  # names a folder in processes that one command has started here
START = 120.0  # seconds that a process may take to start, whatever the timeout
GRACE = 3.0  # seconds that other processes get to mark themselves alive


class Processes(World):
    """Connects this process with the others of a run over torch.distributed."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: float,
        patience: float = 0.0,
        places: Mapping[int, str] | None = None,
    ) -> None:
        """Join a group, which waits `patience` seconds if that is longer, and from `begin` on less.

        `places` has the host and the number of every process, as `this_process` tells them.
        """
        self.rank, self.size, self._timeout = rank, size, timeout
        self._patient = patience > 0
        self._places = dict(places or {})
        self._store, self.open = store, True
        self._absent, self._reason = False, ""  # what others would read that wait in vain
        self.transport = Transport()
        self._sent = 0.0  # by the backend's own collectives
        if self._patient:
            self._set_timeout(max(timeout, patience))

    @property
    def sent(self) -> int:  # type: ignore[override]
        """Return the bytes that this process has sent: messages and their headers, and its share.

        Its share of an all-reduce is 2 (M - 1) / M vectors and of a gather M - 1, as the backend's
        ring has it.
        """
        return self.transport.sent + round(self._sent)

    def begin(self) -> None:
        """Let the run's timeout count from here on; starting took as long as it took."""
        if self._patient and self.open:
            self._patient = False
            self._set_timeout(self._timeout)

    def limit(self, timeout: float) -> None:
        """Let the next run wait so long, where the processes have met for something else."""
        if timeout != self._timeout and self.open:
            self._timeout, self._patient = timeout, True
            self._set_timeout(max(timeout, START))

    def _set_timeout(self, seconds: float) -> None:
        limit = timedelta(seconds=seconds)
        dist.distributed_c10d._set_pg_timeout(limit, self.transport.group)

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return every process's numbers, (size, n)."""
        own = torch.tensor(list(numbers), dtype=torch.int64)
        return torch.stack(self._gathered(own)).numpy()

    def sum(self, values: T) -> T:
        """Return the sum of the processes' trees, by one all-reduce a dtype."""
        leaves = tree.leaves(values)
        summed: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            flat = torch.cat([leaves[i].reshape(-1) for i in places])
            self._call(dist.all_reduce, flat)
            self._sent += 2 * (self.size - 1) / self.size * flat.nbytes
            parts = torch.split(flat, [leaves[i].numel() for i in places])
            for i, part in zip(places, parts, strict=True):
                summed[i] = part.view(leaves[i].shape)
        return tree.with_leaves(values, [summed[i] for i in range(len(leaves))])

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest value of any process, entry by entry."""
        values = values.clone()
        self._call(dist.all_reduce, values, op=dist.ReduceOp.MAX)
        self._sent += 2 * (self.size - 1) / self.size * values.nbytes
        return values

    def rows(self, values: T) -> T:
        """Return the processes' trees of rows one after another, by rank."""

        def gathered(leaf: Tensor) -> Tensor:
            counts = self.gather([len(leaf)])[:, 0]
            padded = leaf.new_zeros((int(counts.max()), *leaf.shape[1:]))
            padded[: len(leaf)] = leaf
            parts = zip(self._gathered(padded), counts, strict=True)
            return torch.cat([part[:count] for part, count in parts])

        return tree.map(gathered, values)

    @property
    def store(self) -> Store:
        """Return the store that all processes share."""
        return self._store

    @property
    def timeout(self) -> float:
        """Return the seconds after which a process that does not answer counts as lost."""
        return self._timeout

    def has_ended(self, rank: int) -> bool:
        """Return whether a process that has called `explain_end` is at its end."""
        return bool(self._store.check([f"ended/{rank}"]))

    def trees(
        self,
        values: T,
        label: str,
        senders: Sequence[int] | None = None,
        receivers: Sequence[int] | None = None,
    ) -> list[T]:
        """Return every sender's tree, sent as its bytes to each receiver; others need not call."""
        senders = range(self.size) if senders is None else senders
        receivers = range(self.size) if receivers is None else receivers
        targets = [r for r in receivers if r != self.rank] if self.rank in senders else []
        sources = [r for r in senders if r != self.rank] if self.rank in receivers else []
        own = tree.to_bytes(values)
        pending = self.transport.exchange(
            [Outgoing(rank, label, own) for rank in targets],
            [Incoming(rank, label, len(own)) for rank in sources],
        )
        came = {rank: got.data for rank, got in zip(sources, pending.wait(), strict=True)}
        trees = {rank: tree.from_bytes(data, values) for rank, data in came.items()}
        trees[self.rank] = values
        return [trees[rank] for rank in senders if rank in trees]

    def blobs(self, data: Tensor, label: str) -> list[Tensor]:
        """Return every process's bytes, each sent to all others; their lengths may differ."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        pending = self.transport.exchange(
            [Outgoing(rank, label, data) for rank in others],
            [Incoming(rank, label, None) for rank in others],
        )
        came = {rank: got.data for rank, got in zip(others, pending.wait(), strict=True)}
        return [data if rank == self.rank else came[rank] for rank in range(self.size)]

    def texts(self, text: str) -> list[str]:
        """Return every process's text."""
        encoded = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = self.gather([len(encoded)])[:, 0]
        padded = torch.zeros(max(1, int(lengths.max())), dtype=torch.uint8)
        padded[: len(encoded)] = encoded
        every = zip(self._gathered(padded), lengths, strict=True)
        return [bytes(part[:length].tolist()).decode() for part, length in every]

    def _gathered(self, own: Tensor) -> list[Tensor]:
        every = [torch.empty_like(own) for _ in range(self.size)]
        self._call(dist.all_gather, every, own.contiguous())
        self._sent += (self.size - 1) * own.nbytes
        return every

    def share_model(self, model: nn.Module) -> None:
        """Give everybody the parameters and buffers of rank 0's model."""
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                shared = tensor.detach().clone().contiguous()
                source = self.transport.peer(0)
                self._call(dist.broadcast, shared, source)
                tensor.copy_(shared)

    def require_same(self, settings: dict[str, str]) -> None:
        """Refuse processes with different code or experiments, on all of them."""
        first = json.loads(self.texts(json.dumps(settings))[0])
        wrong = ""
        for name in sorted(settings.keys() | first.keys()):
            if settings.get(name) != first.get(name):
                wrong = f"{name} = {settings.get(name)} on rank {self.rank}, and {first.get(name)}"
                break
        differences = [text for text in self.texts(wrong) if text]
        if differences:
            raise DifferentError(
                "All processes need the same program and experiment, "
                f"got {differences[0]} on rank 0; "
                "start them with the same arguments, code and data."
            )

    @contextmanager
    def failure_scope(self) -> Iterator[None]:
        """Tell the others of an error that may occur on this process alone."""
        try:
            yield
        except LostError as error:
            raise self._explain(error) from error
        except (WorkerError, DifferentError, TogetherError):  # all processes raise these alike
            raise
        except BaseException as error:
            if not getattr(error, "everywhere", False):
                self._leave_note(error)
            raise

    def _call(self, collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        if not self.open:
            raise WorkerError("This process has left the others; start the run again.", ranks=[])
        try:
            collective(*arguments, **options, group=self.transport.group)
        except RuntimeError as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> WorkerError:
        """Return an error that names the processes for which this process waited in vain."""
        for each in (error, error.__cause__):
            if each is not None:  # a frame that holds the group would keep its connections open
                traceback.clear_frames(each.__traceback__)
        self._disconnect()  # ends the waits of others for this process
        reason = str(error).lower()
        hung = "timed out" in reason or "timeout" in reason
        notes, silent = self._ask_in_time()
        if hung:
            self._end_stopped(silent)
        if notes:
            rank, note = next(iter(notes.items()))
            return WorkerError(f"Rank {rank} failed: {note}", ranks=[rank], final=True)
        if not silent:
            return WorkerError(f"Processes lost each other: {backend_message(error)}.", ranks=[])
        who = ranks_in_words(silent)
        end = f"has not answered for {self._timeout:g} s" if hung else "was lost, killed or crashed"
        remedy = "look at its machine, or raise the timeout" if hung else "look at its output"
        return WorkerError(f"{who} {end}; {remedy}. The last checkpoint is intact.", ranks=silent)

    def _ask_in_time(self) -> tuple[dict[int, str], list[int]]:
        """Return what `ask_around` finds; rank 0 is missing where its store does not answer."""
        found: tuple[dict[int, str], list[int]] = ({}, [0])

        def ask() -> None:
            nonlocal found
            with contextlib.suppress(RuntimeError):  # The store is gone, and rank 0 with it.
                answers = ask_around(self._store, self.rank, self.size)
                self._linger(answers[1])
                found = answers

        # A machine that is cut off would wait for the store as long as the network does.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(GRACE + 1 if self.rank else 2 * GRACE)
        return found

    def _end_stopped(self, silent: Sequence[int]) -> None:
        """End silent processes that the same command has started here, so that it can restart.

        A process that is stopped would not follow a polite signal for half a minute.
        """
        for rank in silent if STARTED_HERE in os.environ else ():
            host, _, pid = self._places.get(rank, "").rpartition(" ")
            if host == socket.gethostname():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)

    @contextmanager
    def absence_scope(self) -> Iterator[None]:
        """Tell others that wait in vain what has failed here, until a body begins again."""
        if self._absent:
            self._absent = False
            with contextlib.suppress(RuntimeError):
                self._store.set(f"failed/{self.rank}", "")
        try:
            yield
        except BaseException as error:
            if self.open and not getattr(error, "everywhere", False):
                with contextlib.suppress(RuntimeError):
                    self._store.set(f"failed/{self.rank}", _note(error))
                    self._absent = True
            raise

    def explain_end(self, reason: str) -> None:
        """Tell others that wait in vain when this program has ended, unless something failed."""
        self._reason = reason
        atexit.unregister(self._explain_end)
        atexit.register(self._explain_end)  # before `close`, which was registered earlier

    def _explain_end(self) -> None:
        # `set` does not wait for an answer, which nobody may be there to give.
        with contextlib.suppress(RuntimeError):
            if self.open and not self._absent:
                self._store.set(f"failed/{self.rank}", self._reason)
            self._store.set(f"ended/{self.rank}", "1")

    def _leave_note(self, error: BaseException) -> None:
        if not self.open:
            return
        with contextlib.suppress(RuntimeError):
            self._store.set(f"failed/{self.rank}", _note(error))
            self._store.set(f"alive/{self.rank}", "1")
            self._disconnect()
            self._linger([])

    def _linger(self, silent: Sequence[int]) -> None:
        """Keep rank 0, which may hold the store, until the others have read what they need."""
        self._store.set(f"read/{self.rank}", "1")
        end = time.monotonic() + GRACE
        while self.rank == 0 and time.monotonic() < end:
            waiting = [
                rank
                for rank in range(1, self.size)
                if rank not in silent and not self._store.check([f"read/{rank}"])
            ]
            if not waiting:
                return
            time.sleep(0.05)

    def _disconnect(self) -> None:
        if self.open:
            self.open = False
            self.transport.close()  # a group that is referred to keeps its connections
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group()

    def close(self) -> None:
        """Leave the others."""
        self._disconnect()


def _note(error: BaseException) -> str:
    return str(error) or type(error).__name__


def this_process() -> str:
    """Return the host and the number of this process."""
    return f"{socket.gethostname()} {os.getpid()}"


def ask_around(store: Store, rank: int, size: int) -> tuple[dict[int, str], list[int]]:
    """Return the notes of failed processes by rank, and the ranks that have left no mark at all."""
    store.set(f"alive/{rank}", "1")
    others = [each for each in range(size) if each != rank]
    end = time.monotonic() + GRACE
    while True:
        there = [each for each in others if store.check([f"failed/{each}"])]
        notes = {each: store.get(f"failed/{each}").decode() for each in there}
        failed = {each: note for each, note in notes.items() if note}
        if failed:
            return failed, []
        silent = [each for each in others if not store.check([f"alive/{each}"])]
        if not silent or time.monotonic() > end:
            return {}, silent
        time.sleep(0.05)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return "Rank 1" or "Ranks 1, 2 and 3"."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
