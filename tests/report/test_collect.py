"""What a reader is told of updates that were left out and of rounds without a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.trials import records, trial
from undrift.config.experiment import Evaluation
from undrift.report.collect import left_out
from undrift.report.terminal_table import methods_table
from undrift.results.trial import Trial, by_label
from undrift.runs.result import ExperimentResult

SENTENCE = (
    "FedAvg: dropped three updates of two clients; 1 of four rounds void: fewer clients answered "
    "than the round needs, so the model stayed as it was."
)


@pytest.fixture
def trials() -> list[Trial]:
    """Four rounds over two seeds, of which one is void, and a method without such rounds."""
    first, second = records([0.1, 0.2]), records([0.1, 0.2])
    first[0] = replace(first[0], dropped={"3": "NaN or Inf"})
    first[1] = replace(first[1], clients=0, dropped={"3": "NaN or Inf"})
    second[1] = replace(second[1], dropped={"3": "NaN or Inf"})
    return [trial("FedAvg", 0, first), trial("FedAvg", 1, second), trial("FedDyn", 0, records([1]))]


def test_dropped_updates_and_void_rounds_are_told(trials: list[Trial]) -> None:
    assert left_out(by_label(trials)) == [SENTENCE]
    assert left_out({}) == left_out({"FedDyn": trials[2:]}) == []


def test_the_table_and_the_page_tell_it(trials: list[Trial], tmp_path: Path) -> None:
    table = methods_table(by_label(trials), Evaluation())
    assert table.text().endswith(f"ten rounds\n{SENTENCE}")
    assert f"<br>{SENTENCE}</div>" in table.html()
    result = ExperimentResult(tmp_path, None, trials)
    assert result.comparison().warnings == [SENTENCE]
