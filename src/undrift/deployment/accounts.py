"""System users of a site: one that holds the data, and another that runs what Flower brings."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.errors import UndriftError


@dataclass(frozen=True)
class Account:
    """Names a user of the system."""

    name: str
    uid: int
    gid: int

    @classmethod
    def named(cls, name: str) -> Account:
        """Return the user of a name, or raise."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise UndriftError(
                f"A site needs a user of this system, got {name!r}; make it with `useradd --system "
                f"{name}`, or name another."
            ) from None
        return cls(name, entry.pw_uid, entry.pw_gid)

    @classmethod
    def of(cls, uid: int) -> Account:
        """Return the user of a number, who may have no name."""
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return cls(str(uid), uid, uid)
        return cls(entry.pw_name, uid, entry.pw_gid)

    @property
    def popen(self) -> dict[str, Any]:
        """Return the keywords of `subprocess.Popen` that start a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path, mode: int) -> None:
        """Make a path this user's."""
        os.chown(path, self.uid, self.gid)
        path.chmod(mode)

    def can_open(self, path: Path) -> bool:
        """Return whether this user can read a file; it is tried, as rights depend on folders."""
        nowhere = subprocess.DEVNULL
        command = ["/usr/bin/head", "-c1", str(path)]
        tried = subprocess.run(command, stdout=nowhere, stderr=nowhere, check=False, **self.popen)
        return tried.returncode == 0

    def can_run(self, program: str) -> bool:
        """Return whether this user can start a Python interpreter."""
        nowhere = subprocess.DEVNULL
        command = [program, "-c", ""]
        try:
            done = subprocess.run(
                command, stdout=nowhere, stderr=nowhere, cwd="/", check=False, **self.popen
            )
        except OSError:
            return False
        return done.returncode == 0


def relay_account(name: str, holder: Account, data: Path | None) -> Account:
    """Return the user that runs SuperNode and relay; raise unless data are closed to it."""
    account = Account.named(name)
    if account.uid == holder.uid:
        raise UndriftError(
            f"A site needs two users, one for its data and one for what Flower runs, got "
            f"{name} for both; name another by --relay-user or --user."
        )
    if data is not None and data.is_file() and account.can_open(data):
        raise UndriftError(
            f"A site needs data that the user {name}, who runs what Flower brings, cannot read, "
            f"got {str(data)!r}, which it can; say `chmod 600 {data}`."
        )
    return account
