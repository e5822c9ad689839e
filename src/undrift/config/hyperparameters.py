"""A method by name: its hyper-parameters, as text or values, and the algorithm they make."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import undrift.algorithms as library
from undrift.algorithms.accelerated import Accelerated
from undrift.algorithms.compressed import Compressed
from undrift.check import nearest, require
from undrift.comm.codecs import QSGD, ScaledSign, TopK
from undrift.core import Federated, Peer
from undrift.optim.rules import Rule
from undrift.optim.rules import parse as parse_rule
from undrift.optim.schedules import Schedule
from undrift.optim.schedules import parse as parse_number

METHODS: dict[str, type] = {cls.__name__.lower(): cls for cls in library.ALGORITHMS}
DEFAULT_LR = 0.1


def known(name: str) -> type:
    """The class of a method of the library, or of one's own: `module:Class`, `file.py:Class`."""
    if ":" in name:
        return imported(name)
    if name.lower() not in METHODS:
        raise ValueError(
            f"A method needs a name that undrift list shows, or module:Class, got {name!r}"
            f"{nearest(name, METHODS)}."
        )
    return METHODS[name.lower()]


def imported(text: str) -> type:
    """A method's class by `module:Class` or `folder/file.py:Class`."""
    cls = found(text, "A method")
    fits = isinstance(cls, type) and issubclass(cls, Federated | Peer) and is_dataclass(cls)
    require(fits, "A method", "a dataclass derived from Federated, Gossip or AllReduce", cls)
    made: type = cls
    return made


def found(text: str, who: str) -> Any:
    """What `module:Name` or `folder/file.py:Name` is, looked for from the current folder."""
    place, _, name = text.rpartition(":")
    require(bool(place and name), who, "its name, or module:Class", text)
    try:
        module = (
            _from_file(Path(place).resolve(), who) if place.endswith(".py") else _from_path(place)
        )
    except ValueError:
        raise
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{who} needs an importable module, got {place!r}: {error}; start from its folder."
        ) from error
    except Exception as error:  # whatever a module of one's own may do when it is read
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{who} needs an importable module, got {place!r}: {why}.") from error
    named = getattr(module, name, None)
    if named is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ValueError(f"{place} has no {name!r}{nearest(name, classes)}.")
    return named


