"""A site answers with its data, as the experiment takes them, and with its accepted trials."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.config.sections import Data
from undrift.data import Clients, Dataset
from undrift.data.holdout import train_and_test
from undrift.data.stored import Samples, Stored
from undrift.data.tables.files import is_table
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.read import Table, as_frame, require_columns, with_targets
from undrift.deployment.plan import agreement_digest, federated_jobs, sample_form
from undrift.errors import DataError, UndriftError
from undrift.federation import FederatedExperiment, Site, TableSite
from undrift.federation.messages import (
    LONGEST_TEXT,
    AgreedColumns,
    ColumnsRequest,
    Header,
    Refusal,
    SiteMessage,
)
from undrift.runs.load import load_clients, load_dataset, read_own


def site_clients(experiment: Experiment, source: str) -> Clients:
    """Return the data of one site: a table, or what code such as `mine.py:load` returns."""
    if not is_table(source):
        data = Data(name=source)
        own = load_clients(data)
        if own is None:
            return load_dataset(data).split("iid", 1)
        clients = own.split(None, 0)
        one = "clients of which there is one, which is this site"
        require(len(clients) == 1, source, one, len(clients), "return a Dataset, or one pair")
        return clients
    columns, data = sample_form(experiment).preprocessing, experiment.data
    if columns is None:
        raise UndriftError(
            "A site with a table needs an experiment that declares columns, got one without; add "
            "data.columns or federation.columns."
        )
    frame = as_frame(source, separator=data.separator, decimal=data.decimal)
    require_columns(frame, {"target": columns.target.name})
    if data.missing_target == "drop":
        frame = with_targets(frame, columns.target.name)
    if len(frame) < 2:
        raise DataError(
            f"{source} needs at least 2 rows, of which one is tested, got {len(frame)}."
        )
    inputs, targets = columns.inputs(frame), columns.target.encode(frame)
    rows = train_and_test(len(frame), data.test_fraction, 0)
    train, test = (Samples(inputs[some], targets[some]) for some in rows)
    stored = Stored(train, test, classes=max(1, len(columns.target.classes)))
    return Dataset.of(stored).split("iid", 1)


def own_table(experiment: Experiment, source: str) -> Table:
    """Return the table of one site, whose columns are to be agreed on."""
    remedy = "name its file, as columns are of tables"
    require(is_table(source), "A site that agrees on columns", "a table", source, remedy)
    return read_own(
        experiment.data.model_copy(update={"path": Path(source)}), fits=True, alone=False
    )


class SiteHost:
    """Answers requests to the trials of one experiment, which the operator of the site accepted.

    `steps` and `seconds` are those of `Site`. `say` gets a line for each request and its reply.
    `agreed` are the columns that sites have agreed on.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        data: Clients,
        folder: Path,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda text: None,
        agreed: Preprocessing | None = None,
    ) -> None:
        self._say = say
        self._name, self._data, self._folder = name, data, folder
        self._steps, self._seconds = steps, seconds
        self._accepted = {
            each.experiment.digest: each.experiment for each in federated_jobs(experiment, agreed)
        }
        self._site = lru_cache(maxsize=1)(self._new_site)  # trials run one after the other
        self._site(next(iter(self._accepted)))  # which raises if data and model do not fit

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to a request; another experiment gets a refusal."""
        reply = self._answer(message)
        self._say(f"{_said(message.header)}: {_said(reply.header)}")
        return reply

    def _answer(self, message: SiteMessage) -> SiteMessage:
        wanted = getattr(message.header, "experiment", None)
        experiment = self._accepted.get(str(wanted))
        if experiment is None:
            accepted = ", ".join(self._accepted)
            reason = (
                f"Site {self._name} needs requests of the experiment {accepted}, which its "
                f"operator has accepted, got {str(wanted)[:40]}; compare the files."
            )
            return SiteMessage(Refusal(reason=reason[:LONGEST_TEXT]))
        return self._site(experiment.digest).answer(message)

    def _new_site(self, digest: str) -> Site:
        experiment: FederatedExperiment = self._accepted[digest]
        return Site(
            experiment,
            self._data,
            self._folder / digest,
            name=self._name,
            steps=self._steps,
            seconds=self._seconds,
            say=self._say,
        )


class AgreeingHost(TableSite):
    """Answers as `SiteHost` does when all sites have agreed on their columns.

    Before that it tells about its columns whoever names the experiment that the operator accepted.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        table: Table,
        folder: Path,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._experiment, digest = experiment, agreement_digest(experiment)

        def first(columns: Preprocessing) -> FederatedExperiment:
            return federated_jobs(experiment, columns)[0].experiment

        super().__init__(
            table,
            first,
            folder / digest,
            name=name,
            steps=steps,
            seconds=seconds,
            say=say,
            digest=digest,
        )

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to a request."""
        early = self.columns is None or isinstance(message.header, ColumnsRequest | AgreedColumns)
        reply = super().answer(message)
        if early:
            self._say(f"{_said(message.header)}: {_said(reply.header)}")
        return reply

    def _site_of(self, columns: Preprocessing, data: Clients) -> SiteHost:
        return SiteHost(
            self._experiment,
            self.name,
            data,
            self._folder,
            steps=self._steps,
            seconds=self._seconds,
            say=self._say,
            agreed=columns,
        )


def _said(header: Header) -> str:
    """Return what a message is, for the log of the site's operator."""
    fields = header.model_dump(include={"kind", "t", "stage", "attempt", "reason"})
    kind = fields.pop("kind", "message")
    return " ".join([kind, *(f"{name}={value}" for name, value in fields.items())])
