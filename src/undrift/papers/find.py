"""Results of a paper are found here: those of the user's own runs, or else the package's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from undrift.check import require_choice
from undrift.papers.catalogue import PaperEntry
from undrift.papers.run import results_file, results_folder
from undrift.papers.scales import SCALES
from undrift.papers.store import StoredPaper, read_stored, require_same_version, shipped


def find_results(
    entry: PaperEntry, scale: str | None = None, out: Path | None = None
) -> StoredPaper | None:
    """Return the results of a scale, or of the largest that was run; None without any.

    With `out` only the user's own results are looked for. Results of another version of the file
    are an error if there are no others.
    """
    if scale is not None:
        require_choice("papers show", "--scale", scale, SCALES)
    refused = None
    for each in SCALES if scale is None else (scale,):
        own = results_file(entry, each, out)
        for path in (own, shipped(entry, each)) if out is None else (own,):
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
    return str(path) if path == own else "the package"
