"""JSON that every program can read, also of runs whose loss is NaN or infinite.

Python writes NaN and infinities as bare words, which other programs refuse. This module writes null
instead. A null may also say that nothing was measured, so `dumps_exactly` adds notes that name the
numbers by JSON pointers (RFC 6901), and `loads` puts them back:

    {"round": 3, "loss": null, "nonfinite": {"/loss": "NaN"}}

`loads` also reads bare words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from undrift.untrusted import parse_json

NOTES = "nonfinite"
_WORDS = ("NaN", "Infinity", "-Infinity")


def dumps(value: Any, **options: Any) -> str:
    """Return JSON with null for every number that JSON lacks; options are those of `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value, "", {}), allow_nan=False, **options)


def dumps_exactly(values: Mapping[str, Any], **options: Any) -> str:
    """Return a JSON object for `loads`, with notes where a number became null."""
    try:
        return json.dumps(values, allow_nan=False, **options)
    except ValueError:
        notes: dict[str, str] = {}
        finite = _finite(values, "", notes)
        return json.dumps({**finite, NOTES: notes}, allow_nan=False, **options)


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text with the numbers of its notes, or raise `ValueError`."""
    value = parse_json(text)
    notes = value.pop(NOTES, {}) if isinstance(value, dict) else {}
    if not isinstance(notes, dict):
        raise ValueError(f"{NOTES!r} is no object")
    for pointer, word in notes.items():
        if word not in _WORDS:
            raise ValueError(f"{NOTES!r} has {word!r}, which is not among {', '.join(_WORDS)}")
        _put(value, pointer, float(word))
    return value


def _finite(value: Any, pointer: str, notes: dict[str, str]) -> Any:
    """Return the value with None for NaN and infinities, and add a note for each of them."""
    if isinstance(value, float) and not math.isfinite(value):
        notes[pointer] = json.dumps(float(value))  # the bare word as text
        return None
    if isinstance(value, Mapping):
        return {
            key: _finite(each, f"{pointer}/{_escaped(key)}", notes) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_finite(each, f"{pointer}/{place}", notes) for place, each in enumerate(value)]
    return value


def _escaped(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _put(value: Any, pointer: str, number: float) -> None:
    """Replace a null by a number, or raise `ValueError` if the pointer leads to no null."""
    try:
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]
        ]
        for part in path:
            value = value[_key(value, part)]
        key = _key(value, last)
        null = value[key] is None
    except (LookupError, TypeError, ValueError):
        null = False
    if not null:
        raise ValueError(f"{NOTES!r} names {pointer!r}, where there is no null")
    value[key] = number


def _key(value: Any, part: str) -> int | str:
    return int(part) if isinstance(value, list) else part
