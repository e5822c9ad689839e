"""The processes of a run: how they join, agree, and say who is missing.

`World` is a run in one process, for which all of this is nothing. `Processes` is one of several,
over torch.distributed. A process that fails leaves a note in the common store and closes its
connections, so that the others, wherever they wait, end at once and can say who and why. One that
is killed or hangs leaves no note; then those that can still speak mark themselves alive, and who
does not is named.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from undrift import tree
from undrift.engine.itinerary import Blocks
from undrift.engine.post import LostError, Post, plain_words
from undrift.errors import CheckpointError, DivergenceError, WorkerError
from undrift.participation import Ids

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
TIMEOUT = 1800.0  # seconds without an answer after which a process counts as hung, torch's own
GRACE = 3.0  # seconds that others get to say that they are alive
TOLD = 64  # numbers of one `agree`: how many clients, and the first of them


class DifferentError(ValueError):
    """Processes that were started with different experiments; all of them raise it."""


class TogetherError(CheckpointError):
    """A checkpoint that the processes cannot go on from; all of them raise it."""


class World:
    """One process, which is everybody."""

    rank, size = 0, 1
    open = True  # whether the others can be asked

    @property
    def head(self) -> bool:
        """Whether this process writes and prints for all."""
        return self.rank == 0

    def positions(self, ids: Ids) -> NDArray[np.int64]:
        """Where in `ids` this process's clients are: client i belongs to rank i mod size."""
        return np.flatnonzero(ids % self.size == self.rank)

    def nodes(self, workers: int) -> range:
        """This process's nodes: consecutive ones, so that neighbours tend to be near."""
        return Blocks(workers, self.size).of(self.rank)

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """(size, n) every process's numbers."""
        return np.array([numbers], dtype=np.int64)

    def sum(self, values: T) -> T:
        """The sum of the processes' trees, by one all-reduce a dtype."""
        return values

    def rows(self, values: T) -> T:
        """The processes' trees of rows one after another, by rank."""
        return values

    def texts(self, text: str) -> list[str]:
        """Every process's text."""
        return [text]

    def share_model(self, model: nn.Module) -> None:
        """Everybody gets the parameters and buffers of rank 0's model."""

    def agree(self, bad: Sequence[int], round: int, what: str) -> None:
        """Raise on all processes alike when one of them has clients that are not finite."""
        everywhere = self.gather([len(bad), *sorted(bad)[: TOLD - 1], *[0] * (TOLD - 1)][:TOLD])
        clients = [int(i) for told in everywhere for i in told[1 : 1 + min(told[0], TOLD - 1)]]
        if clients:
            raise DivergenceError.of(sorted(set(clients)), round, what, everywhere=True)

    def require_same(self, settings: dict[str, str]) -> None:
        """Refuse processes with different code or experiments, on all of them."""

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Around what may fail on one process alone: the others are told."""
        yield

    def close(self) -> None:
        """Leave the others."""


class Processes(World):
    """One of several processes, joined over torch.distributed."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self._timeout = rank, size, timeout
        self._store, self.open = store, True
        self.post = Post()

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        own = torch.tensor(list(numbers), dtype=torch.int64)
        return torch.stack(self._gathered(own)).numpy()

    def sum(self, values: T) -> T:
        leaves = tree.leaves(values)
        summed: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            flat = torch.cat([leaves[i].reshape(-1) for i in places])
            self._call(dist.all_reduce, flat)
            parts = torch.split(flat, [leaves[i].numel() for i in places])
            for i, part in zip(places, parts, strict=True):
                summed[i] = part.view(leaves[i].shape)
        return tree.with_leaves(values, [summed[i] for i in range(len(leaves))])

    def largest(self, values: Tensor) -> Tensor:
        values = values.clone()
        self._call(dist.all_reduce, values, op=dist.ReduceOp.MAX)
        return values

    def rows(self, values: T) -> T:
        def gathered(leaf: Tensor) -> Tensor:
            counts = self.gather([len(leaf)])[:, 0]
            padded = leaf.new_zeros((int(counts.max()), *leaf.shape[1:]))
            padded[: len(leaf)] = leaf
            parts = zip(self._gathered(padded), counts, strict=True)
            return torch.cat([part[:count] for part, count in parts])

        return tree.map(gathered, values)

    def texts(self, text: str) -> list[str]:
        encoded = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = self.gather([len(encoded)])[:, 0]
        padded = torch.zeros(max(1, int(lengths.max())), dtype=torch.uint8)
        padded[: len(encoded)] = encoded
        every = zip(self._gathered(padded), lengths, strict=True)
        return [bytes(part[:length].tolist()).decode() for part, length in every]

    def _gathered(self, own: Tensor) -> list[Tensor]:
        every = [torch.empty_like(own) for _ in range(self.size)]
        self._call(dist.all_gather, every, own.contiguous())
        return every

    def share_model(self, model: nn.Module) -> None:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                shared = tensor.detach().clone().contiguous()
                source = self.post.peer(0)
                self._call(dist.broadcast, shared, source)
                tensor.copy_(shared)

    def require_same(self, settings: dict[str, str]) -> None:
        first = json.loads(self.texts(json.dumps(settings))[0])
        wrong = ""
        for name in sorted(settings.keys() | first.keys()):
            if settings.get(name) != first.get(name):
                wrong = f"{name} = {settings.get(name)} on rank {self.rank}, and {first.get(name)}"
                break
        told = [text for text in self.texts(wrong) if text]
        if told:
            raise DifferentError(
                f"All processes need the same program and experiment, got {told[0]} on rank 0; "
                "start them with the same arguments, code and data."
            )

    @contextmanager
    def speaking(self) -> Iterator[None]:
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
            collective(*arguments, **options, group=self.post.group)
        except RuntimeError as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> WorkerError:
        """Who is to blame for a wait that ended with this error, found out with the others."""
        for each in (error, error.__cause__):
            if each is not None:  # frames that hold the group would keep its connections open
                traceback.clear_frames(each.__traceback__)
        self._disconnect()  # whoever waits for this process ends its wait, too
        reason = str(error).lower()
        hung = "timed out" in reason or "timeout" in reason
        try:
            notes, silent = _ask_around(self._store, self.rank, self.size)
            self._linger(silent)
        except RuntimeError:  # with rank 0 the store is gone, too
            notes, silent = {}, [0]
        if notes:
            rank, note = next(iter(notes.items()))
            return WorkerError(f"Rank {rank} failed: {note}", ranks=[rank], final=True)
        if not silent:
            return WorkerError(f"Processes lost each other: {plain_words(error)}.", ranks=[])
        who = _ranks(silent)
        how = f"has not answered for {self._timeout:g} s" if hung else "was lost, killed or crashed"
        remedy = "look at its machine, or raise the timeout" if hung else "look at its output"
        return WorkerError(f"{who} {how}; {remedy}. The last checkpoint is intact.", ranks=silent)

    def _leave_note(self, error: BaseException) -> None:
        if not self.open:
            return
        note = str(error) or type(error).__name__
        with contextlib.suppress(RuntimeError):
            self._store.set(f"failed/{self.rank}", note)
            self._store.set(f"alive/{self.rank}", "1")
            self._disconnect()
            self._linger([])

    def _linger(self, silent: Sequence[int]) -> None:
        """Rank 0 may hold the store: it stays until all that speak have read what they need."""
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
            self.post.close()  # a group that is still held keeps its connections
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group()

    def close(self) -> None:
        self._disconnect()


