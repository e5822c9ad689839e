"""What the pages name exists: modules, names, files and links."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

from tests.support.blocks import FENCE
from tests.support.system import ROOT
from undrift.deployment.environment import RECIPE

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)
IMPORT = re.compile(r"^\s*from (undrift[\w.]*) import ([\w, ]+)", re.MULTILINE)
DOTTED = re.compile(r"\bundrift\.([a-z_]+(?:\.[A-Za-z_]\w*)+)")
SOURCE = re.compile(r"`((?:src/undrift|tests|undrift|engine|examples|benchmarks)/[\w/]+\.py)`")
TEST = re.compile(
    r"`(tests/[\w/]+\.py)?((?:::\w+)+)(?:\[[^`]*\])?`"
)  # the file may be the last one's
# Pages that website/ makes while the site is built, which checks the links to them.
MADE = re.compile(r"(?:api|notebooks)/\w+\.md|(?:commands|experiment-file)\.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
WORDS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|<!--.*?-->")  # of links and pictures
MOST_CHARACTERS = 3800  # that a README of two screens shows; its height is measured in a browser


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_imported_names_exist(page: Path) -> None:
    for module, names in IMPORT.findall(page.read_text()):
        for name in names.split(","):
            name = name.split(" as ")[0].strip()
            if name and not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=shown)
def test_dotted_names_exist(page: Path) -> None:
    for dotted in DOTTED.findall(page.read_text()):
        value = importlib.import_module("undrift")
        for part in dotted.split("."):
            if not hasattr(value, part):
                value = importlib.import_module(f"{value.__name__}.{part}")
            else:
                value = getattr(value, part)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_named_files_and_links_exist(page: Path) -> None:
    text = page.read_text()
    for name in SOURCE.findall(text):
        places = [ROOT / name, ROOT / "src" / name, ROOT / "src" / "undrift" / name]
        assert any(place.is_file() for place in places), f"{shown(page)} names {name}"
    for target in LINK.findall(text):
        assert MADE.fullmatch(target) or (page.parent / target).exists(), (
            f"{shown(page)} links to {target}"
        )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, and those that it sets itself."""
    text = FENCE.sub("", page.read_text())
    slug = slugify(case="lower")
    titles = (WORDS.sub(r"\1", title).replace("`", "") for title in HEADING.findall(text))
    return {slug(title, "-") for title in titles} | set(re.findall(r'id="([^"]+)"', text))


def missing_anchors(page: Path) -> list[str]:
    """Return the links of a page to places of pages that do not exist."""
    links = ANCHOR.findall(FENCE.sub("", page.read_text()))
    places = [(page.parent / target if target else page, anchor) for target, anchor in links]
    return [
        f"{place.name}#{anchor}"
        for place, anchor in places
        if place.suffix == ".md" and place.is_file() and anchor not in anchors(place)
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_linked_places_exist(page: Path) -> None:
    """The site checks its own pages; README is none of them."""
    assert missing_anchors(page) == []


def test_a_linked_place_that_is_missing_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A `b` c\n\n[x](#a-b-c) [x](b.md#d) [x](b.md#gone)\n")
    (tmp_path / "b.md").write_text('<a id="d"></a>\n')
    assert missing_anchors(tmp_path / "a.md") == ["b.md#gone"]


def test_the_readme_is_short() -> None:
    """The rest is on the site."""
    assert len(WORDS.sub(r"\1", (ROOT / "README.md").read_text())) <= MOST_CHARACTERS


@pytest.mark.parametrize("name", ["install.md", "federation.md"])
def test_pages_install_flower_as_the_error_does(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    assert re.findall(r"[^\s`]*python3 -m venv \S+ && \S+ install [^\s`]*", text) == [RECIPE]


def missing_tests(text: str) -> list[str]:
    """Return the tests that a page names and that do not exist."""
    missing: list[str] = []
    file = ""
    for named, parts in TEST.findall(text):
        file = named or file
        path = ROOT / file
        source = path.read_text() if path.is_file() else ""
        there = set(re.findall(r"^\s*(?:def|class) (\w+)", source, re.MULTILINE))
        names = parts.removeprefix("::").split("::")
        missing += [f"{file}::{name}" for name in names if name not in there]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_named_tests_exist(page: Path) -> None:
    assert missing_tests(page.read_text()) == []


def test_a_named_test_that_is_missing_is_found() -> None:
    here = "tests/test_docs.py"
    assert missing_tests(f"`{here}::test_named_tests_exist`, `::test_gone`") == [
        f"{here}::test_gone"
    ]
    assert missing_tests("`tests/gone.py::test_a`") == ["tests/gone.py::test_a"]
