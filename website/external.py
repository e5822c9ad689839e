"""Find what a built page would fetch from another host.

Scripts are not read. That of mkdocs-material fetches the program for diagrams from another host as
soon as a page has one, so diagrams count as such requests.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

FETCHED = {  # attributes whose address a browser fetches by itself
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
NOT_FETCHED = {"canonical", "alternate", "license", "author", "me"}  # relations of <link>
REMOTE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
DIAGRAM = "mermaid"  # the class of what the script draws
IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)


class _Fetches(HTMLParser):
    """Collects the remote addresses that a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        self.found += IN_STYLE.findall(given.get("style") or "")
        if DIAGRAM in (given.get("class") or "").split():
            self.found.append(f"the program that draws {DIAGRAM}")
        if tag == "link" and NOT_FETCHED & set((given.get("rel") or "").split()):
            return
        for name in FETCHED.get(tag, ()):
            if REMOTE.match(given.get(name) or ""):
                self.found.append(given[name])

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found += IN_STYLE.findall(data)


def external_requests(site: Path) -> list[str]:
    """Return `file: address` for whatever the pages and styles of a folder fetch from elsewhere."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Fetches()
            page.feed(path.read_text(encoding="utf-8"))
            addresses = page.found
        elif path.suffix in (".css", ".svg"):
            addresses = IN_STYLE.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found
