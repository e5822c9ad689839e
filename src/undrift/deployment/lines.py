"""Lines of a log, with the time before each."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

RUN_LOG = "run.log"  # of `undrift federation run`, beside the logs of what serves it


class LogLines:
    """Appends lines to a file, and shows those that are said unless it is to be quiet."""

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._quiet = path, quiet
        self._file = path.open("a", encoding="utf-8")

    def say(self, text: str) -> None:
        """Write a line and show it."""
        self.write(text)
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def write(self, text: str) -> None:
        """Write a line."""
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self._file.write(f"{now} {text}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
