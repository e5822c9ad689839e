"""Data sets of the `datasets` package, made in memory, as undrift's arrays."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from undrift.data.dataset import Dataset
from undrift.data.huggingface import from_huggingface
from undrift.data.stored import Stored
from undrift.errors import DataError

datasets = pytest.importorskip(
    "datasets", reason="the datasets package is not installed: pip install undrift[datasets]"
)
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
NUMBERS = RNG.normal(size=(6, 3))
LABELS = [2, 0, 1, 1, 0, 2]
NAMES = ["cat", "dog", "eel"]


def table(features: Any = None, **columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns, features=features)


def both(data: Any, **options: Any) -> Stored:
    """All rows as training and as test data, in their order."""
    options = {"inputs": "x", "target": "y", **options}
    return from_huggingface(data, test=data, **options)


def named(**columns: Any) -> Any:
    features = {"y": datasets.ClassLabel(names=NAMES)}
    return table(**columns, y=LABELS).cast_column("y", features["y"])


def encoded(mode: str, array: Any, kind: str = "PNG") -> Any:
    image = Image.fromarray(array).convert(mode)
    file = io.BytesIO()
    image.save(file, format=kind)
    return Image.open(io.BytesIO(file.getvalue()))


# What comes out ----------------------------------------------------------------------------------


def test_grey_images_have_one_channel() -> None:
    stored = both(named(x=[encoded("L", a) for a in GREY]))
    assert stored.train.inputs.dtype == np.uint8
    assert np.array_equal(stored.train.inputs, GREY[:, None])
    assert stored.train.targets.tolist() == LABELS
    assert stored.train.targets.dtype == np.int64
    assert (stored.classes, stored.labels, stored.names) == (3, tuple(NAMES), ())
    assert stored.train.owners is None


def test_colour_images_have_their_channels_first() -> None:
    stored = both(named(x=[encoded("RGB", a) for a in COLOUR]))
    assert np.array_equal(stored.test.inputs, COLOUR.transpose(0, 3, 1, 2))


def test_a_grey_image_among_colours_is_grey_in_three_channels() -> None:
    images = [encoded("L", GREY[0]), *(encoded("RGB", a) for a in COLOUR[1:])]
    mixed = both(named(x=images))
    assert mixed.train.inputs.shape == (6, 3, 4, 5)
    assert np.array_equal(mixed.train.inputs[0], np.stack([GREY[0]] * 3))
    assert np.array_equal(mixed.train.inputs[1:], COLOUR[1:].transpose(0, 3, 1, 2))
    apart = from_huggingface(
        named(x=[encoded("RGB", a) for a in COLOUR]),
        inputs="x",
        target="y",
        test=named(x=[encoded("L", a) for a in GREY]),
    )
    assert np.array_equal(apart.test.inputs, np.repeat(GREY[:, None], 3, axis=1))


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "1", "LA"])
def test_other_modes_are_converted_as_pillow_does(mode: str) -> None:
    images = [encoded(mode, a, "TIFF" if mode == "CMYK" else "PNG") for a in COLOUR]
    inputs = both(named(x=images)).train.inputs
    grey = mode in ("1", "LA")
    expected = [np.asarray(image.convert("L" if grey else "RGB")) for image in images]
    assert np.array_equal(inputs, np.stack([np.atleast_3d(a).transpose(2, 0, 1) for a in expected]))


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (GREY, GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
    ],
    ids=["HW", "HWC", "CHW"],
)
@pytest.mark.parametrize("typed", [False, True], ids=["lists", "arrays"])
def test_arrays_of_bytes_are_images(pixels: Any, expected: Any, typed: bool) -> None:
    data = named(x=pixels.tolist())
    if typed:
        kind = datasets.Array2D if pixels.ndim == 3 else datasets.Array3D
        data = data.cast_column("x", kind(shape=pixels.shape[1:], dtype="uint8"))
    stored = both(data)
    assert stored.train.inputs.dtype == np.uint8
    assert np.array_equal(stored.train.inputs, expected)


def test_lists_of_floats_are_features() -> None:
    stored = both(named(x=NUMBERS.tolist()))
    assert stored.train.inputs.dtype == np.float32
    assert np.array_equal(stored.train.inputs, NUMBERS.astype(np.float32))
    square = both(named(x=NUMBERS.reshape(6, 1, 3).tolist()))
    assert square.train.inputs.shape == (6, 1, 3)


def test_columns_of_numbers_become_one_row_of_features() -> None:
    ages, flags = [30, 41, 52, 63, 74, 85], [True, False] * 3
    data = named(age=ages, flag=flags, more=NUMBERS.tolist())
    stored = both(data, inputs=["age", "more", "flag"])
    assert np.allclose(stored.train.inputs, np.column_stack([ages, NUMBERS, flags]))
    assert both(data, inputs="age").train.inputs.tolist() == [[age] for age in ages]


def test_lists_of_whole_numbers_are_tokens() -> None:
    tokens = [[5, 1, 9], [0, 2, 2], [7, 7, 7]] * 2
    stored = both(named(x=tokens))
    assert stored.train.inputs.dtype == np.int64
    assert stored.train.inputs.tolist() == tokens


def test_uneven_tokens_are_cut_and_filled_to_a_length() -> None:
    data = named(x=[[5, 1, 9, 4], [3], [], [1, 2], [8, 8, 8], [6]])
    stored = both(data, length=3, padding=99)
    assert stored.train.inputs.tolist() == [
        [5, 1, 9], [3, 99, 99], [99, 99, 99], [1, 2, 99], [8, 8, 8], [6, 99, 99],
    ]  # fmt: skip
    assert both(data, length=2).train.inputs[1].tolist() == [3, 0]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["b", "a", "c", "c", "a", "b"], ("a", "b", "c")),
        ([7, -1, 10, 10, -1, 7], ("-1", "7", "10")),
        ([1, 0, 2, 2, 0, 1], ("0", "1", "2")),
    ],
    ids=["strings", "numbers", "plain"],
)
def test_labels_without_names_are_numbered_in_sorted_order(given: Any, names: Any) -> None:
    stored = both(table(x=NUMBERS.tolist(), y=given))
    assert stored.train.targets.tolist() == [1, 0, 2, 2, 0, 1]
    assert (stored.classes, stored.labels) == (3, names)


def test_a_class_of_the_test_data_counts() -> None:
    train, test = table(x=[[0.5], [1.5]], y=["a", "c"]), table(x=[[2.5]], y=["b"])
    stored = from_huggingface(train, inputs="x", target="y", test=test)
    assert (stored.classes, stored.labels) == (3, ("a", "b", "c"))
    assert stored.train.targets.tolist() == [0, 2]
    assert stored.test.targets.tolist() == [1]


def test_a_client_column_gives_natural_clients() -> None:
    who = ["zoe", "adam", "zoe", "mia", "mia", "zoe"]
    stored = both(named(x=NUMBERS.tolist(), writer=who), client="writer")
    assert stored.names == ("adam", "mia", "zoe")
    assert [stored.names[owner] for owner in stored.train.owners] == who  # type: ignore[union-attr]
    clients = Dataset.of(stored).split("natural")
    assert clients.sizes.tolist() == [1, 2, 3]


def test_test_data_may_lack_the_client_column() -> None:
    train = named(x=NUMBERS.tolist(), writer=[3, 1, 3, 10, 10, 3])
    stored = from_huggingface(
        train, inputs="x", target="y", client="writer", test=train.remove_columns("writer")
    )
    assert stored.names == ("1", "3", "10")
    assert stored.train.owners is not None
    assert stored.train.owners.tolist() == [1, 0, 1, 2, 2, 1]
    assert stored.test.owners is None


# Which rows are test data ------------------------------------------------------------------------


def numbered(*rows: int) -> Any:
    return table(x=[[float(row)] for row in rows], y=[row % 2 for row in rows])


@pytest.mark.parametrize(
    ("names", "test", "expected"),
    [
        (("train", "test", "validation"), None, 1),
        (("train", "unsupervised", "validation"), None, 2),
        (("train", "test", "extra"), "extra", 2),
    ],
    ids=["test", "validation", "named"],
)
def test_splits_go_by_their_names(names: Any, test: Any, expected: int) -> None:
    data = datasets.DatasetDict({name: numbered(i, i + 10) for i, name in enumerate(names)})
    stored = from_huggingface(data, inputs="x", target="y", test=test)
    assert stored.train.inputs.ravel().tolist() == [0, 10]
    assert stored.test.inputs.ravel().tolist() == [expected, expected + 10]


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in-a-dict"])
def test_without_test_data_a_part_is_held_out(wrapped: bool) -> None:
    data = numbered(*range(50))
    data = datasets.DatasetDict({"train": data}) if wrapped else data

    def rows(seed: int, fraction: float) -> tuple[list[float], list[float]]:
        stored = from_huggingface(
            data, inputs="x", target="y", client="y", test_fraction=fraction, seed=seed
        )
        for part in (stored.train, stored.test):
            assert part.owners is not None
            assert part.inputs.ravel().tolist() == sorted(part.inputs.ravel())
            assert part.targets.tolist() == (part.inputs.ravel() % 2).tolist()
            assert part.owners.tolist() == part.targets.tolist()
        return stored.train.inputs.ravel().tolist(), stored.test.inputs.ravel().tolist()

    train, test = rows(1, 0.3)
    assert len(test) == 15
    assert sorted(train + test) == list(range(50))
    assert rows(1, 0.3) == (train, test)
    assert rows(2, 0.3) != (train, test)


def test_the_format_and_the_selection_of_the_dataset_do_not_matter() -> None:
    data = numbered(*range(8))
    plain = both(data.select([5, 2, 3]))
    assert plain.train.inputs.ravel().tolist() == [5, 2, 3]
    for kind in ("numpy", "torch", "pandas"):
        other = both(data.select([5, 2, 3]).with_format(kind))
        assert np.array_equal(other.train.inputs, plain.train.inputs)
        assert np.array_equal(other.train.targets, plain.train.targets)


def test_the_result_trains() -> None:
    data = Dataset.of(both(named(x=NUMBERS.tolist())), name="mine")
    assert data.train[0].dtype == torch.float32
    assert data.split("iid", 3).sizes.tolist() == [2, 2, 2]


# Bad input ---------------------------------------------------------------------------------------


GOOD = named(x=NUMBERS.tolist(), w=["a"] * 6)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "inputs": (
        lambda: both(GOOD, inputs="image"),
        "from_huggingface needs inputs to be one of x, w, y, got 'image'",
    ),
    "one of several": (lambda: both(GOOD, inputs=["x", "z"]), "one of x, w, y, got 'z'"),
    "no inputs": (lambda: both(GOOD, inputs=[]), "the name of an input column"),
    "target as input": (lambda: both(GOOD, inputs=["x", "y"]), "a target that is no input"),
    "target": (lambda: both(GOOD, target="label"), "target to be one of x, w, y, got 'label'"),
    "client": (lambda: both(GOOD, client="user"), "client to be one of x, w, y, got 'user'"),
    "test column": (
        lambda: from_huggingface(GOOD, inputs="x", target="y", test=GOOD.remove_columns("x")),
        "inputs to be one of w, y, got 'x'",
    ),
    "a list": (
        lambda: both([1, 2]),
        "a datasets.Dataset as its train data, got a list; load it with the datasets package",
    ),
    "streamed": (lambda: both(GOOD.to_iterable_dataset()), "load it without streaming"),
    "empty": (lambda: both(GOOD.select([])), "rows in its train data, got 0"),
    "one row": (
        lambda: from_huggingface(GOOD.select([0]), inputs="x", target="y"),
        "at least two rows",
    ),
    "no train": (
        lambda: from_huggingface(
            datasets.DatasetDict({"full": GOOD, "part": GOOD}), inputs="x", target="y"
        ),
        "a split 'train', got full, part; pass one of them",
    ),
    "unknown split": (
        lambda: from_huggingface(
            datasets.DatasetDict({"train": GOOD, "test": GOOD}), inputs="x", target="y", test="tets"
        ),
        "one of train, test, got 'tets'; the nearest is 'test'",
    ),
    "a name for a Dataset": (
        lambda: from_huggingface(GOOD, inputs="x", target="y", test="test"),
        "a DatasetDict to choose test = 'test' from, got a Dataset",
    ),
    "fraction": (
        lambda: from_huggingface(GOOD, inputs="x", target="y", test_fraction=1.0),
        "test_fraction in (0, 1)",
    ),
    "length": (lambda: both(GOOD, length=0), "length >= 1"),
    "length of floats": (
        lambda: both(GOOD, length=3),
        "Row 0 of column 'x' in the train data needs a list of token ids",
    ),
    "text": (lambda: both(GOOD, inputs="w"), "got text; turn it into token ids"),
    "uneven": (
        lambda: both(named(x=[[1], [1], [1, 2], [1], [1], [1]])),
        "Row 2 of column 'x' in the train data needs the shape of row 0, (1,), got (2,); pass len",
    ),
    "missing value": (
        lambda: both(named(x=[[1.0], [2.0], None, [1.0], [1.0], [1.0]])),
        "Row 2 of column 'x' in the train data needs a value, got none",
    ),
    "missing number": (
        lambda: both(named(x=[1.0, 2.0, None, 1.0, 1.0, 1.0])),
        "Row 2 of column 'x' in the train data needs finite numbers",
    ),
    "nan": (
        lambda: both(named(x=[[1.0], [2.0], [1.0], [float("nan")], [1.0], [1.0]])),
        "Row 3 of column 'x' in the train data needs finite numbers",
    ),
    "negative token": (
        lambda: both(named(x=[[1, 2]] * 5 + [[3, -4]])),
        "Row 5 of column 'x' in the train data needs token ids >= 0, got -4; cast",
    ),
    "above a byte": (
        lambda: both(named(x=[[[1, 256]]] * 6)),
        "Row 0 of column 'x' in the train data needs bytes from 0 to 255",
    ),
    "five channels": (lambda: both(named(x=[[[[1] * 5] * 4] * 2] * 6)), "1 or 3 channels"),
    "two images": (
        lambda: both(named(x=[[[1, 2]]] * 6, z=[1.0] * 6), inputs=["x", "z"]),
        "needs a number or a list of numbers, got an array of shape (1, 1, 2)",
    ),
    "sizes": (
        lambda: both(named(x=[encoded("L", a[: 4 - (i == 4)]) for i, a in enumerate(GREY)])),
        "Row 4 of column 'x' in the train data needs 5 x 4 pixels as row 0 has, got 5 x 3; resize",
    ),
    "sixteen bits": (
        lambda: both(named(x=[Image.fromarray(a.astype(np.uint16)) for a in GREY])),
        "8 bits per channel, got mode I;16",
    ),
    "undecodable": (
        lambda: both(
            named(x=[{"bytes": b"no image", "path": None}] * 6).cast_column("x", datasets.Image())
        ),
        "Row 0 of column 'x' in the train data needs an image, got",
    ),
    "undecoded": (
        lambda: both(
            named(x=[encoded("L", a) for a in GREY]).cast_column("x", datasets.Image(decode=False))
        ),
        "got bytes; cast the column",
    ),
    "test shape": (
        lambda: from_huggingface(
            GOOD, inputs="x", target="y", test=named(x=NUMBERS[:, :2].tolist())
        ),
        "test samples like the training samples, ((3,), 'float32'), got ((2,), 'float32')",
    ),
    "no label": (
        lambda: both(table(x=[[0.5]] * 2, y=["a", None])),
        "Row 1 of column 'y' in the train data needs a value",
    ),
    "unlabelled": (
        lambda: from_huggingface(
            GOOD,
            inputs="x",
            target="y",
            test=table(x=[[0.5, 1.0, 2.0]], y=[-1]).cast_column(
                "y", datasets.ClassLabel(names=NAMES)
            ),
        ),
        "Row 0 of column 'y' in the test data needs a label from 0 to 2, got -1; choose a split",
    ),
    "float labels": (
        lambda: both(table(x=[[0.5]] * 2, y=[0.5, 1.0])),
        "needs a whole number or a string, got 0.5; cast it",
    ),
    "other names": (
        lambda: from_huggingface(
            GOOD,
            inputs="x",
            target="y",
            test=table(x=[[0.5, 1.0, 2.0]], y=[0]).cast_column(
                "y", datasets.ClassLabel(names=["x", "y"])
            ),
        ),
        "needs the class names of the training data, got others",
    ),
    "mixed labels": (
        lambda: from_huggingface(
            table(x=[[0.5]], y=["1"]), inputs="x", target="y", test=table(x=[[0.5]], y=[1])
        ),
        "values of one type in all data",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_in_one_sentence(case: str) -> None:
    build, text = BAD[case]
    with pytest.raises((ValueError, DataError)) as caught:
        build()
    message = str(caught.value)
    assert text in message
    assert message.endswith(".")
    assert "\n" not in message
    assert ", got " in message
