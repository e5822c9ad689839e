"""Shakespeare by role and IMDb reviews: small texts made here, and the real ones."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.system import SHARED
from undrift.data.formats.imdb import read_imdb, words_of
from undrift.data.formats.leaf import LETTERS
from undrift.data.formats.shakespeare import read_roles, read_shakespeare
from undrift.data.stored import Samples, Stored
from undrift.errors import DataError

PLAYS = SHARED / "shakespeare"
REVIEWS = SHARED / "imdb" / "aclImdb.tar.xz"
plays = pytest.mark.skipif(not PLAYS.is_dir(), reason="no Shakespeare beside the checkout")
reviews = pytest.mark.skipif(not REVIEWS.is_file(), reason="no IMDb archive beside the checkout")

GUTENBERG = """\
The Project Gutenberg EBook of Everything

1609

THE SONNETS

by William Shakespeare

                     1
  FAIR. From fairest creatures we desire increase,
    That thereby beauty's rose
    might never die,
  ROSE. But as the riper
    should by time
    decease,

1603

A PLAY, OR TWO

by William Shakespeare

ACT I. SCENE 1.
Rousillon. Enter FIRST LORD

  FIRST LORD. In delivering   my son
    from me, I bury a second husband.
                                  Exit
  Second Lord. And I in going.
    I weep,
  first lord. Again.
Not indented, hence dropped.
    Still the lord.
  SECOND LORD. Enough.
  MUTE. Once only.

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1.
This is nobody's.
AEGEON. Proceed, Solinus,
to procure my fall,
And by the doom.
DUKE. Merchant,
<<THIS ELECTRONIC VERSION>>
is not said.
DUKE. Plead
no more.
ACT II. SCENE 2.
Nor this.

1609

A LOVER'S COMPLAINT

by William Shakespeare

  ALONE. One role is no play.
    Two.
    Three.
"""
SAID = {
    "A_PLAY__OR_TWO_FIRST_LORD": "In delivering my son from me, I bury a second husband. "
    "Exit Again. Still the lord. ",
    "A_PLAY__OR_TWO_SECOND_LORD": "And I in going. I weep, Enough. ",
    "THE_COMEDY_OF_ERRORS_AEGEON": "Proceed, Solinus, to procure my fall, And by the doom. ",
    "THE_COMEDY_OF_ERRORS_DUKE": "Merchant, Plead no more. ",
}


def test_roles_by_leafs_rules(tmp_path: Path) -> None:
    path = tmp_path / "pg100.txt"
    path.write_bytes("\ufeff".encode() + GUTENBERG.replace("\n", "\r\n").encode())
    assert read_roles(path, window=10) == SAID
    (tmp_path / "pg100.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_roles(tmp_path / "pg100.txt.gz", window=10) == SAID
    assert list(read_roles(path, window=30)) == list(SAID)[:3]


TINY = """\
First Citizen:
Before we proceed,   hear me:
speak:

All:
Speak, speak.

First Citizen:
You are all resolved

to die.

Nobody:

