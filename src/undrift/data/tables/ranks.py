"""Tables of several ranks agree on their columns: each tells counts and sums, and no row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from undrift.data.clients import Clients
from undrift.data.dataset import Dataset
from undrift.data.here import Ranks, RanksError, exchanged
from undrift.data.tables.fit import agree
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.read import Table
from undrift.data.tables.statistics import TableStatistics
from undrift.errors import DataError


def clients_of_table(
    ranks: Ranks, read: Callable[[], Table], preprocessing: Preprocessing | None = None
) -> Clients:
    """Return the clients of this rank's table, whose columns are as all ranks agree.

    They are those of its column of clients, or one with all rows. A preprocessing that was declared
    needs no exchange.
    """
    if preprocessing is None:
        table, preprocessing = agreed(ranks, read)
    else:
        table = read()
    dataset = Dataset.of(table.stored(preprocessing))
    if table.client is not None:
        return dataset.split("natural")
    return dataset.split([range(len(dataset.stored_train[1]))])


def agreed(ranks: Ranks, read: Callable[[], Table]) -> tuple[Table, Preprocessing]:
    """Return this rank's table, and the preprocessing of all ranks' training rows together."""

    def told(table: Table) -> dict[str, Any]:
        assert table.statistics is not None
        return {"table": table.statistics.to_json()}

    table, every = exchanged(ranks, "tables here", read, told)
    names = [f"rank {rank}" for rank in range(ranks.size)]
    try:
        tables = [TableStatistics.from_json(each["table"]) for each in every]
        return table, agree(tables, table.target, table.missing, names)
    except DataError as error:
        raise RanksError(str(error)) from error
