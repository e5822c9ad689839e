"""Compiles a source into a library, once: what was built is kept in the user's cache.

A library is named by all it depends on, the source, the compiler and the processor, and loaded only
if its content is what the compiler wrote. It appears by one rename, so several processes may build
the same at the same time.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from undrift.files import user_cache, write_atomic
from undrift.gradients.kernels.reader import UnsupportedError

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-w")
PATIENCE = 300  # seconds for the compiler

_loaded: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def library(source: str) -> ctypes.CDLL:
    """Raises `UnsupportedError` where it can neither be found nor built."""
    compiler = _compiler()
    command = [*compiler, *FLAGS, _native()]
    about = [source, *command, _version(compiler[0]), processor()]
    name = hashlib.blake2b("\n".join(about).encode(), digest_size=16).hexdigest()
    with _lock:
        if name not in _loaded:
            _loaded[name] = _found_or_built(source, command, _folder() / f"{name}.so")
        return _loaded[name]


def _found_or_built(source: str, command: list[str], kept: Path) -> ctypes.CDLL:
    if _sound(kept):
        return _load(kept)
    try:
        room = tempfile.TemporaryDirectory(prefix="undrift-kernels-")
    except OSError as error:
        raise UnsupportedError(f"no folder to build in ({error})") from error
    with room as folder:  # a library that is loaded does not need its file any more
        built = _compile(source, command, Path(folder))
        with suppress(OSError):  # without a cache the library serves this process only
            built = _keep(built, kept)
        return _load(built)


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UnsupportedError(f"a compiled library cannot be loaded ({error})") from error


def _compiler() -> list[str]:
    """With its own arguments, as in CXX="ccache g++"."""
    given = os.environ.get("CXX", "")
    for words in [shlex.split(given)] if given.strip() else [["c++"], ["g++"], ["clang++"]]:
        found = shutil.which(words[0])
        if found:
            return [found, *words[1:]]
    raise UnsupportedError(f"no C++ compiler ({given or 'c++, g++, clang++'} not found)")


@cache
def _version(compiler: str) -> str:
    """Of the compiler, by what changes when it is updated; asking itself would take longer."""
    real = Path(compiler).resolve()
    about = real.stat()
    return f"{real} {about.st_size} {about.st_mtime_ns}"


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


def _folder() -> Path:
    return (user_cache() / "kernels").absolute()


def _seal(kept: Path) -> Path:
    return kept.with_suffix(".json")


def _digest(kept: Path) -> str:
    return hashlib.blake2b(kept.read_bytes(), digest_size=32).hexdigest()


def _sound(kept: Path) -> bool:
    """Whether it is there and is what the compiler wrote."""
    with suppress(OSError, ValueError):
        sealed = json.loads(_seal(kept).read_text(encoding="utf-8"))
        return isinstance(sealed, dict) and sealed.get("digest") == _digest(kept)
    return False


def _keep(built: Path, kept: Path) -> Path:
    """Copy a library to the cache with a seal, and return its path there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    # A reader between the two writes sees a seal that does not fit, and builds the library again.
    write_atomic(kept, built.read_bytes())
    write_atomic(_seal(kept), json.dumps({"digest": _digest(built)}))
    return kept


def _compile(source: str, command: list[str], folder: Path) -> Path:
    text, made = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source, encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, str(text), "-o", str(made)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the compiler {command[0]} fails ({error})") from error
    if done.returncode or not made.exists():
        said = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise UnsupportedError(f"the compiler {command[0]} fails ({said.strip()})")
    return made
