"""The GPT's table in docs/outer.md is that of the results that are kept."""

from __future__ import annotations

import pytest

from benchmarks import outer
from tests.support.system import ROOT


@pytest.fixture(scope="module")
def rows() -> list[outer.Row]:
    return outer.read(outer.RESULTS)


def test_the_page_has_the_table_of_the_results(rows: list[outer.Row]) -> None:
    page = (ROOT / "docs" / "outer.md").read_text()
    assert "\n".join(outer.report(rows)) in page


def test_every_method_had_as_many_rates_and_seeds_as_the_others(rows: list[outer.Row]) -> None:
    counts = set()
    for name in outer.METHODS:
        tried = {r["lr"] for r in rows if r["method"] == name and r["part"] == "validation"}
        own = list(outer.rates(name))
        while len(own) < len(tried):
            own.append(outer.further(rows, name, own))
        assert tried == set(own)
        counts.add(len(own))
        finals = outer.finals(rows, name)
        assert [r["seed"] for r in finals] == list(outer.SEEDS)
        assert {r["lr"] for r in finals} == {outer.best(rows, name)}
    assert len(counts) == 1
    assert counts.pop() <= 4 + outer.EXTENSIONS


def test_a_link_changes_no_loss(rows: list[outer.Row]) -> None:
    for row in rows:
        if row["where"] in outer.LINKS:
            (alone,) = [r for r in outer.finals(rows, row["method"]) if r["seed"] == row["seed"]]
            assert row["losses"] == alone["losses"]


def test_a_link_without_all_seeds_is_a_dash(rows: list[outer.Row]) -> None:
    rows = [r for r in rows if r["where"] not in outer.LINKS]
    (chosen,) = [r for r in outer.finals(rows, "marsit") if r["seed"] == outer.SEEDS[0]]
    one = {**chosen, "where": "100mbit", "seconds": [1.5]}
    assert outer.seconds_of([*rows, one], "marsit", "100mbit") == "-"
    three = [{**one, "seed": k, "seconds": [float(k)]} for k in outer.SEEDS]
    assert outer.seconds_of([*rows, *three], "marsit", "100mbit") == "2.0 (1.0 to 3.0)"
