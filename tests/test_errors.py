"""Errors, quoted in sentences."""

from __future__ import annotations

import pytest

import undrift
from undrift.check import nearest
from undrift.errors import first_line


@pytest.mark.parametrize(
    ("message", "line", "named"),
    [
        ("bad shape", "bad shape", "ValueError: bad shape"),
        ("\nbad shape.\nsecond line", "bad shape", "ValueError: bad shape"),
        ("", "ValueError", "ValueError"),
        (" \n ", "ValueError", "ValueError"),
    ],
)
def test_the_first_line_stands_without_its_full_stop(message: str, line: str, named: str) -> None:
    assert first_line(ValueError(message)) == line
    assert first_line(ValueError(message), named=True) == named


@pytest.mark.parametrize("name", ["train", "fit"])
def test_what_other_libraries_call_training_is_simulate(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no '{name}'; simulate\(\.\.\.\) trains a model"):
        getattr(undrift, name)


def test_the_beginning_of_a_name_is_near_it() -> None:
    assert nearest("f1", ["accuracy", "f1_macro", "f1_micro"]) == "; the nearest is 'f1_macro'"
    assert nearest("f1", ["accuracy", "f10"]) != "; the nearest is 'accuracy'"
