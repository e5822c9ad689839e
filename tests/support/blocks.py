"""The code blocks of the pages: which there are, and how each is run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.support.system import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:\A|\n\n)((?:    [^\n]*\n(?:\n(?=    ))?)+)")
COMMAND = re.compile(r"^\s*(?:[A-Z_]+=\S+ )*(?:undrift|python|torchrun|make|pip|export) ")
TITLE = re.compile(r'title="([^"]*)"')
NOT_RUN, LONG, NEEDS = "not run: ", "minutes", "needs "


@dataclass(frozen=True)
class Block:
    """Holds one block of a page."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def why_not_run(self) -> str:
        """Return the reason above a block that no test runs, "" for the others."""
        return self.title.partition(NOT_RUN)[2]

    @property
    def long(self) -> bool:
        """Return whether the block belongs to the long suite."""
        return NEEDS in self.title or LONG in self.title

    @property
    def needs(self) -> list[str]:
        """Return the data sets without which the block is not run."""
        return re.findall(r"[\w-]+", self.title.partition(NEEDS)[2].partition(";")[0])

    @property
    def file(self) -> str:
        """Return the name of the file that the block is, "" for the others."""
        name = re.match(r"[\w/]+\.(?:py|toml|csv)\b", self.title)
        return name.group(0) if name else ""

    def commands(self) -> list[list[str]]:
        """Return the words of each command of a shell's block."""
        joined = self.text.replace("\\\n", " ")
        lines = (shlex.split(line, comments=True) for line in joined.splitlines())
        return [words for words in lines if words]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that stand between fences, in order."""
    return blocks_in(page, page.read_text(encoding="utf-8"))


def blocks_in(page: Path, text: str) -> list[Block]:
    """Return the blocks of a page's text."""
    found = []
    for match in FENCE.finditer(text):
        indent, language, info, code = match.groups()
        title = TITLE.search(info)
        lines = [line.removeprefix(indent) for line in code.splitlines(keepends=True)]
        number = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, number, language, title.group(1) if title else "", "".join(lines)))
    return found


def indented_code(page: Path) -> list[str]:
    """Return the first lines of indented blocks that look like code, which no test would run."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    blocks = (match.group(1) for match in INDENTED.finditer(text))
    return [block.strip().splitlines()[0] for block in blocks if _looks_like_code(block)]


def _looks_like_code(block: str) -> bool:
    lines = block.splitlines()
    return any(COMMAND.match(line) or re.match(r"\s*(?:ud|undrift)\.", line) for line in lines)
