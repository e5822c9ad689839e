"""The tables of attacks in the docs are those of the stored results."""

from __future__ import annotations

import json

from benchmarks.attacks import RESULTS, cases, counts, tables

from tests.support.system import ROOT


def test_the_page_has_the_tables_of_the_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert results.keys() == {case.key for case in cases()}
    page = (ROOT / "docs" / "robustness.md").read_text()
    for table in (counts(results), *tables(results).split("\n\n")):
        assert f"\n{table}\n" in page
