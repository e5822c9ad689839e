"""What a run was made with: versions, the state of the repository around it, the machine."""

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
    """For `environment.json`; `arguments` are those of the command line, if it was one."""
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
    """The commit of the repository that the run is started in, and what differs from it."""
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
