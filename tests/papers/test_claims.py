"""Claims: orderings and bounds against values, and the values of cells."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.papers.example import example
from undrift.papers.claims import holds
from undrift.papers.compare import ComparedCell, _row, share
from undrift.papers.parts import Claim, PublishedCell
from undrift.papers.quantity import Quantity, Value
from undrift.papers.store import StoredPaper, StoredTrial
from undrift.papers.terminal import _cell

VALUES = {
    ("iid", "FedAvg"): 80.0,
    ("iid", "FedACG"): 84.0,
    ("Dir 0.3", "FedAvg"): 70.0,
    ("Dir 0.3", "FedACG"): 79.0,
    ("Dir 0.3", "FedProx"): 72.0,
}


def claim(**fields: Any) -> Claim:
    return Claim(text="t", where="w", **{"metric": "accuracy", **fields})


def judged(values: dict[tuple[str, str], float] = VALUES, **fields: Any) -> bool | None:
    found = {place: Value(number) for place, number in values.items()}
    return holds(claim(**fields), example(), lambda panel, method: found.get((panel, method)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ahead": "FedACG"}, True),
        ({"ahead": "FedAvg"}, False),
        ({"ahead": "FedACG", "of": ["FedAvg"], "by": 4.0}, True),
        ({"ahead": "FedACG", "of": ["FedAvg"], "by": 4.1}, False),
        ({"ahead": "FedACG", "panels": ["Dir 0.3"], "factor": 1.09}, True),
        ({"ahead": "FedACG", "panels": ["Dir 0.3"], "factor": 1.1}, False),
        ({"order": ["FedACG", "FedProx", "FedAvg"]}, True),  # in the one panel with all three
        ({"order": ["FedACG", "FedAvg", "FedProx"]}, False),
        ({"alike": ["FedProx", "FedAvg"], "within": 2.0}, True),
        ({"alike": ["FedProx", "FedAvg"], "within": 1.9}, False),
        ({"method": "FedACG", "at_least": 79.0}, True),
        ({"method": "FedACG", "at_least": 79.5}, False),
        ({"method": "FedACG", "at_most": 84.0, "at_least": 79.0}, True),
        ({"change": ["iid", "Dir 0.3"], "ahead": "FedACG"}, True),  # it loses 5, FedAvg 10
        ({"change": ["iid", "Dir 0.3"], "ahead": "FedAvg"}, False),
        ({"change": ["iid", "Dir 0.3"], "method": "FedACG", "at_most": 5.0}, True),
        ({"across": "FedACG", "ahead": "iid"}, True),
        ({"across": "FedACG", "order": ["Dir 0.3", "iid"]}, False),
        ({"across": "FedProx", "order": ["iid", "Dir 0.3"]}, None),  # FedProx has no iid value
        ({"metric": "loss", "ahead": "FedAvg", "of": ["FedACG"]}, True),  # less is better
    ],
)
def test_claims_against_values(fields: dict[str, Any], expected: bool | None) -> None:
    assert judged(**fields) is expected


def test_a_claim_about_all_others_is_about_those_with_values() -> None:
    values = {place: value for place, value in VALUES.items() if place[1] != "FedProx"}
    assert judged(values, ahead="FedACG") is True
    assert judged(values, ahead="FedACG", of=["FedProx"]) is None
    assert judged(values, ahead="FedProx", panels=["Dir 0.3"]) is None


def test_a_method_that_diverged_is_behind() -> None:
    values = {**VALUES, ("iid", "FedAvg"): math.nan}
    assert judged(values, ahead="FedACG", panels=["iid"]) is True
    assert judged(values, method="FedAvg", panels=["iid"], at_least=0.0) is False


def test_costs_beyond_a_bound() -> None:
    beyond = {("iid", "FedAvg"): Value(4, beyond=True), ("iid", "FedACG"): Value(2)}

    def lookup(panel: str, method: str) -> Value | None:
        return beyond.get((panel, method))

    paper, fields = example(), {"metric": "rounds", "target": 0.5, "panels": ["iid"]}
    assert holds(claim(ahead="FedACG", **fields), paper, lookup) is True
    assert holds(claim(ahead="FedACG", factor=2.0, **fields), paper, lookup) is True
    assert holds(claim(ahead="FedACG", factor=2.1, **fields), paper, lookup) is None
    assert holds(claim(ahead="FedAvg", **fields), paper, lookup) is False
    assert holds(claim(method="FedAvg", at_most=3.0, **fields), paper, lookup) is False
    assert holds(claim(method="FedAvg", at_least=4.0, **fields), paper, lookup) is True
    assert holds(claim(method="FedAvg", at_most=9.0, **fields), paper, lookup) is None


def test_who_never_reaches_a_target_is_not_cheaper_than_who_does() -> None:
    """It had spent less when it ended, and nobody knows what it would have needed."""
    costs = {("iid", "FedAvg"): Value(1500), ("iid", "FedACG"): Value(900, beyond=True)}
    fields = {"metric": "megabytes_to", "target": 0.5, "panels": ["iid"], "ahead": "FedACG"}
    result = holds(claim(**fields), example(), lambda panel, method: costs.get((panel, method)))
    assert result is None


def stored(rounds: dict[str, float | str]) -> StoredPaper:
    trials = [
        StoredTrial(panel, "FedAvg", 0, "finished", {"rounds to 60 %": value})
        for panel, value in rounds.items()
    ]
    return StoredPaper("x/y", "Table 1", "full", "", "", "", [], trials)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ({"Pi": 3, "Pi at 100 %": ">50", "Pi at 95 %": 51, "Pi at 90 %": 49, "Pi at 5 %": 9}, 90),
        ({"Pi at 100 %": ">50", "Pi at 95 %": ">50"}, 0),
        ({"Pi": 20}, 100),
        ({"Pi": ">100"}, 0),
        ({"Jetson": 20}, None),
    ],
)
def test_share(rounds: dict[str, float | str], expected: float | None) -> None:
    value = share(stored(rounds), "Pi", "FedAvg", Quantity("share", 50, 0.6), 0)
    assert (None if value is None else value.number) == expected


def test_a_mean_counts_the_seeds_that_diverged_and_leaves_them_out() -> None:
    """A single seed that diverged neither hides the others nor is hidden by them."""

    def row(*values: float | str) -> ComparedCell:
        trials = [
            StoredTrial("iid", "FedAvg", seed, "finished", {"accuracy": value})
            for seed, value in enumerate(values)
        ]
        cell = PublishedCell(Quantity("accuracy"), "iid", "FedAvg", Value(80), None, False, "")
        kept = StoredPaper("x/y", "Table 1", "full", "", "", "", [], trials)
        return _row(example(), cell, kept)

    part = row(81.0, "diverges", 83.0)
    assert part.ours is not None
    assert (part.ours.value, part.ours.seeds, part.ours.diverged) == (Value(82.0), 3, 1)
    assert part.ours.deviation == pytest.approx(2**0.5)
    assert part.difference is None
    assert _cell(part, alone=False) == "80.00 / 82.00, 1 of 3 seeds diverge"
    nobody = row("diverges", "diverges")
    assert nobody.ours is not None
    assert nobody.ours.diverged == 2
    assert _cell(nobody, alone=False) == "80.00 / diverges"
    everybody = row(81.0, 83.0)
    assert everybody.difference == pytest.approx(2.0)
    # The 97.5 % quantile of t with one degree of freedom is 12.706, the standard error 1.
    assert _cell(everybody, alone=False) == "80.00 / 82.00 [69.29, 94.71] (+2)"


def relative(base: float | str) -> Value | None:
    trials = [
        StoredTrial("iid", method, 0, "finished", {"seconds round": value})
        for method, value in {"FedAvg": base, "FedACG": 6.0}.items()
    ]
    paper = example()
    entry = PublishedCell(
        Quantity("seconds_round", relative_to="FedAvg"), "iid", "FedACG", Value(2), None, False, ""
    )
    kept = StoredPaper("x/y", "Table 1", "full", "", "", "", [], trials)
    row = _row(paper, entry, kept)
    return None if row.ours is None else row.ours.value


def test_relative_values_need_a_base_that_has_one() -> None:
    assert relative(3.0) == Value(2.0)
    assert relative(">3") is None
    assert relative("diverges") is None
