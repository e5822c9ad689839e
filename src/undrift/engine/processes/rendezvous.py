"""Processes meet here: those of torchrun, of a script of the user's own, or of `workers`."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from undrift.engine.processes.context import CONTEXT
from undrift.engine.processes.group import (
    GRACE,
    Processes,
    ask_around,
    ranks_in_words,
    this_process,
)
from undrift.engine.processes.transport import backend_message
from undrift.engine.world import World
from undrift.errors import WorkerError

TIMEOUT = 1800.0  # seconds without an answer after which a process counts as hung, torch's own
START = 120.0  # seconds that a process may take to start, whatever the timeout
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@cache
def code_digest() -> str:
    """Return a hash of this package's source, which all processes must share."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def launched() -> bool:
    """Return whether torchrun or a script of the user has made this process one of several."""
    named = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return dist.is_available() and (dist.is_initialized() or named)


def restarts() -> int:
    """Return how often torchrun has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def restarted() -> bool:
    """Return whether torchrun has started this process again."""
    return launched() and restarts() > 0


def joined() -> bool:
    """Return whether this process has met others."""
    return CONTEXT.joined is not None


def join(timeout: float = TIMEOUT) -> World:
    """Return the world that torchrun or the user has launched; all runs join it once."""
    if CONTEXT.joined is not None and CONTEXT.joined.open:
        return CONTEXT.joined
    if dist.is_initialized() and dist.get_world_size() == 1:
        return World()
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        rank, size = dist.get_rank(), dist.get_world_size()
        return _remember(Processes(PrefixStore("undrift", store), rank, size, timeout))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return World()
    store = _store(rank, size, timeout)
    # Every attempt has keys of its own, because a store that outlives a restart still has the
    # addresses of processes that have ended.
    attempt = f"undrift/{restarts()}/{next(CONTEXT.attempts)}"
    local = os.environ["MASTER_ADDR"] in LOOPBACK
    return meet(PrefixStore(attempt, store), rank, size, timeout, local=local)


def _store(rank: int, size: int, timeout: float) -> Store:
    """Return the store where processes find each other: torchrun's, or one that rank 0 opens."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    try:
        if opens and address in LOOPBACK:
            # A process that joins once more finds the store open, as nobody else has its port.
            if port not in CONTEXT.stores:
                CONTEXT.stores[port] = local_store(size, timeout, port)
            return CONTEXT.stores[port]
        return TCPStore(
            address,
            port,
            size,
            is_master=opens,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,  # `_await_all` waits, and names the missing ranks
            multi_tenant=True,
        )
    except (RuntimeError, OSError) as error:
        problem = f"open {address}:{port}" if opens else f"reach rank 0 at {address}:{port}"
        raise WorkerError(
            f"Rank {rank} needs to {problem}, got {backend_message(error)} within {timeout:g} s; "
            "start rank 0 and check MASTER_ADDR and MASTER_PORT.",
            ranks=[0],
        ) from error


def local_store(size: int, timeout: float, port: int = 0) -> TCPStore:
    """Return a store that this process opens and only this machine can reach.

    torch's own would listen on all interfaces, where nobody has to prove who they are.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=2 * size)
    return TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        size,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


@contextmanager
def loopback_only(wanted: bool) -> Iterator[None]:
    """Let the backend listen on this machine's loopback alone, unless the user has chosen."""
    names = [name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name)]
    if not wanted or not names or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = names[0]
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def meet(
    store: Store,
    rank: int,
    size: int,
    timeout: float,
    patience: float | None = None,
    watch: Callable[[], None] = lambda: None,
    *,
    local: bool = False,
) -> Processes:
    """Wait for all processes, then connect them and return the group.

    The wait lasts `patience` seconds at most, `timeout` by default; `watch` is called meanwhile and
    may raise. The group is patient until `begin`. `local` says that all are on this machine.
    """
    try:
        _await_all(store, rank, size, timeout if patience is None else patience, watch)
    except RuntimeError as error:  # the store has gone, and with it rank 0
        raise WorkerError(
            f"Rank {rank} needs rank 0 to stay, got {backend_message(error)}; look at its output.",
            ranks=[0],
        ) from error
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    # torch.func imports torch._dynamo, and that this module, whose functions have the group of the
    # moment as a default. If there was one, they would hold it for ever, and the others would not
    # miss a failed process before it ends.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        with loopback_only(local):
            dist.init_process_group(
                backend,
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=max(timeout, START)),
            )
    except RuntimeError as error:
        _, silent = ask_around(store, rank, size)
        whom = ranks_in_words(silent).lower() if silent else "the others"
        raise WorkerError(
            f"Rank {rank} needs to connect to all others, got no connection to {whom} "
            f"({backend_message(error)}); look whether it has ended, and set GLOO_SOCKET_IFNAME "
            "to the network's interface.",
            ranks=silent,
        ) from error
    places = {each: store.get(f"here/{each}").decode() for each in range(size)}
    return _remember(Processes(store, rank, size, timeout, patient=timeout < START, places=places))


def _remember(world: Processes) -> Processes:
    CONTEXT.joined = world
    atexit.register(world.close)  # the backend's threads must end before the interpreter does
    return world


def _await_all(
    store: Store, rank: int, size: int, patience: float, watch: Callable[[], None]
) -> None:
    """Wait until all processes are here, or raise on all of them with the missing ranks.

    The first process that loses patience writes the missing ranks into the store for the others.
    """
    store.set(f"here/{rank}", this_process())
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
                f"{ranks_in_words(missing).lower()} within {patience:g} s; start every rank with "
                "the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE.",
                ranks=missing,
            )
        time.sleep(0.02)
