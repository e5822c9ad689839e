"""Let mkdocstrings show lists of parameters as lists.

Docstrings here name parameters as `rounds: how many.`, one below the other, with indented lines
that go on. Markdown would run them together. Fields of a class have docstrings of their own; each
would get a heading and a block for its type, which the class's signature shows already.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

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


class ParameterLists(griffe.Extension):
    """Turns the parameters of every docstring, and the fields of every class, into a list."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Replace the object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)

    def on_class_members(self, *, cls: Any, **_: Any) -> None:
        """Move the docstrings of public fields into the list of their class."""
        fields = [
            member
            for name, member in cls.members.items()
            if member.is_attribute and member.docstring is not None and not name.startswith("_")
        ]
        items = [f"- `{each.name}`: {' '.join(each.docstring.value.split())}" for each in fields]
        if not items:
            return
        for each in fields:
            each.docstring = None  # mkdocstrings shows no member without one
        own = cls.docstring.value if cls.docstring is not None else ""
        text = "\n\n".join(filter(None, [with_lists(own).rstrip(), "\n".join(items)]))
        cls.docstring = griffe.Docstring(text, parent=cls)
