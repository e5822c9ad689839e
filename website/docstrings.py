"""Let mkdocstrings show lists of parameters as lists, and names of pages as links.

Docstrings here name parameters as `rounds: how many.`, one below the other, with indented lines
that go on. Markdown would run them together. Fields of a class have docstrings of their own; each
would get a heading and a block for its type, which the class's signature shows already. Pages are
named as in the sources, docs/tasks.md, and linked from api/ on the site.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

DOCS = Path(__file__).parents[1] / "docs"
PAGE = re.compile(r"\bdocs/([a-z][\w/-]*)\.md\b")
ENTRY = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (.+)$")


def with_lists(text: str) -> str:
    """Return a docstring whose lines `name: text` are items of a Markdown list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry:
            if not inside and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in entry.group(1).split(", "))
            lines.append(f"- {names}: {entry.group(2)}")
        elif inside and line.startswith("    ") and lines[-1]:
            lines[-1] += " " + line.strip()
            continue
        else:
            lines.append(line)
        inside = bool(entry)
    return "\n".join(lines)


def with_links(text: str) -> str:
    """Return a docstring with a link, which has the page's title, for every page that it names."""
    return PAGE.sub(lambda found: f"[{_title(found[1])}](../{found[1]}.md)", text)


@cache
def _title(name: str) -> str:
    """Return the title of a page; one that does not exist is an error."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")


class ParameterLists(griffe.Extension):
    """Turns the parameters and pages of docstrings, and the fields of classes, into Markdown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Replace the object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_links(with_lists(obj.docstring.value))

    def on_class_members(self, *, cls: Any, **_: Any) -> None:
        """Move the docstrings of public fields into the list of their class."""
        fields = [
            member
            for name, member in cls.members.items()
            if member.is_attribute and member.docstring is not None and not name.startswith("_")
        ]
        texts = [" ".join(with_links(each.docstring.value).split()) for each in fields]
        items = [f"- `{each.name}`: {text}" for each, text in zip(fields, texts, strict=True)]
        if not items:
            return
        for each in fields:
            each.docstring = None  # mkdocstrings shows no member without one
        own = cls.docstring.value if cls.docstring is not None else ""
        text = "\n\n".join(filter(None, [with_links(with_lists(own)).rstrip(), "\n".join(items)]))
        cls.docstring = griffe.Docstring(text, parent=cls)
