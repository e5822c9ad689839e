"""Results of a paper are found here: those of the user's own runs, or else the package's.

A paper may have results at the printed settings and at each method's tuned step size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from undrift.check import require_choice
from undrift.papers.catalogue import PaperEntry
from undrift.papers.compare import ComparedCell, claimed_rows, rows
from undrift.papers.judge import Judged, judge
from undrift.papers.run import results_file, results_folder
from undrift.papers.scales import SCALES
from undrift.papers.store import (
    StoredPaper,
    is_current,
    read_stored,
    require_same_version,
    shipped,
)
from undrift.papers.verdicts import NOT_RUN

TUNED, PRINTED = "at its tuned step size", "at the printed step size"
MEASURED = "measured"  # by another program, which has no step sizes
PACKAGE = "the package"  # where results come from that are not the user's
LASTING = ("full", "small")  # scales whose results the package keeps


@dataclass(frozen=True)
class Side:
    """Holds a paper beside our results of one kind, or beside none."""

    stored: StoredPaper | None
    rows: Sequence[ComparedCell]
    judged: Sequence[Judged]
    tuned: bool = False
    claimed: Sequence[ComparedCell] = ()  # our values of claims without printed numbers
    measured: bool = False  # by the paper's own command
    package: Sequence[Judged] | None = None  # the package's verdicts beside the user's own

    @property
    def all_rows(self) -> list[ComparedCell]:
        """Return the document's numbers and then those that it makes claims about alone."""
        return [*self.rows, *self.claimed]

    @property
    def own(self) -> bool:
        """Return whether these are the user's results, not the package's."""
        return self.stored is not None and self.stored.source not in ("", PACKAGE)

    @property
    def other_verdicts(self) -> list[tuple[int, str, str]] | None:
        """Return the claims, numbered from 1, whose verdict is not the package's: ours and its.

        None says that there is nothing to compare. Claims that one of the two has not run are left
        out.
        """
        if self.package is None:
            return None
        return [(i, ours, theirs) for i, ours, theirs in self._both_verdicts if ours != theirs]

    @property
    def compared_verdicts(self) -> int:
        """Return how many claims both the user's results and the package's have judged."""
        return len(self._both_verdicts)

    @property
    def _both_verdicts(self) -> list[tuple[int, str, str]]:
        pairs = zip(self.judged, self.package or (), strict=False)
        both = [(i, a.verdict, b.verdict) for i, (a, b) in enumerate(pairs, 1)]
        return [each for each in both if NOT_RUN not in each]

    @property
    def name(self) -> str:
        """Return which results these are, in words."""
        if self.measured:
            return MEASURED
        return TUNED if self.tuned else PRINTED


def sides_of(
    entry: PaperEntry, printed: StoredPaper | None, tuned: StoredPaper | None
) -> list[Side]:
    """Return the paper beside both kinds of results, the tuned ones first if there are any."""
    found = [(tuned, True)] if tuned is not None else []
    paper = entry.paper
    return [
        Side(
            stored,
            rows(paper, stored),
            judge(paper, stored),
            is_tuned,
            claimed_rows(paper, stored),
            paper.kind == "command",
        )
        for stored, is_tuned in [*found, (printed, False)]
    ]


def leading(sides: Sequence[Side], position: int) -> Judged:
    """Return the verdict on a claim that counts: of the tuned results if these have one."""
    found = [side.judged[position] for side in sides]
    return next((each for each in found if each.verdict != NOT_RUN), found[-1])


def find_sides(entry: PaperEntry, scale: str | None = None, out: Path | None = None) -> list[Side]:
    """Return the paper beside the results that `papers show` shows."""
    printed, tuned = (find_results(entry, scale, out, tuned=each) for each in (False, True))
    sides = sides_of(entry, printed, tuned)
    return [replace(side, package=_package_verdicts(entry, side)) for side in sides]


def _package_verdicts(entry: PaperEntry, side: Side) -> list[Judged] | None:
    """Return the package's verdicts at the scale of the user's own results, if there are any."""
    if side.stored is None or not side.own:
        return None
    path = shipped(entry, side.stored.scale, tuned=side.tuned)
    if not path.is_file() or not is_current(theirs := read_stored(path), entry.paper):
        return None
    return judge(entry.paper, theirs)


def shipped_sides(entry: PaperEntry) -> tuple[list[Side], list[Path]]:
    """Return the paper beside the package's results, and files of earlier versions of the paper."""
    found: dict[bool, StoredPaper] = {}
    outdated = []
    for tuned in (False, True):
        for scale in LASTING:
            path = shipped(entry, scale, tuned=tuned)
            if not path.is_file():
                continue
            stored = read_stored(path)
            if is_current(stored, entry.paper):
                found.setdefault(tuned, stored)
            else:
                outdated.append(path)
    return sides_of(entry, found.get(False), found.get(True)), outdated


def find_results(
    entry: PaperEntry, scale: str | None = None, out: Path | None = None, *, tuned: bool = False
) -> StoredPaper | None:
    """Return the results of a scale, or of the largest that was run; None without any.

    With `out` only the user's own results are looked for. Results of another version of the file
    are an error if there are no others.
    """
    if scale is not None:
        require_choice("papers show", "--scale", scale, SCALES)
    refused = None
    for each in SCALES if scale is None else (scale,):
        own = results_file(entry, each, out, tuned=tuned)
        for path in (own, shipped(entry, each, tuned=tuned)) if out is None else (own,):
            if path.is_file():
                stored = replace(read_stored(path), source=_source(path, own))
                try:
                    require_same_version(stored, entry.paper, path)
                except ValueError as error:
                    refused = refused or error
                else:
                    return stored
    if refused is not None:
        raise refused
    if out is not None and not results_folder(entry, "x", out).parent.is_dir():
        raise ValueError(
            f"papers show needs a folder with results of {entry.name}, got {str(out)!r} without; "
            "name the --out of undrift papers run."
        )
    return None


def _source(path: Path, own: Path) -> str:
    return str(path) if path == own else PACKAGE
