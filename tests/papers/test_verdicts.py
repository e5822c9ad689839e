"""Verdicts on claims from intervals over seeds, with a small paper on two panels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.papers.example import example
from undrift.papers.file import Paper
from undrift.papers.judge import Judged, judge
from undrift.papers.parts import Claim
from undrift.papers.store import StoredPanel, StoredPaper, StoredTrial

Seeds = list[float | str]


def paper_with(**fields: Any) -> Paper:
    """Return the example with a single claim, by default on the accuracy of the panel iid."""
    values = {"metric": "accuracy", "panels": ["iid"], **fields}
    claim = Claim(text="t", where="w", **{n: v for n, v in values.items() if v is not None})
    return example().model_copy(update={"claims": [claim]})


def results(
    values: dict[tuple[str, str], Seeds], *, same: bool = True, scale: str = "full"
) -> StoredPaper:
    """Return results in which every trial has one value, under both names that claims use."""
    trials = [
        StoredTrial(panel, method, seed, "finished", {"accuracy": value, "rounds to 50 %": value})
        for (panel, method), seeds in values.items()
        for seed, value in enumerate(seeds)
    ]
    panels = [StoredPanel(p, "digits", "mlp", 4, same) for p in dict.fromkeys(p for p, _ in values)]
    return StoredPaper("x/y", "Table 1", scale, "", "", "", panels, trials)


def verdict(first: Seeds, second: Seeds, *, same: bool = True, **fields: Any) -> str:
    """Return the verdict on FedACG (first) against FedAvg (second)."""
    form = {"ahead": "FedACG", "of": ["FedAvg"]} if not {"alike", "method"} & {*fields} else {}
    (found,) = judge(
        paper_with(**form, **fields),
        results({("iid", "FedACG"): first, ("iid", "FedAvg"): second}, same=same),
    )
    return found.verdict


LOW: Seeds = [80.0, 81.0, 79.5]


@pytest.mark.parametrize(
    ("first", "fields", "expected"),
    [
        ([82.0, 83.1, 81.4], {}, "shown"),  # +2.0, +2.1, +1.9
        ([79.0, 79.9, 78.6], {}, "contradicted"),
        ([82.0, 80.0, 81.4], {}, "not shown"),  # +2.0, -1.0, +1.9
        ([82.0, 83.1, 81.4], {"by": 1.5}, "shown"),
        ([82.0, 83.1, 81.4], {"by": 2.0}, "not shown"),
        ([82.0, 83.1, 81.4], {"by": 2.5}, "contradicted"),
        ([160.0, 163.0, 159.1], {"factor": 1.9}, "shown"),  # 2.00, 2.01, 2.00
        ([160.0, 163.0, 159.1], {"factor": 2.1}, "contradicted"),
        ([80.1, 80.9, 79.5], {"alike": ["FedACG", "FedAvg"], "within": 0.5}, "shown"),
        ([80.1, 80.9, 79.5], {"alike": ["FedACG", "FedAvg"], "within": 0.1}, "not shown"),
        ([79.0, 79.9, 78.6], {"alike": ["FedACG", "FedAvg"], "within": 0.5}, "contradicted"),
        ([82.0, 83.1, 81.4], {"method": "FedACG", "at_least": 79.0}, "shown"),
        ([82.0, 83.1, 81.4], {"method": "FedACG", "at_least": 82.0}, "not shown"),
        ([82.0, 83.1, 81.4], {"method": "FedACG", "at_most": 79.0}, "contradicted"),
    ],
)
def test_intervals_decide(first: Seeds, fields: dict[str, Any], expected: str) -> None:
    assert verdict(first, LOW, **fields) == expected


def test_two_seeds_have_an_interval_and_one_has_none() -> None:
    assert verdict([82.0, 83.01], [80.0, 81.0]) == "shown"  # 2.00 and 2.01
    assert verdict([82.0, 84.0], [80.0, 81.0]) == "not shown"  # 2 and 3: 2.5 +- 6.4
    assert verdict([82.0], [80.0]) == "indicated"
    assert verdict([79.0], [80.0]) == "not shown"  # One seed contradicts nothing.


def test_another_setting_is_said() -> None:
    assert verdict([82.0, 83.1, 81.4], LOW, same=False) == "shown at another setting"
    assert verdict([79.0, 79.9, 78.6], LOW, same=False) == "contradicted at another setting"
    assert verdict([82.0, 80.0, 81.4], LOW, same=False) == "not shown"
    assert verdict([82.0], [80.0], same=False) == "indicated at another setting"
    bound = {"method": "FedACG", "at_least": 79.0}
    assert verdict([82.0, 83.1, 81.4], LOW, same=False, **bound) == "not comparable"


ROUNDS = {"metric": "rounds", "target": 0.5}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([2, 3, 2], [">4", 4, ">4"], "shown"),  # fewer in all seeds
        ([2, 3, 4], [">4", 4, 4], "not shown"),  # level in one seed
        ([2, 3, ">4"], [">4", 4, ">4"], "not shown"),  # nobody knows of one seed
        ([">4", ">4", ">4"], [2, 3, 2], "contradicted"),
        ([2, 3], [">4", ">4"], "indicated"),  # two seeds are too few without an interval
        ([2], [">4"], "indicated"),
        ([">4", ">4", ">4"], [">4", ">4", ">4"], "cannot be told"),
        ([2, 3, 2], ["diverges", 9, 9], "shown"),
        ([2, "diverges", 2], [9, 9, 9], "not shown"),
        (["diverges"] * 3, ["diverges"] * 3, "cannot be told"),
    ],
)
def test_values_without_size_need_the_same_sign_in_all_seeds(
    first: Seeds, second: Seeds, expected: str
) -> None:
    assert verdict(first, second, **ROUNDS) == expected


def several(**values: Seeds) -> Judged:
    stored = results({("Dir 0.3", method): seeds for method, seeds in values.items()})
    (found,) = judge(paper_with(panels=["Dir 0.3"], ahead="FedACG"), stored)
    return found


NEAR: Seeds = [80.0, 80.9, 79.3, 80.2]
LEAD: Seeds = [81.0, 82.9, 79.9, 82.4]  # +1.0, +2.0, +0.6, +2.2: p = 0.03


def test_a_claim_about_all_needs_no_correction_to_be_shown() -> None:
    """All comparisons must be shown, so each may be held against the plain interval."""
    alone = several(FedACG=LEAD, FedAvg=NEAR)
    assert (alone.verdict, alone.without) == ("shown", ["FedProx (Dir 0.3)"])
    both = several(FedACG=LEAD, FedAvg=NEAR, FedProx=[80.0, 80.8, 79.5, 80.1])
    assert 0.025 < (both.evidence[0].tested.p or 0) < 0.05
    assert not both.evidence[0].tested.shown
    assert both.verdict == "shown"
    assert both.evidence[0].found.level == pytest.approx(0.95)
    assert "the least favourable of 2 comparisons" in both.reason
    assert "corrected" not in both.reason


def test_a_claim_about_all_is_contradicted_by_corrected_intervals_alone() -> None:
    """One of several comparisons is enough against a claim, so chance has several tries."""
    alone = several(FedACG=NEAR, FedAvg=LEAD)
    assert alone.verdict == "contradicted"
    both = several(FedACG=NEAR, FedAvg=LEAD, FedProx=[80.1, 80.8, 79.5, 80.1])
    assert both.verdict == "not shown"
    assert both.evidence[0].found.level == pytest.approx(0.975)


def test_one_comparison_contradicts_a_claim_about_all() -> None:
    found = several(
        FedACG=[82.0, 83.1, 81.4], FedAvg=[80.0, 81.0, 79.5], FedProx=[92.0, 93.0, 91.5]
    )
    assert found.verdict == "contradicted"
    numbers = "-10.0 points (-10.4 to -9.6, corrected), three seeds"
    assert found.reason.startswith(f"FedACG against FedProx (Dir 0.3): {numbers}")


def test_panels_have_verdicts_of_their_own() -> None:
    shown: dict[tuple[str, str], Seeds] = {
        ("iid", "FedACG"): [82.0, 83.1, 81.4],
        ("iid", "FedAvg"): LOW,
        ("Dir 0.3", "FedACG"): [80.0, 82.0, 79.0],
        ("Dir 0.3", "FedAvg"): LOW,
    }
    paper = paper_with(panels=None, ahead="FedACG", of=["FedAvg"])
    (found,) = judge(paper, results(shown))
    assert found.verdict == "not shown"
    assert found.panels == {"iid": "shown", "Dir 0.3": "not shown"}
    (part,) = judge(paper, results({k: v for k, v in shown.items() if k[0] == "iid"}))
    assert part.text == "shown at another setting, without Dir 0.3"


def test_what_was_not_run_has_its_hours() -> None:
    (nothing,) = judge(paper_with(ahead="FedACG", of=["FedAvg"]), None)
    assert nothing.text.startswith("not run (about ")
    prox = paper_with(panels=["Dir 0.3"], ahead="FedACG", of=["FedProx"])
    (left_out,) = judge(prox, results({("Dir 0.3", "FedACG"): LOW}))
    assert left_out.text == "not run (about 2 h)"


def test_seeds_that_one_method_lacks_are_left_out() -> None:
    paper = paper_with(ahead="FedACG", of=["FedAvg"])
    stored = results({("iid", "FedACG"): [82.0, 83.1, 81.4], ("iid", "FedAvg"): [80.0, 81.0]})
    (found,) = judge(paper, stored)
    assert found.evidence[0].seeds == (0, 1)


def test_a_glance_says_nothing() -> None:
    paper = paper_with(ahead="FedACG", of=["FedAvg"])
    stored = results({("iid", "FedACG"): [82.0], ("iid", "FedAvg"): [80.0]}, scale="glance")
    assert judge(paper, stored)[0].verdict == "not comparable"
