"""Tables at several sites agree on their columns before the first round, by one exchange.

Every site tells counts, sums and sums of squares of its training rows, and how often each category
is there. The centre joins them, and tells all sites the preprocessing that one table with all rows
would have. No row leaves a site.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from undrift.data.clients import Clients
from undrift.data.dataset import Dataset
from undrift.data.tables.fit import Missing, agree
from undrift.data.tables.preprocessing import NumberColumn, Preprocessing
from undrift.data.tables.read import Table
from undrift.data.tables.statistics import TableStatistics
from undrift.errors import DataError, UndriftError
from undrift.federation.experiment import FederatedExperiment
from undrift.federation.messages import (
    AgreedColumns,
    ColumnsReply,
    ColumnsRequest,
    ColumnsTaken,
    Header,
    MessageError,
    Refusal,
    SiteMessage,
    decode,
    encode,
)
from undrift.federation.refusals import RequestError, Say, log_at_site, refusal
from undrift.federation.site import Site
from undrift.federation.transport import Answering, SiteTransport
from undrift.files import write_atomic

COLUMNS = "columns.json"  # the file of a site's folder that keeps what was agreed
LARGEST = 2**24  # bytes of statistics, or of a preprocessing

H = TypeVar("H", bound=Header)


def columns_digest(target: str, task: str | None, missing: Missing) -> str:
    """Return a hash of what centre and sites must have in common to agree on columns."""
    text = f"target: {target}\ntask: {task}\nmissing: {missing}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class TableSite:
    """Is a site with a table, whose columns are agreed on before it can train.

    `experiment_of` makes the experiment for agreed columns, since they decide how many inputs the
    model has. The other arguments are those of `Site`. What was agreed is kept in the folder, so
    that a site that is started again needs no second exchange. `digest` is what requests must
    name, by default that of the table's target.
    """

    def __init__(
        self,
        table: Table,
        experiment_of: Callable[[Preprocessing], FederatedExperiment],
        folder: str | Path,
        *,
        name: str,
        steps: int | None = None,
        seconds: float | None = None,
        say: Say = log_at_site,
        digest: str | None = None,
    ) -> None:
        self.table, self.name = table, name
        self.digest = digest or columns_digest(table.target, table.task, table.missing)
        self._folder, self._experiment_of = Path(folder), experiment_of
        self._steps, self._seconds, self._say = steps, seconds, say
        self.columns: Preprocessing | None = None
        self._site: Answering | None = None
        self._misfit = False  # whether columns that were told did not fit the table
        kept = self._folder / COLUMNS
        if kept.is_file():
            self._begin(_plain_columns(kept.read_text()))

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to a request; what cannot be done is a refusal with its reason."""
        header = message.header
        try:
            if isinstance(header, ColumnsRequest):
                self._require_digest(header.experiment)
                return self._statistics()
            if isinstance(header, AgreedColumns):
                self._require_digest(header.experiment)
                return self._take(_plain_columns(_text(message.tensors)))
            if self._site is None:
                raise RequestError(
                    f"Site {self.name} needs columns that all sites have agreed on, got none yet; "
                    "let the centre agree on them first."
                )
        except (UndriftError, ValueError) as error:
            return refusal(self.name, error, self._say)
        return self._site.answer(message)

    def _statistics(self) -> SiteMessage:
        statistics = self.table.statistics
        if statistics is None:
            raise RequestError(
                f"Site {self.name} needs a table whose columns are not declared, got declared "
                "ones, about which there is nothing to agree."
            )
        return SiteMessage(ColumnsReply(site=self.name), [_bytes(statistics.to_json())])

    def _take(self, columns: Preprocessing) -> SiteMessage:
        if self.columns is None:
            self._require_own(columns)
            if self._misfit:
                # Whether columns fit says something of the cells, so nobody may try many of them.
                raise RequestError(
                    f"Site {self.name} needs columns that fit its table, got some that do not, and "
                    "takes no others until its operator starts it again."
                )
            self._misfit = True
            self._begin(columns)
            self._misfit = False
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / COLUMNS, columns.to_json().encode())
        elif columns.digest != self.columns.digest:
            raise RequestError(
                f"Site {self.name} needs the columns that it has begun with, got others; "
                f"{COLUMNS} in its folder has them, and without this file it begins anew."
            )
        return SiteMessage(ColumnsTaken(site=self.name, columns=columns.digest))

    def _begin(self, columns: Preprocessing) -> None:
        """Set the columns, and the site that trains with them."""
        dataset = Dataset.of(self.table.stored(columns))
        data = Clients([dataset.stored_train], test=dataset.stored_test)
        data.preprocessing = columns
        self._site = self._site_of(columns, data)
        self.columns = columns

    def _site_of(self, columns: Preprocessing, data: Clients) -> Answering:
        """Return what answers when columns are agreed on."""
        return Site(
            self._experiment_of(columns),
            data,
            self._folder,
            name=self.name,
            steps=self._steps,
            seconds=self._seconds,
            say=self._say,
        )

    def _require_own(self, columns: Preprocessing) -> None:
        """Raise unless the columns are those that the operator has offered for training."""
        table = self.table
        offered = {} if table.statistics is None else table.statistics.columns
        for column in columns.columns if table.statistics is not None else ():
            name, number = column.names[0], isinstance(column, NumberColumn)
            kind = "number" if number else "category"
            if name not in offered or offered[name].kind not in (None, kind):
                raise RequestError(
                    f"Site {self.name} needs columns that its table offers, got {name[:40]!r} as "
                    f"a {kind}; compare the files."
                )
        if columns.target.name != table.target:
            raise RequestError(
                f"Site {self.name} needs columns that predict {table.target!r}, got a target "
                f"{columns.target.name[:40]!r}; compare the files."
            )

    def _require_digest(self, digest: str) -> None:
        if digest != self.digest:
            raise RequestError(
                f"Site {self.name} needs a request for columns that predict "
                f"{self.table.target!r}, as its operator has accepted, got another; compare the "
                "files."
            )


