"""Columns that the sites of a run have agreed on: they are part of the run's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from undrift.config.experiment import Experiment
from undrift.data.tables.preprocessing import Preprocessing
from undrift.deployment.plan import agreement_digest
from undrift.errors import CheckpointError, DataError
from undrift.federation import SiteTransport, agree_columns
from undrift.federation.columns import tell_columns
from undrift.files import write_atomic
from undrift.results.filenames import AGREED
from undrift.results.strictjson import dumps_exactly
from undrift.untrusted import read_json

PATIENCE = 60.0  # seconds in which a site that is told again must answer


@dataclass(frozen=True)
class RunColumns:
    """Holds the columns of a run, and the bytes of the exchange in which they were agreed on."""

    columns: Preprocessing
    digest: str  # of the experiment without columns, which the sites have accepted
    bytes_up: int
    bytes_down: int

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        folder: Path,
        transport: SiteTransport,
        say: Callable[[str], None],
    ) -> RunColumns:
        """Return what the folder of a run has, or let the connected sites agree and write it."""
        digest, path = agreement_digest(experiment), folder / AGREED
        if path.is_file():
            kept = _kept(path, digest)
            # Members know the columns. One that does not answer now is left out of a round.
            for reason in kept.tell(transport, sorted(transport.sites())).values():
                say(reason)
            return kept
        data = experiment.data
        assert data.target is not None  # which `resolved` has checked
        agreed = agree_columns(transport, data.target, missing=data.missing, digest=digest)
        columns = agreed.columns
        say(f"Sites have agreed on {len(columns.features)} features, by {agreed.bytes_up} bytes.")
        made = cls(columns, digest, agreed.bytes_up, agreed.bytes_down)
        write_atomic(path, made._to_json())
        return made

    @property
    def cost(self) -> dict[str, int]:
        """Return the bytes of the exchange, for the facts of a trial."""
        return {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}

    def tell(
        self, transport: SiteTransport, names: Sequence[str], seconds: float = PATIENCE
    ) -> dict[str, str]:
        """Tell sites the columns; return those that have not taken them, with the reason."""
        return tell_columns(transport, names, self.columns, self.digest, seconds=seconds)

    def _to_json(self) -> str:
        values = {"experiment": self.digest, **self.cost, "columns": self.columns.to_json()}
        return dumps_exactly(values, indent=1) + "\n"


def _kept(path: Path, digest: str) -> RunColumns:
    """Return the columns in a folder of results; raise if they are damaged or of another run."""
    try:
        values = read_json(path)
        columns = Preprocessing.from_json(values["columns"], archives=False)
        kept = RunColumns(
            columns, values["experiment"], int(values["bytes_up"]), int(values["bytes_down"])
        )
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise CheckpointError(
            f"{path} needs to have the columns of the run, got a damaged file; restore it, or "
            "start anew in another folder."
        ) from error
    if kept.digest != digest:
        raise CheckpointError(
            f"{path} needs columns of the experiment {digest}, got those of {kept.digest}; restore "
            "the experiment, or start anew in another folder."
        )
    return kept
