"""Preprocessing from statistics: that of several tables is that of one with all their rows."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from undrift.data.tables.fit import agree, declared, statistics_of, target_statistics
from undrift.data.tables.preprocessing import NumberColumn, Preprocessing
from undrift.data.tables.read import Table, read_table
from undrift.data.tables.statistics import NumberSums, TableStatistics, joined_sums
from undrift.errors import DataError

pandas = pytest.importorskip("pandas")
KINDS: dict[str, Any] = {"age": "number", "size": "number", "ward": "category"}


def frame_of(seed: int, rows: int = 60, **columns: Any) -> Any:
    rng = np.random.default_rng(seed)
    cells = {
        "age": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(40 + 9 * seed, 5, rows)),
        "size": 1.6e9 + rng.integers(0, 1000, rows) * 10.0**-seed,  # nearly all of it is mean
        "ward": np.where(rng.random(rows) < 0.1, None, rng.choice(["x", "y", f"z{seed}"], rows)),
        "y": rng.choice(["no", "yes"], rows),
    }
    return pandas.DataFrame(cells | columns)


def statistics(frame: Any, task: str | None = None) -> TableStatistics:
    aim = target_statistics(frame["y"], frame["y"], "y", task)
    return statistics_of(frame, np.arange(len(frame)), KINDS, aim, "impute")


def agreed(*frames: Any, task: str | None = None) -> Preprocessing:
    return agree([statistics(frame, task) for frame in frames], "y", "impute")


def test_several_tables_have_the_columns_of_one_with_all_rows() -> None:
    frames = [frame_of(seed) for seed in range(3)]
    whole = agreed(pandas.concat(frames))
    assert agreed(*frames) == whole
    assert agreed(*reversed(frames)) == whole
    numbers = [frame.assign(y=np.arange(60) / 7 + i) for i, frame in enumerate(frames)]
    assert agreed(*numbers).target.task == "regression"
    assert agreed(*numbers) == agreed(pandas.concat(numbers))


def test_columns_are_those_of_scikit_learn() -> None:
    impute = pytest.importorskip("sklearn.impute")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    frame = frame_of(1)
    columns = {column.name: column for column in agreed(frame).columns}
    for name in ("age", "size"):
        filled = impute.SimpleImputer().fit_transform(frame[[name]])
        scaler = preprocessing.StandardScaler().fit(filled)
        assert columns[name].mean == pytest.approx(scaler.mean_[0], rel=1e-14)
        assert columns[name].scale == pytest.approx(scaler.scale_[0], rel=1e-9)
        assert columns[name].fill == columns[name].mean
    often = frame["ward"].mode()[0]
    assert columns["ward"].categories == tuple(sorted(frame["ward"].dropna().unique()))
    assert columns["ward"].fill == often


def test_a_constant_column_is_not_scaled() -> None:
    for value in (3.0, 0.1):
        (column, *_) = agreed(frame_of(0, age=np.full(60, value))).columns
        assert isinstance(column, NumberColumn)
        assert (column.mean, column.scale) == (value, 1.0)
    nearly = np.where(np.arange(60) % 2, 0.1 + 0.2, 0.3)  # apart by the rounding of one sum
    (column, *_) = agreed(frame_of(0, age=nearly)).columns
    assert isinstance(column, NumberColumn)
    assert column.scale == 1.0


def test_sums_lose_nothing() -> None:
    rng = np.random.default_rng(0)
    numbers = np.ldexp(rng.normal(size=300), rng.integers(-300, 300, 300))
    numbers[:5] = (0.0, -0.0, 5e-324, 1.7e308, -1.7e308)
    sums = NumberSums.of(numbers)
    exact = sum(map(Fraction, numbers.tolist()))
    assert Fraction(sums.total) * Fraction(2) ** sums.power == exact
    squares = sum(Fraction(x) ** 2 for x in numbers.tolist())
    assert Fraction(sums.squares) * Fraction(4) ** sums.power == squares
    parts = [NumberSums.of(part) for part in np.split(rng.permutation(numbers), [7, 100, 250])]
    joint = joined_sums(parts)
    assert (joint.count, joint.mean) == (sums.count, sums.mean)
    assert joint.deviation(300) == sums.deviation(300)
    assert NumberSums.of(np.array([])).mean == 0.0
    assert math.isinf(NumberSums.of(np.array([1.7e308, -1.7e308])).deviation(2))


def test_statistics_are_told_as_text_and_no_row_is_in_it() -> None:
    frame = frame_of(2, y=np.arange(60) * 1.25)
    told = statistics(frame).to_json()
    assert statistics(frame) == TableStatistics.from_json(told)
    assert json.loads(told)["target"]["words"] is None, "values of a regression are not told"
    for name in ("age", "size", "y"):
        assert not any(repr(cell) in told for cell in frame[name].dropna().tolist())
    assert told == statistics(frame.sample(frac=1, random_state=1)).to_json(), "nor their order"


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"form": 9},
        lambda told: told | {"rows": -1},
        lambda told: told | {"rows": 1.5},
        lambda told: told | {"columns": told["columns"] * 2},
        lambda told: told | {"columns": [{"name": "a", "kind": "date", "sums": None, "words": {}}]},
        lambda told: told | {"target": {"words": None, "sums": [1, "0x1", "1" * 9999, 0]}},
        lambda told: told | {"target": {"words": None, "sums": [1, "1", "1", 10**9]}},
        lambda told: told | {"target": {"words": None, "sums": None}},
        lambda told: [told],
    ],
)
def test_text_of_others_is_checked(change: Any) -> None:
    told = json.loads(statistics(frame_of(0)).to_json())
    with pytest.raises(DataError, match="Statistics of a table need JSON as undrift writes it"):
        TableStatistics.from_json(json.dumps(change(told)))


def test_the_target_is_what_all_tables_say() -> None:
    low, high = (frame_of(0, y=np.arange(60) % 3 + start) for start in (0, 2))
    assert agreed(low, high).target.task == "regression"
    assert agreed(low, high, task="classification").target.classes == ("0", "1", "2", "3", "4")
    with pytest.raises(DataError, match="needs numbers in all tables, got words at table 0"):
        agreed(frame_of(0), frame_of(1, y=np.arange(60)))
    same = frame_of(0, y="no")
    assert agreed(same, frame_of(1, y="yes")).target.classes == ("no", "yes")
    with pytest.raises(DataError, match="at least two different values, got 'no'"):
        agreed(same, same)
    with pytest.raises(DataError, match=r"at least two different values, got 4\.0"):
        agreed(frame_of(0, y=4), frame_of(1, y=4))


def test_a_column_that_one_table_lacks_is_filled_there() -> None:
    empty = frame_of(0, age=np.nan)
    own = Table.read(empty, target="y", missing="impute", alone=False, categorical=["ward"])
    other = Table.read(frame_of(1), target="y", missing="impute", alone=False)
    assert own.statistics is not None
    assert other.statistics is not None
    columns = agree([own.statistics, other.statistics], "y", "impute")
    first = columns.columns[0]
    assert isinstance(first, NumberColumn)
    assert np.allclose(own.stored(columns).train.inputs[:, 0], 0.0), "at the mean of the others"
    with pytest.raises(DataError, match="Column 'age' needs values, got none"):
        read_table(empty, target="y", missing="impute")


def test_declared_columns_need_no_fit_and_words_beyond_them_are_none() -> None:
    columns = [
        {"name": "ward", "categories": ["x", "y"], "fill": "x"},
        {"name": "age", "mean": 50.0, "scale": 10.0},
    ]
    target = {"name": "y", "classes": ["yes", "no"]}
    made = declared(columns, target, "impute")
    stored = read_table(frame_of(1), target="y", missing="impute", preprocessing=made)
    assert stored.labels == ("yes", "no")
    assert stored.preprocessing == made
    assert stored.train.inputs.shape[1] == 3, "other columns of the table do not count"
    known = stored.train.inputs[:, :2].sum(1)
    assert set(known.tolist()) == {0.0, 1.0}, "z1 is none of the declared words"
