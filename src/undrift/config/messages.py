"""One sentence for what pydantic finds wrong: the field, what it needs, and what it got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from undrift.check import meant, nearest

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text",
    "string_too_short": "text that is not empty",
    "list": "a list",
    "too_short": "a list with a value at least",
    "dict": "a table",
    "model": "a table",
    "path": "a path",
}
_LIMITS = {
    "greater_than_equal": ("ge", "a number >= {}"),
    "greater_than": ("gt", "a number > {}"),
    "less_than_equal": ("le", "a number <= {}"),
    "less_than": ("lt", "a number < {}"),
}
_UNION_MEMBERS = ("int", "float", "list[", "function-")  # pydantic's names for them


def describe_validation_error(error: ValidationError, root: type[BaseModel]) -> str:
    """Return a sentence on the first error, and on how many other fields have errors.

    An unknown name is the first error, because a user who mistypes a name also lacks a field.
    """
    errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    places = [_place(each["loc"]) for each in errors]
    others = len(set(places)) - 1
    more = (
        f" ({others} more {'fields do' if others > 1 else 'field does'} not fit)" if others else ""
    )
    first = [each for each, place in zip(errors, places, strict=True) if place == places[0]]
    return _sentence(places[0], first, root).removesuffix(".") + f"{more}."


def _sentence(place: tuple[str, ...], errors: Sequence[Mapping[str, Any]], root: Any) -> str:
    """Return the sentence on one field's errors; a field of several types has several."""
    first = errors[0]
    kind, name, got = first["type"], _dotted(place), first["input"]
    if kind == "value_error":
        return _with_section(str(first["ctx"]["error"]), place)
    if kind == "extra_forbidden":
        owner, names = _owner(place, root)
        return unknown_name(owner, place[-1], names, root)
    if kind == "missing":
        return f"{name} needs to be given, got nothing; add it."
    if kind == "literal_error":
        choices = [str(choice) for choice in _choices(first["ctx"]["expected"])]
        return f"{name} needs one of {', '.join(choices)}, got {got!r}{nearest(str(got), choices)}."
    kinds = dict.fromkeys(_expected(each) for each in errors)
    if "a number" in kinds:
        kinds.pop("a whole number", None)  # "a number" includes it.
    expected = " or ".join(kinds)
    return f"{name} needs {expected}, got {got!r}{_remedy(errors, got)}."


def unknown_name(owner: str, name: str, names: Iterable[str], root: Any) -> str:
    """Return the sentence on a name that a section or a method of an experiment does not have."""
    own = list(names)
    sections = {
        section: field.annotation.model_fields
        for section, field in root.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    other = [f"{section}.{name}" for section in sections if name in sections[section]]
    clause = f"; it is {' or '.join(other)}" if other else meant(name, own, "file")
    return f"{owner} has no {name!r}{clause}; it has {', '.join(own)}."


def _expected(error: Mapping[str, Any]) -> str:
    kind = error["type"]
    if kind in _LIMITS:
        limit, text = _LIMITS[kind]
        return text.format(error["ctx"][limit])
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    return _KINDS.get(stem, str(error["msg"]).removeprefix("Input should be "))


def _remedy(errors: Sequence[Mapping[str, Any]], got: Any) -> str:
    kinds = {each["type"] for each in errors}
    if "list_type" in kinds and isinstance(got, Mapping):
        return "; write its name in double brackets, as in [[methods]]"
    if "string_type" in kinds and isinstance(got, int | float):
        return "; put it in quotes"
    if kinds & {"int_type", "float_type", "bool_type"} and isinstance(got, str) and _bare(got):
        return "; leave the quotes out"
    return ""


def _bare(text: str) -> bool:
    """Return whether text would be a number, true or false without its quotes."""
    try:
        float(text)
    except ValueError:
        return text in ("true", "false")
    return True


def _choices(expected: str) -> list[str]:
    """Return the words of "'auto', 'loop' or 'stacked'"."""
    return [word.strip("' ") for word in expected.replace(" or ", ", ").split(", ")]


def _with_section(sentence: str, place: tuple[str, ...]) -> str:
    """Return a field's own sentence with the section before the field's name."""
    if len(place) > 1 and sentence.startswith(f"{place[-1]} "):
        return f"{_dotted(place[:-1])}.{sentence}"
    return sentence


def _place(loc: Sequence[Any]) -> tuple[str, ...]:
    """Return the field's place, without pydantic's names for the members of a union."""
    parts = [str(part) for part in loc]
    while len(parts) > 1 and parts[-1].startswith(_UNION_MEMBERS):
        parts.pop()
    return tuple(parts)


def _dotted(place: Sequence[str]) -> str:
    """Return a place as Python writes it: `methods[0].lr`."""
    text = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in place)
    return text.removeprefix(".")


def _owner(place: tuple[str, ...], root: Any) -> tuple[str, list[str]]:
    """Return the section that should have a name, and the names that it has."""
    kind = root
    for part in place[:-1]:
        field = kind.model_fields.get(part)
        inner = None if field is None else field.annotation
        kind = inner if isinstance(inner, type) else kind
    root_name = "An experiment" if root.__name__ == "Experiment" else f"A {root.__name__.lower()}"
    return _dotted(place[:-1]) or root_name, list(kind.model_fields)
