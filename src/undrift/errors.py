"""The errors undrift raises besides `ValueError`, and imports that fail with a sentence."""

import importlib
from typing import Any


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


class TaskWarning(UserWarning):
    """Says that a target of two numbers is predicted as a number, since no task was said."""


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
