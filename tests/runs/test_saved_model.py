"""A saved model is a file of others: what it says is checked before anything is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from undrift import models
from undrift.data.tables.preprocessing import NumberColumn, Preprocessing, Target
from undrift.errors import UndriftError
from undrift.runs.saved_model import SavedModel

TABLE = Preprocessing(
    (NumberColumn("a", 0.5, 2.0), NumberColumn("b", 0.0, 1.0)), Target("y", ("no", "yes"))
)
NETWORK: dict[str, Any] = {"model": "logistic", "shape": [2], "classes": 2, "code": {}}


def write(folder: Path, network: object, table: object) -> Path:
    path = folder / "model.safetensors"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (network, table)]
    metadata = dict(zip(("architecture", "preprocessing"), texts, strict=True))
    save_file(models.build("logistic", shape=(2,), classes=2).state_dict(), path, metadata)
    return path


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    saved = SavedModel.read(write(tmp_path, NETWORK, TABLE.to_json()))
    assert saved.preprocessing == TABLE


@pytest.mark.parametrize(
    "change",
    [{"shape": [100_000], "classes": 100_000}, {"model": "mlp:hidden=2000000000"}],
    ids=["shape", "option"],
)
def test_a_network_that_is_larger_than_its_file_is_not_built(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, places = models.build, []

    def watched(*arguments: Any, **options: Any) -> Any:
        model = build(*arguments, **options)
        places.append(next(model.parameters()).device.type)
        return model

    path = write(tmp_path, NETWORK | change, TABLE.to_json())
    monkeypatch.setattr(models, "build", watched)
    with pytest.raises(ValueError, match=r"at least the 40,000,.* bytes of its network's param"):
        SavedModel.read(path)
    assert places == ["meta"], "nothing was allocated"


@pytest.mark.parametrize(
    "change",
    [{"shape": [-1]}, {"shape": [2.5]}, {"shape": [True]}, {"classes": 0}, {"classes": 2**31},
     {"shape": [2**31 - 1], "classes": 2**31 - 1}, {"code": []}, {"shape": 2}],
    ids=str,
)  # fmt: skip
def test_a_network_that_makes_no_sense_is_one_sentence(
    change: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path, NETWORK | change, TABLE.to_json())
    with pytest.raises(UndriftError, match=r"needs (an architecture|a network that can be built)"):
        SavedModel.read(path)


def test_texts_that_are_nested_too_deeply_are_one_sentence(tmp_path: Path) -> None:
    for network, table in (("[" * 5000, TABLE.to_json()), (NETWORK, "[" * 5000)):
        with pytest.raises(UndriftError, match="within each other"):
            SavedModel.read(write(tmp_path, network, table))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"mean": "0"}, "a finite number, got 0"),
        ({"mean": True}, "a finite number, got True"),
        ({"scale": 0}, "a scale above 0, got 0"),
        ({"fill": []}, r"a finite number, got \[\]"),
        ({"name": 3}, "a text, got 3"),
        ({"kind": ["number"]}, "of kind number, category or skops"),
        ({"kind": "category", "categories": 3}, "not iterable"),
    ],
    ids=str,
)
def test_preprocessing_that_makes_no_sense_is_one_sentence(
    column: dict[str, Any], said: str, tmp_path: Path
) -> None:
    values = json.loads(TABLE.to_json())
    values["columns"][0] |= column
    with pytest.raises(UndriftError, match=f"JSON as undrift writes it, got an error: .*{said}"):
        SavedModel.read(write(tmp_path, NETWORK, values))


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    text = TABLE.to_json().replace("0.5", "NaN")
    with pytest.raises(UndriftError, match="a finite number, got nan"):
        SavedModel.read(write(tmp_path, NETWORK, text))
