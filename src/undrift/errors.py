"""The errors undrift raises besides `ValueError`, and imports that fail with a sentence."""

import hashlib
import importlib
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from undrift.check import nearest, require


class UndriftError(Exception):
    """Root of every error that is not a plain bad argument."""


class DivergenceError(UndriftError):
    """A client produced a non-finite update; the run keeps its last good state."""

    def __init__(
        self, message: str, *, round: int, clients: list[int], everywhere: bool = False
    ) -> None:
        super().__init__(message)
        self.round = round
        self.clients = clients
        self.everywhere = everywhere  # whether all processes of the run raise it alike

    @classmethod
    def of(
        cls, clients: list[int], round: int, what: str, *, everywhere: bool = False
    ) -> "DivergenceError":
        """Return the error that names the clients whose updates, messages or models are bad."""
        who = f"client {clients[0]}" if len(clients) == 1 else f"clients {clients}"
        return cls(
            f"Training needs finite {what}, got NaN or Inf from {who} in round {round}; "
            "lower lr or set clip. The last good state is kept.",
            round=round,
            clients=clients,
            everywhere=everywhere,
        )


class StallWarning(UserWarning):
    """Says that the loss of a run has not moved from its start, and what may keep it there."""


class UnsupportedError(Exception):
    """Says in a few words what compiled code cannot do; whoever asked does it without."""


class CheckpointError(UndriftError):
    """A checkpoint is missing, damaged, or belongs to another run."""


class DataError(UndriftError):
    """A data set is missing, damaged, or not what its name says."""


class WorkerError(UndriftError):
    """Another process of the run failed, left or does not answer; `ranks` says which.

    `final` says that it failed for a reason that would come again.
    """

    def __init__(self, message: str, *, ranks: list[int], final: bool = False) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.final = final


def optional(name: str, who: str, extra: str, package: str = "") -> Any:
    """Return a module of an optional package, or raise `UndriftError` with the extra to install.

    `package` is the name under which the package is installed, where its modules have another.
    """
    try:
        return _import(name)
    except ImportError as error:
        raise UndriftError(
            f"{who} needs the package {package or name.partition('.')[0]}, which is not installed; "
            f"pip install 'undrift[{extra}]'."
        ) from error


def import_object(text: str, who: str) -> Any:
    """Return the object that `module:Name` or `folder/file.py:Name` names.

    Modules are looked for in the current folder, too; `who` begins the sentence of an error.
    """
    place, _, name = text.rpartition(":")
    require(bool(place and name), who, "its name, or module:Class", text)
    try:
        if place.endswith(".py"):
            module = _import_file(Path(place).resolve(), who)
        else:
            module = _import_from_here(place)
    except ValueError:
        raise
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{who} needs an importable module, got {place!r}: {error}; start from its folder."
        ) from error
    except Exception as error:  # a user's module may raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{who} needs an importable module, got {place!r}: {reason}.") from error
    value = getattr(module, name, None)
    if value is None:
        classes = [key for key, each in vars(module).items() if isinstance(each, type)]
        raise ValueError(f"{place} has no {name!r}{nearest(name, classes)}.")
    return value


def _import_from_here(name: str) -> Any:
    """Return a module, which may lie in the current folder."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


@lru_cache(maxsize=64)  # a file that is named twice must give the same class
def _import_file(path: Path, who: str) -> Any:
    """Return the module that a Python file makes."""
    require(path.is_file(), who, "a file that is there", str(path))
    # The hash is part of the name, because two folders may have files of the same name.
    name = f"undrift_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{who} needs a Python file, got {str(path)!r}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def import_or_none(name: str) -> Any:
    """Return a module of an optional package, or None where that is not installed."""
    try:
        return _import(name)
    except ImportError:
        return None


def _import(name: str) -> Any:
    importlib.import_module(name.partition(".")[0])  # a loaded module may outlive its package
    return importlib.import_module(name)


def first_line(error: BaseException, *, named: bool = False) -> str:
    """Return the first line of an error's message without its full stop, to quote it in a sentence.

    The error's type stands before the line if it is to be `named`, and alone without a message.
    """
    name = type(error).__name__
    line = (str(error).strip().splitlines() or [""])[0].rstrip(" .:")
    if not line:
        return name
    return f"{name}: {line}" if named else line
