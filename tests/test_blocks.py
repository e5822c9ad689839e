"""Every code block of the pages runs as it stands; commands run for one round on one seed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.core import TyperCommand
from website import reference

import undrift as ud
from tests.support.blocks import PAGES, Block, blocks_in, blocks_of, indented_code
from tests.support.system import ROOT, SHARED
from undrift.cli import main as cli

BLOCKS = {page: blocks_of(page) for page in PAGES}
RUN = ("python", "sh", "bash")
KNOWN = {"python", "sh", "bash", "toml", "yaml", "dockerfile", "text"}
WITH_CODE = [page for page in PAGES if any(each.language in RUN for each in BLOCKS[page])]
FIRST = ROOT / "docs" / "five-minutes.md"
OF_READERS = {  # what the first page takes for granted: tables of one's own
    "patients.csv": "site,age,stay\n"
    + "".join(f"{'ab'[i % 2]},{i % 7},{i % 5}.5\n" for i in range(60)),
    "new.csv": "site,age\na,3\nb,4\n",
}
MEASUREMENT = ("measures ", "trains for hours", "builds the environments of other libraries")
MOST_NOT_RUN = 10
TOML = [each for blocks in BLOCKS.values() for each in blocks if each.language == "toml"]


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def first_names() -> dict[str, Any]:
    """Return the names that pages go on from: those of the page of five minutes."""
    names: dict[str, Any] = {}
    for block in BLOCKS[FIRST]:
        if block.language == "python" and "common" not in names:
            exec(compile(block.text, "five-minutes.md", "exec"), names)
    return names


# Lightning asks torch in a way that torch will give up.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("page", WITH_CODE, ids=shown)
@pytest.mark.parametrize("suite", ["quick", pytest.param("long", marks=pytest.mark.long)])
def test_blocks_run(
    page: Path, suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in one folder and with one set of names; the long suite runs the long ones, too."""
    blocks = [each for each in BLOCKS[page] if not each.why_not_run]
    at_hand = SHARED.is_dir()
    chosen = [
        each
        for each in blocks
        if not each.long or (suite == "long" and (at_hand or not each.needs))
    ]
    if suite == "long" and chosen == [each for each in blocks if not each.long]:
        pytest.skip("the quick suite runs what there is, or the real data sets are not here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    module = ModuleType("page")  # in which dataclasses look for their names
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    names.update({} if page == FIRST else first_names(), __name__="page")
    for name, text in OF_READERS.items() if page == FIRST else ():
        Path(name).write_text(text)
    for block in chosen:
        if block.file:
            Path(block.file).write_text(block.text)
        if block.language == "python":
            run_python(block, names)
        elif block.language in RUN:
            for words in block.commands():
                run_command(words, monkeypatch)


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block; an error names its line of the page."""
    code = "\n" * block.line + block.text
    exec(compile(code, str(block.page), "exec"), names)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command, `undrift` in this process and for one round."""
    if words[0] != "undrift":
        program = {"python": sys.executable, "torchrun": f"{Path(sys.executable).parent}/torchrun"}
        command = [program.get(words[0], words[0]), *words[1:]]
        subprocess.run(command, check=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return
    monkeypatch.setattr("sys.argv", shortened(words))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, " ".join(words)


def shortened(words: list[str]) -> list[str]:
    """Return a command with fewer rounds and seeds, of a paper's table at the smallest scale."""
    if words[1] not in ("run", "compare", "sweep") or "--resume" in words:
        return ["glance" if word == "small" else word for word in words]
    if any(word.endswith(".toml") for word in words):
        return [*words, "--set", "training.rounds=1", "--set", "seeds=[0]", "--quiet"]
    return [*words, "--rounds", "1", "--quiet", *(["--seeds", "1"] * (words[1] == "compare"))]


@pytest.mark.parametrize("block", TOML, ids=lambda each: f"{each.page.name}:{each.line}")
def test_parts_of_experiments_are_valid(block: Block) -> None:
    """With the methods that its sweep names, or with FedAvg, where the part has none."""
    values = tomllib.loads(block.text)
    sweep = values.get("sweep", {})
    swept = [name for each in (sweep.get("grid", {}), *sweep.get("together", [])) for name in each]
    known = {cls.__name__.lower() for cls in ud.ALGORITHMS}
    named = {field.split(".")[0].lower() for field in swept} & known or {"fedavg"}
    ud.Experiment.of({"methods": [{"name": name} for name in sorted(named)], **values})


def test_commands_that_are_not_run_are_valid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Commands in examples of help, and in blocks that no test runs, are read to their end.

    The files that they name are those of the first page.
    """
    monkeypatch.chdir(tmp_path)
    for block in (block for block in BLOCKS[FIRST] if block.file):
        Path(block.file).write_text(block.text)
    monkeypatch.setattr(TyperCommand, "invoke", lambda command, context: None)
    blocks = blocks_in(ROOT / "commands.md", reference.pages()["commands.md"])
    blocks += [each for page in PAGES for each in BLOCKS[page] if each.why_not_run]
    read = 0
    for words in (words for each in blocks if each.language == "sh" for words in each.commands()):
        for part in " ".join(map(shlex.quote, words)).split(" '&&' "):
            own = shlex.split(part.split(" '>' ")[0])
            if "undrift" in own and own[0] in ("undrift", "torchrun"):
                monkeypatch.setattr("sys.argv", own[own.index("undrift") :])
                with pytest.raises(SystemExit) as end:
                    cli.main()
                assert not end.value.code, f"{own}: {capsys.readouterr().err}"
                read += 1
    assert read > 20


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_blocks_say_what_they_are(page: Path) -> None:
    """A block has a language that is run, or parsed, or is text; code is never only indented."""
    others = [f"line {each.line}: {each.language!r}" for each in BLOCKS[page]]
    named = [
        other for other, each in zip(others, BLOCKS[page], strict=True) if each.language in KNOWN
    ]
    assert named == others
    assert indented_code(page) == []


def test_measurements_that_are_not_run_exist() -> None:
    """Their modules, and the options that the pages give them."""
    measured = 0
    for block in (each for blocks in BLOCKS.values() for each in blocks if each.why_not_run):
        if block.language != "sh" or "python" not in block.text:
            continue
        for words in block.commands():
            if words[0] == "python":
                name = words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1]
                path = ROOT / name
                folder = path.with_suffix("")
                files = [path] if path.is_file() else sorted(folder.glob("*.py"))
                text = "".join(file.read_text() for file in files)
                assert text, name
                assert all(word in text for word in words if word.startswith("--")), words
                measured += 1
    assert measured > 8


def test_few_blocks_are_not_run() -> None:
    """Besides measurements, whose modules and options the test above holds."""
    reasons = [
        each.why_not_run for blocks in BLOCKS.values() for each in blocks if each.why_not_run
    ]
    others = [reason for reason in reasons if not reason.startswith(MEASUREMENT)]
    assert len(others) <= MOST_NOT_RUN, others
