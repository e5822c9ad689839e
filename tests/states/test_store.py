"""States on disk: what was committed is read back bit by bit, whatever happens in between."""

from __future__ import annotations

import itertools
import json
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undrift.errors import CheckpointError
from undrift.files import SEAL_BYTES, seal
from undrift.states import SegmentStore, segments, store
from undrift.states.manifest import version_path

State = dict[str, Tensor]


def state(client: int, version: int = 0, size: int = 5) -> State:
    return {
        "c": torch.arange(size, dtype=torch.float32) + 10 * client + 1000 * version,
        "count": torch.tensor(client * version, dtype=torch.int64),
    }


def same(one: State, other: State) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def filled(folder: Path, versions: int = 3, clients: int = 6) -> SegmentStore:
    """A store in which version v has changed the clients v, v + 2 and so on."""
    kept = SegmentStore(folder)
    for version in range(1, versions + 1):
        for client in range(version % 2, clients, 2):
            kept.put(client, state(client, version))
        kept.commit(version)
    return kept


def expected(version: int, clients: int = 6) -> dict[int, State]:
    last = {c: v for v in range(1, version + 1) for c in range(v % 2, clients, 2)}
    return {client: state(client, v) for client, v in last.items()}


def content(kept: SegmentStore) -> dict[int, State]:
    return {client: kept.get(client) for client in kept}


def holds(folder: Path, version: int) -> None:
    found, wanted = content(SegmentStore(folder, version)), expected(version)
    assert found.keys() == wanted.keys()
    assert all(same(found[client], wanted[client]) for client in wanted)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_every_version_is_read_as_it_was_committed(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    assert kept.versions == [3, 2, 1]
    for version in (1, 2, 3):
        SegmentStore.verify(tmp_path, version)
        holds(tmp_path, version)
    assert len(kept) == 6
    assert 2 in kept
    assert 6 not in kept
    with pytest.raises(KeyError):
        kept.get(6)


@pytest.mark.parametrize(
    "leaf",
    [
        torch.tensor(3.5),
        torch.zeros(0),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, 3, dtype=torch.bool),
        torch.arange(3, dtype=torch.int8),
        torch.tensor([float("nan"), -0.0]),
        torch.arange(12.0).view(3, 4).T,
    ],
    ids=str,
)
def test_tensors_of_every_kind_come_back(leaf: Tensor, tmp_path: Path) -> None:
    kept = SegmentStore(tmp_path)
    kept.put(7, {"first": torch.ones(3, dtype=torch.uint8), "leaf": leaf})
    kept.commit(1)
    found = SegmentStore(tmp_path, 1).get(7)["leaf"]
    assert (found.dtype, found.shape) == (leaf.dtype, leaf.shape)
    assert found.contiguous().view(-1).view(torch.uint8).tolist() == (
        leaf.contiguous().view(-1).view(torch.uint8).tolist()
    )


def test_states_of_several_forms_share_a_store(tmp_path: Path) -> None:
    kept = SegmentStore(tmp_path)
    for client in range(4):
        kept.put(client, state(client, size=1 + 10 * client))
    assert all(same(kept.get(c), state(c, size=1 + 10 * c)) for c in (3, 0, 2, 1))
    kept.commit(1)
    again = SegmentStore(tmp_path, 1)
    assert all(same(again.get(c), state(c, size=1 + 10 * c)) for c in (0, 3, 1, 2))


def test_what_was_not_committed_is_not_there_and_leaves_no_files(tmp_path: Path) -> None:
    kept = filled(tmp_path, versions=2)
    kept.put(0, state(0, 9))
    kept.put(99, state(99, 9))
    assert same(kept.get(0), state(0, 9)), "it is read before it is committed"
    before = {path.name for path in tmp_path.iterdir()}
    again = SegmentStore(tmp_path, 2)
    holds(tmp_path, 2)
    again.put(1, state(1, 3))
    again.commit(3)
    again.forget(keep=[2, 3])
    left = {path.name for path in tmp_path.iterdir()}
    assert "segment-00000003" in before
    assert "segment-00000003" not in left, "the segment that nobody sealed"
    holds(tmp_path, 2)
    assert same(SegmentStore(tmp_path, 3).get(1), state(1, 3))


