"""Results of a paper are found here: those of the user's own runs, or else the package's."""

from __future__ import annotations

from pathlib import Path

from undrift.check import require_choice
from undrift.papers.catalogue import PaperEntry
from undrift.papers.run import results_file
from undrift.papers.scales import SCALES
from undrift.papers.store import StoredPaper, read_stored, require_same_version, shipped


def find_results(
    entry: PaperEntry, scale: str | None = None, out: Path | None = None
) -> StoredPaper | None:
    """Return the results of a scale, or of the largest that was run; None without any."""
    if scale is not None:
        require_choice("papers show", "--scale", scale, SCALES)
    for each in SCALES if scale is None else (scale,):
        for path in (results_file(entry, each, out), shipped(entry, each)):
            if path.is_file():
                stored = read_stored(path)
                require_same_version(stored, entry.paper, path)
                return stored
    return None
