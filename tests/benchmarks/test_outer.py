"""The GPT's table in docs/outer.md is that of the results that are kept."""

from __future__ import annotations

from benchmarks import outer
from tests.support.system import ROOT


def test_the_page_has_the_table_of_the_results() -> None:
    page = (ROOT / "docs" / "outer.md").read_text()
    assert "\n".join(outer.report(outer.read(outer.RESULTS))) in page


def test_every_method_had_as_many_rates_and_seeds_as_the_others() -> None:
    rows = outer.read(outer.RESULTS)
    for name in outer.METHODS:
        tuned = [r for r in rows if r["method"] == name and r["part"] == "validation"]
        assert sorted(r["lr"] for r in tuned) == list(outer.rates(name))
        finals = outer.finals(rows, name)
        assert [r["seed"] for r in finals] == list(outer.SEEDS)
        assert {r["lr"] for r in finals} == {outer.best(rows, name)}
        for link in outer.LINKS:
            (there,) = outer.finals(rows, name, link)
            # The link changes no loss, but for the order of sums.
            assert abs(there["losses"][-1] - finals[0]["losses"][-1]) < 0.02