@cache
def code_digest() -> str:
    """A hash of this package's source, which all processes must share."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def launched() -> bool:
    """Whether torchrun, or a script of the user's own, has made this process one of several."""
    named = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return dist.is_available() and (dist.is_initialized() or named)


def restarts() -> int:
    """How often torchrun has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def restarted() -> bool:
    return launched() and restarts() > 0


_attempts = itertools.count()  # of this process to join others
_joined: Processes | None = None  # which this process has joined last


def joined() -> bool:
    """Whether this process has met others."""
    return _joined is not None


def speaking(function: Callable[P, R]) -> Callable[P, R]:
    """A function that may fail on one process alone, after it has joined others: they are told."""

    @wraps(function)
    def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if _joined is None or not _joined.open:
                raise
            with _joined.speaking():
                raise error

    return telling


def join(timeout: float = TIMEOUT) -> World:
    """The world that torchrun or the user has launched; joined once, however many runs use it."""
    global _joined
    if _joined is not None and _joined.open:
        return _joined
    if dist.is_initialized() and dist.get_world_size() == 1:
        return World()
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        rank, size = dist.get_rank(), dist.get_world_size()
        _joined = Processes(PrefixStore("undrift", store), rank, size, timeout)
        return _joined
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return World()
    store = _store(rank, size, timeout)
    # Keys of their own for every attempt: a store that outlives a restart still has the addresses
    # of the dead.
    attempt = f"undrift/{restarts()}/{next(_attempts)}"
    return meet(PrefixStore(attempt, store), rank, size, timeout)


def _store(rank: int, size: int, timeout: float) -> Store:
    """Where the processes find each other: torchrun's, or one that rank 0 opens."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    try:
        return TCPStore(
            address,
            port,
            size,
            is_master=opens,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,  # who is missing is found out below, and named
            multi_tenant=True,
        )
    except (RuntimeError, OSError) as error:
        problem = f"open {address}:{port}" if opens else f"reach rank 0 at {address}:{port}"
        raise WorkerError(
            f"Rank {rank} needs to {problem}, got {plain_words(error)} within {timeout:g} s; start "
            "rank 0 and check MASTER_ADDR and MASTER_PORT.",
            ranks=[0],
        ) from error