def test_a_commit_writes_what_was_put_since_the_last(tmp_path: Path) -> None:
    kept = SegmentStore(tmp_path)
    for client in range(2000):
        kept.put(client, state(client, size=100))
    kept.commit(1)
    first = size(tmp_path)
    kept.put(5, state(5, 2, size=100))
    assert kept.bytes_to_copy == (tmp_path / "segment-00000001").stat().st_size
    kept.commit(2)
    second = size(tmp_path) - first
    assert second < 1.01 * first, "the first segment is copied, since two versions need it"
    kept.put(6, state(6, 3, size=100))
    assert kept.bytes_to_copy < first / 100
    kept.commit(3)
    assert size(tmp_path) - first - second < first / 100, "it has its copy"


def test_a_segment_that_one_version_needs_is_written_once(tmp_path: Path) -> None:
    kept = SegmentStore(tmp_path)
    for version in (1, 2, 3):
        for client in range(4):
            kept.put(client, state(client, version))
        kept.commit(version)
        kept.forget(keep=[version - 1, version])
    assert sorted(path.name for path in tmp_path.glob("segment-*")) == [
        "segment-00000002",
        "segment-00000003",
    ]


def test_a_segment_that_is_damaged_before_it_is_copied_ends_the_commit(tmp_path: Path) -> None:
    """A copy of it would say that the version is sound."""
    kept = filled(tmp_path, versions=2)
    raw = bytearray((tmp_path / "segment-00000002").read_bytes())
    raw[20] ^= 1
    (tmp_path / "segment-00000002").write_bytes(bytes(raw))
    kept.put(1, state(1, 3))
    with pytest.raises(CheckpointError, match="segment-00000002: it does not match its hash"):
        kept.commit(3)
    holds(tmp_path, 1)
    SegmentStore.verify(tmp_path, 1)


def test_the_copy_that_two_versions_need_is_checked(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "segment-00000002.copy").unlink()
    with pytest.warns(UserWarning, match=r"segment-00000002\.copy: No such file"):
        SegmentStore.verify(tmp_path, 3)
    assert (tmp_path / "segment-00000002.copy").is_file()


def test_the_folder_stays_within_a_multiple_of_what_is_live(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store, "SEGMENT", 2**14)
    kept = SegmentStore(tmp_path)
    for version in range(1, 200):
        for client in range(version % 7, 100, 7):
            kept.put(client, state(client, version, size=50))
        kept.commit(version)
        kept.forget(keep=[version - 1, version])
    live = 2 * 100 * (50 * 4 + 8 + 16 + 16)
    assert size(tmp_path) < 4 * live
    assert len(list(tmp_path.iterdir())) < 100
    SegmentStore.verify(tmp_path, 199)
    again = SegmentStore(tmp_path, 199)
    last = {c: v for v in range(1, 200) for c in range(v % 7, 100, 7)}
    assert all(same(again.get(c), state(c, v, size=50)) for c, v in last.items())


def test_compaction_keeps_states_and_drops_segments(tmp_path: Path) -> None:
    kept = filled(tmp_path, versions=6)
    assert len(segments.numbers_in(tmp_path)) == 6
    kept.compact()
    kept.commit(7)
    kept.forget(keep=[7])
    assert len(segments.numbers_in(tmp_path)) == 1
    SegmentStore.verify(tmp_path, 7)
    found, wanted = content(SegmentStore(tmp_path, 7)), expected(6)
    assert all(same(found[client], wanted[client]) for client in wanted)


def test_forgetting_leaves_the_versions_that_are_kept(tmp_path: Path) -> None:
    kept = filled(tmp_path, versions=5)
    kept.forget(keep=[4, 5])
    assert kept.versions == [5, 4]
    for version in (4, 5):
        SegmentStore.verify(tmp_path, version)
        holds(tmp_path, version)
    assert all(same(kept.get(c), s) for c, s in expected(5).items()), "its files are read again"


