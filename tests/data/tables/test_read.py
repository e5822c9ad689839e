"""Tables as data sets: what columns become, what is refused, and what is fitted to which rows."""

from __future__ import annotations

import bz2
import gzip
import lzma
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from undrift.config.experiment import Experiment
from undrift.data import read_table
from undrift.data.holdout import train_and_test
from undrift.data.tables.files import read_frame
from undrift.data.tables.preprocessing import Preprocessing
from undrift.errors import DataError, TaskWarning

ROWS = 60


def patients(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "site": rng.choice(["east", "north"], rows),
            "age": rng.integers(18, 80, rows),
            "pressure": rng.normal(120, 15, rows),
            "ward": rng.choice(["a", "b", "c"], rows),
            "died": rng.integers(0, 2, rows),
        }
    )


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.copy()
    frame.loc[::7, "pressure"] = np.nan
    frame.loc[::5, "ward"] = None
    return frame


@pytest.mark.parametrize("missing", ["refuse", "impute"])
def test_features_are_those_of_scikit_learn_fitted_to_training_rows(missing: str) -> None:
    frame = patients() if missing == "refuse" else gaps(patients())
    chosen = {"task": "classification", "client": "site", "missing": missing, "seed": 3}
    stored = read_table(frame, target="died", **chosen)
    train, test = train_and_test(ROWS, 0.2, 3)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(
        SimpleImputer(strategy="most_frequent", missing_values="none"),
        OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
    )
    theirs = ColumnTransformer([("n", numbers, ["age", "pressure"]), ("w", words, ["ward"])])
    cells = frame.assign(ward=["none" if pd.isna(word) else word for word in frame["ward"]])
    cells["ward"] = cells["ward"].astype(object)
    theirs.fit(cells.iloc[train])
    for part, rows in ((stored.train, train), (stored.test, test)):
        assert np.allclose(part.inputs, theirs.transform(cells.iloc[rows]), atol=1e-5)
        assert np.array_equal(part.targets, frame["died"].to_numpy()[rows])
    assert stored.names == ("east", "north")
    assert stored.labels == ("0", "1")


def test_a_category_that_only_test_rows_have_is_no_feature() -> None:
    frame = patients()
    _, test = train_and_test(ROWS, 0.2, 0)
    frame.loc[test[0], "ward"] = "z"
    stored = read_table(frame, target="died", task="classification", drop=["site"])
    assert "ward=z" not in stored.preprocessing.features
    assert stored.test.inputs[0, 2:].sum() == 0


@pytest.mark.parametrize(
    ("target", "task", "classes"),
    [
        ("died", "classification", 2),
        ("died", "regression", 1),
        ("alive", None, 2),  # truth values are classes, as text is
        ("ward", None, 3),
        ("pressure", None, 1),
        ("age", None, 1),  # numbers are regression unless the task says otherwise
    ],
)
def test_what_the_target_is(target: str, task: str | None, classes: int) -> None:
    stored = read_table(patients().assign(alive=lambda f: f.died == 0), target=target, task=task)
    assert stored.classes == classes
    if classes > 1:
        assert stored.train.targets.dtype == np.int64
        return
    assert stored.train.targets.dtype == np.float32
    assert abs(stored.train.targets.mean()) < 1e-6
    assert abs(stored.train.targets.std() - 1) < 1e-5


def test_two_numbers_are_numbers_unless_the_task_says_otherwise() -> None:
    with pytest.warns(TaskWarning, match="regression, since .* say task=classification if"):
        stored = read_table(patients(), target="died")
    assert stored.preprocessing.target.task == "regression"


def test_whole_numbers_are_classes_if_the_task_says_so() -> None:
    frame = patients()
    stored = read_table(frame, target="age", task="classification")
    assert stored.labels == tuple(map(str, sorted(frame["age"].unique())))


