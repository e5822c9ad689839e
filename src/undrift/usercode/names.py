"""Names of code, `module:Name` or `folder/file.py:Name`, and whether they may be run.

A name that a person types on the command line or in a program is run. One that stands in a file or
a folder of results is run only if the person says so, because whoever has written the file would
otherwise decide what runs on this machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OWN = "own:"  # begins the name of data and of a model that a program hands over as objects
CODE_FIELDS = (  # of an experiment, besides the names of methods and the metrics
    ("model", "name"),
    ("data", "name"),
    ("data", "transformer"),
    ("training", "loss"),
)
# A module, or a file whose path may have inner spaces; a comma separates the names of a list.
_FORM = re.compile(r"(?:[\w.-]+|[^\s:,](?:[^:,\n]*[^\s:,])?\.py):[A-Za-z_]\w*(?:\.\w+)*")
Trust = bool | Collection[str]  # all code, none, or that of these places


def is_code(name: str) -> bool:
    """Return whether a name is one of code; `resnet18-gn:stem=7` is none."""
    return _FORM.fullmatch(name) is not None and not name.startswith(OWN)


def place_of(name: str) -> str:
    """Return the module or file of a name."""
    return name.rpartition(":")[0]


def absolute_name(name: str, folder: Path) -> str:
    """Return the name; `file.py:Name` gets the absolute path if the folder has the file."""
    place, _, last = name.rpartition(":")
    is_file = place.endswith(".py") and (folder / place).is_file()
    return f"{(folder / place).absolute()}:{last}" if is_file else name


def code_in(values: Mapping[str, Any]) -> list[str]:
    """Return the names of code in the values of an experiment, those of its sweep included."""
    names = [table[field] for table, field in code_fields(values)]
    names += _swept(values.get("sweep"))
    evaluation = values.get("evaluation")
    metrics = evaluation.get("metrics") if isinstance(evaluation, Mapping) else None
    names += [metrics] if isinstance(metrics, str) else _tables(metrics)
    parts = (part for name in names if isinstance(name, str) for part in listed(name))
    return list(dict.fromkeys(filter(is_code, parts)))


def listed(text: str) -> list[str]:
    """Return the parts of a list in one text, such as `accuracy, mine.py:f`."""
    return [part.strip() for part in text.split(",")]


def code_fields(values: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the tables of an experiment and their fields that may name code."""
    named = [(table, "name") for table in _tables(values.get("methods"))]
    named += [(values.get(section), field) for section, field in CODE_FIELDS]
    for table, field in named:
        if isinstance(table, Mapping) and isinstance(table.get(field), str):
            yield table, field


def _tables(methods: Any) -> list[Any]:
    return list(methods) if isinstance(methods, list | tuple) else []


def _swept(values: Any, key: str = "") -> Iterator[Any]:
    """Yield the values that a sweep has for fields called `name`."""
    if isinstance(values, Mapping):
        for inner, value in values.items():
            yield from _swept(value, str(inner))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _swept(value, key)
    elif key.endswith(("metrics", *(field for _, field in CODE_FIELDS))):
        yield values


def require_trust(names: Sequence[str], trust: Trust, path: Path) -> None:
    """Raise `ValueError` for the first name that a file holds and nobody has vouched for."""
    for name in names:
        place = place_of(name)
        if trust is True or (not isinstance(trust, bool) and place in trust):
            continue
        raise ValueError(
            f"{path} needs your trust before its code is run, got {name!r}; read {place} and say "
            "--trust (trust=True in Python), or name the same path on the command line."
        )


def places_in(words: Sequence[str]) -> set[str]:
    """Return the places of all code that the words of a command line name, with absolute paths."""
    parts = (
        part
        for word in words  # A path may have spaces and =, so that the whole word is looked at, too.
        for part in (word, word.partition("=")[2], *re.split(r"[=,\s]+", word))
    )
    names = (name for part in parts for name in (part, ":".join(part.split(":")[:2])))
    absolute = (absolute_name(name, Path()) for name in names if is_code(name))
    return {place_of(name) for name in absolute}


def digests(names: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of the file of each name's place; a place without a file has none."""
    files = {place_of(name): _file(place_of(name)) for name in names}
    return {
        place: hashlib.sha256(file.read_bytes()).hexdigest()
        for place, file in files.items()
        if file is not None and file.is_file()
    }


def _file(place: str) -> Path | None:
    """Return the file of a module or path."""
    if place.endswith(".py"):
        return Path(place)
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def require_unchanged(recorded: Mapping[str, str], names: Sequence[str], folder: Path) -> None:
    """Raise `ValueError` if a file of code is not the one that the results were made with."""
    for place, digest in digests(names).items():
        before = recorded.get(place, digest)
        if before != digest:
            raise ValueError(
                f"{folder} needs {place} as it was when the run began (SHA-256 {before[:12]}...), "
                f"got another ({digest[:12]}...); restore it, or start anew in another folder."
            )
