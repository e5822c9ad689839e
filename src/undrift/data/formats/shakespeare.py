"""Shakespeare by speaking role, from plain text or from LEAF's JSON.

Project Gutenberg's number 100 (1994 edition) is split into LEAF's roles by the rules of its
`preprocess_shakespeare.py`: 1,129 roles with 4,226,159 windows of 80 characters. A window may span
several lines of a role; another version of LEAF's scripts cuts each line by itself into windows
padded with spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from undrift.check import is_whole, require
from undrift.data.formats import packed
from undrift.data.formats.leaf import (
    LETTERS,
    WINDOW,
    holds_leaf,
    read_leaf_shakespeare,
    tokens_of,
)
from undrift.data.stored import Samples, Stored, damaged

TEXTS = ("pg100.txt", "pg100.txt.gz", "input.txt")
_BYLINE = "by William Shakespeare"
# The lines of this play are not indented, unlike those of all others.
_UNINDENTED = "THE COMEDY OF ERRORS"
_EDITION = "take the 1994 edition of Gutenberg's number 100 (pg100.txt) or tiny Shakespeare"


def read_shakespeare(
    folder: str | Path, *, window: int = WINDOW, test_fraction: float = 0.2
) -> Stored:
    """Read next-character samples by role, from LEAF's JSON, `pg100.txt[.gz]` or `input.txt`.

    The first windows of each role are training samples; the next `window` - 1 are left out, so that
    no test window begins within a training window. A role without room for a test window has only
    training samples. LEAF's JSON has its own split and windows of 80 characters.
    """
    require(is_whole(window) and window >= 1, "read_shakespeare", "window >= 1", window)
    require(0 <= test_fraction < 1, "read_shakespeare", "0 <= test_fraction < 1", test_fraction)
    folder = Path(folder)
    if holds_leaf(folder):
        expected = f"window={WINDOW} for LEAF's JSON"
        require(window == WINDOW, "read_shakespeare", expected, window, "use the plain text")
        return read_leaf_shakespeare(folder)
    for name in TEXTS:
        if (folder / name).is_file():
            return _windowed(read_roles(folder / name, window=window), window, test_fraction)
    expected = f"{', '.join(TEXTS)} or LEAF's train/*.json"
    raise damaged(folder, expected, "none of them", "put one there")


def read_roles(path: str | Path, *, window: int = WINDOW) -> dict[str, str]:
    """Return the text of each role that is longer than a window, with single spaces."""
    path = Path(path)
    lines = _text(path).splitlines()
    if sum(_BYLINE in line for line in lines) > 1:
        spoken = _of_plays(lines)
    elif next((line for line in lines if line.strip()), "").endswith(":"):
        spoken = _of_blocks(lines)
    else:
        spoken = {}
    texts = {role: re.sub(" +", " ", " ".join(speech) + " ") for role, speech in spoken.items()}
    roles = {role: text for role, text in texts.items() if len(text) > window}
    if not roles:
        raise damaged(path, f"roles with more than {window} characters", "none", _EDITION)
    return roles


def _text(path: Path) -> str:
    try:
        return packed.read_packed(path, plain=path.suffix != ".gz").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise damaged(path, "UTF-8 text", f"byte {error.start} of another kind", _EDITION) from None
    except packed.ERRORS as error:
        kind = "a whole gzip file" if path.suffix == ".gz" else "a readable file"
        raise damaged(path, kind, str(error), "fetch it again") from error


def _of_plays(lines: list[str]) -> dict[str, list[str]]:
    """Return LEAF's `PLAY_ROLE`s: plays with two roles or more, roles with three lines or more."""
    roles: dict[str, list[str]] = {}
    for title, play in _plays(lines):
        spoken = _spoken(play, indented=title != _UNINDENTED)
        for name, speech in spoken.items():
            if len(spoken) > 1 and len(speech) > 2:
                role = re.sub(r"\W+", "_", f"{title}_{name}".replace(" ", "_"))
                roles.setdefault(role, []).extend(speech)
    return roles


def _plays(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the lines of each play.

    The title is the nearest line two to seven above the author's name. The first occurrence of that
    name belongs to the sonnets.
    """
    starts = [i for i, line in enumerate(lines) if _BYLINE in line][1:]
    for start, end in pairwise([*starts, len(lines)]):
        above = (lines[i].strip() for i in range(start - 2, max(start - 8, -1), -1))
        yield next((title for title in above if title), ""), lines[start + 1 : end]


def _spoken(play: list[str], *, indented: bool) -> dict[str, list[str]]:
    """Return the lines of each role of a play."""
    begins = re.compile(("  " if indented else "") + r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
    goes_on = re.compile(("    " if indented else "") + "(.*)")
    spoken: dict[str, list[str]] = {}
    speaker = ""
    for line in play:
        if match := begins.match(line):
            speaker = match[1].upper()  # "Sir Toby" and "SIR TOBY" are one
            if not indented and speaker.startswith("ACT "):
                speaker = ""
            else:
                spoken.setdefault(speaker, []).append(match[2])
        elif speaker and (match := goes_on.match(line)):
            if not indented and match[1].startswith("<"):  # a notice of the edition
                speaker = ""
            else:
                spoken[speaker].append(match[1])
    return spoken


def _of_blocks(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines of each role of tiny Shakespeare, whose blocks begin with the speaker."""
    spoken: dict[str, list[str]] = {}
    speaker, fresh = "", True
    for line in lines:
        if not line.strip():
            fresh = True
        elif fresh and line.endswith(":"):
            speaker, fresh = line[:-1], False
        else:
            spoken.setdefault(speaker, []).append(line)
            fresh = False
    return spoken


def _windowed(roles: dict[str, str], window: int, test_fraction: float) -> Stored:
    """Return the data set of all windows."""
    names = sorted(roles)
    cuts = [_cut(len(roles[name]) - window, window, test_fraction) for name in names]
    train, test = (
        _Filled(window, [stop - start for start, stop in (cut[i] for cut in cuts)]) for i in (0, 1)
    )
    for name, cut in zip(names, cuts, strict=True):
        tokens = tokens_of(roles[name])
        samples = sliding_window_view(tokens, window + 1)
        for filled, (start, stop) in zip((train, test), cut, strict=True):
            filled.add(samples[start:stop])
    letters = tuple(LETTERS)
    return Stored(train.part(), test.part(), len(letters), letters, tuple(names), letters)


def _cut(count: int, window: int, test_fraction: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the ranges [start, stop) of training and test windows."""
    stop = int(count * (1 - test_fraction) + 1e-9)  # 0.8 * 5 may fall just short of 4
    first = stop + window - 1
    if test_fraction == 0 or stop == 0 or first >= count:
        return (0, count), (count, count)
    return (0, stop), (first, count)


class _Filled:
    """Holds all windows, which are added role by role, so that the corpus is never held twice."""

    def __init__(self, window: int, counts: list[int]) -> None:
        total = sum(counts)
        self.inputs = np.empty((total, window), dtype=np.uint8)
        self.targets = np.empty(total, dtype=np.int64)
        self.owners = np.repeat(np.arange(len(counts)), counts)
        self.end = 0

    def add(self, samples: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
        """Add the windows of the next role."""
        rows = slice(self.end, self.end + len(samples))
        self.inputs[rows] = samples[:, :-1]
        self.targets[rows] = samples[:, -1]
        self.end = rows.stop

    def part(self) -> Samples:
        """Return the samples of all roles."""
        return Samples(self.inputs, self.targets, self.owners)