def _from_path(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


@lru_cache(maxsize=64)  # one class however often it is asked for
def _from_file(path: Path, who: str) -> Any:
    require(path.is_file(), who, "a file that is there", str(path))
    # Two files may have the same name in different folders.
    name = f"undrift_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{who} needs a Python file, got {str(path)!r}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def build(cls: type, given: Mapping[str, Any]) -> Any:
    """The algorithm with these hyper-parameters, each a value or its text."""
    require_names(cls, given)
    hints = get_type_hints(cls)
    values = {name: _value(cls, name, hints[name], given[name]) for name in given}
    missing = [field.name for field in fields(cls) if _required(field) and field.name not in given]
    if "lr" in missing:
        values["lr"] = DEFAULT_LR
        missing.remove("lr")
    if missing:
        names = " and ".join(missing)
        raise ValueError(f"{cls.__name__} needs {names}, got nothing; give a value.")
    abstract = sorted(getattr(cls, "__abstractmethods__", ()))
    require(not abstract, cls.__name__, f"the methods {', '.join(abstract)}", "none of them")
    return cls(**values)


def require_names(cls: type, given: Iterable[str]) -> None:
    """Refuse hyper-parameters that a method has not."""
    names = [field.name for field in fields(cls) if field.init]
    for name in given:
        if name not in names:
            raise ValueError(
                f"{cls.__name__} has no {name!r}{nearest(name, names)}; it has {', '.join(names)}."
            )


def _required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def hyper_parameters(algorithm: Any) -> dict[str, Any]:
    """All of an algorithm's hyper-parameters as TOML has them; None is left out where it is meant
    by saying nothing, and 'none' elsewhere."""
    found = {}
    for field in fields(algorithm):
        if not field.init:
            continue
        value = getattr(algorithm, field.name)
        if value is not None:
            told = as_text(value)
            if isinstance(told, bool | int | float | str):
                found[field.name] = told
            elif _required(field) or value != field.default:
                name, kind = type(algorithm).__name__, "a number, text, a schedule or a rule"
                require(False, f"{name}'s {field.name}", f"{kind} to be written down", value)
        elif field.default is not None:
            found[field.name] = "none"
    return found


def as_text(value: Any) -> Any:
    """Schedules and rules, also in lists and tables, as the text that TOML has for them."""
    if isinstance(value, Mapping):
        return {key: as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(each) for each in value]
    if isinstance(value, Schedule):
        named, remedy = not value.anonymous, "use exponential or piecewise"
        require(named, "An experiment", "schedules that can be written down", value.text, remedy)
        return value.text
    rule = callable(value) and hasattr(value, "init") and not isinstance(value, type)
    return str(value) if rule else value


def without_none(annotation: Any) -> tuple[Any, bool]:
    """The type without None, and whether None was allowed."""
    several = get_origin(annotation) in (Union, UnionType)
    kinds = get_args(annotation) if several else (annotation,)
    return next(kind for kind in kinds if kind is not NoneType), NoneType in kinds


def can_be_none(cls: type, name: str) -> bool:
    """Whether a hyper-parameter takes None, or 'none' as one of its words."""
    kind, optional = without_none(get_type_hints(cls)[name])
    return optional or "none" in get_args(kind)


def _value(cls: type, name: str, annotation: Any, given: Any) -> Any:
    kind, optional = without_none(annotation)
    if optional and (given is None or (isinstance(given, str) and given.lower() == "none")):
        return None
    try:
        return _parsed(kind, given)
    except ValueError as error:
        needs = str(error).partition(" needs ")[2] or str(error)
        raise ValueError(f"{cls.__name__}'s {name} needs {needs}") from error


def _parsed(kind: Any, given: Any) -> Any:
    if kind is bool:
        return _truth(given)
    if kind is float:
        return _number(given)
    if kind is int:
        return _whole(given)
    if kind is Rule:
        require(isinstance(given, str), "It", "a rule such as momentum:0.9", given)
        return parse_rule(given)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if given not in choices:
            near = nearest(str(given), map(str, choices))
            raise ValueError(
                f"It needs one of {', '.join(map(str, choices))}, got {given!r}{near}."
            )
    return given


def _truth(given: Any) -> bool:
    if isinstance(given, str) and given.lower() in ("true", "false"):
        return given.lower() == "true"
    require(isinstance(given, bool), "It", "true or false", given)
    return bool(given)


def _number(given: Any) -> float:
    """A number, also in words; a schedule is one, too."""
    if isinstance(given, str):
        return parse_number(given)
    number = isinstance(given, int | float) and not isinstance(given, bool)
    require(number, "It", "a number or a schedule such as exponential(0.1, 0.998)", given)
    return given if isinstance(given, Schedule) else float(given)


def _whole(given: Any) -> int:
    """A whole number, also in words."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    if isinstance(given, str):
        whole = given.strip().lstrip("+-").isdecimal()
    require(whole, "It", "a whole number", given)
    return int(given)


def parse_codec(text: str) -> QSGD | ScaledSign | TopK:
    """`qsgd:8` (bits), `scaled-sign`, `top-k:0.01` (a share of the coordinates)."""
    name, _, number = text.partition(":")
    try:
        if name == "qsgd":
            return QSGD(bits=int(number or 8))
        if name == "scaled-sign" and not number:
            return ScaledSign()
        if name == "top-k":
            return TopK(fraction=float(number or 0.01))
    except ValueError as error:
        if " needs " in str(error):  # the codec's own words
            raise
    raise ValueError(
        f"codec needs qsgd:BITS, scaled-sign or top-k:FRACTION, got {text!r}"
        f"{nearest(name, ('qsgd', 'scaled-sign', 'top-k'))}."
    )


def wrapped(
    algorithm: Any, *, accelerate: float | None, codec: str | None, error_feedback: bool
) -> Any:
    """The algorithm with accelerated broadcast, compressed uploads, or both."""
    if accelerate is not None:
        algorithm = Accelerated(algorithm, accelerate)
    if error_feedback and codec is None:
        raise ValueError(
            "error_feedback needs a codec beside it, got none; say codec = 'scaled-sign'."
        )
    if codec is not None:
        algorithm = Compressed(algorithm, parse_codec(codec), error_feedback=error_feedback)
    return algorithm
