"""What a column is: dates and identifiers are refused, ordinary columns are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import undrift as ud
from undrift.data.tables.kinds import column_kind
from undrift.errors import DataError

ROWS = 132


def cells(*values: object) -> list[object]:
    return [values[i % len(values)] for i in range(ROWS)]


DATES = {
    "months": cells(*(f"2020-{i:02d}" for i in range(1, 13))),
    "months, year last": cells("01/2020", "12/2021", "7/2019"),
    "quarters": cells("2020-Q1", "2020Q2", "Q3 2020"),
    "two days": cells("2020-01-31", "2021-02-28"),
    "two written days": cells("31 Jan 2020", "1 February 2021"),
    "written months": cells("Jan 2020", "Feb-21"),
    "American": cells("January 31, 2020", "Feb 2, 2021"),
    "weekdays": cells("Mon, 31 Jan 2020", "Tue, 1 Feb 2020"),
    "a fifth unknown": cells("unknown", *(f"2020-01-{i:02d}" for i in range(1, 30, 7))),
    "mostly unknown": cells("2020-01-31", "2021-05-09", "unknown", "never", "unknown"),
    "days as numbers": cells(20200101, 20200229, 20211231),
    "days as decimal numbers": cells(20200101.0, 20200229.0, 20211231.0, None),
    "datetimes": list(pd.to_datetime(cells("2020-01-31", "2021-02-28"))),
    "days of Python": list(pd.to_datetime(cells("2020-01-31", "2021-02-28")).date),
}
IDENTIFIERS = {
    "patient_id": cells(*(f"P{i}" for i in range(66))),
    "ID": cells(7, 9, 23),
    "id": cells(*(i + 0.5 for i in range(60))),
    "patient id": cells(*range(100, 160)),
    "customerId": cells("a", "b", "c"),
    "patientID": cells(3, 1, 2),
    "device.uuid": cells("a-1", "b-2", "c-3"),
    "patient_key": cells(3, 1, 2),
    "key": list(range(5, 5 + 3 * ROWS, 3)),
}
ORDINARY = {  # with what they are
    "paid": (cells(3, 1, 2), "number"),
    "valid": (cells("yes", "no", "maybe"), "category"),
    "covid": (cells(0, 1), "number"),
    "keyboard": (cells("a", "b", "c"), "category"),
    "key": (cells(*range(12)), "number"),
    "centre_id": (cells(0, 1), "number"),
    "GRID": (cells(0, 1, 2), "number"),
    "age band": (cells("20-29", "30-39", "40-49"), "category"),
    "stage": (cells("1A", "1B", "2", "3C"), "category"),
    "score": (cells("2-1", "0-0", "3-2"), "category"),
    "fraction": (cells("10/12", "3/4"), "category"),
    "comment": (cells(*["low"] * 30, "at 10:30", "high"), "category"),
    "month": (cells("may", "june", "march"), "category"),
    "size": (cells("1.5 mm", "12 mm", "3 cm"), "category"),
    "price": (cells(19500000, 20145678, 20999999), "number"),
    "year": (cells(2019, 2020, 2021), "number"),
    "income": (list(np.random.default_rng(0).permutation(10**6)[:ROWS]), "number"),
    "seconds": (cells(1_600_000_000, 1_600_000_060, 1_700_000_000), "number"),
}


@pytest.mark.parametrize("case", DATES)
def test_dates_are_refused(case: str) -> None:
    """However few there are, in whatever form, and with other words between them."""
    frame = pd.DataFrame({"when": DATES[case], "s": cells("a", "a", "b"), "y": cells("no", "yes")})
    with pytest.raises(
        DataError, match=r"Column 'when' needs numbers or categories, got dates"
    ) as e:
        ud.Clients(frame, target="y", client="s", missing="impute")
    assert "unknown" not in str(e.value)
    assert column_kind(frame["when"], "when", ["when"]) == "category"


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_identifiers_are_refused_by_their_names(name: str) -> None:
    """Whatever their type, and however often each is there; who says that they are codes may."""
    frame = pd.DataFrame(
        {name: IDENTIFIERS[name], "s": cells("a", "a", "b"), "y": cells("no", "yes")}
    )
    with pytest.raises(
        DataError, match=r"not an identifier, got .*; leave it out .*categorical = "
    ):
        ud.Clients(frame, target="y", client="s")
    if name != "key":
        assert column_kind(frame[name], name, [name]) == "category"


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_columns_are_taken(name: str) -> None:
    values, kind = ORDINARY[name]
    assert column_kind(pd.Series(values), name, ()) == kind
