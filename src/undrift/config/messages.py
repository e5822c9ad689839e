"""What pydantic found wrong, as one sentence with the field, what it needs, and what it got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from undrift.check import nearest

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
_MEMBERS = ("int", "float", "list[", "function-")  # of unions, as pydantic calls them


def describe_validation_error(error: ValidationError, root: type[BaseModel]) -> str:
    """The first thing that is wrong; of the others, how many fields they concern."""
    # A name that is not known comes first: what is missing may be meant by it.
    found = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    places = [_place(each["loc"]) for each in found]
    others = len(set(places)) - 1
    more = (
        f" ({others} more {'fields do' if others > 1 else 'field does'} not fit)" if others else ""
    )
    alike = [each for each, place in zip(found, places, strict=True) if place == places[0]]
    return _sentence(places[0], alike, root).removesuffix(".") + f"{more}."


def _sentence(place: tuple[str, ...], found: Sequence[Mapping[str, Any]], root: Any) -> str:
    """`found` are a field's errors: several where it takes several types."""
    first = found[0]
    kind, name, got = first["type"], _dotted(place), first["input"]
    if kind == "value_error":
        return _with_section(str(first["ctx"]["error"]), place)
    if kind == "extra_forbidden":
        owner, names = _owner(place, root)
        return (
            f"{owner} has no {place[-1]!r}{nearest(place[-1], names)}; it has {', '.join(names)}."
        )
    if kind == "missing":
        return f"{name} needs to be given, got nothing; add it."
    if kind == "literal_error":
        choices = [str(choice) for choice in _choices(first["ctx"]["expected"])]
        return f"{name} needs one of {', '.join(choices)}, got {got!r}{nearest(str(got), choices)}."
    kinds = dict.fromkeys(_expected(each) for each in found)
    if "a number" in kinds:
        kinds.pop("a whole number", None)  # which is one
    expected = " or ".join(kinds)
    return f"{name} needs {expected}, got {got!r}{_remedy(found, got)}."


def _expected(error: Mapping[str, Any]) -> str:
    kind = error["type"]
    if kind in _LIMITS:
        limit, text = _LIMITS[kind]
        return text.format(error["ctx"][limit])
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    return _KINDS.get(stem, str(error["msg"]).removeprefix("Input should be "))


def _remedy(found: Sequence[Mapping[str, Any]], got: Any) -> str:
    kinds = {each["type"] for each in found}
    if "list_type" in kinds and isinstance(got, Mapping):
        return "; write its name in double brackets, as in [[methods]]"
    if "string_type" in kinds and isinstance(got, int | float):
        return "; put it in quotes"
    if kinds & {"int_type", "float_type", "bool_type"} and isinstance(got, str) and _bare(got):
        return "; leave the quotes out"
    return ""


def _bare(text: str) -> bool:
    """Whether text would be a number or true or false without its quotes."""
    try:
        float(text)
    except ValueError:
        return text in ("true", "false")
    return True


def _choices(expected: str) -> list[str]:
    """The words of "'auto', 'loop' or 'stacked'"."""
    return [word.strip("' ") for word in expected.replace(" or ", ", ").split(", ")]


def _with_section(said: str, place: tuple[str, ...]) -> str:
    """A field's own sentence begins with its bare name; here it stands in a section."""
    if len(place) > 1 and said.startswith(f"{place[-1]} "):
        return f"{_dotted(place[:-1])}.{said}"
    return said


def _place(loc: Sequence[Any]) -> tuple[str, ...]:
    """Where it is, without pydantic's names for the members of a union."""
    parts = [str(part) for part in loc]
    while len(parts) > 1 and parts[-1].startswith(_MEMBERS):
        parts.pop()
    return tuple(parts)


def _dotted(place: Sequence[str]) -> str:
    """`methods[0].lr`, as one would write it in Python."""
    text = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in place)
    return text.removeprefix(".")


def _owner(place: tuple[str, ...], root: Any) -> tuple[str, list[str]]:
    """The section that a name was looked for in, and the names it has."""
    kind = root
    for part in place[:-1]:
        field = kind.model_fields.get(part)
        inner = None if field is None else field.annotation
        kind = inner if isinstance(inner, type) else kind
    whole = "An experiment" if root.__name__ == "Experiment" else f"A {root.__name__.lower()}"
    return _dotted(place[:-1]) or whole, list(kind.model_fields)
