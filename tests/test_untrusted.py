"""Texts that anybody may have written: typed errors, in memory and time that fit their length."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from undrift.config.experiment import Experiment, from_text
from undrift.optim import schedules
from undrift.results.strictjson import loads
from undrift.runs.partition import read_partition
from undrift.untrusted import LONGEST_TOML, MOST_KEY_PARTS, parse_json, parse_toml, read_json

MEGABYTES = 50 * 2**20


@pytest.fixture
def peak() -> Iterator[None]:
    """Fail if the test has held more than 50 MB at a time."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MEGABYTES


@pytest.mark.usefixtures("peak")
@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 20_000) + " = 1",
        f"[{'.'.join(['a'] * 5000)}]",
        f"x = {{ {' . '.join(['b'] * 5000)} = 1 }}",
        "x = " + "[" * 50_000,
        "x = " + "{a=" * 20_000,
        "x = " + "[" * 90 + "]" * 90,
        "x = " + "9" * 5000,
        "#" * (LONGEST_TOML + 1),
        '"' * 30_000,
    ],
    ids=["key", "table", "inline", "lists", "tables", "deep", "digits", "long", "quotes"],
)
def test_hostile_toml_is_a_value_error_and_takes_little_memory(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_toml(text)


def test_ordinary_toml_is_read() -> None:
    key = ".".join(["a"] * MOST_KEY_PARTS)
    text = f'{key} = 1\nb = "{"c." * 40}"\n[methods.x]\n"fedspeed.lam" = [[1.0], [2.0]]'
    values = parse_toml(text)
    assert values["b"] == "c." * 40
    assert values["methods"]["x"] == {"fedspeed.lam": [[1.0], [2.0]]}
    with pytest.raises(ValueError, match=f"more than {MOST_KEY_PARTS} parts .line 2"):
        parse_toml(f"b = 1\n{key}.a = 1")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\x00", "{"])
def test_hostile_json_is_a_value_error(text: str, tmp_path: Path) -> None:
    for parse in (parse_json, loads):
        with pytest.raises(ValueError, match=r"."):
            parse(text)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"."):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("notes", ["[1]", "3", '{"/a": [1]}', '{"/a": "7"}', '{"a/~": "NaN"}'])
def test_notes_of_numbers_that_make_no_sense_are_value_errors(notes: str) -> None:
    with pytest.raises(ValueError, match="nonfinite"):
        loads(f'{{"a": null, "nonfinite": {notes}}}')


def test_an_experiment_that_is_hostile_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    for text in (".".join(["a"] * 20_000) + " = 1", "x = " + "[" * 50_000, "methods = 5"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"experiment\.toml"):
            Experiment.read(path)


def test_a_value_of_the_shell_that_nests_too_deep_is_text() -> None:
    text = "[" * 5000
    assert from_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "exponential(" + "-" * 100_000 + "1)",
        "exponential(" + "-" * 9000 + "1, 2)",
        "exponential(" + "(" * 900,
        "piecewise(0.1, {1: " + "9" * 5000 + "})",
    ],
)
def test_hostile_schedules_are_one_short_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="needs a number or a schedule") as error:
        schedules.parse(text)
    assert len(str(error.value)) < 400


def test_a_schedule_beyond_the_largest_number_is_infinite_and_quick() -> None:
    assert schedules.parse("exponential(1, 10)").at(1_000_000) == float("inf")  # type: ignore[attr-defined]
    assert schedules.parse("staircase(1, 10.0, 1)").at(1_000) == float("inf")  # type: ignore[attr-defined]
    assert schedules.exponential(0.1, 0.998).at(7) == 0.1 * 0.998**7


@pytest.mark.parametrize(
    "text",
    [
        '{"labels": ["a"], "samples": [[1e400]]}',
        '{"labels": ["a"], "samples": [[' + "9" * 30 + "]]}",
        '{"labels": ["a"], "samples": [[-1]]}',
        '{"labels": ["a", "b"], "samples": [[1]]}',
        '{"labels": ["a"], "samples": [1]}',
        '{"labels": [["a"]], "samples": [[1]]}',
        '{"labels": 5, "samples": []}',
        "[" * 100_000,
    ],
)
def test_a_partition_that_makes_no_sense_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "partition.json").write_text(text)
    assert read_partition(tmp_path) is None
