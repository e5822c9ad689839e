"""The checkout, folders, a full disk and programs in several processes."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]  # the checkout
SHARED = ROOT.parent / "shared" / "data"  # real data sets, which a user's clone does not have


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Limit the size of files that this process may write, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def names_in(folder: Path) -> list[str]:
    """Return the names of what a folder holds, in order."""
    return sorted(path.name for path in folder.iterdir())


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled, once for all workers of a test session."""
    base = factory.getbasetemp()
    common = base.parent if base.name.startswith("popen-") else base
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second worker waits for the first
        folder = common / name
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder


def launch(processes: int, job: ModuleType, *arguments: str, timeout: float = 240) -> str:
    """Run a module's `main` in several processes, fail if one does, and return their output."""
    command = [sys.executable, "-m", "tests.support.forks", str(processes), job.__name__]
    command += arguments
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def torchrun(
    processes: int,
    script: Path,
    *arguments: str,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
    timeout: float = 400,
) -> str:
    """Run a script under torchrun, fail if it does, and return what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    command += ["--monitor-interval", "0.2", str(script), *arguments]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **(env or {})}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@contextmanager
def no_threads_left() -> Iterator[None]:
    """Check that no thread outlives the block."""
    before = set(threading.enumerate())
    try:
        yield
    finally:
        left = [thread for thread in threading.enumerate() if thread not in before]
        for thread in left:
            thread.join(2)  # a thread may need a moment to end
        assert not any(thread.is_alive() for thread in left)


def listeners(*pids: int) -> set[str]:
    """Return the addresses, with their ports, on which these processes wait for connections."""
    found = set()
    for pid in pids:
        links = [
            os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()
        ]
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:  # LISTEN
                    found.add(_address(fields[1]))
    return found


def _address(text: str) -> str:
    """Return an address as people write it; the kernel has words of four bytes in its own order."""
    address, port = text.split(":")
    raw = bytes.fromhex(address)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return f"{ipaddress.ip_address(words)}:{int(port, 16)}"
