"""The environment of a run: package versions, state of the git repository, machine."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

PACKAGES = ("undrift", "torch", "numpy", "networkx", "safetensors", "pydantic")


def environment(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the content of `environment.json`; `arguments` are those of the command line."""
    return {
        "command": None if arguments is None else shlex.join(["undrift", *arguments]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git": git_state(),
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": platform.machine(),
            "cores": os.cpu_count(),
        },
        "threads": _threads(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def git_state() -> dict[str, Any] | None:
    """Return the commit of the repository around the working folder, and the files that differ."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = (_git("status", "--porcelain", "--untracked-files=no") or "").splitlines()
    return {"commit": commit, "changed": [line[3:] for line in changed]}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
