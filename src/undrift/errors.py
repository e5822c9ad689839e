"""The errors undrift raises besides `ValueError` for bad arguments."""


class UndriftError(Exception):
    """Root of every error that is not a plain bad argument."""


class DivergenceError(UndriftError):
    """A client produced a non-finite update; the run keeps its last good state."""

    def __init__(self, message: str, *, round: int, clients: list[int]) -> None:
        super().__init__(message)
        self.round = round
        self.clients = clients


class CheckpointError(UndriftError):
    """A checkpoint is missing, damaged, or belongs to another run."""
