"""Run the notebooks and keep them with their outputs in build/notebooks: `make notebooks`.

python -m website.execute [NAME ...]
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

from website.notebooks import BUILT, built, digest, sources

SECONDS = 600  # for one cell on a machine that is busy


def processor_seconds() -> float:
    """Return the processor time of the kernels that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def execute(source: Path) -> float:
    """Run one notebook, write its page, pictures and notebook; return its processor time."""
    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(
            notebook,
            timeout=SECONDS,
            startup_timeout=SECONDS,
            resources=where,
            coalesce_streams=True,  # or every call of print would have a block of its own
        ).execute()
    taken = processor_seconds() - before
    text, found = MarkdownExporter().from_notebook_node(notebook)
    BUILT.mkdir(parents=True, exist_ok=True)
    for number, (name, picture) in enumerate(found["outputs"].items(), 1):
        own = f"{source.stem}-{number}{Path(name).suffix}"
        text = text.replace(f"({name})", f"({own})")
        (BUILT / own).write_bytes(picture)
    nbformat.write(notebook, BUILT / f"{source.stem}.ipynb")
    built(source).write_text(f"<!-- {digest(source)} -->\n{text}", encoding="utf-8")
    return taken


def main() -> None:
    """Run the notebooks that are named, or all; an error in a cell ends it with its traceback."""
    os.environ.setdefault("UNDRIFT_CALIBRATE", "0")
    wanted = sys.argv[1:]
    for source in sources():
        if not wanted or source.stem in wanted:
            print(f"{source.stem}: {execute(source):.1f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