All:
Resolved.
"""


def test_roles_of_tiny_shakespeare(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text(TINY)
    assert read_roles(path, window=5) == {
        "First Citizen": "Before we proceed, hear me: speak: You are all resolved to die. ",
        "All": "Speak, speak. Resolved. ",
    }


def tiny(folder: Path, **said: str) -> Path:
    (folder / "input.txt").write_text("\n\n".join(f"{k}:\n{v}" for k, v in said.items()) + "\n")
    return folder


def brute(said: dict[str, str], window: int, share: float) -> dict[str, list[tuple[str, str, str]]]:
    """Windows one by one, as the words of the split have it."""
    found: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": []}
    for role in sorted(said):
        text = said[role] + " "
        all_windows = [(text[i : i + window], text[i + window]) for i in range(len(text) - window)]
        train = all_windows[: round(len(all_windows) * (1 - share) - 0.499999)]
        test = all_windows[len(train) + window - 1 :]
        if not test:
            train = all_windows
        found["train"] += [(role, *sample) for sample in train]
        found["test"] += [(role, *sample) for sample in test]
    return found


def shown(stored: Stored, part: Samples) -> list[tuple[str, str, str]]:
    assert part.owners is not None
    return [
        (
            stored.names[owner],
            "".join(stored.vocabulary[t] for t in row),
            stored.vocabulary[target],
        )
        for row, target, owner in zip(part.inputs, part.targets, part.owners, strict=True)
    ]


@pytest.mark.parametrize(("window", "share"), [(5, 0.2), (8, 0.5), (1, 0.3)])
def test_windows_split_and_gap_by_brute_force(tmp_path: Path, window: int, share: float) -> None:
    words = "To be or not that is the question whether nobler in mind"
    said = {
        role: " ".join(random.Random(role).choices(words.split(), k=k))
        for role, k in (("ROMEO", 40), ("ALL", 8), ("Bishop", 3), ("Juliet", 17))
    }
    stored = read_shakespeare(tiny(tmp_path, **said), window=window, test_fraction=share)
    expected = brute(said, window, share)
    assert shown(stored, stored.train) == expected["train"]
    assert shown(stored, stored.test) == expected["test"]
    assert stored.names == ("ALL", "Bishop", "Juliet", "ROMEO")
    assert stored.train.inputs.dtype == np.uint8
    assert stored.train.targets.dtype == np.int64
    assert stored.classes == 80


@pytest.mark.parametrize("count", range(1, 40))
def test_training_and_test_windows_share_no_character_but_one(tmp_path: Path, count: int) -> None:
    """All windows of a role are placed; a test window begins no earlier than the last target."""
    text = "".join(random.Random(count).choices(LETTERS[24:50], k=count + 9))
    stored = read_shakespeare(tiny(tmp_path, A=text), window=10)
    train, test = len(stored.train), len(stored.test)
    if test:
        assert train == count * 4 // 5
        assert train + test + 9 == count
    else:
        assert train == count
        assert count - count * 4 // 5 <= 9


def test_shares_are_not_lost_to_rounding(tmp_path: Path) -> None:
    """100 * (1 - 0.9) is 9.99... in floating point."""
    stored = read_shakespeare(tiny(tmp_path, A="x" * 100), window=1, test_fraction=0.9)
    assert (len(stored.train), len(stored.test)) == (10, 90)


def test_no_test_windows_when_none_are_wanted(tmp_path: Path) -> None:
    stored = read_shakespeare(tiny(tmp_path, A="x" * 500), test_fraction=0)
    assert (len(stored.train), len(stored.test)) == (421, 0)
    assert stored.test.inputs.shape == (0, 80)


def test_leafs_json_comes_first_then_gutenberg(tmp_path: Path) -> None:
    tiny(tmp_path, A="x" * 500)
    (tmp_path / "pg100.txt").write_text(GUTENBERG)
    assert read_shakespeare(tmp_path).names == ("A_PLAY__OR_TWO_FIRST_LORD",)
    split = {"users": ["B"], "num_samples": [1], "user_data": {"B": {"x": ["b" * 80], "y": ["c"]}}}
    for which in ("train", "test"):
        (tmp_path / which).mkdir()
        (tmp_path / which / "a.json").write_text(json.dumps(split))
    assert read_shakespeare(tmp_path).names == ("B",)
    with pytest.raises(ValueError, match="window=80 for LEAF's JSON, got 20; use the plain text"):
        read_shakespeare(tmp_path, window=20)


def test_damaged_plays(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs pg100\.txt, .*, got none of them; put one there"):
        read_shakespeare(tmp_path)
    path = tmp_path / "pg100.txt.gz"
    whole = gzip.compress(GUTENBERG.encode())
    for content in (whole[:-300], whole[:5], b"no gzip at all", whole[:200] + b"xx" + whole[202:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"pg100\.txt\.gz needs a whole gzip file, got"):
            read_shakespeare(tmp_path)
    path.unlink()
    path = tmp_path / "input.txt"
    path.write_bytes(b"A:\n\xff\n")
    with pytest.raises(DataError, match=r"input\.txt needs UTF-8 text, got byte 3"):
        read_shakespeare(tmp_path)
    for text in ("", "some other text\n", "A:\ntoo short\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="roles with more than 80 characters, got none; take"):
            read_shakespeare(tmp_path)


@pytest.mark.parametrize("window", [0, -1, 2.5, True])
def test_bad_windows(tmp_path: Path, window: int) -> None:
    with pytest.raises(ValueError, match="window >= 1"):
        read_shakespeare(tmp_path, window=window)


@pytest.mark.parametrize("share", [-0.1, 1, float("nan")])
def test_bad_test_fractions(tmp_path: Path, share: float) -> None:
    with pytest.raises(ValueError, match="0 <= test_fraction < 1"):
        read_shakespeare(tmp_path, test_fraction=share)


@plays
def test_all_of_leafs_roles() -> None:
    expected = json.loads((PLAYS / "roles.json").read_text())
    roles = read_roles(PLAYS / "pg100.txt.gz")
    assert len(roles) == 1129
    assert sum(len(text) - 80 for text in roles.values()) == 4_226_159
    assert roles == {role: about["text"] for role, about in expected.items()}


@plays
def test_real_tiny_shakespeare() -> None:
    roles = read_roles(PLAYS / "input.txt")
    assert roles["ANTONIO"].endswith("Whiles thou art waking. ")
    assert roles["First Citizen"].startswith("Before we proceed any further, hear me speak. You")
    # All but the names, of the 1,115,394 characters.
    assert 1.0e6 < sum(map(len, roles.values())) < 1.1e6


@plays
@pytest.mark.skipif(not (SHARED / "leaf").is_dir(), reason="no LEAF samples beside the checkout")
def test_windows_of_the_plays_are_those_of_the_samples(tmp_path: Path) -> None:
    """Two ways to the same windows: from the plays, and from LEAF's JSON."""
    samples = read_shakespeare(SHARED / "leaf" / "shakespeare")
    text = read_roles(PLAYS / "pg100.txt.gz")
    tiny(tmp_path, **{name: text[name] for name in samples.names})
    stored = read_shakespeare(tmp_path)
    assert stored.names == samples.names
    for ours, theirs in ((stored.train, samples.train), (stored.test, samples.test)):
        assert ours.owners is not None
        assert theirs.owners is not None
        order = np.argsort(theirs.owners, kind="stable")
        assert np.array_equal(ours.owners, theirs.owners[order])
        assert np.array_equal(ours.inputs, theirs.inputs[order])
        assert np.array_equal(ours.targets, theirs.targets[order])


