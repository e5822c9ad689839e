"""Imports of code of one's own, with a sentence where they fail."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from undrift.check import nearest, require
from undrift.usercode.names import is_code, place_of, require_trust

_may_import: ContextVar[bool] = ContextVar("may_import", default=True)
# The places whose code may be imported, and the file or folder that names them; None is all code.
_vouched: ContextVar[tuple[frozenset[str], Path] | None] = ContextVar("vouched", default=None)


def may_import() -> bool:
    """Return whether code may be imported here."""
    return _may_import.get()


@contextmanager
def without_imports() -> Iterator[None]:
    """Refuse imports of code within the block, which only reads what others have written."""
    token = _may_import.set(False)
    try:
        yield
    finally:
        _may_import.reset(token)


@contextmanager
def only_code_of(names: Iterable[str], source: Path) -> Iterator[None]:
    """Refuse within the block all code but that of the names, which somebody has vouched for.

    `source` is the file that is read meanwhile, or the folder that is gone on with.
    """
    token = _vouched.set((frozenset(_whole_place(name) for name in names), source))
    try:
        yield
    finally:
        _vouched.reset(token)


def _whole_place(name: str) -> str:
    """Return the module of a name, or its file as it is on disk."""
    place = place_of(name)
    return str(Path(place).resolve()) if place.endswith(".py") else place


def import_object(text: str, who: str) -> Any:
    """Return the object that `module:Name` or `folder/file.py:Name` names.

    Modules are looked for in the current folder, too; `who` begins the sentence of an error.
    """
    place, _, name = text.rpartition(":")
    remedy = "without spaces at its ends, commas or anything behind the name"
    require(is_code(text), who, "its name, or file.py:NAME or module:NAME", text, remedy)
    require(may_import(), who, "code that may be run", text, "a report only reads")
    vouched = _vouched.get()
    if vouched is not None and _whole_place(text) not in vouched[0]:
        require_trust([text], False, vouched[1])
    try:
        if place.endswith(".py"):
            module = _import_file(Path(place).resolve())
        else:
            module = _import_from_here(place)
    except ValueError:
        raise
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{who} needs an importable module, got {place!r}: {error}; start from its folder."
        ) from error
    except FileNotFoundError as error:
        got = str(error) if Path(place).is_file() else place
        raise ValueError(f"{who} needs a file that is there, got {got!r}.") from error
    except Exception as error:  # a user's module may raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{who} needs an importable module, got {place!r}: {reason}.") from error
    value = getattr(module, name, None)
    if value is None:
        public = [key for key, each in vars(module).items() if callable(each) and key[0] != "_"]
        raise ValueError(f"{place} has no {name!r}{nearest(name, public)}.")
    return value


def _import_from_here(name: str) -> Any:
    """Return a module, which may lie in the current folder."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


@lru_cache(maxsize=64)  # a file that is named twice must give the same class
def _import_file(path: Path) -> Any:
    """Return the module that a Python file makes; it may import others that lie beside it."""
    # The hash is part of the name, because two folders may have files of the same name.
    name = f"undrift_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"An import needs a Python file, got {str(path)!r}.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
