"""Readers of published file formats: small files written here, damage, and the real data sets."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.system import SHARED
from undrift.data.formats import archive, cifar, images, packed
from undrift.data.formats.cifar import read_cifar10, read_cifar100
from undrift.data.formats.idx import read_idx, read_mnist
from undrift.data.formats.images import read_image_folder, read_image_table, read_tiny_imagenet
from undrift.data.formats.libsvm import read_a9a, read_libsvm
from undrift.data.stored import Stored
from undrift.errors import DataError, UndriftError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def real(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"the real {name} files are not on this machine")
    return folder


def assert_sound(data: Stored) -> None:
    """What every reader promises, whatever the format."""
    for part in (data.train, data.test):
        assert len(part.inputs) == len(part.targets) > 0
        assert part.targets.dtype == np.int64
        assert part.targets.ndim == 1
        assert part.targets.min() >= 0
        assert part.targets.max() < data.classes
        assert part.inputs.flags.writeable
        assert part.inputs.dtype in (np.uint8, np.float32)
        if part.owners is not None:
            assert part.owners.dtype == np.int64
            assert part.owners.shape == part.targets.shape
            assert part.owners.min() >= 0
            assert part.owners.max() < len(data.names)
    assert data.train.inputs.shape[1:] == data.test.inputs.shape[1:]
    assert len(data.labels) in (0, data.classes)


def assert_says(error: pytest.ExceptionInfo[Any], *parts: object) -> None:
    """One sentence with expected, got and remedy, naming what it should."""
    text = str(error.value)
    assert " needs " in text
    assert ", got " in text
    assert "; " in text
    assert text.endswith(".")
    assert "\n" not in text
    assert "0x7" not in text  # no address of an object
    for part in parts:
        assert str(part) in text


# --- idx ---------------------------------------------------------------------------------------

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def digits(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, rng.integers(0, 10, count, dtype=np.uint8)


def write_mnist_arrays(
    folder: Path, *, dotted: bool = False, packed: bool = True
) -> dict[str, np.ndarray]:
    written = {}
    for name, seed, count in (("train", 1, 12), ("t10k", 2, 5)):
        written[f"{name}-images-idx3-ubyte"], written[f"{name}-labels-idx1-ubyte"] = digits(
            seed, count
        )
    for name, array in written.items():
        file = folder / (name.replace("-idx", ".idx") if dotted else name)
        data = idx_bytes(array)
        if packed:
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(data))
        else:
            file.write_bytes(data)
    return written


def write_writers(folder: Path, written: dict[str, np.ndarray]) -> tuple[list[int], list[int]]:
    """QMNIST's files; those of the test part go on beyond MNIST's images."""
    train = [40, 7, 40, 100, 7, 7, 40, 40, 100, 100, 7, 40]
    test = [9, 2600, 9, 9, 2600]
    for part, file, ids in (("train", "train", train), ("t10k", "test", [*test, 1, 2, 3])):
        rows = np.zeros((len(ids), 8), np.int32)
        labels = written[f"{part}-labels-idx1-ubyte"]
        rows[: len(labels), 0] = labels
        rows[:, 1], rows[:, 2] = 4, ids
        path = folder / f"qmnist-{file}-labels-idx2-int.gz"
        path.write_bytes(gzip.compress(idx_bytes(rows)))
    return train, test


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("code", CODES)
def test_idx_round_trip(tmp_path: Path, code: str, packed: bool) -> None:
    array = (np.arange(24).reshape(2, 3, 4) * 3 - 20).astype(code)
    data = idx_bytes(array)
    path = tmp_path / "some-idx3"
    path.write_bytes(gzip.compress(data) if packed else data)
    got = read_idx(path)
    assert got.dtype == np.dtype(code)
    assert got.dtype.isnative
    assert np.array_equal(got, array)
    assert got.flags.writeable


IDX = idx_bytes(np.arange(300, dtype=np.uint8).reshape(10, 30))
BAD_IDX = {
    "empty": (b"", "magic"),
    "short-magic": (b"\0\0\x08", "magic"),
    "wrong-magic": (b"\0\1" + IDX[2:], "magic"),
    "unknown-type": (b"\0\0\x0a" + IDX[3:], "magic"),
    "no-dimension": (b"\0\0\x08\0" + IDX[4:], "magic"),
    "too-many-dimensions": (b"\0\0\x08\xff" + IDX[4:], "magic"),
    "cut-in-header": (IDX[:9], "dimensions"),
    "empty-dimension": (IDX[:4] + struct.pack(">II", 0, 2**32 - 1), "every dimension"),
    "short": (IDX[:-1], "300 bytes of data"),
    "long": (IDX + b"\0", "300 bytes of data"),
    "html": (b"<!DOCTYPE html><title>404</title>", "magic"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", BAD_IDX)
def test_damaged_idx_is_refused(tmp_path: Path, case: str, packed: bool) -> None:
    data, clue = BAD_IDX[case]
    path = tmp_path / "train-labels"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError) as error:
        read_idx(path)
    assert_says(error, path, clue)


@pytest.mark.parametrize("cut", [3, 11, 40, -9, -1])
def test_truncated_gzip_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    noise = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    path.write_bytes(gzip.compress(idx_bytes(noise))[:cut])
    with pytest.raises(DataError) as error:
        read_idx(path)
    assert_says(error, path, "fetch the file again")


def test_gzip_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    data = bytearray(gzip.compress(IDX))
    data[-6] ^= 1  # CRC
    path.write_bytes(data)
    with pytest.raises(DataError) as error:
        read_idx(path)
    assert_says(error, path, "gzip")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_claim_of_terabytes_is_refused_before_memory_is_asked_for(
    tmp_path: Path, packed: bool
) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    head = b"\0\0\x08\3" + struct.pack(">III", 2**31, 28, 28)
    path.write_bytes(gzip.compress(head + bytes(50)) if packed else head + bytes(50))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as error:
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    assert_says(error, path, f"{2**31 * 784:,} bytes")


def test_missing_idx_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_idx(tmp_path / "absent")
    assert_says(error, tmp_path / "absent")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("dotted", [False, True], ids=["dash", "dot"])
def test_mnist_folder(tmp_path: Path, dotted: bool, packed: bool) -> None:
    written = write_mnist_arrays(tmp_path, dotted=dotted, packed=packed)
    data = read_mnist(tmp_path)
    assert_sound(data)
    assert data.classes == 10
    assert data.train.inputs.shape == (12, 1, 28, 28)
    assert np.array_equal(data.train.inputs[:, 0], written["train-images-idx3-ubyte"])
    assert np.array_equal(data.train.targets, written["train-labels-idx1-ubyte"])
    assert np.array_equal(data.test.inputs[:, 0], written["t10k-images-idx3-ubyte"])
    assert np.array_equal(data.test.targets, written["t10k-labels-idx1-ubyte"])
    assert data.train.owners is None
    assert data.names == ()


def test_writers_become_owners(tmp_path: Path) -> None:
    train, test = write_writers(tmp_path, write_mnist_arrays(tmp_path))
    data = read_mnist(tmp_path)
    assert_sound(data)
    assert data.names == ("7", "9", "40", "100", "2600")  # by id, not by text
    assert data.train.owners is not None
    assert data.test.owners is not None
    assert [int(data.names[i]) for i in data.train.owners] == train
    assert [int(data.names[i]) for i in data.test.owners] == test


def rewrite(path: Path, array: np.ndarray) -> Path:
    path.write_bytes(gzip.compress(idx_bytes(array)))
    return path


def test_mnist_refuses_what_does_not_fit(tmp_path: Path) -> None:
    written = write_mnist_arrays(tmp_path)
    write_writers(tmp_path, written)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    writers = tmp_path / "qmnist-train-labels-idx2-int.gz"
    good = {path: path.read_bytes() for path in tmp_path.iterdir()}
    right = written["train-labels-idx1-ubyte"]
    table = np.zeros((12, 8), np.int32)
    table[:, 0] = right
    other = table.copy()
    other[3, 0] = (other[3, 0] + 1) % 10
    beyond = right.copy()
    beyond[4] = 10
    for path, array, clue in (
        (labels, right[:-1], "12 labels"),
        (labels, beyond, "10 in row 4"),
        (labels, right.astype(np.int32), "magic number 0x00000801"),
        (tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros((5, 27, 28), np.uint8), "28 x 28"),
        (writers, table[:-1], "12 rows"),
        (writers, table[:, :2], "at least 3 integers"),
        (writers, other, f"label {right[3]} in column 0 of row 3"),
    ):
        rewrite(path, array)
        with pytest.raises(DataError) as error:
            read_mnist(tmp_path)
        assert_says(error, path, clue)
        path.write_bytes(good[path])
    assert read_mnist(tmp_path).names
    for path in good:
        path.unlink()
        with pytest.raises(DataError) as error:
            read_mnist(tmp_path)
        assert_says(error, tmp_path, path.name)
        path.write_bytes(good[path])


# --- CIFAR -------------------------------------------------------------------------------------

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TEN_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
ROWS = 3


def batches(names: tuple[str, ...], classes: int) -> dict[str, tuple[np.ndarray, list[int]]]:
    rng = np.random.default_rng(7)
    return {
        name: (
            rng.integers(0, 256, (ROWS, 3072), dtype=np.uint8),
            rng.integers(0, classes, ROWS).tolist(),
        )
        for name in names
    }


def text2(value: bytes) -> bytes:
    """A Python 2 string as cPickle wrote it."""
    return b"U" + bytes([len(value)]) + value


def pickle2(content: dict[bytes, Any]) -> bytes:
    """Python 2's protocol 2, opcode by opcode as in the original batches."""
    out = b"\x80\x02}q\x01("
    for key, value in content.items():
        out += text2(key)
        if isinstance(value, np.ndarray):
            rows, columns = (struct.pack("<H", n) for n in value.shape)
            out += b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08"
            out += b"K\x00\x85U\x01b\x87Rq\x09(K\x01M" + rows + b"M" + columns
            out += b"\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b"
            out += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
            out += struct.pack("<I", value.size) + value.tobytes() + b"tb"
        elif isinstance(value, list):
            items = (b"K" + bytes([v]) if isinstance(v, int) else text2(v) for v in value)
            out += b"](" + b"".join(items) + b"e"
        else:
            out += text2(value)
    return out + b"u."