@plays
@pytest.mark.long
def test_the_whole_of_shakespeare() -> None:
    stored = read_shakespeare(PLAYS)
    assert len(stored.names) == 1129
    assert stored.train.owners is not None
    assert stored.train.owners.max() == 1128
    gaps = len(np.unique(stored.test.owners)) * 79
    assert len(stored.train) + len(stored.test) + gaps == 4_226_159
    # Every letter of LEAF's but the line end occurs.
    seen = {*stored.train.inputs[:, 0], *stored.train.targets, *stored.test.targets}
    assert {int(token) for token in seen} == set(range(80)) - {LETTERS.index("\n")}


MOVIES = {
    "train/neg/0_2.txt": "Bad film.<br /><br />It wasn't GOOD, not at all: bad, bad!",
    "train/neg/10_1.txt": "Bad... film",
    "train/neg/2_3.txt": "",
    "train/pos/0_9.txt": "A good film, a très good one. Good! 10/10",
    "train/unsup/0_0.txt": "unsup unsup unsup unsup unsup unsup",
    "test/neg/0_4.txt": "never seen words, bad",
    "test/pos/7.txt": "good " * 20,
    "test/pos/readme.md": "not a review",
}
LAID: dict[str, str] = {f"aclImdb/{name}": text for name, text in MOVIES.items()}


