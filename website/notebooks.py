"""Show the notebooks: with outputs where `make notebooks` has run them, else text and code.

    python -m website.notebooks SITE

ends with an error if a page of the built site is without outputs; `make site` calls it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from pathlib import Path

import jupytext

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "build" / "notebooks"
# What pandas adds to its tables, which would keep them from looking like those of other pages.
OF_PANDAS = re.compile(
    r'<style scoped>.*?</style>\n*|(?<=<table) border="1" class="dataframe"'
    r'|(?<=<tr) style="text-align: right;"',
    re.DOTALL,
)
MARK = "Without outputs"  # the title of the note on pages of notebooks that were not run
NOT_RUN = (
    f'!!! note "{MARK}"\n    This page was built without running the notebook; '
    "`make site` builds it with outputs.\n"
)


def sources() -> list[Path]:
    """Return the notebooks in their order."""
    return sorted((ROOT / "notebooks").glob("*.py"))


def digest(source: Path) -> str:
    """Return what tells one version of a notebook from another."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def built(source: Path) -> Path:
    """Return where the executed page of a notebook is kept."""
    return BUILT / f"{source.stem}.md"


@cache
def pages() -> dict[str, str]:
    """Return the page of every notebook by its address, and one that lists them."""
    texts = {source.stem: _page(source) for source in sources()}
    made = {f"notebooks/{stem}.md": text for stem, text in texts.items()}
    return {"notebooks/index.md": _index(texts)} | made


def assets() -> list[tuple[Path, str]]:
    """Return the pictures and notebooks that executed pages show, with their addresses."""
    fresh = {source.stem for source in sources() if _is_fresh(source)}
    files = BUILT.glob("*") if BUILT.is_dir() else ()
    return [
        (path, f"notebooks/{path.name}")
        for path in sorted(files)
        if path.suffix in (".png", ".ipynb") and path.stem.split("-")[0] in fresh
    ]


def without_outputs(site: Path) -> list[str]:
    """Return the notebooks that a built site shows without outputs, or not at all."""
    pages = {each.stem: site / "notebooks" / f"{each.stem}.html" for each in sources()}
    return [
        stem
        for stem, page in pages.items()
        if not page.is_file() or MARK in page.read_text(encoding="utf-8")
    ]


def _page(source: Path) -> str:
    """Return the page of one notebook."""
    if _is_fresh(source):
        text = OF_PANDAS.sub("", built(source).read_text(encoding="utf-8").split("\n", 1)[1])
        where = f"[Download it]({source.stem}.ipynb); its source is `notebooks/{source.name}`."
        return _after_title(text, where)
    cells = jupytext.read(source).cells
    parts = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        for cell in cells
    ]
    return _after_title("\n\n".join(parts) + "\n", NOT_RUN)


def _is_fresh(source: Path) -> bool:
    """Return whether the notebook was executed as it stands; its page begins with the digest."""
    path = built(source)
    return path.is_file() and digest(source) in path.read_text(encoding="utf-8").split("\n", 1)[0]


def _after_title(text: str, line: str) -> str:
    """Return the text with a line below its title."""
    title, rest = text.split("\n", 1)
    return f"{title}\n\n{line}\n{rest}"


def _index(texts: dict[str, str]) -> str:
    """Return the page that lists the notebooks, each with its first sentences."""
    lines = [
        "# Tutorials",
        "",
        "Eight notebooks, in order; each runs in less than a minute on two cores, on data that "
        "come with the package; that on a paper's table takes MNIST where it is. Their sources "
        "are plain Python files in `notebooks/` (jupytext's percent format); `make notebooks` runs "
        "them, and so do the tests of every change.",
        "",
    ]
    for stem, text in texts.items():
        title = text.split("\n", 1)[0].removeprefix("# ")
        first = next(line for line in text.splitlines()[1:] if _is_prose(line))
        sentences = " ".join(re.split(r"(?<=[.?]) ", first)[:2])
        lines.append(f"1. **[{title}]({stem}.md)**. {sentences}")
    return "\n".join(lines) + "\n"


def _is_prose(line: str) -> bool:
    return line[:1].isalpha() and not line.startswith("Download")


def main() -> None:
    """Exit with a sentence that names the notebooks without outputs, if there are any."""
    bare = without_outputs(Path(sys.argv[1]))
    if bare:
        sys.exit(
            f"The site needs every notebook with outputs, got none of {', '.join(bare)}; "
            "run `make site`, which runs them first."
        )


if __name__ == "__main__":
    main()