def python_batch(pixels: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    names = [b"%05d.png" % i for i in range(len(labels))]
    content = {b"batch_label": b"one", key: labels, b"data": pixels, b"filenames": names}
    if key == b"fine_labels":
        content[b"coarse_labels"] = [0] * len(labels)
    return pickle2(content)


def binary_batch(pixels: np.ndarray, labels: list[int], coarse: bool = False) -> bytes:
    first = np.array(labels, np.uint8)[:, None]
    parts = [np.full_like(first, 99), first, pixels] if coarse else [first, pixels]
    return np.concatenate(parts, axis=1).tobytes()


def cifar10_files(form: str) -> dict[str, bytes]:
    made = batches(TEN_BATCHES, 10)
    if form == "binary":
        files = {f"{name}.bin": binary_batch(*batch) for name, batch in made.items()}
        return {**files, "batches.meta.txt": "\n".join(TEN).encode() + b"\n\n"}
    files = {name: python_batch(*batch) for name, batch in made.items()}
    meta = {b"num_vis": b"3072", b"label_names": [name.encode() for name in TEN]}
    return {**files, "batches.meta": pickle2(meta)}


def cifar100_files(form: str) -> dict[str, bytes]:
    made = batches(("train", "test"), 100)
    names = [f"class_{i}" for i in range(100)]
    if form == "binary":
        files = {f"{name}.bin": binary_batch(*batch, coarse=True) for name, batch in made.items()}
        return {**files, "fine_label_names.txt": "\n".join(names).encode()}
    files = {n: python_batch(*b, key=b"fine_labels") for n, b in made.items()}
    return {**files, "meta": pickle2({b"fine_label_names": [n.encode() for n in names]})}


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def pack(path: Path, files: dict[str, bytes], mode: Any = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


CIFARS: dict[int, tuple[Any, Any, dict[str, str]]] = {
    10: (
        read_cifar10,
        cifar10_files,
        {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"},
    ),
    100: (
        read_cifar100,
        cifar100_files,
        {"binary": "cifar-100-binary", "python": "cifar-100-python"},
    ),
}


@pytest.mark.parametrize("place", ["folder", "sub-folder", "archive"])
@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("classes", CIFARS)
def test_cifar_forms(tmp_path: Path, classes: int, form: str, place: str) -> None:
    read, files_of, folders = CIFARS[classes]
    files, inner = files_of(form), folders[form]
    if place == "archive":
        inside = {f"{inner}/{name}": data for name, data in files.items()}
        pack(tmp_path / f"cifar-{classes}-{form}.tar.gz", inside)
    else:
        put(tmp_path if place == "folder" else tmp_path / inner, files)
    before = sorted(tmp_path.rglob("*"))
    data = read(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked
    assert_sound(data)
    assert data.classes == classes
    made = list(batches(TEN_BATCHES if classes == 10 else ("train", "test"), classes).values())
    pixels = np.concatenate([pixels for pixels, _ in made]).reshape(-1, 3, 32, 32)
    labels = [label for _, part in made for label in part]
    assert np.array_equal(data.train.inputs, pixels[:-ROWS])
    assert np.array_equal(data.test.inputs, pixels[-ROWS:])
    assert data.train.targets.tolist() == labels[:-ROWS]
    assert data.test.targets.tolist() == labels[-ROWS:]
    assert data.labels == (TEN if classes == 10 else tuple(f"class_{i}" for i in range(100)))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_batches_pickled_by_python_3(tmp_path: Path, protocol: int, core: str, order: str) -> None:
    made = batches(TEN_BATCHES, 10)
    files = {}
    for name, (pixels, labels) in made.items():
        content = {"data": np.array(pixels, order=order), "labels": labels}
        data = pickle.dumps(content, protocol)
        if protocol < 4:  # a name of protocol 4 has its length in front
            data = data.replace(b"numpy._core", core.encode())
        files[name] = data
    data = read_cifar10(put(tmp_path, files))
    assert_sound(data)
    assert np.array_equal(data.test.inputs.reshape(ROWS, -1), made["test_batch"][0])
    assert data.test.targets.tolist() == made["test_batch"][1]
    assert data.labels == ()


def mosaic(tiles: np.ndarray, across: int) -> bytes:
    """Tiles (N, 3, 32, 32) pasted one by one into one lossless WebP."""
    sheet = Image.new("RGB", (32 * across, 32 * (len(tiles) // across)))
    for i, tile in enumerate(tiles):
        place = (32 * (i % across), 32 * (i // across))
        sheet.paste(Image.fromarray(np.ascontiguousarray(tile.transpose(1, 2, 0))), place)
    buffer = io.BytesIO()
    sheet.save(buffer, "WEBP", lossless=True, exact=True)
    return buffer.getvalue()


def mosaic_files() -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    tiles = rng.integers(0, 256, (36, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 36, dtype=np.uint8)
    files = {f"{n}.webp": mosaic(tiles[6 * i : 6 * i + 6], 3) for i, n in enumerate(TEN_BATCHES)}
    buffer = io.BytesIO()
    np.save(buffer, labels)
    return {**files, "labels.npy": buffer.getvalue()}, tiles, labels


def test_cifar10_mosaics(tmp_path: Path) -> None:
    files, tiles, labels = mosaic_files()
    data = read_cifar10(put(tmp_path, files))
    assert_sound(data)
    assert np.array_equal(np.concatenate([data.train.inputs, data.test.inputs]), tiles)
    assert [*data.train.targets, *data.test.targets] == labels.tolist()


def test_mosaics_without_pillow_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, mosaic_files()[0])
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        UndriftError, match=r"needs the package Pillow.*pip install 'undrift\[images\]'\.$"
    ):
        read_cifar10(tmp_path)


class Evil:
    """Would make a file when loaded by a plain unpickler."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def evil_pickles(mark: Path) -> dict[str, bytes]:
    path = str(mark).encode()
    posix = f"c{os.mkdir.__module__}\nmkdir\n".encode()
    # Attributes of what is allowed, NumPy's own loader of pickles, and opcodes of other classes.
    return {
        **{f"reduce-{p}": pickle.dumps({"data": Evil(mark)}, p) for p in range(6)},
        "instance": b"(i" + posix[1:] + b".",
        "object": b"(" + posix + b"V" + path + b"\no.",
        "new-object": b"\x80\x02" + posix + b"U" + bytes([len(path)]) + path + b"\x85\x81.",
        "builtins": b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
        "python-2-builtins": b"\x80\x02c__builtin__\neval\nU\x011\x85R.",
        "dotted-name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.tofile\x93.",
        "numpy-load": b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pabc\n.",
    }


@pytest.mark.parametrize("case", evil_pickles(Path("/mark")))
@pytest.mark.parametrize("name", ["data_batch_3", "batches.meta"])
def test_a_malicious_pickle_is_refused_and_nothing_runs(
    tmp_path: Path, name: str, case: str
) -> None:
    mark = tmp_path / "made"
    evil = evil_pickles(mark)[case]
    if case.startswith("reduce"):
        pickle.loads(evil)
        mark.rmdir()  # it is a working attack on a plain unpickler
    put(tmp_path / "data", {**cifar10_files("python"), name: evil})
    with pytest.raises(DataError) as error:
        read_cifar10(tmp_path / "data")
    assert not mark.exists()
    assert_says(error, tmp_path / "data" / name, "nothing in it was run")


def test_a_pickle_cannot_change_the_reader(tmp_path: Path) -> None:
    """BUILD on a class or a function would set its attributes."""
    for stand_in in (b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy\nndarray\n"):
        evil = b"\x80\x02" + stand_in + b"N}U\x05statec_codecs\nencode\ns\x86b."
        put(tmp_path, {**cifar10_files("python"), "data_batch_1": evil})
        with pytest.raises(DataError):
            read_cifar10(tmp_path)
    put(tmp_path, cifar10_files("python"))
    assert_sound(read_cifar10(tmp_path))


def test_a_pickle_that_claims_much_memory_is_refused_at_once(tmp_path: Path) -> None:
    huge = struct.pack("<Q", 2**28)
    for evil in (
        b"\x80\x05\x96" + huge + b"abc.",
        b"\x80\x04\x8e" + huge + b"abc.",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2^31 entries in the C unpickler
    ):
        put(tmp_path, {**cifar10_files("python"), "data_batch_1": evil})
        tracemalloc.start()
        try:
            with pytest.raises(DataError):
                read_cifar10(tmp_path)
            assert tracemalloc.get_traced_memory()[1] < 5e6
        finally:
            tracemalloc.stop()


def bad_cifar() -> dict[str, tuple[str, dict[str, bytes], str]]:
    """Form, files that replace good ones, and a clue of the message."""
    pixels, labels = batches(TEN_BATCHES, 10)["data_batch_2"]
    row = binary_batch(pixels, labels)
    wide = np.concatenate([pixels, pixels[:, :1]], axis=1)
    return {
        "binary-cut": ("binary", {"data_batch_2.bin": row[:-1]}, "rows of 3,073 bytes"),
        "binary-empty": ("binary", {"test_batch.bin": b""}, "rows of 3,073 bytes"),
        "binary-row-less": ("binary", {"data_batch_2.bin": row[3073:]}, "3 images"),
        "binary-label": ("binary", {"data_batch_2.bin": b"\x0a" + row[1:]}, "10 for image 0"),
        "names": ("binary", {"batches.meta.txt": b"cat\ndog\n"}, "10 class names"),
        "python-cut": ("python", {"data_batch_2": python_batch(pixels, labels)[:-500]}, "pickle"),
        "python-empty": ("python", {"data_batch_2": b""}, "pickle"),
        "python-list": ("python", {"data_batch_2": b"\x80\x02]."}, "dictionary"),
        "python-width": ("python", {"data_batch_2": python_batch(wide, labels)}, "N x 3072"),
        "python-labels": ("python", {"data_batch_2": python_batch(pixels, [1, 2])}, "3 labels"),
        "python-no-labels": ("python", {"data_batch_2": pickle2({b"data": pixels})}, "'labels'"),
        "python-no-data": ("python", {"data_batch_2": pickle2({b"labels": [1]})}, "'data'"),
        "python-label": (
            "python",
            {"data_batch_2": python_batch(pixels, [1, 77, 2])},
            "for image 1",
        ),
        "python-names": (
            "python",
            {"batches.meta": pickle2({b"label_names": [b"cat"]})},
            "10 class names",
        ),
    }


@pytest.mark.parametrize("case", bad_cifar())
def test_damaged_cifar_is_refused(tmp_path: Path, case: str) -> None:
    form, replaced, clue = bad_cifar()[case]
    put(tmp_path, {**cifar10_files(form), **replaced})
    with pytest.raises(DataError) as error:
        read_cifar10(tmp_path)
    (name,) = replaced
    assert_says(error, tmp_path / name.removesuffix(".bin"), clue)


def test_cifar_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_cifar100(tmp_path)
    assert_says(error, tmp_path, "cifar-100-python.tar.gz")
    folder = put(tmp_path / "cifar-10-batches-bin", cifar10_files("binary"))
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError) as error:
        read_cifar10(tmp_path)
    assert_says(error, folder, "no data_batch_4.bin")
    put(tmp_path / "cifar-10-batches-py", cifar10_files("python"))  # a whole form wins
    assert_sound(read_cifar10(tmp_path))


def test_damaged_cifar_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    pack(path, cifar10_files("python"))
    whole = path.read_bytes()
    for data in (b"", b"not an archive", whole[: len(whole) // 2], whole[:-20]):
        path.write_bytes(data)
        with pytest.raises(DataError) as error:
            read_cifar10(tmp_path)
        assert_says(error, path)
    with tarfile.open(path, "w:gz") as archive:  # a link to a file outside is not followed
        link = tarfile.TarInfo("data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="no data_batch_1"):
        read_cifar10(tmp_path)


def test_damaged_mosaics_are_refused(tmp_path: Path) -> None:
    files, tiles, labels = mosaic_files()
    buffer = io.BytesIO()
    np.save(buffer, labels[:-1])
    objects = io.BytesIO()
    np.save(objects, np.array([Evil(tmp_path / "made")], dtype=object), allow_pickle=True)
    odd = io.BytesIO()
    Image.new("RGB", (96, 65)).save(odd, "WEBP", lossless=True)
    for name, data in (
        ("labels.npy", buffer.getvalue()),
        ("labels.npy", objects.getvalue()),
        ("labels.npy", b""),
        ("data_batch_2.webp", files["data_batch_2.webp"][:-400]),
        ("data_batch_2.webp", b"RIFF"),
        ("data_batch_2.webp", odd.getvalue()),
        ("data_batch_2", mosaic(tiles[:3], 3)),
    ):
        target = name if name != "data_batch_2" else "data_batch_2.webp"
        put(tmp_path / "data", {**files, target: data})
        with pytest.raises(DataError) as error:
            read_cifar10(tmp_path / "data")
        assert_says(error, tmp_path / "data" / name)
    assert not (tmp_path / "made").exists()


# --- LIBSVM ------------------------------------------------------------------------------------

SVM = "+1 1:0.5 3:-2\n-1 2:1e-1 # a note\n\n-1\n+1 1:1 2:2 3:3\n"
SVM_DENSE = [[0.5, 0, -2], [0, 0.1, 0], [0, 0, 0], [1, 2, 3]]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("end", PACKERS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_libsvm_text(tmp_path: Path, end: str, newline: str) -> None:
    path = tmp_path / f"a{end}"
    path.write_bytes(PACKERS[end](SVM.replace("\n", newline).encode()))
    inputs, labels = read_libsvm(path, 3)
    assert inputs.dtype == np.float32
    assert np.array_equal(inputs, np.array(SVM_DENSE, np.float32))
    assert labels.tolist() == [1, -1, -1, 1]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(0, 2**31))
def test_libsvm_round_trip(features: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((7, features)) < 0.5, rng.normal(size=(7, features)), 0)
    dense = dense.astype(np.float32)
    labels = rng.integers(-3, 4, 7)
    lines = [
        " ".join([str(y), *(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v)])
        for y, row in zip(labels, dense, strict=True)
    ]
    path = scratch("libsvm-round-trip")
    path.write_text("\n".join(lines))
    inputs, got = read_libsvm(path, features)
    assert np.array_equal(inputs, dense)
    assert np.array_equal(got, labels)


BAD_SVM = {
    "above": ("+1 1:1\n-1 2:1 4:1\n", 2, "up to 3"),
    "zero": ("+1 0:1\n", 1, "indices from 1"),
    "negative": ("+1 1:1\n\n+1 -2:1\n", 3, "indices from 1"),
    "not-ascending": ("+1 2:1 1:1\n", 1, "1 after 2"),
    "twice": ("+1 1:1 2:1 2:1\n", 1, "2 after 2"),
    "no-label": ("+1 1:1\n1:1 2:1\n", 2, "a label first"),
    "text-label": ("yes 1:1\n", 1, "'yes'"),
    "nan-label": ("nan 1:1\n", 1, "'nan'"),
    "text-value": ("+1 1:x\n", 1, "'1:x'"),
    "no-value": ("+1 1:\n", 1, "'1:'"),
    "no-colon": ("+1 1:1 2\n", 1, "'2'"),
    "two-colons": ("+1 1:1:1\n", 1, "'1:1:1'"),
    "qid": ("+1 qid:3 1:1\n", 1, "'qid:3'"),
    "infinite": ("+1 1:inf\n", 1, "'1:inf'"),
    "nan": ("+1 1:nan\n", 1, "'1:nan'"),
    "beyond-single": ("+1 1:1\n-1 1:1e300\n", 2, "'1:1e300'"),
    "underscore": ("+1 1:1\n+1 1:1_0\n", 2, "underscore"),
    "huge-index": (f"+1 {10**30}:1\n", 1, "up to 3"),
    "long-index": (f"+1 {'9' * 5000}:1\n", 1, "..."),
}


@pytest.mark.parametrize("case", BAD_SVM)
def test_damaged_libsvm_is_refused(tmp_path: Path, case: str) -> None:
    text, line, clue = BAD_SVM[case]
    path = tmp_path / "a9a"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_libsvm(path, 3)
    assert_says(error, f"{path}, line {line} needs", clue)


@pytest.mark.parametrize("end", [".gz", ".bz2", ".xz"])
def test_truncated_libsvm_archives_are_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"a9a{end}"
    path.write_bytes(PACKERS[end](SVM.encode())[:-5])
    with pytest.raises(DataError) as error:
        read_libsvm(path, 3)
    assert_says(error, path, "fetch the file again")


def test_other_bad_libsvm(tmp_path: Path) -> None:
    path = tmp_path / "a9a"
    for data in (b"", b"\n# only a note\n", b"+1 1:\xff\n"):
        path.write_bytes(data)
        with pytest.raises(DataError) as error:
            read_libsvm(path, 3)
        assert_says(error, path)
    for features in (0, 1.5, True):
        with pytest.raises(ValueError, match="features >= 1"):
            read_libsvm(path, features)  # type: ignore[arg-type]
    with pytest.raises(DataError) as error:
        read_libsvm(tmp_path / "absent", 3)
    assert_says(error, tmp_path / "absent")


def test_a9a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_a9a(tmp_path)
    assert_says(error, tmp_path, "the file a9a,")
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "a9a.bz2").write_bytes(bz2.compress(b"-1 1:1\n+1 123:1\n"))
    (tmp_path / "libsvm" / "a9a.t").write_text("+1 122:1\n")
    data = read_a9a(tmp_path)
    assert_sound(data)
    assert data.train.inputs.shape == (2, 123)
    assert data.train.inputs[1].nonzero()[0].tolist() == [122]
    assert data.train.targets.tolist() == [0, 1]
    assert data.test.targets.tolist() == [1]
    (tmp_path / "libsvm" / "a9a.t").write_text("+1 122:1\n2 1:1\n")
    with pytest.raises(DataError) as error:
        read_a9a(tmp_path)
    assert_says(error, "a9a.t", "labels -1 and +1", "2 in sample 2")


# --- images ------------------------------------------------------------------------------------


def picture(
    colour: tuple[int, int, int], size: tuple[int, int] = (8, 8), form: str = "PNG"
) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, form)
    return buffer.getvalue()


def grey(level: int, size: tuple[int, int] = (8, 8), form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("L", size, level).save(buffer, form)
    return buffer.getvalue()


def tree(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


FOLDER = {
    "train/dog/a.png": picture((10, 20, 30)),
    "train/dog/deeper/b.BMP": picture((40, 50, 60), form="BMP"),
    "train/cat/z.jpeg": grey(77),
    "train/cat/a.webp": picture((1, 2, 3)),
    "train/cat/.hidden.png": b"not an image",
    "train/cat/.cache/c.png": b"not an image",
    "train/cat/notes.txt": b"not an image",
    "val/dog/c.png": picture((7, 8, 9)),
    "test/unlabelled/x.png": picture((7, 8, 9)),
}


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_image_folder(tmp_path: Path, held_out: str) -> None:
    tree(
        tmp_path, FOLDER if held_out == "val" else {k: v for k, v in FOLDER.items() if "train" in k}
    )
    if held_out == "test":
        tree(tmp_path, {"test/dog/c.png": FOLDER["val/dog/c.png"]})
    data = read_image_folder(tmp_path)
    assert_sound(data)
    assert data.labels == ("cat", "dog")
    assert data.train.inputs.shape == (4, 3, 8, 8)
    assert data.train.inputs[:, :, 4, 4].tolist() == [
        [1, 2, 3],
        [77, 77, 77],
        [10, 20, 30],
        [40, 50, 60],
    ]
    assert data.train.targets.tolist() == [0, 0, 1, 1]
    assert data.test.inputs[:, :, 0, 0].tolist() == [[7, 8, 9]]
    assert data.test.targets.tolist() == [1]


def test_pixels_keep_their_places(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    tree(tmp_path, {"train/a/1.png": buffer.getvalue(), "val/a/1.png": buffer.getvalue()})
    data = read_image_folder(tmp_path)
    assert np.array_equal(data.train.inputs[0], pixels.transpose(2, 0, 1))


def striped(width: int, height: int) -> bytes:
    """Thirds in red, green and blue along the longer side."""
    sheet = Image.new("RGB", (width, height), (0, 255, 0))
    w, h = (width // 3, height) if width > height else (width, height // 3)
    sheet.paste((255, 0, 0), (0, 0, w, h))
    sheet.paste((0, 0, 255), (width - w, height - h, width, height))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("sides", [(48, 16), (16, 48), (6, 2), (49, 17)])
def test_size_resizes_the_short_side_and_cuts_the_centre(
    tmp_path: Path, sides: tuple[int, int]
) -> None:
    tree(tmp_path, {"train/a/1.png": striped(*sides), "val/a/1.png": picture((9, 9, 9), (5, 7))})
    data = read_image_folder(tmp_path, size=4)
    assert_sound(data)
    assert data.train.inputs.shape == (1, 3, 4, 4)
    assert data.train.inputs[0, :, 1:3, 1:3].reshape(3, -1).T.tolist() == [[0, 255, 0]] * 4
    assert (data.test.inputs == 9).all()


def test_images_of_other_modes(tmp_path: Path) -> None:
    files = {"val/a/1.png": picture((0, 0, 0))}
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    palette.info["transparency"] = b"\xff\x80"
    for name, image in (
        ("1", palette),
        ("2", Image.new("RGBA", (8, 8), (5, 6, 7, 0))),
        ("3", Image.new("1", (8, 8), 1)),
    ):
        buffer = io.BytesIO()
        image.save(buffer, "PNG", **({"transparency": b"\xff\x80"} if name == "1" else {}))
        files[f"train/a/{name}.png"] = buffer.getvalue()
    data = read_image_folder(tree(tmp_path, files))
    assert data.train.inputs[:, :, 3, 3].tolist() == [[200, 100, 50], [5, 6, 7], [255, 255, 255]]
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(buffer, "PNG")
    tree(tmp_path, {"train/a/4.png": buffer.getvalue()})
    with pytest.raises(DataError) as error:
        read_image_folder(tmp_path)
    assert_says(error, tmp_path / "train/a/4.png", "8 bits")


def test_bad_image_folders_are_refused(tmp_path: Path) -> None:
    whole = picture((1, 2, 3), (32, 32), "JPEG")
    base = {"train/a/1.jpg": picture((1, 2, 3)), "val/a/1.jpg": picture((1, 2, 3))}
    for i, (files, named, clue) in enumerate(
        (
            ({**base, "train/a/2.jpg": picture((1, 2, 3), (8, 9))}, "train/a/2.jpg", "size=64"),
            ({**base, "val/a/1.jpg": picture((1, 2, 3), (9, 8))}, "val/a/1.jpg", "9 x 8"),
            ({**base, "train/a/2.jpg": whole[:-200]}, "train/a/2.jpg", "decodes"),
            ({**base, "train/a/2.jpg": b"not a JPEG"}, "train/a/2.jpg", "no known image format"),
            ({**base, "train/a/2.jpg": b""}, "train/a/2.jpg", "decodes"),
            ({**base, "train/b/notes.txt": b""}, "train/b", "at least one image"),
            ({**base, "val/c/1.png": whole}, "val", "'c'"),
            ({"train/a/1.jpg": whole, "val/a/x.txt": b""}, "val", "at least one image"),
            ({"train/a/1.jpg": whole}, "", "no val or test folder"),
            ({"a/1.jpg": whole, "b/1.jpg": whole}, "", "no train folder"),
            ({"train/1.jpg": whole, "val/1.jpg": whole}, "train", "no class folder"),
        )
    ):
        folder = tree(tmp_path / str(i), files)
        with pytest.raises(DataError) as error:
            read_image_folder(folder)
        assert_says(error, folder / named, clue)
    with pytest.raises(DataError):
        read_image_folder(tmp_path / "absent")
    for size in (0, -3, 2.5):
        with pytest.raises(ValueError, match="a size >= 1"):
            read_image_folder(tree(tmp_path / "good", base), size=size)  # type: ignore[arg-type]


def tiny_files() -> dict[str, bytes]:
    wnids = ["n02", "n01", "n03"]  # as in the original, not sorted
    files = {
        "wnids.txt": "\n".join(wnids).encode() + b"\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tfrog\nn99\tother\n",
        "val/val_annotations.txt": b"val_1.JPEG\tn03\t0\t0\t9\t9\nval_0.JPEG\tn01\t0\t0\t9\t9\n",
        "val/images/val_0.JPEG": grey(10),
        "val/images/val_1.JPEG": grey(30),
        "test/images/test_0.JPEG": b"never read",
    }
    for wnid in wnids:
        for i in range(2):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            files[name] = grey(10 * int(wnid[2:]) + i)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
    return files


def put_tiny(folder: Path, place: str, files: dict[str, bytes]) -> Path:
    inside = {f"tiny-imagenet-200/{name}": data for name, data in files.items()}
    if place == "folder":
        tree(folder, files)
    elif place == "sub-folder":
        tree(folder, inside)
    elif place == "zip":
        with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
            for name, data in inside.items():
                archive.writestr(name, data)
    else:
        dotted = {f"./{name}": data for name, data in inside.items()}
        pack(folder / "tiny-imagenet-200-part.tar", dotted, "w")
    return folder


@pytest.mark.parametrize("place", ["folder", "sub-folder", "zip", "tar"])
def test_tiny_imagenet(tmp_path: Path, place: str) -> None:
    put_tiny(tmp_path, place, tiny_files())
    before = sorted(tmp_path.rglob("*"))
    data = read_tiny_imagenet(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert_sound(data)
    assert data.classes == 3
    assert data.labels == ("goldfish, Carassius auratus", "frog", "n03")
    assert data.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.inputs[:, 0, 0, 0].tolist() == [10, 11, 20, 21, 30, 31]
    assert data.test.targets.tolist() == [2, 0]
    assert data.test.inputs[:, 2, 5, 5].tolist() == [30, 10]


BAD_TINY: dict[str, tuple[str, bytes | None, str]] = {
    "no-wnids": ("wnids.txt", None, "tiny"),
    "no-annotations": ("val/val_annotations.txt", None, "val/val_annotations.txt"),
    "class-without-images": ("wnids.txt", b"n01\nn02\nn03\nn04\n", "none for n04"),
    "class-not-listed": ("wnids.txt", b"n01\nn03\n", "n02"),
    "no-label": ("val/val_annotations.txt", b"val_0.JPEG\tn01\n", "val/images/val_1.JPEG"),
    "unknown-label": ("val/val_annotations.txt", b"val_0.JPEG\tn01\nval_1.JPEG\tn9\n", "line 2"),
    "missing-label": ("val/val_annotations.txt", b"val_0.JPEG\n", "line 1"),
    "no-image": ("val/images/val_1.JPEG", None, "line 1"),
    "jpeg": ("train/n02/images/n02_1.JPEG", grey(5)[:-60], "train/n02/images/n02_1.JPEG"),
    "size": ("val/images/val_0.JPEG", grey(5, (8, 9)), "val/images/val_0.JPEG"),
    "text": ("wnids.txt", b"\xff\xfe\n", "UTF-8"),
}


@pytest.mark.parametrize("place", ["sub-folder", "zip"])
@pytest.mark.parametrize("case", BAD_TINY)
def test_damaged_tiny_imagenet_is_refused(tmp_path: Path, case: str, place: str) -> None:
    name, data, clue = BAD_TINY[case]
    files = tiny_files()
    del files[name]
    put_tiny(tmp_path, place, files if data is None else {**files, name: data})
    with pytest.raises(DataError) as error:
        read_tiny_imagenet(tmp_path)
    assert_says(error, tmp_path, clue)


def test_damaged_tiny_imagenet_archives_are_refused(tmp_path: Path) -> None:
    for place, name in (("zip", "tiny-imagenet-200.zip"), ("tar", "tiny-imagenet-200-part.tar")):
        folder = tmp_path / place
        folder.mkdir()
        path = put_tiny(folder, place, tiny_files()) / name
        whole = path.read_bytes()
        for data in (b"", whole[: len(whole) // 3], whole[: len(whole) // 2 + 100]):
            path.write_bytes(data)
            with pytest.raises(DataError) as error:
                read_tiny_imagenet(folder)
            assert_says(error, path)


def test_images_without_pillow_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, FOLDER)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        UndriftError, match=r"needs the package Pillow.*pip install 'undrift\[images\]'\.$"
    ):
        read_image_folder(tmp_path)


# --- CSV ---------------------------------------------------------------------------------------


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


PEOPLE = ["age", "job", "city", "grade"]


def people(count: int = 40) -> list[list[object]]:
    rng = np.random.default_rng(5)
    jobs, cities = ["nurse", "cook", "smith"], ["Ulm", "Bonn"]
    return [
        [int(rng.integers(18, 80)), jobs[i % 3], cities[i % 2], (10, 9, 2)[i * i % 3]]
        for i in range(count)
    ]


def test_image_table(tmp_path: Path) -> None:
    files = {f"faces/{i}.png": picture((i, 100 + i, 200)) for i in range(10)}
    tree(tmp_path, files)
    rows: list[list[object]] = [[f"faces/{i}.png", "ab"[i % 2], f"user{i % 3}"] for i in range(10)]
    path = write_csv(tmp_path / "faces.csv", ["file", "smile", "user"], rows)
    data = read_image_table(path, image="file", target="smile", client="user", test_fraction=0.3)
    assert_sound(data)
    assert len(data.test) == 3
    assert data.labels == ("a", "b")
    assert data.names == ("user0", "user1", "user2")
    seen = []
    for part in (data.train, data.test):
        assert part.owners is not None
        for x, y, owner in zip(part.inputs, part.targets, part.owners, strict=True):
            i = int(x[0, 0, 0])
            seen.append(i)
            assert (y, owner) == (i % 2, i % 3)
    assert sorted(seen) == list(range(10))
    assert read_image_table(path, image="file", target="smile", size=5).train.owners is None
    rows[4][0] = "faces/none.png"
    write_csv(path, ["file", "smile", "user"], rows)
    with pytest.raises(DataError) as error:
        read_image_table(path, image="file", target="smile")
    assert_says(error, f"{path}, line 6", "none.png")
    rows[4][:2] = "faces/4.png", ""
    write_csv(path, ["file", "smile", "user"], rows)
    with pytest.raises(DataError) as error:
        read_image_table(path, image="file", target="smile")
    assert_says(error, f"{path}, line 6", "'smile'")
    rows[4][1] = "a"
    write_csv(path, ["file", "smile", "user"], rows)
    (tmp_path / "faces/7.png").write_bytes(b"broken")
    with pytest.raises(DataError) as error:
        read_image_table(path, image="file", target="smile")
    assert_says(error, tmp_path / "faces/7.png")
    with pytest.raises(ValueError, match="image to be one of"):
        read_image_table(path, image="path", target="smile")


# --- random damage -----------------------------------------------------------------------------

SCRATCH: dict[str, Path] = {}


@pytest.fixture(autouse=True, scope="module")
def _scratch_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    SCRATCH["root"] = tmp_path_factory.mktemp("formats")


def scratch(name: str) -> Path:
    """A path for tests that write anew for every example."""
    return SCRATCH["root"] / name


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Some flipped bytes, then perhaps a cut or added bytes; places as fractions of the length."""
    fraction = st.floats(0, 1, exclude_max=True)
    flips = draw(st.lists(st.tuples(fraction, st.integers(1, 255)), max_size=4))
    early = draw(st.booleans())  # headers are short and deserve half of the damage
    cut = draw(st.none() | fraction)
    tail = draw(st.binary(max_size=5))

    def apply(data: bytes) -> bytes:
        changed = bytearray(data)
        reach = min(len(data), 24) if early else len(data)
        for place, mask in flips:
            changed[int(place * reach)] ^= mask
        return bytes(changed if cut is None else changed[: int(cut * len(changed))]) + tail

    return apply


def outcome(read: Callable[[], Any]) -> Any:
    """What the reader returns, or the text of its DataError; any other error is a failure."""
    try:
        return read()
    except DataError as error:
        return str(error)


def assert_survives(read: Callable[[], Stored]) -> None:
    data = outcome(read)
    if isinstance(data, str):
        assert " needs " in data
        assert "; " in data
    else:
        assert_sound(data)


@settings(deadline=None, max_examples=80)
@given(damage(), st.sampled_from(["images", "labels"]), st.booleans())
def test_damaged_mnist_gives_a_data_error_or_sound_data(
    harm: Callable[[bytes], bytes], kind: str, packed: bool
) -> None:
    folder = scratch("mnist")
    folder.mkdir(exist_ok=True)
    written = write_mnist_arrays(folder)  # anew: the last example left one of the files damaged
    name = {"images": "t10k-images-idx3-ubyte", "labels": "t10k-labels-idx1-ubyte"}[kind]
    data = idx_bytes(written[name])
    path = folder / f"{name}.gz"
    path.write_bytes(harm(gzip.compress(data)) if packed else harm(data))
    assert_survives(lambda: read_mnist(folder))


@settings(deadline=None, max_examples=80)
@given(damage(), st.sampled_from(["i2", "i4", "f4", "f8"]))
def test_damaged_idx_gives_a_data_error_or_an_array(
    harm: Callable[[bytes], bytes], code: str
) -> None:
    path = scratch("idx")
    path.write_bytes(harm(idx_bytes(np.arange(60).reshape(3, 4, 5).astype(code))))
    array = outcome(lambda: read_idx(path))
    if isinstance(array, str):
        assert str(path) in array
    else:
        assert 0 < array.nbytes <= path.stat().st_size


@settings(deadline=None, max_examples=60)
@given(damage(), st.sampled_from(["binary", "python"]), st.sampled_from([10, 100]))
def test_damaged_cifar_gives_a_data_error_or_sound_data(
    harm: Callable[[bytes], bytes], form: str, classes: int
) -> None:
    read, files_of, _ = CIFARS[classes]
    files = files_of(form)
    name = ("test_batch" if classes == 10 else "test") + (".bin" if form == "binary" else "")
    folder = put(scratch(f"cifar-{classes}-{form}"), {**files, name: harm(files[name])})
    assert_survives(lambda: read(folder))


@settings(deadline=None, max_examples=120)
@given(damage(), st.sampled_from(list(PACKERS)))
def test_damaged_libsvm_gives_a_data_error_or_sound_data(
    harm: Callable[[bytes], bytes], end: str
) -> None:
    folder = scratch("a9a")
    folder.mkdir(exist_ok=True)
    (folder / "a9a").write_text("-1 1:1 7:0.5\n+1 123:1\n")
    text = "+1 1:1 3:1 99:-0.5\n-1 2:1 5:1e3\n-1 123:1\n" * 3
    (folder / "a9a.t").write_bytes(harm(PACKERS[end](text.encode())))
    assert_survives(lambda: read_a9a(folder))


# --- the real data -----------------------------------------------------------------------------


def moments(pixels: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and deviation by channel, from counts of the 256 values: exact and small."""
    means, deviations = [], []
    values = np.arange(256) / 255
    for channel in range(pixels.shape[1]):
        parts = np.array_split(pixels[:, channel], 50)
        counts = sum(np.bincount(part.ravel(), minlength=256) for part in parts)
        mean = counts @ values / np.sum(counts)
        means.append(float(mean))
        deviations.append(float(np.sqrt(counts @ (values - mean) ** 2 / np.sum(counts))))
    return means, deviations


def test_real_mnist_and_its_writers() -> None:
    data = read_mnist(real("mnist"))
    assert_sound(data)
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train.targets).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert np.bincount(data.test.targets).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    mean, deviation = moments(data.train.inputs)
    assert mean == pytest.approx([0.1307], abs=5e-5)
    assert deviation == pytest.approx([0.3081], abs=5e-5)
    assert data.train.owners is not None
    assert data.test.owners is not None
    train, counts = np.unique(data.train.owners, return_counts=True)
    test = np.unique(data.test.owners)
    assert (len(train), len(test), len(data.names)) == (539, 297, 836)
    assert not set(train) & set(test)
    assert (counts.min(), np.median(counts), counts.max()) == (19, 116, 131)
    assert [int(name) for name in data.names] == sorted(int(name) for name in data.names)


def test_real_fashion_mnist() -> None:
    data = read_mnist(real("fashion-mnist"))
    assert_sound(data)
    assert np.bincount(data.train.targets).tolist() == [6000] * 10
    assert np.bincount(data.test.targets).tolist() == [1000] * 10
    mean, deviation = moments(data.train.inputs)
    assert mean == pytest.approx([0.2860], abs=5e-5)
    assert deviation == pytest.approx([0.3530], abs=5e-5)
    assert data.train.owners is None


BINARIES = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def binary_digest(pixels: np.ndarray, labels: np.ndarray) -> str:
    return hashlib.sha256(binary_batch(pixels.reshape(-1, 3072), labels.tolist())).hexdigest()


def test_a_real_cifar10_mosaic_is_the_published_batch() -> None:
    folder = real("cifar10")
    path = folder / "data_batch_1.webp"
    pixels = cifar.read_mosaic(path, path.read_bytes())
    labels = np.load(folder / "labels.npy")[:10_000]
    assert binary_digest(pixels, labels) == BINARIES["data_batch_1"]


@pytest.mark.long
def test_all_of_real_cifar10_in_every_form(tmp_path: Path) -> None:
    data = read_cifar10(real("cifar10"))
    assert_sound(data)
    assert data.labels == TEN
    assert np.bincount(data.train.targets).tolist() == [5000] * 10
    assert np.bincount(data.test.targets).tolist() == [1000] * 10
    mean, deviation = moments(data.train.inputs)
    assert mean == pytest.approx([0.49140, 0.48216, 0.44653], abs=5e-6)
    assert deviation == pytest.approx([0.24703, 0.24349, 0.26159], abs=5e-6)
    pixels = np.concatenate([data.train.inputs, data.test.inputs]).reshape(6, 10_000, 3072)
    labels = np.concatenate([data.train.targets, data.test.targets]).reshape(6, 10_000)
    for i, (name, digest) in enumerate(BINARIES.items()):
        assert binary_digest(pixels[i], labels[i]) == digest
        put(tmp_path / "binary", {f"{name}.bin": binary_batch(pixels[i], labels[i].tolist())})
        put(tmp_path / "python", {name: python_batch(pixels[i], labels[i].tolist())})
    for form in ("binary", "python"):
        other = read_cifar10(tmp_path / form)
        for part, same in ((other.train, data.train), (other.test, data.test)):
            assert np.array_equal(part.inputs, same.inputs)
            assert np.array_equal(part.targets, same.targets)


def test_real_a9a() -> None:
    data = read_a9a(real("libsvm"))
    assert_sound(data)
    assert data.train.inputs.shape == (32_561, 123)
    assert data.test.inputs.shape == (16_281, 123)
    assert np.bincount(data.train.targets).tolist() == [24_720, 7_841]
    assert np.bincount(data.test.targets).tolist() == [12_435, 3_846]
    assert set(np.unique(data.train.inputs)) == {0.0, 1.0}
    assert not data.test.inputs[:, 122].any()
    assert data.train.inputs[:, 122].any()
    # The first line of the file: -1 3:1 11:1 14:1 ...
    first = [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]
    assert (data.train.inputs[0].nonzero()[0] + 1).tolist() == first


def test_real_tiny_imagenet_part(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real("tiny-imagenet")
    modes: list[str] = []
    opened = images.opened

    def noting(name: str, data: bytes) -> Any:
        with Image.open(io.BytesIO(data)) as image:
            modes.append(image.mode)
        return opened(name, data)

    monkeypatch.setattr(images, "opened", noting)
    data = read_tiny_imagenet(folder)
    assert_sound(data)
    assert data.classes == 200
    assert data.train.inputs.shape == (4000, 3, 64, 64)
    assert data.test.inputs.shape == (1000, 3, 64, 64)
    assert np.bincount(data.train.targets).tolist() == [20] * 200
    assert np.bincount(data.test.targets).tolist() == [5] * 200
    assert data.labels[0] == "goldfish, Carassius auratus"
    assert modes.count("L") == 86
    everything = np.concatenate([data.train.inputs, data.test.inputs]).reshape(5000, 3, -1)
    flat = (everything[:, 0] == everything[:, 1]) & (everything[:, 1] == everything[:, 2])
    assert flat.all(axis=1).sum() >= 86


def test_an_archive_of_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LARGEST", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for name in "abc":
            file.writestr(name, bytes(400))
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        archive.read_archive(tmp_path / "a.zip", lambda name: True)
    assert set(archive.read_archive(tmp_path / "a.zip", lambda name: name != "c")) == {"a", "b"}


def test_an_archive_with_a_nameless_member_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a", b"1")
        file.writestr(zipfile.ZipInfo("b"), b"2")
        file.infolist()[1].filename = ""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(""))
    for name in ("a.zip", "a.tar"):
        with pytest.raises(DataError, match=r"needs a whole archive, got a member without a name;"):
            archive.read_archive(tmp_path / name, lambda name: name == "a")
