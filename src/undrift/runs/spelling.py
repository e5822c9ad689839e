"""Messages spell an option as a keyword of `undrift.run`, or as a flag of the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from undrift.engine.processes.elastic import without_option


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """Spells the options of a run as the caller knows them."""

    flags: bool  # whether the caller is the command
    command: str | None = None  # that goes on with what was begun, if it is not the usual one

    def option(self, name: str) -> str:
        """Return the name of an option: `out`, or `--out`."""
        return f"--{name}" if self.flags else name

    def switch(self, name: str) -> str:
        """Return how an option is switched on: `force=True`, or `--force`."""
        return f"--{name}" if self.flags else f"{name}=True"

    def resume(self, folder: Path, *, search: bool) -> str:
        """Return the call or the command that goes on with a folder of results."""
        if self.command is not None:
            return self.command
        if self.flags:
            return f"undrift {'sweep' if search else 'run'} --resume {folder}"
        return f"undrift.run(resume={str(folder)!r})"


def resume_checkpoints(arguments: Sequence[str], checkpoint: Path, folder: Path) -> str:
    """Return the command that goes on from checkpoints that the user has named."""
    for option in ("--checkpoint", "--resume", "--out"):
        arguments = without_option(arguments, option)
    command = ["undrift", *arguments, "--resume", str(checkpoint), "--out", str(folder)]
    return shlex.join(command)


def start_again(arguments: Sequence[str], *, force: bool) -> str:
    """Return the command of a run that has saved nothing; `force` replaces what it has written."""
    added = ["--force"] if force and "--force" not in arguments else []
    return shlex.join(["undrift", *arguments, *added])


KEYWORDS, FLAGS = Spelling(flags=False), Spelling(flags=True)