@dataclass(frozen=True)
class TableAgreement:
    """Holds what sites have agreed on, and the bytes of it that were sent."""

    columns: Preprocessing
    bytes_up: int  # of all sites' statistics
    bytes_down: int  # of the preprocessing, once to every site


def agree_columns(
    transport: SiteTransport,
    target: str,
    *,
    task: str | None = None,
    missing: Missing = "refuse",
    columns: Preprocessing | None = None,
    digest: str | None = None,
) -> TableAgreement:
    """Return the preprocessing that all connected sites have agreed on and taken.

    With `columns`, which were agreed on before or are declared, sites are told and not asked.
    `digest` is what the sites accept, by default that of their target.
    """
    names, digest = sorted(transport.sites()), digest or columns_digest(target, task, missing)
    up = 0
    if columns is None:
        request = SiteMessage(ColumnsRequest(experiment=digest))
        replies = _ask(transport, names, request, ColumnsReply)
        up = sum(message.nbytes for message in replies)
        tables = [TableStatistics.from_json(_text(message.tensors)) for message in replies]
        columns = agree(tables, target, missing, [f"site {name}" for name in names])
    for reason in tell_columns(transport, names, columns, digest).values():
        raise UndriftError(reason)
    return TableAgreement(columns, up, len(columns.to_json().encode()) * len(names))


def tell_columns(
    transport: SiteTransport,
    names: Sequence[str],
    columns: Preprocessing,
    digest: str,
    *,
    seconds: float = math.inf,
) -> dict[str, str]:
    """Tell sites what was agreed on; return those that have not taken it, with the reason."""
    told = encode(SiteMessage(AgreedColumns(experiment=digest), [_bytes(columns.to_json())]))
    left = {name: f"Site {name} needs to take the columns, got no reply of it." for name in names}
    for name, data in transport.ask(dict.fromkeys(names, told), seconds=seconds):
        header = decode(data).header
        if isinstance(header, Refusal):
            left[name] = header.reason
        elif header == ColumnsTaken(site=name, columns=columns.digest):
            left.pop(name, None)
        else:
            left[name] = f"Site {name} needs to take the agreed columns, got another reply."
    return left


def _ask(
    transport: SiteTransport, names: Sequence[str], request: SiteMessage, kind: type[Header]
) -> list[SiteMessage]:
    """Return the replies of these sites in their order; raise one sentence where one is missing."""
    found: dict[str, SiteMessage] = {}
    for name, data in transport.ask(dict.fromkeys(names, encode(request))):
        message = decode(data)
        if isinstance(message.header, Refusal):
            raise UndriftError(message.header.reason)
        fits = isinstance(message.header, kind) and getattr(message.header, "site", None) == name
        if not fits:
            raise UndriftError(f"Site {name} needs to answer for its own columns, got another.")
        found[name] = message
    missing = [name for name in names if name not in found]
    if missing:
        raise UndriftError(f"Columns need an answer of every site, got none of {missing}.")
    return [found[name] for name in names]


def _plain_columns(text: str) -> Preprocessing:
    """Return columns of numbers and categories; anything else would name code for the site."""
    try:
        return Preprocessing.from_json(text, archives=False)
    except DataError as error:
        raise RequestError(str(error)) from error


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _text(tensors: Sequence[Tensor]) -> str:
    """Return the text of a message's one tensor, or raise `MessageError`."""
    if len(tensors) != 1 or tensors[0].dtype != torch.uint8 or tensors[0].numel() > LARGEST:
        raise MessageError(f"A message about columns needs one text of at most {LARGEST} bytes.")
    try:
        return bytes(tensors[0].flatten().tolist()).decode()
    except UnicodeDecodeError as error:
        raise MessageError("A message about columns needs text in UTF-8, got bytes.") from error
