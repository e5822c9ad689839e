"""Errors, quoted in sentences."""

from __future__ import annotations

import pytest

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
