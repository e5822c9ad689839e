"""CPU time and memory of processes and of the machine, read from /proc.

Standard library only: contestants use it in their own environments. Where there is no /proc,
figures of other processes are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
DISTURBED = 0.10  # of a core, taken by others


class Process(NamedTuple):
    parent: int
    session: int
    ticks: int  # of its own
    reaped: int  # ticks of children that have ended


def parse(stat: str) -> tuple[int, Process]:
    """Parse a line of /proc/<pid>/stat; the name in brackets may hold spaces and brackets."""
    number, rest = stat.split(" ", 1)
    fields = rest.rpartition(")")[2].split()
    user, system, children_user, children_system = map(int, fields[11:15])
    parent, session = int(fields[1]), int(fields[3])
    return int(number), Process(parent, session, user + system, children_user + children_system)


def processes(proc: Path = PROC) -> dict[int, Process] | None:
    """Return all processes, or None without /proc."""
    if not (proc / "stat").exists():
        return None
    found = {}
    for place in proc.iterdir():
        if place.name.isdigit():
            try:
                number, process = parse((place / "stat").read_text())
            except OSError:  # it has ended
                continue
            found[number] = process
    return found


def tree(found: dict[int, Process], root: int) -> set[int]:
    """Return the process, its descendants, and all others in the session that it leads."""
    inside = {root} | {pid for pid, process in found.items() if process.session == root}
    while True:
        more = {pid for pid, process in found.items() if process.parent in inside} - inside
        if not more:
            return inside & found.keys()
        inside |= more


def seconds_of(found: dict[int, Process], pids: Iterable[int]) -> float:
    """Return CPU time, with that of children that have ended."""
    return sum(found[pid].ticks + found[pid].reaped for pid in pids) / TICKS


def descendants_seconds() -> float:
    """Return CPU time of the processes that this one started, also of ended ones."""
    found = processes()
    if found is None:
        spent = os.times()
        return spent.children_user + spent.children_system
    me = os.getpid()
    return found[me].reaped / TICKS + seconds_of(found, tree(found, me) - {me})


def own_peak_bytes() -> int | None:
    """Return peak memory of this process and its descendants.

    Peaks are added up. Pages of files and shared memory count once, in this process: a little too
    little for who has many processes, never too much.
    """
    found = processes()
    if found is None:
        return None
    me = os.getpid()
    total = 0
    for pid in tree(found, me):
        status = _status(pid)
        shared = 0 if pid == me else status.get("RssFile", 0) + status.get("RssShmem", 0)
        total += max(0, status.get("VmHWM", 0) - shared)
    return total


def _status(pid: int) -> dict[str, int]:
    """Return the kB lines of /proc/<pid>/status, in bytes."""
    try:
        text = (PROC / str(pid) / "status").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines())
    return {
        name: 1024 * int(value.split()[0]) for name, value in pairs if value.strip().endswith("kB")
    }


def busy_seconds(stat: str | None = None) -> float | None:
    """Return CPU time of all processes on this machine, and what its host took away."""
    if stat is None:
        try:
            stat = (PROC / "stat").read_text()
        except OSError:
            return None
    fields = stat.splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS


class Reading(NamedTuple):
    """Holds wall clock, the machine's CPU time, and that of each group of processes."""

    wall: float
    busy: float | None
    groups: tuple[float, ...]

    @classmethod
    def now(cls, roots: Iterable[int]) -> Reading:
        """Return a reading of these process trees, and last of this process."""
        busy, found = busy_seconds(), processes()
        wall = time.perf_counter()
        if busy is None or found is None:
            return cls(wall, None, ())
        spent = [seconds_of(found, tree(found, root)) for root in roots]
        return cls(wall, busy, (*spent, time.process_time()))


class Span(NamedTuple):
    """Holds the differences between two readings, or the sum of such spans."""

    wall: float
    others: float | None  # CPU seconds of processes that take no part
    idle: float | None  # CPU seconds of contestants whose turn it was not

    @classmethod
    def between(cls, before: Reading, after: Reading, playing: int) -> Span:
        """Return the span in which the group `playing` had its turn."""
        wall = after.wall - before.wall
        if before.busy is None or after.busy is None:
            return cls(wall, None, None)
        spent = [b - a for a, b in zip(before.groups, after.groups, strict=True)]
        idle = sum(spent[:-1]) - spent[playing]
        # Clock ticks are counted in several places: a difference below zero is none.
        return cls(wall, max(0.0, after.busy - before.busy - sum(spent)), max(0.0, idle))

    @classmethod
    def alone(cls, before: Reading, after: Reading) -> Span:
        """Return the span in which this process did everything itself."""
        wall = after.wall - before.wall
        if before.busy is None or after.busy is None:
            return cls(wall, None, None)
        own = after.groups[-1] - before.groups[-1]
        return cls(wall, max(0.0, after.busy - before.busy - own), 0.0)

    def __add__(self, other: object) -> Span:  # type: ignore[override]
        if not isinstance(other, Span):
            return NotImplemented
        if self.others is None or other.others is None or self.idle is None or other.idle is None:
            return Span(self.wall + other.wall, None, None)
        return Span(self.wall + other.wall, self.others + other.others, self.idle + other.idle)

    @property
    def disturbed(self) -> bool | None:
        """Return whether others took more than a tenth of a core, or None if unknown."""
        if self.others is None:
            return None
        return self.wall > 0 and self.others > DISTURBED * self.wall
