"""Texts that anybody may have written are parsed here, with limits that their parsers lack.

Every fault of a text is a `ValueError`: neither its depth nor its length ends a parser in another
way, and no text takes memory out of proportion to its length.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

LONGEST_TOML = 1 << 18  # characters; the longest experiment of the papers has 7,000
LONGEST_JSON = 1 << 28  # bytes of a file; a partition of 1,000 clients has 40,000
MOST_KEY_PARTS = 16  # of a dotted key; tomllib's memory grows with their square
DEEPEST = 64  # lists and tables within each other

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DOTTED = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+", re.ASCII)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, or raise `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects within each other a thousand times") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, or raise `ValueError` or `OSError`."""
    if path.stat().st_size > LONGEST_JSON:
        raise ValueError(f"more than {LONGEST_JSON:,} bytes")
    return parse_json(path.read_bytes())


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text, or raise `ValueError`."""
    if len(text) > LONGEST_TOML:
        raise ValueError(f"more than {LONGEST_TOML:,} characters")
    for match in _DOTTED.finditer(text):
        if match[0].count(".") >= MOST_KEY_PARTS and len(_parts(match[0])) > MOST_KEY_PARTS:
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(f"a key of more than {MOST_KEY_PARTS} parts (line {line})")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables within each other a hundred times") from None
    _require_flat(values)
    return values


def _parts(key: str) -> list[str]:
    return re.findall(_PART, key, re.ASCII)


def _require_flat(values: Any) -> None:
    """Raise `ValueError` for lists and tables that whoever walks them could not walk."""
    level, depth = [values], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"lists or tables within each other more than {DEEPEST} times")
        inner = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        level = [value for each in inner for value in each if isinstance(value, dict | list)]
