"""IMDb reviews (Maas et al., 2011): `aclImdb/{train,test}/{neg,pos}/<id>_<rating>.txt`.

The unpacked folder and the archive give the same result: negative samples come before positive
ones, sorted by file name. Words are numbered as they appear and renumbered by rank at the end, so
that 50,000 reviews are held as integers, never as words.
"""

from __future__ import annotations

import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_whole, require
from undrift.data.formats import packed
from undrift.data.stored import Samples, Stored, damaged

PADDING, UNKNOWN = 0, 1
LONGEST = 1 << 20  # bytes of a review; the longest has 14,000
SPLITS = ("train", "test")
SENTIMENTS = ("neg", "pos")
ARCHIVES = ("aclImdb*.tar.gz", "aclImdb*.tar.xz")
_WORD = re.compile(r"\w+(?:'\w+)*")
_AGAIN = "fetch aclImdb_v1.tar.gz again"

Ids = NDArray[np.int32]
Review = tuple[str, str, str, bytes]  # split, sentiment, file name, content
Encode = Callable[[str], Sequence[int]]


def read_imdb(
    folder: str | Path,
    *,
    words: int = 20_000,
    length: int = 256,
    encode: Encode | None = None,
) -> Stored:
    """Read the first `length` words of each review as int32 (N, length); label 1 is positive.

    Token 0 pads at the end; 1 stands for words that are not among the `words` - 2 most frequent of
    the training part (ties go by the alphabet), and for a review without words. `encode` replaces
    the words by the tokens of a pretrained model, for example
    `AutoTokenizer.from_pretrained(name).encode`.
    """
    require(is_whole(words) and words >= 3, "read_imdb", "words >= 3", words)
    require(is_whole(length) and length >= 1, "read_imdb", "length >= 1", length)
    source = _source(Path(folder))
    require(encode is None or callable(encode), "read_imdb", "a function as encode", encode)
    texts = _Texts(source, length, encode)
    for review in _unpacked(source) if source.is_dir() else _archived(source):
        texts.add(*review)
    return texts.stored(words)


def words_of(text: str) -> list[str]:
    """Return lower-cased words; an apostrophe within a word belongs to it, line breaks do not."""
    return _WORD.findall(text.replace("<br />", " ").lower())


def _source(folder: Path) -> Path:
    """Return the folder that holds `train` and `test`, or else an archive."""
    for place in (folder / "aclImdb", folder):
        if all((place / split).is_dir() for split in SPLITS):
            return place
    archives = sorted(path for pattern in ARCHIVES for path in folder.glob(pattern))
    if not archives:
        expected = "aclImdb/train and aclImdb/test, or the archive aclImdb_v1.tar.gz"
        raise damaged(folder, expected, "neither", "put one of them there")
    return archives[0]


def _unpacked(root: Path) -> Iterator[Review]:
    """Yield the reviews of a folder."""
    for split in SPLITS:
        for sentiment in SENTIMENTS:
            place = root / split / sentiment
            for path in sorted(place.glob("*.txt")):
                try:
                    yield split, sentiment, path.name, path.read_bytes()
                except OSError as error:
                    raise damaged(path, "a readable file", error.strerror, _AGAIN) from error


def _archived(archive: Path) -> Iterator[Review]:
    """Yield the reviews of an archive."""
    try:
        with (
            packed.open_packed(archive) as content,
            tarfile.open(fileobj=content, mode="r|") as tar,
        ):
            for member in tar:
                parts = PurePosixPath(member.name).parts
                if not member.isfile() or len(parts) < 3 or not parts[-1].endswith(".txt"):
                    continue
                split, sentiment, name = parts[-3:]
                if split in SPLITS and sentiment in SENTIMENTS:
                    if member.size > LONGEST:
                        raise ValueError(f"{member.size:,} bytes for the review {name}")
                    file = tar.extractfile(member)
                    yield split, sentiment, name, file.read() if file else b""
            while content.read(1 << 20):  # the checksum is compared only at the end
                pass
    except (*packed.ERRORS, tarfile.TarError) as error:
        raise damaged(archive, "a whole archive", str(error), _AGAIN) from error


