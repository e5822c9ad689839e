"""The site in headless Chromium: phone, wide tables, dark colours, search; README's length."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown
import pytest

from tests.support.browser import CONTRASTS, PHONE, Browser, chromium, needs_chromium
from tests.support.system import ROOT, made_once

pytestmark = needs_chromium
PAGES = {  # one of each kind
    "start": "index.html",
    "first steps": "five-minutes.html",
    "method": "algorithms/fedspeed.html",
    "methods": "methods.html",
    "results": "papers/fedacg.html",
    "notebook": "notebooks/1_first_comparison.html",
    "how to": "federation.html",
    "reference": "commands.html",
}
WITH_WIDE_TABLES = ("first steps", "methods", "results")
SCREENS, SCREEN = 2, (838, 950)  # the width that code hosts give a README, and a window's height
HOST = """
body { width: 838px; margin: 0; font: 16px/1.5 "Liberation Sans", Arial, sans-serif }
p, table, pre { margin: 0 0 16px }
h1, h2 { line-height: 1.25; margin: 24px 0 16px; padding-bottom: .3em; border-bottom: 1px solid }
h1 { font-size: 2em; margin-top: 0 } h2 { font-size: 1.5em }
table { border-collapse: collapse } th, td { padding: 6px 13px; border: 1px solid }
img { max-width: 100% } pre { padding: 16px; overflow: auto }
code, pre { font: 13.6px/1.45 "Liberation Mono", monospace }
"""


def build(folder: Path) -> None:
    """Build the site as `make docs` does."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder / "site"),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "site", build) / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield Browser(driver)


@pytest.mark.parametrize("page", PAGES)
def test_pages_do_not_scroll_sideways_on_a_phone(browser: Browser, site: Path, page: str) -> None:
    browser.load(site / PAGES[page], width=PHONE)
    assert browser.js("return document.documentElement.clientWidth") <= PHONE
    assert browser.sideways() <= 0
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", WITH_WIDE_TABLES)
def test_wide_tables_show_on_a_phone_that_they_go_on(
    browser: Browser, site: Path, page: str, dark: bool
) -> None:
    browser.load(site / PAGES[page], width=PHONE, dark=dark)
    wide = browser.wider_than_shown(".md-typeset__scrollwrap")
    assert wide
    assert [each for each in map(browser.shade, wide[:4]) if each < 10] == []


@pytest.mark.parametrize("page", PAGES)
def test_colours_follow_the_system_and_can_be_read(browser: Browser, site: Path, page: str) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    grounds = set()
    for dark in (False, True):
        browser.load(site / PAGES[page], dark=dark)
        grounds.add(browser.js(paper))
        texts, _ = browser.js(CONTRASTS)
        assert len(texts) > 30
        assert [each for each in texts if each[0] < 4.5] == []
    assert len(grounds) == 2


def test_the_search_finds_pages_that_are_opened_as_files(browser: Browser, site: Path) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser.load(site / PAGES["start"])
    browser.keys("input.md-search__input", "control variates")
    found: list[Any] = WebDriverWait(browser.driver, 30).until(
        lambda _: browser.all(".md-search-result__item a")
    )
    addresses = [str(each.get_attribute("href")).split("?")[0].split("#")[0] for each in found]
    names = {each.removeprefix(f"{site.as_uri()}/") for each in addresses}
    assert "algorithms/scaffold.html" in names


def test_the_readme_is_two_screens_long(browser: Browser, tmp_path: Path) -> None:
    """In the fonts, widths and margins of code hosts."""
    text = markdown.markdown((ROOT / "README.md").read_text(), extensions=["tables", "fenced_code"])
    page = tmp_path / "readme.html"
    page.write_text(
        f'<meta charset="utf-8"><base href="{ROOT.as_uri()}/"><style>{HOST}</style>{text}'
    )
    width, height = SCREEN
    browser.load(page, width=width)
    assert browser.js("return document.images[0].naturalWidth") > width
    assert browser.js("return document.body.scrollHeight") <= SCREENS * height
