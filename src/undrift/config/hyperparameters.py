"""A method by name: its hyper-parameters, as text or values, and the algorithm they make."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import undrift.algorithms as library
from undrift.algorithms.accelerated import Accelerated
from undrift.algorithms.compressed import Compressed
from undrift.check import meant, nearest, require
from undrift.comm.codecs import QSGD, ScaledSign, TopK
from undrift.config.own_methods import made, own_class
from undrift.data.tables.files import is_table
from undrift.field_help import field_help
from undrift.optim.rules import RULES, Rule
from undrift.optim.rules import parse as parse_rule
from undrift.optim.schedules import Schedule
from undrift.optim.schedules import parse as parse_number

METHODS: dict[str, type] = {cls.__name__.lower(): cls for cls in library.ALGORITHMS}
DEFAULT_LR = 0.1


def method_class(name: str) -> type:
    """Return the class of a method of the library, or of one's own as `file.py:Class`."""
    if ":" in name:
        return own_class(name)
    if name.lower() not in METHODS:
        remedy = _file_remedy(name) or nearest(name, METHODS)
        raise ValueError(
            "A method needs a name that undrift list shows, or file.py:Class for your own, got "
            f"{name!r}{remedy}."
        )
    return METHODS[name.lower()]


def _file_remedy(name: str) -> str:
    """Return what to write where the name of a file stands for a method, or ""."""
    suffix = Path(name).suffix.lower()
    if suffix == ".py":
        return f"; name a class of the file: {name}:Class"
    if is_table(name):
        return f"; a table is data: undrift run fedavg --data {name}:target=COLUMN"
    files = (".toml", ".yaml", ".yml", ".json")
    if suffix and (difflib.get_close_matches(suffix, files, n=1) or suffix in files):
        return "; a file with an experiment ends in .toml: undrift init experiment.toml writes one"
    return ""


