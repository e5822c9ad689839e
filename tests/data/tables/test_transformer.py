"""Transformers of one's own: fitted to training rows, kept without pickles, refused in words."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from undrift.data import read_table
from undrift.data.holdout import train_and_test
from undrift.data.tables.preprocessing import Preprocessing
from undrift.errors import DataError, UndriftError

pytest.importorskip("skops")
ROWS = 40


def notes() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "age": rng.normal(60, 9, ROWS),
            "note": [f"case {i % 5} fever" if i % 2 else f"case {i % 3}" for i in range(ROWS)],
            "ill": np.where(np.arange(ROWS) % 2, "yes", "no"),
        }
    )


def transformer() -> ColumnTransformer:
    words = CountVectorizer(token_pattern=r"\w+")
    return ColumnTransformer([("age", StandardScaler(), ["age"]), ("note", words, "note")])


class Shifted(TransformerMixin, BaseEstimator):
    """A type that skops does not know."""

    def fit(self, columns: Any, targets: Any = None) -> Shifted:
        self.low_ = columns.to_numpy().min()
        return self

    def transform(self, columns: Any) -> Any:
        return columns.to_numpy() - self.low_


def test_a_copy_is_fitted_to_training_rows_and_kept_in_json() -> None:
    frame, own = notes(), transformer()
    stored = read_table(frame, target="ill", transformer=own)
    assert not hasattr(own, "transformers_")  # the user's object is not fitted
    train, test = train_and_test(ROWS, 0.2, 0)
    theirs = transformer().fit(frame[["age", "note"]].iloc[train])
    for part, rows in ((stored.train, train), (stored.test, test)):
        made = theirs.transform(frame[["age", "note"]].iloc[rows])
        dense = made.toarray() if hasattr(made, "toarray") else made
        assert np.allclose(part.inputs, dense, atol=1e-6)
    fitted = stored.preprocessing
    assert fitted is not None
    assert "note__fever" in fitted.features
    again = Preprocessing.from_json(fitted.to_json())
    assert again == fitted
    assert np.array_equal(again.inputs(frame), fitted.inputs(frame))
    with pytest.raises(DataError, match="needs a column 'note', got none"):
        again.inputs(frame.drop(columns="note"))


def test_types_that_are_not_known_need_trust() -> None:
    stored = read_table(notes().drop(columns="note"), target="ill", transformer=Shifted())
    assert stored.preprocessing is not None
    text = stored.preprocessing.to_json()
    with pytest.raises(UndriftError, match=r"needs your trust .*Shifted.*--trust"):
        Preprocessing.from_json(text)
    assert Preprocessing.from_json(text, trust=True).features == stored.preprocessing.features


def test_a_pickle_in_the_place_of_the_archive_is_not_read() -> None:
    stored = read_table(notes(), target="ill", transformer=transformer())
    assert stored.preprocessing is not None
    text = stored.preprocessing.to_json()
    import base64
    import json

    values = json.loads(text)
    values["columns"][0]["archive"] = base64.b64encode(pickle.dumps(transformer())).decode()
    with pytest.raises(DataError, match="needs an archive of skops"):
        Preprocessing.from_json(json.dumps(values), trust=True)


BAD: dict[str, tuple[Any, str]] = {
    "no transformer": (3, "an object with fit and transform"),
    "a class": (StandardScaler, "an object with fit and transform"),
    "words": (FunctionTransformer(lambda cells: cells), "make numbers of the rows"),
    "one number": (FunctionTransformer(lambda cells: cells["age"].to_numpy()), "rows of features"),
    "no number": (
        FunctionTransformer(lambda cells: cells[["age"]].to_numpy() * np.nan),
        "finite numbers, got NaN or Inf in row 1",
    ),
    "no fit": (
        ColumnTransformer([("a", OneHotEncoder(), ["aeg"])]),
        "to be fitted to the training rows, got ValueError",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_transformer_that_does_not_serve_gets_a_sentence(case: str) -> None:
    own, message = BAD[case]
    with pytest.raises((DataError, ValueError), match=message):
        read_table(notes(), target="ill", transformer=own)


@pytest.mark.parametrize("option", [{"missing": "impute"}, {"categorical": ["note"]}])
def test_options_of_columns_are_the_transformer_s_business(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="beside a transformer"):
        read_table(notes(), target="ill", transformer=transformer(), **option)
