"""Hashes of the functions of a user's own classes, by which processes see that they differ."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType
from typing import Any

_OTHERS = ("undrift", "torch", "builtins", "abc", "typing")  # packages that are no user's own


def functions_of(value: Any) -> dict[str, str]:
    """Return by name a hash of each function of a method's classes that lie outside undrift.

    The classes are those of the object, of its dataclass fields, and all of their bases. What these
    functions call elsewhere is not looked at.
    """
    classes = dict.fromkeys(base for part in _parts(value) for base in type(part).__mro__)
    found = {}
    for cls in classes:
        if cls.__module__.partition(".")[0] not in _OTHERS:
            for name, function in _functions(cls):
                digest = hashlib.blake2b(_code(function), digest_size=6).hexdigest()
                found[f"{cls.__qualname__}.{name}"] = digest
    return found


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from _parts(getattr(value, field.name, None))


def _functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    for name, member in vars(cls).items():
        for inner in ("__func__", "fget", "func"):  # of class and static methods, and properties
            member = getattr(member, inner, member)
        if isinstance(member, FunctionType) and member.__module__ == cls.__module__:
            generated = name.startswith("__") and not _has_source(member)  # as by dataclasses
            if not generated:
                yield name, member


def _has_source(function: FunctionType) -> bool:
    try:
        return bool(inspect.getsource(function))
    except (OSError, TypeError):
        return False


def _code(function: FunctionType) -> bytes:
    """Return the source; of a function without one, such as one of `exec`, its instructions."""
    if _has_source(function):
        return inspect.getsource(function).encode()
    code = function.__code__
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code + repr((code.co_names, constants)).encode()
