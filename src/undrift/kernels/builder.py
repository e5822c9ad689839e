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
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from undrift.data.cache import user_cache
from undrift.kernels.reader import UnsupportedError

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-w")
PATIENCE = 300  # seconds for the compiler


def library(source: str) -> ctypes.CDLL:
    """Raises `UnsupportedError` where it can neither be found nor built."""
    compiler = _compiler()
    flags = [*FLAGS, _native()]
    about = [source, compiler, _version(compiler), *flags, _processor()]
    name = hashlib.blake2b("\n".join(about).encode(), digest_size=16).hexdigest()
    kept = _folder() / f"{name}.so"
    if not _sound(kept):
        kept = _build(source, [compiler, *flags], kept)
    try:
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise UnsupportedError(f"a compiled library cannot be loaded ({error})") from error


def _compiler() -> str:
    given = os.environ.get("CXX")
    for name in [given] if given else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
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
def _processor() -> str:
    """What this machine's instructions are: a cache may be shared with another."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        told = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
        return "".join(sorted(set(told)))
    return f"{platform.machine()} {platform.processor()}"


def _folder() -> Path:
    return user_cache() / "kernels"


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


def _build(source: str, command: list[str], kept: Path) -> Path:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        room = tempfile.mkdtemp(prefix=".build-", dir=kept.parent)
    except OSError:  # the cache cannot be written; what is built serves this process alone
        try:
            room = tempfile.mkdtemp(prefix="undrift-kernels-")
        except OSError as error:
            raise UnsupportedError(f"no folder to build in ({error})") from error
    folder = Path(room)
    try:
        made = _compile(source, command, folder)
        seal = folder / "seal.json"
        seal.write_text(json.dumps({"digest": _digest(made)}), encoding="utf-8")
        if folder.parent != kept.parent:
            return made
        # A reader between the two renames sees a seal that does not fit, and builds it again.
        made.replace(kept)
        seal.replace(_seal(kept))
        return kept
    except OSError as error:
        raise UnsupportedError(f"a library cannot be written ({error})") from error
    finally:
        if folder.parent == kept.parent:
            shutil.rmtree(folder, ignore_errors=True)


def _compile(source: str, command: list[str], folder: Path) -> Path:
    text, made = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source, encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, str(text), "-o", str(made)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the compiler {command[0]} fails ({error})") from error
    if done.returncode or not made.exists():
        said = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise UnsupportedError(f"the compiler {command[0]} fails ({said.strip()})")
    return made