def unpacked(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def packed(path: Path, files: dict[str, str]) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in sorted(files, key=lambda n: (len(n), n), reverse=True):  # any order will do
            info = tarfile.TarInfo(name)
            content = files[name].encode()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    compress = lzma.compress if path.suffix == ".xz" else gzip.compress
    path.write_bytes(compress(raw.getvalue()))
    return path.parent


def test_words() -> None:
    assert words_of("It's  <br />a_b, 'quoted' O'Neill's caf\u00e9-bar 10/10") == [
        *("it's", "a_b", "quoted", "o'neill's", "caf\u00e9", "bar", "10", "10"),
    ]


def test_reviews_as_ranked_words(tmp_path: Path) -> None:
    stored = read_imdb(unpacked(tmp_path, LAID), words=6, length=5)
    # bad 4, good 4, film 3, a 2, 10 2: of equals the first in the alphabet.
    assert stored.vocabulary == ("<pad>", "<unknown>", "bad", "good", "film", "10")
    assert stored.labels == ("neg", "pos")
    assert stored.train.inputs.dtype == np.int32
    assert stored.train.targets.tolist() == [0, 0, 0, 1]
    assert stored.train.inputs.tolist() == [
        [2, 4, 1, 1, 3],  # 0_2
        [2, 4, 0, 0, 0],  # 10_1
        [1, 0, 0, 0, 0],  # 2_3, without words
        [1, 3, 4, 1, 1],  # a good film a très
    ]
    assert stored.test.inputs.tolist() == [[1, 1, 1, 2, 0], [3, 3, 3, 3, 3]]
    assert stored.test.targets.tolist() == [0, 1]


def test_words_come_from_whole_training_reviews_only(tmp_path: Path) -> None:
    stored = read_imdb(unpacked(tmp_path, LAID), words=100, length=1)
    counts = Counter(
        word
        for name, text in MOVIES.items()
        if name.startswith(("train/neg", "train/pos"))
        for word in words_of(text)
    )
    expected = sorted(counts, key=lambda word: (-counts[word], word))
    assert stored.vocabulary[2:] == tuple(expected)
    assert "never" not in stored.vocabulary


@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "aclImdb.tar.xz"])
def test_the_archive_gives_the_same_as_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "packed").mkdir()
    ours = read_imdb(packed(tmp_path / "packed" / name, LAID), words=9, length=7)
    theirs = read_imdb(unpacked(tmp_path / "open", LAID), words=9, length=7)
    itself = read_imdb(tmp_path / "open" / "aclImdb", words=9, length=7)
    for other in (theirs, itself):
        assert ours.vocabulary == other.vocabulary
        for a, b in ((ours.train, other.train), (ours.test, other.test)):
            assert np.array_equal(a.inputs, b.inputs)
            assert np.array_equal(a.targets, b.targets)
    assert [path.name for path in (tmp_path / "packed").iterdir()] == [name]


@pytest.mark.parametrize("missing", ["train/neg", "train/pos", "test/neg", "test/pos"])
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "folder"])
def test_missing_reviews_are_named(tmp_path: Path, missing: str, archive: bool) -> None:
    files = {name: text for name, text in LAID.items() if missing not in name}
    (packed(tmp_path / "aclImdb.tar.gz", files) if archive else unpacked(tmp_path, files))
    with pytest.raises(DataError, match=rf"{missing} needs reviews, \*\.txt, got none; fetch"):
        read_imdb(tmp_path)


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    unpacked(tmp_path, LAID)
    (tmp_path / "aclImdb/test/pos/3_8.txt").write_bytes(b"caf\xe9 noir")
    with pytest.raises(DataError, match=r"test/pos/3_8\.txt needs UTF-8 text, got byte 0xe9 at 3"):
        read_imdb(tmp_path)


def test_no_reviews_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs aclImdb/train .* got neither; put one of them"):
        read_imdb(tmp_path)


