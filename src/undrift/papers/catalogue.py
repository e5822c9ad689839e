"""The papers that come with the package, by name: `fedacg/table4`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from undrift.check import nearest
from undrift.papers.file import Paper, read

FOLDER = Path(__file__).parent
DOCUMENTS = {  # in the order in which they are listed
    "fedspeed": "FedSpeed",
    "fedacg": "FedACG",
    "fedagrac": "FedaGrac (thesis, chapter 4)",
    "marsit": "Marsit (thesis, chapter 3)",
    "netfleet": "NET-FLEET",
}


@dataclass(frozen=True)
class PaperEntry:
    """Names a paper file and reads it when asked to."""

    document: str
    path: Path

    @property
    def name(self) -> str:
        """Return the name that commands take, such as `fedacg/table4`."""
        return f"{self.document}/{self.path.stem}"

    @property
    def paper(self) -> Paper:
        """Return what the file holds."""
        return _read(self.path)


@cache
def _read(path: Path) -> Paper:
    return read(path)


def entries() -> list[PaperEntry]:
    """Return all paper files: by document, tables before figures, by number."""
    return [
        PaperEntry(document, path)
        for document in DOCUMENTS
        for path in sorted((FOLDER / document).glob("*.toml"), key=_order)
    ]


def _order(path: Path) -> tuple[bool, list[tuple[int, str]]]:
    parts = re.findall(r"(\d+)|([a-z]+)", path.stem)
    return "figure" in path.stem, [(int(number or 0), text) for number, text in parts]


def find(name: str) -> PaperEntry:
    """Return the paper file of that name, or raise and name the nearest."""
    known = {entry.name: entry for entry in entries()}
    if name in known:
        return known[name]
    document, slash, _ = name.partition("/")
    if document in DOCUMENTS and not slash:
        items = ", ".join(each for each in known if each.startswith(f"{document}/"))
        raise ValueError(f"papers needs a table or figure of {document}, got {name!r}: {items}.")
    raise ValueError(
        f"papers needs DOCUMENT/ITEM such as fedacg/table4, got {name!r}{nearest(name, known)}; "
        "`undrift papers list` has all."
    )
