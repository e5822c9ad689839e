"""JSON that every reader takes, also of runs whose loss is no longer a number.

Python writes NaN and infinities as bare words, which no other reader knows. Here they are null.
A null may also say that nothing was measured, so what is read back notes beside the values which
of them were what, by JSON pointers (RFC 6901), and `loads` puts them back:

    {"round": 3, "loss": null, "nonfinite": {"/loss": "NaN"}}

Files with bare words, as earlier versions wrote them, are read all the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

NOTES = "nonfinite"


def dumps(value: Any, **options: Any) -> str:
    """For others to read: null for every number that JSON lacks; options as of `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value, "", {}), allow_nan=False, **options)


def dumps_exactly(values: Mapping[str, Any], **options: Any) -> str:
    """An object for `loads`, with notes where some number is null."""
    try:
        return json.dumps(values, allow_nan=False, **options)
    except ValueError:
        notes: dict[str, str] = {}
        finite = _finite(values, "", notes)
        return json.dumps({**finite, NOTES: notes}, allow_nan=False, **options)


def loads(text: str | bytes) -> Any:
    value = json.loads(text)
    notes = value.pop(NOTES, {}) if isinstance(value, dict) else {}
    for pointer, word in dict(notes).items():
        _put(value, pointer, float(word))
    return value


def _finite(value: Any, pointer: str, notes: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        notes[pointer] = json.dumps(float(value))  # the bare word, which is text here
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
    """Instead of a null; a pointer that leads to none, as in an edited file, is a ValueError."""
    try:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        for part in way:
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
