"""What the site is made of: the reference names everything, and no page asks another host."""

from __future__ import annotations

import json
import re
from pathlib import Path

import griffe
import material
import pytest
import yaml
from website import notebooks, reference
from website.docstrings import with_links, with_lists
from website.external import external_requests

import undrift as ud
from tests.support.blocks import blocks_of
from tests.support.system import ROOT
from undrift.cli.init import SCHEMA

PYTHON = "3.11"  # that everything is tested with


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(reference.pages().values())
    headings = set(re.findall(r"heading: (\S+)", text))
    packages = {heading.split(".")[0] for heading in headings if "." in heading}
    assert set(ud.__all__) - headings - packages - reference.WITHOUT_PAGE == {"ALGORITHMS"}


def test_the_reference_has_every_command_and_field() -> None:
    commands, file = (reference.pages()[f"{name}.md"] for name in ("commands", "experiment-file"))
    for name in ("run METHOD", "compare", "sweep", "report", "papers show", "data list", "predict"):
        assert f"# undrift {name}\n" in commands
    assert "`--participation`" in commands
    assert "| `beta`" not in commands  # which is a method's own
    sections = json.loads(SCHEMA.read_text())["$defs"]
    for section in ("Data", "Training", "Evaluation", "Engine"):
        for field in sections[section]["properties"]:
            assert f"| `{field}` |" in file


def test_parameters_of_docstrings_become_lists() -> None:
    text = "Run.\n\nrounds: how many,\n    at least one.\nlr, beta: two.\n\n    code: stays"
    shown = "Run.\n\n- `rounds`: how many, at least one.\n- `lr`, `beta`: two.\n\n    code: stays"
    assert with_lists(text) == shown


def test_pages_that_docstrings_name_become_links() -> None:
    text = "loss: a function (docs/tasks.md).\nUnbiased (docs/theory/fedacg.md has the proof)."
    shown = (
        "loss: a function ([Tasks, losses and metrics](../tasks.md)).\n"
        "Unbiased ([FedACG: Theorems 1 and 2](../theory/fedacg.md) has the proof)."
    )
    assert with_links(text) == shown == with_links(shown)
    with pytest.raises(FileNotFoundError):
        with_links("See docs/gone.md.")


def test_the_values_of_fields_are_told_in_words() -> None:
    file = reference.pages()["experiment-file.md"]
    for words in ("list of whole numbers >= 0", "list of texts", "table or list of tables"):
        assert f"| {words} |" in file
    assert "object" not in {row.split(" | ")[1] for row in file.splitlines() if row.count("|") > 3}


def test_examples_of_commands_are_blocks() -> None:
    commands = reference.pages()["commands.md"]
    assert "```sh\nundrift report runs/demo --figures\nundrift report runs/mine" in commands
    assert not re.search("Examples?: undrift", commands)


def test_fields_of_a_class_are_items_of_its_docstring(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'class Mine:\n    """Does it."""\n\n    lr: float = 1.0\n    """Step\n    size."""\n'
        '    _own: int = 2\n    """Private."""\n'
    )
    extensions = griffe.load_extensions("website/docstrings.py:ParameterLists")
    mine = griffe.load("mine", search_paths=[tmp_path], extensions=extensions)["Mine"]
    assert mine.docstring.value == "Does it.\n\n- `lr`: Step size."
    assert mine["lr"].docstring is None