def damages(path: Path) -> list[bytes | None]:
    sound = path.read_bytes()
    flipped = [
        sound[:i] + bytes([sound[i] ^ 1]) + sound[i + 1 :]
        for i in range(0, len(sound), max(1, len(sound) // 40))
    ]
    return [*flipped, b"", sound[:-1], sound[: len(sound) // 2], sound + b"\0", None]


def replace(path: Path, content: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


@pytest.mark.parametrize("which", [0, 1])
def test_damage_to_one_file_of_a_segment_is_mended_by_the_other(tmp_path: Path, which: int) -> None:
    filled(tmp_path)
    path = segments.copies_of(tmp_path, 2)[which]
    sound = path.read_bytes()
    for damage in damages(path):
        replace(path, damage)
        holds(tmp_path, 3)  # before anything is mended
        with pytest.warns(UserWarning, match=rf"{path.name}: .*; segment-00000002.* is sound"):
            SegmentStore.verify(tmp_path, 3)
        assert path.read_bytes() == sound
        holds(tmp_path, 3)
        replace(path, sound)


def test_damage_to_both_files_is_found_and_named(tmp_path: Path) -> None:
    filled(tmp_path)
    first, second = segments.copies_of(tmp_path, 1)
    for damage in damages(first):
        sound = first.read_bytes()
        for path in (first, second):
            replace(path, damage)
        for version in (1, 2):
            with pytest.raises(CheckpointError, match=r"is damaged: segment-00000001: "):
                SegmentStore.verify(tmp_path, version)
        for path in (first, second):
            path.write_bytes(sound)
    SegmentStore.verify(tmp_path, 2)


def test_a_damaged_manifest_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    path = version_path(tmp_path, 3)
    for damage in damages(path):
        sound = path.read_bytes()
        replace(path, damage)
        with pytest.raises(CheckpointError, match=r"Version 3 .* is damaged"):
            SegmentStore(tmp_path, 3)
        path.write_bytes(sound)
        SegmentStore.verify(tmp_path, 2)


def test_a_record_that_is_damaged_while_it_is_in_use_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path)
    kept = SegmentStore(tmp_path, 3)
    path = segments.copies_of(tmp_path, 3)[0]
    raw = bytearray(path.read_bytes())
    raw[20] ^= 1  # inside of the first state
    path.write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match=r"got a damaged file .*segment-00000003 at byte 0"):
        kept.get(1)


# Values of any kind in the place of those that a manifest needs.
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_manifest_that_was_sealed_again_is_refused_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing but `CheckpointError` comes of it, and nothing is allocated by what it says."""
    folder = tmp_path_factory.mktemp("states")
    filled(folder, versions=2)
    path = version_path(folder, 2)
    body = json.loads(path.read_bytes()[:-SEAL_BYTES])
    place = data.draw(st.sampled_from(["format", "version", "forms", "segments", "entry", "form"]))
    value = data.draw(junk)
    if place == "entry":
        entry = data.draw(st.sampled_from(body["segments"]))
        entry[data.draw(st.sampled_from(sorted(entry)))] = value
    elif place == "form":
        body["forms"][0][0][data.draw(st.integers(0, 2))] = value
    else:
        body[place] = value
    path.write_bytes(seal(json.dumps(body).encode()))
    with suppress(CheckpointError):
        SegmentStore.verify(folder, 2)
        content(SegmentStore(folder, 2))


class Interrupted:
    """Raises an interrupt at the n-th call, before or after the call is done."""

    def __init__(self, function, at: int, *, after: bool) -> None:
        self._function, self._calls, self._at, self._after = function, itertools.count(), at, after

    def __call__(self, *arguments, **options):
        hit = next(self._calls) == self._at
        if hit and not self._after:
            raise KeyboardInterrupt
        result = self._function(*arguments, **options)
        if hit:
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (segments.os, "pwrite"),
        (segments.os, "fsync"),
        (store.segments.SegmentWriter, "seal"),
        (store.segments.SegmentWriter, "append"),
        (store.manifests, "write"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_signal_at_any_moment_leaves_a_store_that_goes_on(
    owner, name: str, after: bool, tmp_path: Path, monkeypatch
) -> None:
    """What was being done is done again afterwards, as a run does that saves when it is stopped."""
    monkeypatch.setattr(segments, "_BUFFER", 200)
    original = getattr(owner, name)
    for at in range(4):
        folder = tmp_path / str(at)
        kept = filled(folder, versions=2)
        interrupted = Interrupted(original, at, after=after)
        patched = interrupted if owner is not store.segments.SegmentWriter else None
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, patched or (lambda *a, i=interrupted, **o: i(*a, **o)))
            with suppress(KeyboardInterrupt):
                for client in (1, 3, 5):
                    kept.put(client, state(client, 3))
                kept.commit(3)
        for version in (1, 2):
            SegmentStore.verify(folder, version)
            holds(folder, version)
        for client in (1, 3, 5):
            kept.put(client, state(client, 3))
        kept.commit(4)
        kept.forget(keep=[2, 4])
        SegmentStore.verify(folder, 4)
        found = content(SegmentStore(folder, 4))
        assert all(same(found[client], s) for client, s in expected(3).items())


def test_nothing_is_said_of_a_sound_store(tmp_path: Path) -> None:
    filled(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SegmentStore.verify(tmp_path, 3)