def summary_of(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


class Parameter(NamedTuple):
    """Describes one hyper-parameter of a method for help, the schema and docs."""

    name: str
    kind: Literal["switch", "whole", "number", "rule", "choice", "other"]
    choices: tuple[str, ...]  # names of rules, or the words of a choice
    optional: bool  # whether it can be none
    default: Any  # MISSING if the method requires a value
    help: str


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a method's fields, which are slow to find out."""
    return get_type_hints(cls)


def parameters_of(cls: type) -> list[Parameter]:
    """Return the hyper-parameters of a method in the order of its fields."""
    hints, texts = _hints(cls), field_help(cls)
    return [
        _parameter(field, hints[field.name], texts.get(field.name, ""))
        for field in fields(cls)
        if field.init
    ]


def _parameter(field: Field[Any], annotation: Any, text: str) -> Parameter:
    """Return the description of one field of a method."""
    kind, optional = without_none(annotation)
    words: dict[Any, Any] = {bool: "switch", int: "whole", float: "number", Rule: "rule"}
    literal = get_origin(kind) is Literal
    name = words.get(kind, "choice" if literal else "other")
    choices = tuple(RULES) if kind is Rule else tuple(map(str, get_args(kind) if literal else ()))
    return Parameter(field.name, name, choices, optional, field.default, text)


def build(cls: type, settings: Mapping[str, Any]) -> Any:
    """Return the algorithm with these hyper-parameters, each a value or its text."""
    require_names(cls, settings)
    hints = _hints(cls)
    values = {name: _value(cls, name, hints[name], settings[name]) for name in settings}
    required = [field.name for field in fields(cls) if _required(field)]
    missing = [name for name in required if name not in settings]
    if "lr" in missing:
        values["lr"] = DEFAULT_LR
        missing.remove("lr")
    if missing:
        names = " and ".join(missing)
        raise ValueError(f"{cls.__name__} needs {names}, got nothing; give a value.")
    abstract = sorted(getattr(cls, "__abstractmethods__", ()))
    require(not abstract, cls.__name__, f"the methods {', '.join(abstract)}", "none of them")
    return made(cls, values)


def require_names(cls: type, names: Iterable[str]) -> None:
    """Raise a ValueError if a method has no hyper-parameter of one of these names."""
    own = [field.name for field in fields(cls) if field.init]
    for name in names:
        if name not in own:
            raise ValueError(
                f"{cls.__name__} has no {name!r}{meant(name, own, 'file')}; it has "
                f"{', '.join(own)}."
            )


def _required(field: Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.init and field.default is MISSING and field.default_factory is MISSING


def hyper_parameters(algorithm: Any) -> dict[str, Any]:
    """Return all hyper-parameters of an algorithm as TOML has them.

    None is left out where it is the default, and is 'none' elsewhere, because TOML has no null.
    """
    values = {}
    for field in fields(algorithm):
        if not field.init:
            continue
        value = getattr(algorithm, field.name)
        if value is not None:
            plain = as_text(value)
            if isinstance(plain, bool | int | float | str):
                values[field.name] = plain
            elif _required(field) or value != field.default:
                name, kind = type(algorithm).__name__, "a number, text, a schedule or a rule"
                require(False, f"{name}'s {field.name}", f"{kind} to be written down", value)
        elif field.default is not None:
            values[field.name] = "none"
    return values


def as_text(value: Any) -> Any:
    """Return a value with schedules and rules, also in lists and tables, as their text in TOML."""
    if isinstance(value, Mapping):
        return {key: as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(each) for each in value]
    if isinstance(value, Schedule):
        named, remedy = (
            not value.anonymous,
            "use exponential, cosine, warmup, staircase or piecewise",
        )
        require(named, "An experiment", "schedules that can be written down", value.text, remedy)
        return value.text
    rule = callable(value) and hasattr(value, "init") and not isinstance(value, type)
    return str(value) if rule else value


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it allowed None."""
    union = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    return next(kind for kind in kinds if kind is not NoneType), NoneType in kinds


def can_be_none(cls: type, name: str) -> bool:
    """Return whether a hyper-parameter takes None, or 'none' as one of its words."""
    kind, optional = without_none(_hints(cls)[name])
    return optional or "none" in get_args(kind)


def _value(cls: type, name: str, annotation: Any, value: Any) -> Any:
    """Return a hyper-parameter's value from a value or its text."""
    kind, optional = without_none(annotation)
    if optional and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    try:
        return _parsed(kind, value)
    except ValueError as error:
        needs = str(error).partition(" needs ")[2] or str(error)
        raise ValueError(f"{cls.__name__}'s {name} needs {needs}") from error


def _parsed(kind: Any, value: Any) -> Any:
    """Return a value of this type from a value or its text."""
    if kind is bool:
        return _truth(value)
    if kind is float:
        return _number(value)
    if kind is int:
        return _integer(value)
    if kind is Rule:
        require(isinstance(value, str), "It", "a rule such as momentum:0.9", value)
        return parse_rule(value)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            near = nearest(str(value), map(str, choices))
            raise ValueError(
                f"It needs one of {', '.join(map(str, choices))}, got {value!r}{near}."
            )
    return value


def _truth(value: Any) -> bool:
    """Return a truth value from one, or from its word."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    require(isinstance(value, bool), "It", "true or false", value)
    return bool(value)


def _number(value: Any) -> float:
    """Return a number, which may be a schedule, from one or from its text."""
    if isinstance(value, str):
        return parse_number(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(number, "It", "a number or a schedule such as exponential(0.1, 0.998)", value)
    return value if isinstance(value, Schedule) else float(value)


def _integer(value: Any) -> int:
    """Return a whole number from one or from its text."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str):
        integer = value.strip().lstrip("+-").isdecimal()
    require(integer, "It", "a whole number", value)
    return int(value)


def parse_codec(text: str) -> QSGD | ScaledSign | TopK:
    """Return the codec that `qsgd:8` (bits), `scaled-sign` or `top-k:0.01` (a share) names.

    `qsgd:8:512` has a norm for each 512 coordinates, `qsgd:8:tensor` one for each tensor.
    """
    name, _, number = text.partition(":")
    try:
        if name == "qsgd":
            number, colon, bucket = number.partition(":")
            return QSGD(bits=int(number or 8), bucket=_bucket(bucket) if colon else None)
        if name == "scaled-sign" and not number:
            return ScaledSign()
        if name == "top-k":
            return TopK(fraction=float(number or 0.01))
    except ValueError as error:
        if " needs " in str(error):  # the codec refused the number with a sentence of its own
            raise
    raise ValueError(
        f"codec needs qsgd:BITS, qsgd:BITS:BUCKET, scaled-sign or top-k:FRACTION, got {text!r}"
        f"{nearest(name, ('qsgd', 'scaled-sign', 'top-k'))}."
    )


def _bucket(text: str) -> int | Literal["tensor"]:
    """Return the bucket of QSGD from its text."""
    return "tensor" if text == "tensor" else int(text)


def apply_wrappers(
    algorithm: Any, *, accelerate: float | None, codec: str | None, error_feedback: bool
) -> Any:
    """Return the algorithm with accelerated broadcast, compressed uploads, or both."""
    if accelerate is not None:
        algorithm = Accelerated(algorithm, accelerate)
    if error_feedback and codec is None:
        raise ValueError(
            "error_feedback needs a codec beside it, got none; say codec = 'scaled-sign'."
        )
    if codec is not None:
        algorithm = Compressed(algorithm, parse_codec(codec), error_feedback=error_feedback)
    return algorithm
