"""A lock on a folder, so that two runs do not write into one.

The lock is the operating system's, taken by `filelock`, on a file in the folder: it is gone when
its process is, however that ended. The file tells who has it, and is removed with the lock. Where
the file of another machine is found, its lock may not be visible here, so it counts as held.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from undrift.errors import UndriftError
from undrift.untrusted import read_json

LOCK = "undrift.lock"  # the name of the file


class FolderLock:
    """Holds a folder for this process until `close`; a process may hold a folder twice."""

    def __init__(self, folder: Path, *, again: bool = False) -> None:
        """Make the folder and take its lock; raise `UndriftError` with the owner, or `OSError`.

        `again` says that this process was started in the place of one that had the folder.
        """
        self._path, self._held = folder / LOCK, False
        folder.mkdir(parents=True, exist_ok=True)
        place = str(self._path.absolute())
        self._lock = FileLock(place, timeout=0, is_singleton=True, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise _in_use(folder, _owner(self._path), "wait for its end") from None
        self._held = True
        owner, here = _owner(self._path), socket.gethostname()
        if not again and owner.get("host", here) != here:
            self._held = False
            self._lock.release()
            remedy = f"remove {self._path} if that process has ended"
            raise _in_use(folder, owner, remedy)
        self._path.write_text(json.dumps(_this_process()) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Give the folder back; a second call does nothing."""
        if not self._held:
            return
        self._held = False
        if self._lock.lock_counter == 1:  # No other lock of this process has the folder.
            # The file goes first, because after the release it may be another process's.
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._lock.release()


def _this_process() -> dict[str, Any]:
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "started": started}


def _owner(path: Path) -> dict[str, Any]:
    """Return what the file tells of its owner; nothing if it is being written."""
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def _in_use(folder: Path, owner: dict[str, Any], remedy: str) -> UndriftError:
    who = "another process"
    if owner:
        who = f"process {owner.get('process')} on {owner.get('host')} since {owner.get('started')}"
    return UndriftError(
        f"A run needs a folder of its own, got {str(folder)!r}, which {who} is writing to; "
        f"{remedy}, or choose another folder."
    )