def test_fitted_preprocessing_is_json_and_scores_rows_alike() -> None:
    frame = gaps(patients())
    stored = read_table(gaps(patients()), target="died", task="classification", missing="impute")
    again = Preprocessing.from_json(stored.preprocessing.to_json())
    assert again == stored.preprocessing
    assert np.array_equal(again.inputs(frame), stored.preprocessing.inputs(frame))


def test_new_rows_without_a_column_or_with_new_words() -> None:
    fitted = read_table(patients(), target="died", task="classification").preprocessing
    with pytest.raises(DataError, match="needs a column 'ward', got none"):
        fitted.inputs(patients().drop(columns="ward"))
    rows = patients(3).assign(ward=["a", "z", "b"])
    with pytest.warns(UserWarning, match="1 cells with values that training did not see.*'z'"):
        assert fitted.inputs(rows)[1, -3:].sum() == 0
    with pytest.raises(DataError, match="Row 2 of column 'age' needs a number, got a missing cell"):
        fitted.inputs(patients(3).assign(age=[1, None, 3]))


CSVS = {
    "comma": ("x,w,y\n{}", ","),
    "semicolon": ("x;w;y\n{}", ";"),
    "tab": ("x\tw\ty\n{}", "\t"),
    "byte-order mark": ("\ufeffx,w,y\n{}", ","),
    "index column": (",x,w,y\n{}", ","),
}


@pytest.mark.parametrize("case", CSVS)
def test_csv_files_as_programs_write_them(tmp_path: Path, case: str) -> None:
    head, separator = CSVS[case]
    rows = [
        [
            *([str(i)] if case == "index column" else []),
            f"{i * 0.5}",
            "ab"[i % 2],
            ["no", "yes"][i % 2],
        ]
        for i in range(30)
    ]
    path = written(tmp_path, head.format("\n".join(separator.join(row) for row in rows)))
    stored = read_table(path, target="y")
    assert stored.preprocessing.features == ("x", "w=a", "w=b")
    assert stored.labels == ("no", "yes")


def test_decimal_commas_are_refused_with_the_remedy_and_then_read(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},5;{['no', 'yes'][i % 2]}" for i in range(30))
    path = written(tmp_path, f"x;y\n{rows}")
    with pytest.raises(DataError, match=r"'0,5'; say decimal = \"comma\" \(in the shell"):
        read_table(path, target="y")
    for target, task in (("x", None), ("x", "regression")):
        with pytest.raises(DataError, match=r"'0,5'; say decimal = \"comma\""):
            read_table(path, target=target, task=task)
    stored = read_table(path, target="y", decimal="comma", separator="semicolon")
    for wrong in ({"decimal": "."}, {"separator": "komma"}, {"decimal": "comma,"}):
        with pytest.raises((DataError, ValueError), match="comma"):
            read_table(path, target="y", **{"decimal": "comma", **wrong})
    (column,) = stored.preprocessing.columns
    assert column.name == "x"
    assert 10 < column.mean < 20


def test_thousands_are_not_taken_for_decimal_commas(tmp_path: Path) -> None:
    for cells in (["1,234", "567", "890", "7", "12"], ["1,234", "2,500", "12,000.5"]):
        words = cells * 10
        rows = "\n".join(f"{word};{['no', 'yes'][i % 2]}" for i, word in enumerate(words))
        path = written(tmp_path, f"x;y\n{rows}")
        with pytest.raises(DataError, match=r"got '1,234'; write it without commas between thous"):
            read_table(path, target="y")


def many(cell: str, rows: int = 40) -> str:
    return "x,c,y\n" + "\n".join(
        f"{i * 0.5},{cell.format(i=i, d=i % 28 + 1)},{i % 2}" for i in range(rows)
    )