def meet(
    store: Store,
    rank: int,
    size: int,
    timeout: float,
    patience: float | None = None,
    watch: Callable[[], None] = lambda: None,
) -> Processes:
    """Wait for all processes, then connect them; `watch` may raise while they are awaited.

    They are awaited for `patience` seconds, the timeout unless given.
    """
    global _joined
    try:
        _await_all(store, rank, size, timeout if patience is None else patience, watch)
    except RuntimeError as error:  # the store has gone, and with it rank 0
        raise WorkerError(
            f"Rank {rank} needs rank 0 to stay, got {plain_words(error)}; look at its output.",
            ranks=[0],
        ) from error
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        _, silent = _ask_around(store, rank, size)
        whom = _ranks(silent).lower() if silent else "the others"
        raise WorkerError(
            f"Rank {rank} needs to connect to all others, got no connection to {whom} "
            f"({plain_words(error)}); look whether it has ended, and set GLOO_SOCKET_IFNAME to the "
            "network's interface.",
            ranks=silent,
        ) from error
    _joined = Processes(store, rank, size, timeout)
    return _joined


def _await_all(
    store: Store, rank: int, size: int, patience: float, watch: Callable[[], None]
) -> None:
    """Until all processes are here; whoever loses patience first tells the others who is not."""
    store.set(f"here/{rank}", "1")
    missing = [each for each in range(size) if each != rank]
    end = time.monotonic() + patience
    while missing:
        watch()
        missing = [each for each in missing if not store.check([f"here/{each}"])]
        given_up = store.check(["missing"])
        if missing and (given_up or time.monotonic() > end):
            if given_up:
                missing = json.loads(store.get("missing"))
            else:
                store.set("missing", json.dumps(missing))
                time.sleep(GRACE if rank == 0 else 0)  # rank 0 may hold the store
            raise WorkerError(
                f"A run of {size} processes needs all of them, got nothing from "
                f"{_ranks(missing).lower()} within {patience:g} s; start every rank with the same "
                "MASTER_ADDR, MASTER_PORT and WORLD_SIZE.",
                ranks=missing,
            )
        time.sleep(0.02)


def _ask_around(store: Store, rank: int, size: int) -> tuple[dict[int, str], list[int]]:
    """Notes that failing processes have left, and processes that say nothing at all."""
    store.set(f"alive/{rank}", "1")
    others = [each for each in range(size) if each != rank]
    end = time.monotonic() + GRACE
    while True:
        failed = [each for each in others if store.check([f"failed/{each}"])]
        if failed:
            return {each: store.get(f"failed/{each}").decode() for each in failed}, []
        silent = [each for each in others if not store.check([f"alive/{each}"])]
        if not silent or time.monotonic() > end:
            return {}, silent
        time.sleep(0.05)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