class _Texts:
    """Collects reviews with provisional word numbers."""

    def __init__(self, source: Path, length: int, encode: Encode | None) -> None:
        self.source, self.length, self.encode = source, length, encode
        self.numbers: defaultdict[str, int] = defaultdict()
        self.numbers.default_factory = self.numbers.__len__
        self.counts = np.zeros(0, dtype=np.int64)  # of the training part
        self.heads: dict[tuple[str, str, str], Ids] = {}

    def add(self, split: str, sentiment: str, name: str, content: bytes) -> None:
        """Add one review."""
        where = f"{self.source}: {split}/{sentiment}/{name}"
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            got = f"byte {content[error.start]:#04x} at {error.start}"
            raise damaged(where, "UTF-8 text", got, _AGAIN) from None
        if (split, sentiment, name) in self.heads:
            raise damaged(where, "to be there once", "it twice", _AGAIN)
        if self.encode is not None:
            self.heads[split, sentiment, name] = self._encoded(text, self.encode)
            return
        words = words_of(text)
        if split == "test":  # the words of test reviews are not counted
            del words[self.length :]
        ids = np.array(list(map(self.numbers.__getitem__, words)), dtype=np.int32)
        if split == "train":
            self._count(ids)
        self.heads[split, sentiment, name] = ids[: self.length].copy()

    def _encoded(self, text: str, encode: Encode) -> Ids:
        """Return the user's tokens of a text, or raise `ValueError`."""
        tokens = np.asarray(encode(text.replace("<br />", " ")))[: self.length]
        integral = tokens.ndim == 1 and (tokens.size == 0 or tokens.dtype.kind in "iu")
        sound = integral and not (tokens.size and (tokens.min() < 0 or tokens.max() >= 2**31))
        require(sound, "read_imdb", "encode to return whole numbers >= 0", tokens[:5].tolist())
        return tokens.astype(np.int32)

    def _count(self, ids: Ids) -> None:
        if len(self.numbers) > len(self.counts):  # growing by half is faster than word by word
            room = np.zeros(len(self.numbers) * 3 // 2, dtype=np.int64)
            room[: len(self.counts)] = self.counts
            self.counts = room
        np.add.at(self.counts, ids, 1)

    def stored(self, words: int) -> Stored:
        """Return the data set of all reviews."""
        for split in SPLITS:
            for sentiment in SENTIMENTS:
                if not any(key[:2] == (split, sentiment) for key in self.heads):
                    where = f"{self.source}: {split}/{sentiment}"
                    raise damaged(where, "reviews, *.txt", "none", _AGAIN)
        if self.encode is not None:
            return Stored(self._part("train", None), self._part("test", None), 2, SENTIMENTS)
        frequent = self._frequent(words - 2)
        tokens = np.full(len(self.numbers), UNKNOWN, dtype=np.int32)
        for token, word in enumerate(frequent, start=2):
            tokens[self.numbers[word]] = token
        train, test = (self._part(split, tokens) for split in SPLITS)
        return Stored(train, test, 2, SENTIMENTS, vocabulary=("<pad>", "<unknown>", *frequent))

    def _frequent(self, most: int) -> list[str]:
        """Return the most frequent words of the training part."""
        counted = [
            (-int(self.counts[i]), word) for word, i in self.numbers.items() if i < len(self.counts)
        ]
        return [word for count, word in sorted(counted)[:most] if count]

    def _part(self, split: str, tokens: Ids | None) -> Samples:
        """Return the reviews of a split; `tokens` replace provisional numbers."""
        keys = sorted(key for key in self.heads if key[0] == split)
        inputs = np.full((len(keys), self.length), PADDING, dtype=np.int32)
        for row, key in zip(inputs, keys, strict=True):
            head = self.heads[key]
            row[: len(head)] = head if tokens is None else tokens[head]
            if not len(head) and tokens is not None:
                row[0] = UNKNOWN
        targets = np.array([SENTIMENTS.index(key[1]) for key in keys], dtype=np.int64)
        return Samples(inputs, targets)
