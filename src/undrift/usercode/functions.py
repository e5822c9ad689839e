"""Source of functions and classes of a user's own, by which processes see that they differ."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType
from typing import Any

_OTHERS = {"undrift", "torch", "numpy", *sys.stdlib_module_names}  # that are no user's own


def functions_of(value: Any) -> dict[str, str]:
    """Return by name a hash of each function of a method's classes that lie outside undrift.

    The classes are those of the object, of its dataclass fields, and all of their bases. What these
    functions call elsewhere is not looked at.
    """
    classes = dict.fromkeys(base for part in _parts(value) for base in type(part).__mro__)
    found = {}
    for cls in filter(is_own, classes):
        for name, member in members_of(cls).items():
            if isinstance(member, FunctionType) and member.__module__ == cls.__module__:
                digest = hashlib.blake2b(source_of(member).encode(), digest_size=6).hexdigest()
                found[f"{cls.__qualname__}.{name}"] = digest
    return found


def is_own(thing: Any) -> bool:
    """Return whether a class or function is of no package that others have alike."""
    module = str(getattr(thing, "__module__", "builtins"))
    return module.partition(".")[0] not in _OTHERS


def members_of(cls: type) -> dict[str, Any]:
    """Return what a class has written itself by name, functions without their decorators."""
    members = {name: _unwrapped(member) for name, member in vars(cls).items()}
    return {name: member for name, member in members.items() if _is_written(cls, name, member)}


def source_of(function: FunctionType) -> str:
    """Return the source of a function, or its instructions where there is none.

    A lambda is described by its instructions, because its line may hold others, and more.
    """
    if function.__name__ != "<lambda>":
        try:
            return textwrap.dedent(inspect.getsource(function.__code__))
        except (OSError, TypeError):
            pass
    return _instructions(function.__code__)


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from _parts(getattr(value, field.name, None))


def _unwrapped(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, functools.cached_property):
        return member.func
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _is_written(cls: type, name: str, member: Any) -> bool:
    """Return whether a member is of the class's author, and not made by Python."""
    if not name.startswith("__"):
        return True
    if not isinstance(member, FunctionType):
        return False
    decorated = is_dataclass(cls) or issubclass(cls, tuple)  # whose methods are generated
    return not (decorated and member.__code__.co_filename == "<string>")


def _instructions(code: CodeType) -> str:
    constants = [_constant(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _instructions(value)
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
