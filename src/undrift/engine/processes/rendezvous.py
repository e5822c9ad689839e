"""Processes meet here: those of torchrun, of a script of the user's own, or of `workers`."""

from __future__ import annotations

import atexit
import hashlib
import importlib
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
from undrift.engine.processes.group import START, Processes, ask_around, ranks_in_words
from undrift.engine.processes.meeting import agree
from undrift.engine.processes.transport import backend_message
from undrift.engine.world import World
from undrift.errors import WorkerError

TIMEOUT = 1800.0  # seconds without an answer after which a process counts as hung, torch's own
CONNECT = 5.0  # seconds that processes which are all here get to connect, at least
KNOCK = 5.0  # seconds of one attempt to reach the store
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
        backend = dist.get_backend_config()
        if "cpu:" not in backend:
            raise ValueError(
                f"Ranks need a process group that also sends from the CPU, got {backend}; call "
                "init_process_group('cpu:gloo,cuda:nccl')."
            )
        store = dist.distributed_c10d._get_default_store()
        rank, size = dist.get_rank(), dist.get_world_size()
        return _remember(Processes(PrefixStore("undrift", store), rank, size, timeout))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return World()
    # Processes that are started again have met before, so that the others will come, too.
    patience = max(timeout, START) if restarts() else timeout
    store = PrefixStore("undrift", _store(rank, size, patience))
    local = os.environ["MASTER_ADDR"] in LOOPBACK
    return meet(store, rank, size, timeout, patience, local=local)


def _store(rank: int, size: int, patience: float) -> Store:
    """Return the store where processes find each other: torchrun's, or one that rank 0 opens."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    end = time.monotonic() + patience
    while True:
        try:
            if opens and address in LOOPBACK:
                # A process that joins once more finds the store open, as nobody else has its port.
                if port not in CONTEXT.stores:
                    CONTEXT.stores[port] = local_store(size, patience, port)
                return CONTEXT.stores[port]
            # A network that was cut off forgets a long attempt to connect only after its time.
            attempt = patience if opens else min(KNOCK, max(0.1, end - time.monotonic()))
            store = TCPStore(
                address,
                port,
                size,
                is_master=opens,
                timeout=timedelta(seconds=attempt),
                wait_for_workers=False,  # `agree` waits, and names the missing ranks
                multi_tenant=True,
            )
            store.set_timeout(timedelta(seconds=patience))
            return store
        except (RuntimeError, OSError) as error:
            if not opens and time.monotonic() < end:
                continue
            problem = f"open {address}:{port}" if opens else f"reach rank 0 at {address}:{port}"
            raise WorkerError(
                f"Rank {rank} needs to {problem}, got {backend_message(error)} within "
                f"{patience:g} s; start rank 0 and check MASTER_ADDR and MASTER_PORT.",
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
    # torch.func imports torch._dynamo, and that this module, whose functions have the group of the
    # moment as a default. If there was one, they would hold it for ever, and the others would not
    # miss a failed process before it ends.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        meeting = agree(store, rank, size, timeout if patience is None else patience, watch)
    except RuntimeError as error:  # the store has gone, and with it rank 0
        raise WorkerError(
            f"Rank {rank} needs rank 0 to stay, got {backend_message(error)}; look at its output.",
            ranks=[0],
        ) from error
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    limit = min(max(timeout, CONNECT), START)
    try:
        with loopback_only(local):
            dist.init_process_group(
                backend,
                store=meeting.store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=limit),
            )
    except RuntimeError as error:
        _, silent = ask_around(meeting.store, rank, size)
        whom = ranks_in_words(silent).lower() if silent else "the others"
        raise WorkerError(
            f"Rank {rank} needs to connect to all others, got no connection to {whom} "
            f"({backend_message(error)}); look whether it has ended, and set GLOO_SOCKET_IFNAME "
            "to the network's interface.",
            ranks=silent,
        ) from error
    return _remember(Processes(meeting.store, rank, size, timeout, START, meeting.places))


def _remember(world: Processes) -> Processes:
    CONTEXT.joined = world
    atexit.register(world.close)  # the backend's threads must end before the interpreter does
    return world