def test_the_site_is_built_strictly_and_not_quietly() -> None:
    """With --quiet mkdocs counts no warnings, so that a broken link would pass."""
    (command,) = re.findall("mkdocs build(.*)", (ROOT / "Makefile").read_text())
    assert "--strict" in command
    assert "--quiet" not in command.split("#")[0]


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', ["//fonts.example/x.css"]),
        ("<style>@import 'https://a.example/b.css';</style>", ["https://a.example/b.css"]),
        ('<p style="background: url(https://a.example/b.png)">', ["https://a.example/b.png"]),
        ('<pre class="mermaid"><code>a</code></pre>', ["the program that draws mermaid"]),
        ('<div class="wide mermaid">a</div>', ["the program that draws mermaid"]),
        ('<p class="mermaids">mermaid</p>', []),
        ('<img src="x.png"><a href="https://a.example">x</a>', []),
        ('<link rel="canonical" href="https://a.example/">', []),
    ],
)
def test_what_a_browser_would_fetch_is_found(page: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "own.css").write_text("a { background: url(x.png) }")
    assert external_requests(tmp_path) == [f"page.html: {address}" for address in found]


def test_notebooks_are_shown_in_order_with_and_without_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = notebooks.sources()
    assert len(others) == 7
    monkeypatch.setattr(notebooks, "BUILT", tmp_path)
    assert "Without outputs" in notebooks._page(first)
    style, row = "<style scoped>\n.x {}\n</style>\n", '<tr style="text-align: right;">'
    frame = f'{style}<table border="1" class="dataframe">{row}'
    page = f"<!-- {notebooks.digest(first)} -->\n# Title\n\nwith a result\n{frame}"
    (tmp_path / f"{first.stem}.md").write_text(page)
    (tmp_path / f"{first.stem}-1.png").touch()
    assert notebooks._page(first).startswith("# Title\n\n[Download it]")
    assert notebooks._page(first).endswith("with a result\n<table><tr>")
    assert [uri for _, uri in notebooks.assets()] == [f"notebooks/{first.stem}-1.png"]
    (tmp_path / f"{first.stem}.md").write_text("<!-- another digest -->\n# Title\n")
    assert "Without outputs" in notebooks._page(first)  # of an earlier version


def test_a_site_with_a_notebook_without_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [tmp_path / "notebooks" / f"{source.stem}.html" for source in notebooks.sources()]
    pages[0].parent.mkdir()
    for page in pages:
        page.write_text("<p>with a result</p>")
    monkeypatch.setattr("sys.argv", ["notebooks", str(tmp_path)])
    notebooks.main()
    monkeypatch.setattr(notebooks, "BUILT", tmp_path)  # where no executed page is
    pages[1].write_text(notebooks._page(notebooks.sources()[1]))
    pages[2].unlink()
    with pytest.raises(SystemExit) as end:
        notebooks.main()
    assert f"got none of {pages[1].stem}, {pages[2].stem}; run `make site`" in str(end.value)


def test_recipes_for_clusters_are_well_formed() -> None:
    blocks = {each.title.split(",")[0]: each for each in blocks_of(ROOT / "docs" / "clusters.md")}
    service, job = yaml.safe_load_all(blocks["train.yaml"].text)
    pod = job["spec"]["template"]["spec"]
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    image, *steps = blocks["Dockerfile"].text.splitlines()
    assert "-c constraints.txt ." in "".join(steps)
    assert image == f"FROM python:{PYTHON}-slim"
    assert pod["containers"][0]["image"] == f"undrift:{ud.__version__}"
    for recipe in (pod["containers"][0]["args"][0], blocks["train.sbatch"].text):
        assert re.search(
            r"torchrun --nnodes .* --node-rank .*-m undrift run scaffold", recipe, re.S
        )


def test_what_scrolls_beyond_a_phone_has_a_shadow() -> None:
    """The theme's script puts tables into a wrap of its own, which scrolls in their place."""
    theme = Path(material.__file__).parent / "templates" / "assets" / "javascripts"
    (script,) = theme.glob("bundle.*.js")
    assert "md-typeset__scrollwrap" in script.read_text()
    shadowed = (ROOT / "docs" / "style.css").read_text().partition("linear-gradient")[0]
    for selector in (
        ".md-typeset__scrollwrap",
        ".md-typeset pre:not(:has(> code))",
        ".md-typeset pre > code",
    ):
        assert f"\n{selector}" in shadowed
