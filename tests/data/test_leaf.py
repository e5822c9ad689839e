"""LEAF's JSON: small files made here, what is wrong with a file, and real samples."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.system import SHARED
from undrift.data.formats.leaf import (
    LETTERS,
    read_celeba,
    read_femnist,
    read_leaf_shakespeare,
    tokens_of,
)
from undrift.data.stored import Stored
from undrift.errors import DataError

SAMPLES = SHARED / "leaf"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no LEAF samples beside the checkout")
Json = dict[str, Any]


def bundle(users: dict[str, tuple[list[Any], list[Any]]]) -> Json:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def put(folder: Path, *files: tuple[str, Json | str]) -> Path:
    for name, content in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def image(seed: int, digits: int = 4) -> list[float]:
    pixels = np.random.default_rng(seed).integers(0, 256, 784)
    return [round(int(p) / 255, digits) for p in pixels]


def writers(*names: str, first: int = 0) -> Json:
    data = {}
    for k, name in enumerate(names):
        seeds = range(first + 10 * k, first + 10 * k + k + 1)
        data[name] = ([image(s) for s in seeds], [s % 62 for s in seeds])
    return bundle(data)


def small(folder: Path) -> Path:
    return put(
        folder,
        ("train/b.json", writers("w2", "w1")),
        ("train/a.json", writers("w3", first=100)),
        ("test/only.json", writers("w1", "w0", first=200)),
    )


def test_files_are_merged_and_owners_are_the_sorted_names_of_both_splits(tmp_path: Path) -> None:
    stored = read_femnist(small(tmp_path))
    assert stored.names == ("w0", "w1", "w2", "w3")
    assert stored.classes == 62
    assert stored.labels[10] == "A"
    assert stored.labels[36] == "a"
    assert stored.train.owners is not None
    assert stored.test.owners is not None
    # a.json before b.json; w2 has one image, w1 two.
    assert stored.train.owners.tolist() == [3, 2, 1, 1]
    assert stored.test.owners.tolist() == [1, 0, 0]
    assert stored.train.targets.tolist() == [100 % 62, 0, 10, 11]
    assert stored.train.targets.dtype == np.int64
    assert stored.train.inputs.dtype == np.uint8
    assert stored.train.inputs.shape == (4, 1, 28, 28)
    seeds = (100, 0, 10, 11)
    expected = [np.random.default_rng(s).integers(0, 256, 784).reshape(28, 28) for s in seeds]
    assert np.array_equal(stored.train.inputs[:, 0], np.stack(expected))


def test_rounding_gives_every_byte_back_from_three_digits_on(tmp_path: Path) -> None:
    for digits in (3, 4, 17):
        values = [round(p / 255, digits) for p in range(256)] + [0] * 528
        split = bundle({"w": ([values], [0])})
        stored = read_femnist(put(tmp_path, ("train/x.json", split), ("test/x.json", split)))
        assert stored.train.inputs.ravel()[:256].tolist() == list(range(256))


def test_leafs_own_data_folder_is_found_below(tmp_path: Path) -> None:
    small(tmp_path / "data")
    assert len(read_femnist(tmp_path).train) == 4


@pytest.mark.parametrize("extra", [{"hierarchies": ["p"]}, {"hierarchies": None, "more": 1}])
def test_other_keys_do_not_matter(tmp_path: Path, extra: Json) -> None:
    one = writers("w") | extra
    assert len(read_femnist(put(tmp_path, ("train/x.json", one), ("test/x.json", one))).train) == 1


def windows(text: str) -> tuple[list[str], list[str]]:
    starts = range(len(text) - 80)
    return [text[i : i + 80] for i in starts], [text[i + 80] for i in starts]


def test_shakespeare_tokens_are_indices_into_leafs_letters(tmp_path: Path) -> None:
    text = (LETTERS + "To be, or not to be")[:90]
    split = bundle({"HAMLET": windows(text)})
    stored = read_leaf_shakespeare(put(tmp_path, ("train/x.json", split), ("test/x.json", split)))
    assert len(stored.vocabulary) == stored.classes == 80
    assert stored.train.inputs.dtype == np.uint8
    for i, row in enumerate(stored.train.inputs):
        assert "".join(stored.vocabulary[t] for t in row) == text[i : i + 80]
        assert stored.vocabulary[stored.train.targets[i]] == text[i + 80]


def test_unknown_characters_are_spaces() -> None:
    # Beyond ASCII, a lone surrogate, and beyond the basic plane.
    assert tokens_of("a~b\u00e9c\ud800d\U0001f600e").tolist() == tokens_of("a b c d e").tolist()
    assert tokens_of("").tolist() == []
    for character in map(chr, range(300)):
        known = character if character in LETTERS else " "
        assert tokens_of(character).tolist() == [LETTERS.index(known)]


def faces(folder: Path, names: list[str], below: str = "raw/img_align_celeba") -> Path:
    (folder / below).mkdir(parents=True)
    for i, name in enumerate(names):
        Image.new("RGB", (178, 218), (10 * i, 50, 200)).save(folder / below / name)
    split = bundle({"7": (names[:1], [1]), "12": (names[1:], [0] * (len(names) - 1))})
    return put(folder, ("train/x.json", split), ("test/x.json", split))


@pytest.mark.parametrize("below", ["raw/img_align_celeba", "data/raw/img_align_celeba"])
def test_celeba_images_are_decoded_and_squeezed(tmp_path: Path, below: str) -> None:
    stored = read_celeba(faces(tmp_path, ["000001.png", "2.png", "0000003.png"], below))
    assert stored.names == ("12", "7")
    assert stored.classes == 2
    assert stored.train.inputs.shape == (3, 3, 84, 84)
    assert stored.train.inputs.dtype == np.uint8
    assert stored.train.targets.tolist() == [1, 0, 0]
    assert stored.train.inputs[:, :, 40, 40].tolist() == [[10 * i, 50, 200] for i in range(3)]


def test_celeba_is_resized_as_leaf_does(tmp_path: Path) -> None:
    faces(tmp_path, ["a.png", "b.png"])
    noise = np.random.default_rng(0).integers(0, 256, (218, 178), dtype=np.uint8)
    path = tmp_path / "raw/img_align_celeba/a.png"
    Image.fromarray(noise).save(path)  # grey, so that the conversion shows
    with Image.open(path) as grey:
        expected = np.array(grey.resize((84, 84)).convert("RGB"))
    stored = read_celeba(tmp_path)
    assert np.array_equal(stored.train.inputs[0], expected.transpose(2, 0, 1))


def test_celeba_without_images_an_image_or_with_a_damaged_one(tmp_path: Path) -> None:
    folder = faces(tmp_path, ["a.png", "b.png"])
    images = tmp_path / "raw" / "img_align_celeba"
    content = (images / "b.png").read_bytes()
    (images / "b.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"b\.png needs an image that decodes, got .*; replace"):
        read_celeba(folder)
    (images / "b.png").unlink()
    with pytest.raises(DataError, match=r"needs the image b\.png, got none"):
        read_celeba(folder)
    images.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="needs CelebA's aligned images, got none; put them into"):
        read_celeba(folder)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/b.png", "..", "", "x\0y"])
def test_celeba_opens_nothing_outside_its_images(tmp_path: Path, name: str) -> None:
    folder = faces(tmp_path, ["a.png", "b.png"])
    put(folder, ("train/x.json", bundle({"7": ([name], [1])})))
    with pytest.raises(DataError, match="plain names of image files"):
        read_celeba(folder)


def change(**changes: Any) -> Callable[[Json], Json]:
    return lambda content: content | changes


def of_user(**changes: Any) -> Callable[[Json], Json]:
    def apply(content: Json) -> Json:
        content["user_data"]["w1"] |= changes
        return content

    return apply


def without(key: str) -> Callable[[Json], Json]:
    return lambda content: {k: v for k, v in content.items() if k != key}


BLACK = [0.0] * 784
WRONG: dict[str, tuple[Callable[[Json], Json | str], str]] = {
    "not json": (lambda c: "{", "valid JSON, got .* at line 1, column 2"),
    "cut off": (lambda c: json.dumps(c, indent=1)[:-200], r"valid JSON, got .* at line \d+, col"),
    "empty": (lambda c: "", "valid JSON, got .* at line 1, column 1"),
    "a list": (lambda c: "[]", "a JSON object, got a list"),
    "nested": (lambda c: "[" * 100_000, "valid JSON, got"),
    "long number": (lambda c: "[" + "9" * 10_000 + "]", "valid JSON, got"),
    "no users": (without("users"), "a list 'users', got no such key"),
    "no num_samples": (without("num_samples"), "a list 'num_samples', got no such key"),
    "no user_data": (without("user_data"), "an object 'user_data', got no such key"),
    "users a string": (change(users="w1"), "a list 'users', got a string"),
    "no user": (change(users=[], num_samples=[], user_data={}), "at least one user, got none"),
    "user a number": (change(users=[1, "w2"]), "names in 'users', got 1"),
    "user without data": (
        change(users=["w1", "w2", "w9"], num_samples=[1, 2, 1]),
        "'user_data' of user 'w9', got none",
    ),
    "user not listed": (change(users=["w1"], num_samples=[1]), "listed in 'users', got 'w2'"),
    "user listed twice": (change(users=["w1", "w2", "w1"], num_samples=[1, 2, 1]), "'w1'"),
    "too few counts": (change(num_samples=[1]), "each of 2 users, got 1"),
    "counts disagree": (change(num_samples=[3, 2]), "num_samples 1 of user 'w1', got 3"),
    "count not whole": (change(num_samples=[1.0, 2]), "num_samples 1 of user 'w1', got 1.0"),
    "no samples": (of_user(x=[], y=[]), r"at least one sample \(user 'w1'\), got none"),
    "x missing": (of_user(x=None), "a list 'x' of user 'w1', got null"),
    "y a string": (of_user(y="0"), "a list 'y' of user 'w1', got a string"),
    "more x than y": (of_user(x=[BLACK] * 2), "as many x as y of user 'w1', got 2 and 1"),
    "x too short": (of_user(x=[BLACK[1:]]), r"784 numbers in every x \(user 'w1'\), got 783"),
    "x a string": (of_user(x=["img.png"]), "784 numbers in every x .* got a string"),
    "x above one": (of_user(x=[[255, *BLACK[1:]]]), "pixels from 0 to 1 .* got 255"),
    "x below nought": (of_user(x=[[-0.1, *BLACK[1:]]]), "pixels from 0 to 1 .* got -0.1"),
    "x not a number": (of_user(x=[[float("nan"), *BLACK[1:]]]), "pixels from 0 to 1 .* got nan"),
    "x null": (of_user(x=[[None, *BLACK[1:]]]), "numbers in x .* got something else"),
    "x text": (of_user(x=[["0.5", *BLACK[1:]]]), "numbers in x .* got something else"),
    "x a list within": (of_user(x=[[[0], *BLACK[1:]]]), "numbers in x .* got something else"),
    "label too large": (of_user(y=[62]), r"whole labels from 0 to 61 \(user 'w1'\), got 62"),
    "label negative": (of_user(y=[-1]), "whole labels from 0 to 61 .* got -1"),
    "label a fraction": (of_user(y=[1.5]), "whole labels from 0 to 61 .* got 1.5"),
    "label true": (of_user(y=[True]), "whole labels from 0 to 61 .* got True"),
    "label text": (of_user(y=["1"]), "whole labels from 0 to 61 .* got '1'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, case: str) -> None:
    spoil, expected = WRONG[case]
    put(tmp_path, ("train/bad.json", spoil(writers("w1", "w2"))), ("test/t.json", writers("w1")))
    with pytest.raises(DataError, match=f"(?s){expected}") as caught:
        read_femnist(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "train" / "bad.json") + " needs ")
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (["a" * 79], ["b"], "strings of 80 characters as x .* got 79"),
        ([["a"] * 80], ["b"], "strings of 80 characters as x .* got a list"),
        (["a" * 80], ["bc"], "strings of 1 characters as y .* got 2"),
        (["a" * 80], [3], "strings of 1 characters as y .* got 3"),
    ],
    ids=["short", "list", "two", "number"],
)
def test_shakespeare_of_the_wrong_length(
    tmp_path: Path, x: list[Any], y: list[Any], expected: str
) -> None:
    put(tmp_path, ("train/bad.json", bundle({"R": (x, y)})))
    with pytest.raises(DataError, match=expected):
        read_leaf_shakespeare(tmp_path)


def test_the_same_user_twice(tmp_path: Path) -> None:
    put(tmp_path, ("train/a.json", writers("w1")), ("train/b.json", writers("w0", "w1")))
    with pytest.raises(DataError, match=r"b\.json needs users not in a\.json, got 'w1'"):
        read_femnist(tmp_path)
    text = json.dumps(writers("w1", "w2")).replace('"w2": {', '"w1": {')
    put(tmp_path, ("train/b.json", text))
    with pytest.raises(DataError, match=r"every user and key once, got 'w1' twice"):
        read_femnist(tmp_path)


def test_missing_folders_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train needs LEAF's \*.json files, got none"):
        read_femnist(tmp_path)
    put(tmp_path, ("train/a.json", writers("w1")))
    with pytest.raises(DataError, match=r"test needs LEAF's \*.json files, got none"):
        read_femnist(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.json").write_bytes(b'{"users": ["\xff"]}')
    with pytest.raises(DataError, match=r"a\.json needs valid JSON, got .*0xff"):
        read_femnist(tmp_path)


def test_damaged_bytes_give_data_or_a_data_error(tmp_path: Path) -> None:
    draw = random.Random(5)
    split = bundle({"R": windows("x" * 84), "S\u00e9": windows("To be, or not to be " * 5)})
    whole = json.dumps(split, ensure_ascii=False).encode()
    put(tmp_path, ("train/x.json", split))
    path = tmp_path / "test" / "x.json"
    path.parent.mkdir()
    refused = 0
    for k in range(600):
        content = bytearray(whole)
        if k % 3 == 0:
            del content[draw.randrange(len(content)) :]
        for _ in range(k % 3):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        try:
            stored = read_leaf_shakespeare(tmp_path)
        except DataError:
            refused += 1
        else:
            assert isinstance(stored, Stored)
            assert len(stored.test.inputs) == len(stored.test.targets) == 24
            assert stored.test.inputs.max() < 80
    assert refused > 200


def test_damaged_numbers_give_data_or_a_data_error(tmp_path: Path) -> None:
    draw = random.Random(6)
    split = bundle({"a": ([image(1)], [3]), "b": ([image(2, 1)], [61])})
    whole = json.dumps(split).encode()
    put(tmp_path, ("train/x.json", split))
    path = tmp_path / "test" / "x.json"
    path.parent.mkdir()
    for _ in range(400):
        content = bytearray(whole)
        content[draw.randrange(len(content))] = draw.choice(b'0123456789.,-+eE"[]{}: NInatfu')
        path.write_bytes(content)
        try:
            stored = read_femnist(tmp_path)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert stored.test.inputs.shape == (2, 1, 28, 28)
            assert 0 <= stored.test.targets.min() <= stored.test.targets.max() < 62


@real
def test_forty_real_writers() -> None:
    stored = read_femnist(SAMPLES / "femnist_digits")
    assert (len(stored.train), len(stored.test), len(stored.names)) == (3890, 451, 40)
    assert stored.train.owners is not None
    per_writer = np.bincount(stored.train.owners, minlength=40)
    assert per_writer[0] == 93
    assert per_writer.min() > 0
    assert set(stored.train.targets.tolist()) == set(range(10))
    # Real digits: MNIST's mean is 0.1307 with a standard deviation of 0.3081.
    scaled = stored.train.inputs / 255
    assert abs(scaled.mean() - 0.1307) < 0.01
    assert abs(scaled.std() - 0.3081) < 0.01


@real
def test_real_pixels_lose_nothing() -> None:
    stored = read_femnist(SAMPLES / "femnist_digits")
    (path,) = (SAMPLES / "femnist_digits" / "test").glob("*.json")
    content = json.loads(path.read_text())
    raw = np.concatenate([content["user_data"][u]["x"] for u in content["users"]])
    assert np.array_equal(np.round(stored.test.inputs.reshape(-1, 784) / 255, 4), raw)


@real
def test_real_roles() -> None:
    stored = read_leaf_shakespeare(SAMPLES / "shakespeare")
    assert (len(stored.train), len(stored.test), len(stored.names)) == (37_697, 7_695, 22)
    assert stored.train.owners is not None
    first = np.flatnonzero(stored.train.owners == stored.names.index("KING_JOHN_BLANCH"))
    assert len(first) == 1312
    # Each window goes on where the last one stood, one character further.
    rows = stored.train.inputs[first]
    assert np.array_equal(rows[1:, :-1], rows[:-1, 1:])
    assert np.array_equal(rows[1:, -1], stored.train.targets[first][:-1])


def test_a_file_is_not_held_as_lists(tmp_path: Path) -> None:
    """Parsed whole, these 400 images are 314,000 float objects, 10 MB; one user's are 0.3."""
    users = {f"w{k:02}": ([image(k)] * 10, [k % 62] * 10) for k in range(40)}
    one = bundle({"w": ([image(1)], [1])})
    folder = put(tmp_path, ("train/x.json", bundle(users)), ("test/x.json", one))
    size = (tmp_path / "train" / "x.json").stat().st_size
    tracemalloc.start()
    try:
        read_femnist(folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * size + 2e6 < 8e6  # the text is held twice while it is decoded