BAD = {
    "empty": ("", "an empty file"),
    "one row": ("x,y\n1,2\n", "at least 2 rows"),
    "twice": ("x,x,y\n1,2,3\n", "'x' twice"),
    "no header": ("1,2\n3,4\n", "names of columns in line 1"),
    "ragged": ("x,y\n1,2\n1,2,3\n", "got 3 in line 3 where 2 are expected; correct the row"),
    "quotation mark": ('x,y\n1,"a\n2,b\n', "opened in line 2 and not closed; close it"),
    "target missing": ("x,y\n1,a\n2,\n3,b\n", "Row 2 of the target 'y'"),
    "target constant": ("x,y\n1,a\n2,a\n3,a\n", "at least two different values, got 'a'"),
    "cell missing": ("x,y\n1,a\n,b\n3,b\n", 'missing = "impute"'),
    "cell text": (
        "x,y\n1,a\n2,b\nlots,b\n",
        "Row 3 of column 'x' needs a finite number, got 'lots'",
    ),
    "cell infinite": ("x,y\n1,a\n2,b\ninf,b\n", "Row 3 of column 'x'"),
    "cell huge": ("x,y\n1,a\n2,b\n1e308,b\n-1e308,a\n", "sensible range"),
    "no feature": ("y\na\nb\n", "columns of features"),
    "dates": (many("2024-03-{d:02d}"), "dates such as 2024-03-01; leave it out with drop = ['c']"),
    "times": (many("{d:02d}:15"), "dates such as"),
    "written dates": (many("{d} March 2024"), "dates such as"),
    "identifiers": (
        many("P-{i}"),
        "words that several rows share, not identifiers or free text, got 40 different ones in 40 "
        "rows; leave it out with drop = ['c']",
    ),
    "row numbers": (many("{i}"), "not an identifier"),
    "empty column": (many(""), "needs values, got none"),
    "UTF-16": ("x,y\n1,2\n".encode("utf-16"), "text in UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_one_sentence_with_the_file(tmp_path: Path, case: str) -> None:
    text, clue = BAD[case]
    path = written(tmp_path, text)
    with pytest.raises(DataError) as error:
        read_table(path, target="y")
    said = str(error.value)
    assert said.startswith(str(path))
    assert clue in said
    assert "\n" not in said


def test_a_million_categories_are_refused_before_they_take_memory() -> None:
    frame = pd.DataFrame({"c": np.arange(10**6).astype(str), "y": np.arange(10**6) % 2})
    frame["c"] = "n" + frame["c"]
    with pytest.raises(DataError, match=r"several rows share.*got 1,000,000 different ones in"):
        read_table(frame, target="y")
    frame["c"] = np.tile(np.arange(2000).astype(str), 500)
    frame["c"] = "n" + frame["c"]
    with pytest.raises(DataError, match=r"at most 1000 categories, got 2,000 different ones in"):
        read_table(frame, target="y")


def test_text_as_the_target_of_a_regression_names_its_row_and_the_other_task() -> None:
    frame = patients().assign(grade=[str(i) for i in range(ROWS)])
    frame.loc[7, "grade"] = "high"
    with pytest.raises(DataError, match=r"Row 8 of column 'grade' .*'high'; say task = \"classif"):
        read_table(frame, target="grade", task="regression")


@pytest.mark.parametrize("suffix", [".xlsx", ".json", ".pkl"])
def test_other_formats_are_refused_with_what_reads_them(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"patients{suffix}"
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=rf"CSV or Parquet file, got {suffix}; save it as CSV, or"):
        read_table(path, target="y")


def test_arguments_are_checked() -> None:
    frame = patients()
    with pytest.raises(ValueError, match="nearest is 'died'"):
        read_table(frame, target="dieed")
    with pytest.raises(ValueError, match="client to be one of"):
        read_table(frame, target="died", client="town")
    with pytest.raises(ValueError, match="different columns"):
        read_table(frame, target="died", client="died")
    with pytest.raises(ValueError, match="test_fraction in"):
        read_table(frame, target="died", test_fraction=1.0)
    with pytest.raises(ValueError, match="missing to be one of"):
        read_table(frame, target="died", missing="drop")
    with pytest.raises(ValueError, match="a CSV file or a pandas DataFrame, got 'dict'"):
        read_table({"a": [1]}, target="a")


def test_a_target_that_is_constant_at_a_client_is_told() -> None:
    frame = patients().assign(died=lambda f: (f["site"] == "east") * (f.index % 2))
    with pytest.warns(UserWarning, match=r"the same in all rows of 1 of 2 clients \(north\)"):
        read_table(frame, target="died", task="classification", client="site")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(patients(), target="died", task="classification", client="site")


def test_rows_without_a_target_are_counted_and_can_be_left_out() -> None:
    frame = patients()
    frame["died"] = frame["died"].map({0: "no", 1: "yes"})
    frame.loc[[3, 9, 20], "died"] = None
    with pytest.raises(DataError, match=r'Row 4 .* in 2 other rows; .*missing_target = "drop"'):
        read_table(frame, target="died")
    with pytest.warns(UserWarning, match=f"missing in 3 of {ROWS} rows, which are left out"):
        stored = read_table(frame, target="died", missing_target="drop")
    assert len(stored.train) + len(stored.test) == ROWS - 3
    assert stored.labels == ("no", "yes")


def test_what_was_read_says_what_it_is_and_how_it_is_split(tmp_path: Path) -> None:
    stored = read_table(patients(), target="ward", client="site")
    assert len(repr(stored)) < 120
    assert "natural clients" in repr(stored)
    with pytest.raises(AttributeError, match=r"undrift\.Dataset\.of\(stored\)"):
        _ = stored.split
    path = tmp_path / "patients.csv"
    patients().to_csv(path, index=False)
    with pytest.raises(ValueError, match="the columns are site, age, pressure, ward, died"):
        Experiment.of({"methods": [{"name": "fedavg"}], "data": {"path": str(path)}})
    values = {"path": str(path), "target": "died"}
    text = Experiment.of({"methods": [{"name": "fedavg"}], "data": values}).to_toml()
    assert "digits" not in text


def test_numbers_of_chosen_rows_are_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "chosen.csv"
    patients().iloc[[5, 2, 40, 17, *range(50, 60)]].to_csv(path)
    frame = read_frame(path)
    assert list(frame.index[:4]) == [5, 2, 40, 17]
    assert "age" in frame.columns[:2]
    assert "Unnamed: 0" not in read_table(path, target="ward").preprocessing.names


@pytest.mark.parametrize(
    "text",
    [
        b",abel,size,\rcd\n0,3.2,blured\n0,3.2ed\n",
        b'a,b\n"1\r2,3\n4\r,5\n',
        b"\r\r\r",
        b"a,b\rc,d\r1,2\r",
        b"a\0,b\n1,2\n",
    ],
    ids=repr,
)
def test_carriage_returns_and_zeros_at_odd_places_are_one_sentence_or_read(
    text: bytes, tmp_path: Path
) -> None:
    with suppress(DataError):
        read_table(written(tmp_path, text), target="b", task="classification")


def test_a_packed_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    frame = patients()
    plain = tmp_path / "t.csv"
    frame.to_csv(plain, index=False)
    for name, pack in (("t.csv.gz", gzip), ("u.csv", bz2), ("v.csv", lzma)):
        (tmp_path / name).write_bytes(pack.compress(plain.read_bytes()))
        pd.testing.assert_frame_equal(read_frame(tmp_path / name), frame)
    (tmp_path / "w.csv.gz").write_bytes((tmp_path / "t.csv.gz").read_bytes()[:-9])
    with pytest.raises(DataError, match=r"w\.csv\.gz needs a (readable|CSV) file"):
        read_frame(tmp_path / "w.csv.gz")


def test_a_parquet_file_of_repeated_values_is_refused_and_others_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    patients().to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.parquet"), patients())
    pd.DataFrame({"a": np.zeros(5_000_000)}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"at most 33,554,432 bytes of columns, got 40,000,000"):
        read_frame(tmp_path / "b.parquet")
    flags = pd.DataFrame(np.random.default_rng(0).random((300_000, 40)) < 0.001)
    flags.columns = flags.columns.astype(str)
    flags.to_parquet(tmp_path / "c.parquet")
    assert len(read_frame(tmp_path / "c.parquet")) == 300_000
