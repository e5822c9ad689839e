"""Compiles a source into a library, once: libraries are kept in the user's cache.

A library's name is a digest of all it depends on: the source, the compiler and the processor. It is
loaded only if its content is what the compiler wrote, and if nobody but this user and root can have
written it; else it is built where nobody else can write. It appears by one rename, so several
processes may build the same library at the same time.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
from collections import defaultdict
from contextlib import suppress
from functools import cache
from pathlib import Path

from undrift.errors import UnsupportedError
from undrift.files import user_cache, write_atomic
from undrift.untrusted import read_json

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-w")
COMPILER_SECONDS = 300  # after which a compilation has failed
_USER: int = getattr(os, "getuid", lambda: 0)()  # Windows has none, and its modes tell nothing.
_OWNERS = (0, _USER)  # root may write everywhere anyway

_loaded: dict[str, ctypes.CDLL] = {}
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # one for each library
_lock = threading.Lock()


def library(source: str, *flags: str, build: bool = True) -> ctypes.CDLL:
    """Return the library of a source, or raise `UnsupportedError` if it cannot be built.

    `flags` are of the compiler, besides those that all libraries have. Without `build` a library
    that is not in the cache is not built either.
    """
    compiler = _compiler()
    command = [*compiler, *FLAGS, _native(), *flags]
    facts = [source, *command, _version(compiler[0]), processor()]
    name = hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()
    with _lock:
        own = _locks[name]
    with own:  # Different libraries are built side by side.
        if name not in _loaded:
            kept = _folder() / f"{name}.so"
            if not (build or _is_intact(kept)):
                raise UnsupportedError("a library that has not been built")
            _loaded[name] = _load_or_build(source, command, kept)
        return _loaded[name]


def _load_or_build(source: str, command: list[str], cached: Path) -> ctypes.CDLL:
    if _is_intact(cached):
        return _load(cached)
    try:
        build = tempfile.TemporaryDirectory(prefix="undrift-kernels-")
    except OSError as error:
        raise UnsupportedError(f"no folder to build in ({error})") from error
    with build as folder:  # a library that is loaded does not need its file any more
        compiled = _compile(source, command, Path(folder))
        with suppress(OSError):  # without a cache the library serves this process only
            compiled = _keep(compiled, cached)
        return _load(compiled)


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UnsupportedError(f"a compiled library cannot be loaded ({error})") from error


def _compiler() -> list[str]:
    """Return the compiler with its own arguments, as in CXX="ccache g++"."""
    variable = os.environ.get("CXX", "")
    for words in [shlex.split(variable)] if variable.strip() else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(words[0])
        if path:
            return [path, *words[1:]]
    raise UnsupportedError(f"no C++ compiler ({variable or 'c++, g++, clang++'} not found)")


@cache
def _version(compiler: str) -> str:
    """Return what changes when the compiler is updated; asking the compiler takes longer."""
    real = Path(compiler).resolve()
    status = real.stat()
    return f"{real} {status.st_size} {status.st_mtime_ns}"


def _native() -> str:
    arm = platform.machine().lower() in ("aarch64", "arm64")
    return "-mcpu=native" if arm else "-march=native"


@cache
def processor() -> str:
    """Return the model and the instructions of this processor, since machines may share a cache."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        facts = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
        return "".join(sorted(set(facts)))
    return f"{platform.machine()} {platform.processor()}"


def processor_name() -> str:
    """Return the model of this processor, or its kind where the system does not tell it."""
    names = [line.partition(":")[2] for line in processor().splitlines() if "model name" in line]
    known = [name.strip() for name in names if name.strip() not in ("", "unknown")]
    return f"{known[0]} ({platform.machine()})" if known else platform.machine()


def _folder() -> Path:
    return (user_cache() / "kernels").absolute()


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".json")


def _digest(library: Path) -> str:
    return hashlib.blake2b(library.read_bytes(), digest_size=32).hexdigest()


def _is_intact(library: Path) -> bool:
    """Return whether the library exists, is ours, and is what the compiler wrote."""
    with suppress(OSError, ValueError):
        if not (_is_private(library.parent) and _is_ours(library)):
            return False
        written = read_json(_digest_file(library))
        return isinstance(written, dict) and written.get("digest") == _digest(library)
    return False


def _is_private(folder: Path) -> bool:
    """Return whether others can neither write to the folder nor put another in its place."""
    above = folder.parent.stat()
    replaceable = bool(above.st_mode & stat.S_IWOTH) and not above.st_mode & stat.S_ISVTX
    return _is_ours(folder) and above.st_uid in _OWNERS and not replaceable


def _is_ours(path: Path) -> bool:
    """Return whether the path belongs to this user or root, who alone may write to it."""
    status = path.lstat()
    return status.st_uid in _OWNERS and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _keep(compiled: Path, cached: Path) -> Path:
    """Copy a compiled library into the cache with its digest, and return its place there.

    It stays where it is if others can write to the folder of libraries.
    """
    folder = cached.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid == _USER and not folder.is_symlink():
        folder.chmod(0o700)
    if not _is_private(folder):
        return compiled
    # A reader between the two writes sees a digest that does not fit, and builds again.
    write_atomic(cached, compiled.read_bytes())
    cached.chmod(0o600)
    write_atomic(_digest_file(cached), json.dumps({"digest": _digest(compiled)}))
    return cached


def _compile(source: str, command: list[str], folder: Path) -> Path:
    """Return the file of the compiled library."""
    text, compiled = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source, encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, str(text), "-o", str(compiled)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the compiler {command[0]} fails ({error})") from error
    if done.returncode or not compiled.exists():
        errors = (line.strip() for line in done.stderr.splitlines() if "error" in line)
        reason = next(errors, "no message")
        raise UnsupportedError(f"the compiler {command[0]} fails ({reason})")
    return compiled