@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "aclImdb.tar.xz"])
def test_a_damaged_archive_never_passes_for_a_whole_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    packed(path, LAID)
    whole = path.read_bytes()
    for keep in range(0, len(whole), 7):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match=r"needs a whole archive, got"):
            read_imdb(tmp_path)
    path.write_bytes(whole[: len(whole) // 2] + b"\x55" + whole[len(whole) // 2 + 1 :])
    with pytest.raises(DataError):
        read_imdb(tmp_path)


def test_a_review_of_impossible_length(tmp_path: Path) -> None:
    packed(
        tmp_path / "aclImdb.tar.gz", {**LAID, "aclImdb/train/pos/3_9.txt": "a" * (1 << 20) + "!"}
    )
    with pytest.raises(DataError, match="1,048,577 bytes for the review"):
        read_imdb(tmp_path)


def test_a_review_twice_in_an_archive(tmp_path: Path) -> None:
    packed(tmp_path / "aclImdb.tar.gz", LAID | {"x/train/pos/0_9.txt": "other"})
    with pytest.raises(DataError, match=r"train/pos/0_9\.txt needs to be there once, got it twice"):
        read_imdb(tmp_path)


def test_reviews_in_the_tokens_of_a_pretrained_model(tmp_path: Path) -> None:
    """Whatever `encode` gives, cut and padded; breaks are gone, case is left to it."""
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return [101, *(len(word) for word in text.split()), 102]

    stored = read_imdb(unpacked(tmp_path, LAID), length=4, encode=encode)
    assert stored.vocabulary == ()
    assert not any("<br />" in text for text in seen)
    assert any(text != text.lower() for text in seen)
    plain = read_imdb(tmp_path, length=4)
    assert np.array_equal(stored.train.targets, plain.train.targets)
    assert (stored.train.inputs[:, 0] == 101).all()
    keys = sorted(name for name in LAID if "train/neg" in name or "train/pos" in name)
    for row, name in zip(stored.train.inputs, keys, strict=True):
        tokens = encode(LAID[name].replace("<br />", " "))[:4]
        assert row.tolist() == tokens + [0] * (4 - len(tokens))
    for bad in (lambda text: [-1], lambda text: [0.5], lambda text: [2**31]):
        with pytest.raises(ValueError, match="whole numbers >= 0"):
            read_imdb(tmp_path, encode=bad)


@pytest.mark.parametrize(("words", "length"), [(2, 5), (2.5, 5), (5, 0), (5, True)])
def test_bad_words_and_lengths(tmp_path: Path, words: int, length: int) -> None:
    with pytest.raises(ValueError, match=r"read_imdb needs (words >= 3|length >= 1), got"):
        read_imdb(tmp_path, words=words, length=length)


@reviews
def test_some_real_reviews(tmp_path: Path) -> None:
    """Four hundred reviews; the archive goes folder by folder, so they are dealt out anew."""
    texts: list[str] = []
    with tarfile.open(REVIEWS) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                texts.append(content.read().decode())
            if len(texts) == 400:
                break
    places = [f"{split}/{label}" for split in ("train", "test") for label in ("neg", "pos")]
    dealt = {f"{places[i % 4]}/{i:03}_1.txt": text for i, text in enumerate(texts)}
    stored = read_imdb(unpacked(tmp_path, dealt))
    assert len(stored.train) == len(stored.test) == 200
    assert {"the", "and", "a", "of"} <= set(stored.vocabulary[2:10])
    index = {word: i for i, word in enumerate(stored.vocabulary)}
    ordered = [dealt[name] for name in sorted(dealt) if name.startswith("test")]
    for text, row in zip(ordered, stored.test.inputs.tolist(), strict=True):
        expected = [index.get(word, 1) for word in words_of(text)][:256]
        assert row == expected + [0] * (256 - len(expected))


@reviews
@pytest.mark.long
def test_all_real_reviews() -> None:
    stored = read_imdb(REVIEWS.parent)
    for part in (stored.train, stored.test):
        assert np.bincount(part.targets).tolist() == [12_500, 12_500]
        assert part.inputs.shape == (25_000, 256)
        assert part.inputs.max() < 20_000
        assert (part.inputs[:, 0] > 0).all()
    assert stored.vocabulary[2:6] == ("the", "and", "a", "of")
    assert len(stored.vocabulary) == 20_000
