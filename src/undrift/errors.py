"""The errors undrift raises besides `ValueError` for bad arguments."""

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
        """These clients' updates, messages or models are not finite."""
        who = f"client {clients[0]}" if len(clients) == 1 else f"clients {clients}"
        return cls(
            f"Training needs finite {what}, got NaN or Inf from {who} in round {round}; "
            "lower lr or set clip. The last good state is kept.",
            round=round,
            clients=clients,
            everywhere=everywhere,
        )


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


def optional(name: str, who: str, extra: str) -> Any:
    """A module of an optional package; where it is not installed, a sentence with the extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UndriftError(
            f"{who} needs the package {name.partition('.')[0]}, which is not installed; "
            f"pip install 'undrift[{extra}]'."
        ) from error


def first_line(error: BaseException, *, named: bool = False) -> str:
    """Return the first line of an error's message without its full stop, to quote it in a sentence.

    The error's type stands before the line if it is to be `named`, and alone without a message.
    """
    name = type(error).__name__
    line = (str(error).strip().splitlines() or [""])[0].rstrip(" .:")
    if not line:
        return name
    return f"{name}: {line}" if named else line
