"""What it takes to refuse a file that unpacks to a gigabyte: memory and seconds of each.

    python -m benchmarks.bombs

Each file is read in a process of its own, whose peak memory is compared with that of a process
that reads nothing.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIGABYTE = 1 << 30
_CHUNK = 1 << 20
LINE = b"#" * 1023 + b"\n"  # a comment


@dataclass(frozen=True)
class Bomb:
    """Is a small file that would take much memory."""

    name: str
    make: Callable[[Path, int], int]  # writes the file, which unpacks to so many bytes
    read: Callable[[Path], object]
    message: str  # of the refusal


def _write(path: Path, data: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)


def _repeated(compressor: object, text: bytes, size: int) -> bytes:
    """Return `size` bytes of repetitions of a text, compressed."""
    block = (text * (_CHUNK // len(text) + 1))[: _CHUNK // len(text) * len(text)]
    parts = [compressor.compress(block) for _ in range(size // len(block))]  # type: ignore[attr-defined]
    return b"".join([*parts, compressor.flush()])  # type: ignore[attr-defined]


def _gzip(size: int, text: bytes = LINE) -> bytes:
    return _repeated(zlib.compressobj(9, zlib.DEFLATED, 31), text, size)


def _libsvm(name: str, pack: Callable[[int], bytes]) -> Callable[[Path, int], int]:
    return lambda folder, size: _write(folder / name, pack(size))


def _read_libsvm(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from undrift.data.formats.libsvm import read_libsvm

        return read_libsvm(folder / name, 10)

    return read


def _zip(folder: Path, size: int) -> int:
    path = folder / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(4):
            name = f"tiny-imagenet-200/train/n0/images/{i}.png"
            archive.writestr(name, bytes(size // 4))
    return path.stat().st_size


def _zip_bz2(folder: Path, size: int) -> int:
    path = folder / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", bytes(size // 4))
    return path.stat().st_size


def _tar(folder: Path, size: int) -> int:
    """Write a tar whose member is a hole, for which it says a size and has no bytes."""
    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    member.size = size
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.fileobj.write(member.tobuf())  # type: ignore[union-attr]
    packed = gzip.compress(file.getvalue())
    return _write(folder / "cifar-10-binary.tar.gz", packed)


def _read_cifar(folder: Path) -> object:
    from undrift.data.formats.cifar import read_cifar10

    return read_cifar10(folder)


def _read_tiny(folder: Path) -> object:
    from undrift.data.formats.images import read_tiny_imagenet

    return read_tiny_imagenet(folder)


def _idx(folder: Path, size: int) -> int:
    """Write a gzip file of an idx array that is all zeros."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = compressor.compress(struct.pack(">HBB2I", 0, 8, 2, size // _CHUNK, _CHUNK))
    return _write(folder / "a.gz", head + _repeated(compressor, b"\0", size))


def _read_idx(folder: Path) -> object:
    from undrift.data.formats.idx import read_idx

    return read_idx(folder / "a.gz")


def _idx_header(folder: Path, size: int) -> int:
    return _write(folder / "a.gz", struct.pack(">HBB3I", 0, 8, 3, size // _CHUNK, 1024, 1024))


def _png(folder: Path, size: int) -> int:
    """Write a PNG of black pixels."""
    side = max(8000, math.isqrt(size // 3))

    def chunk(kind: bytes, data: bytes) -> bytes:
        sealed = kind + data
        return struct.pack(">I", len(data)) + sealed + struct.pack(">I", zlib.crc32(sealed))

    rows = _repeated(zlib.compressobj(9), bytes(1 + side // 8), side * (1 + side // 8))
    head = chunk(b"IHDR", struct.pack(">2I5B", side, side, 1, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    for split in ("train", "val"):
        _write(folder / split / "black" / "a.png", data)
    return len(data)


def _read_images(folder: Path) -> object:
    from undrift.data.formats.images import read_image_folder

    return read_image_folder(folder)


def _shakespeare(folder: Path, size: int) -> int:
    return _write(folder / "pg100.txt.gz", _gzip(size))


def _read_shakespeare(folder: Path) -> object:
    from undrift.data.formats.shakespeare import read_shakespeare

    return read_shakespeare(folder)


def _toml(folder: Path, size: int) -> int:
    return _write(folder / "experiment.toml", b".".join([b"a"] * 20_000) + b" = 1")


def _read_toml(folder: Path) -> object:
    from undrift.config.experiment import Experiment

    return Experiment.read(folder / "experiment.toml")


def _npy(folder: Path, size: int) -> int:
    """Write mosaics with labels whose header says more bytes than there are."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "WEBP", lossless=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        _write(folder / f"{name}.webp", file.getvalue())
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}"
    return _write(
        folder / "labels.npy", b"\x93NUMPY\x01\x00\x76\x00" + text.encode().ljust(117) + b"\n"
    )


def _table(name: str, pack: Callable[[int], bytes]) -> Callable[[Path, int], int]:
    return lambda folder, size: _write(folder / name, pack(size))


def _read_table(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from undrift.data.tables.files import read_frame

        return read_frame(folder / name)

    return read


def _parquet(size: int) -> bytes:
    """Return a table of one number again and again, of which Parquet keeps how often."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pa.table({"a": np.zeros(size // 8)}), file)
    return file.getvalue()


def _skops(content: dict[str, bytes], places: dict[str, int]) -> bytes:
    """Return an archive of skops: a list of arrays, each member read at so many places of it."""
    array = {"__class__": "ndarray", "__module__": "numpy", "__loader__": "NdArrayNode"}
    sparse = {"__class__": "csr_matrix", "__module__": "scipy.sparse",
              "__loader__": "SparseMatrixNode", "type": "scipy"}  # fmt: skip
    nodes = [
        {**(sparse if name.endswith("npz") else {**array, "type": "numpy"}), "file": name}
        for name, times in places.items()
        for _ in range(times)
    ]
    for number, node in enumerate(nodes):
        node["__id__"] = number + 1
    listed = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode",
              "content": nodes, "__id__": 0, "protocol": 2, "_skops_version": "0"}  # fmt: skip
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", json.dumps(listed))
        for name, data in content.items():
            archive.writestr(name, data)
    return file.getvalue()


def _skops_zeros(size: int) -> bytes:
    """Return an archive of one array of zeros."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.zeros(size // 8))
    return _skops({"0.npy": file.getvalue()}, {"0.npy": 1})


def _skops_places(size: int) -> bytes:
    """Return an archive whose one array is read again and again."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.zeros(1 << 20))
    return _skops({"0.npy": file.getvalue()}, {"0.npy": math.ceil(size / (1 << 23))})


def _skops_sparse(size: int) -> bytes:
    """Return an archive of a sparse matrix, which is an archive itself and packed twice."""
    import numpy as np
    from scipy import sparse

    file, rows = io.BytesIO(), max(1, size // 12)
    zeros = np.zeros(rows, np.int32)
    matrix = sparse.csr_matrix((np.zeros(rows), zeros, np.array([0, rows], np.int32)), (1, rows))
    sparse.save_npz(file, matrix)
    return _skops({"0.npz": file.getvalue()}, {"0.npz": 1})


def _model(pack: Callable[[int], bytes]) -> Callable[[Path, int], int]:
    """Return a function that writes a saved model whose transformer is such an archive."""

    def make(folder: Path, size: int) -> int:
        from safetensors.torch import save_file

        from undrift import models
        from undrift.data.tables.preprocessing import Preprocessing, Target
        from undrift.data.tables.transformer import TransformedColumns
        from undrift.runs.saved_model import ARCHITECTURE, PREPROCESSING

        columns = (TransformedColumns(("a",), ("b",), pack(size), None),)
        network = {"model": "logistic", "shape": [1], "classes": 2, "code": {}}
        table = Preprocessing(columns, Target("label", ("no", "yes"))).to_json()
        metadata = {ARCHITECTURE: json.dumps(network), PREPROCESSING: table}
        path = folder / "model.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(models.build("logistic", shape=(1,), classes=2).state_dict(), path, metadata)
        return path.stat().st_size

    return make


def _read_model(folder: Path) -> object:
    from undrift.runs.saved_model import SavedModel

    return SavedModel.read(folder)


def _bz2(size: int) -> bytes:
    return _repeated(bz2.BZ2Compressor(), LINE, size)


def _xz(size: int) -> bytes:
    return _repeated(lzma.LZMACompressor(preset=0), LINE, size)


BOMBS = [
    Bomb("LIBSVM bz2", _libsvm("a.bz2", _bz2), _read_libsvm("a.bz2"), "more than"),
    Bomb("LIBSVM gz", _libsvm("a.gz", _gzip), _read_libsvm("a.gz"), "more than"),
    Bomb("LIBSVM xz", _libsvm("a.xz", _xz), _read_libsvm("a.xz"), "more than"),
    Bomb("zip", _zip, _read_tiny, "more than"),
    Bomb("zip of bz2", _zip_bz2, _read_tiny, "another compression"),
    Bomb("tar header", _tar, _read_cifar, "at most|more than"),
    Bomb("idx gz", _idx, _read_idx, "at most"),
    Bomb("idx header", _idx_header, _read_idx, "bytes of data"),
    Bomb("npy header", _npy, _read_cifar, "one label per tile"),
    Bomb("PNG", _png, _read_images, "pixels"),
    Bomb("Shakespeare gz", _shakespeare, _read_shakespeare, "more than"),
    Bomb("CSV gz", _table("a.csv.gz", lambda size: _gzip(size, b"a,2\n")),
         _read_table("a.csv.gz"), "more than"),
    Bomb("Parquet", _table("a.parquet", _parquet), _read_table("a.parquet"), "at most"),
    Bomb("skops", _model(_skops_zeros), _read_model, "more than"),
    Bomb("skops, one array again and again", _model(_skops_places), _read_model, "more than"),
    Bomb("skops, a sparse matrix", _model(_skops_sparse), _read_model, "more than"),
    Bomb("TOML key", _toml, _read_toml, "parts"),
]  # fmt: skip


def memory(name: str) -> int:
    """Return bytes that this process holds ("VmRSS") or has held at most ("VmHWM").

    The operating system's other figure, `ru_maxrss`, has the peak of the parent in it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _measure(name: str) -> None:
    """Read one bomb in this process, and print seconds and peak memory; "none" reads nothing."""
    import undrift.config.experiment
    import undrift.data.formats.cifar
    import undrift.data.formats.libsvm
    import undrift.data.formats.shakespeare
    import undrift.data.tables.files
    import undrift.runs.saved_model

    with suppress(ImportError):
        import skops.io  # noqa: F401
    undrift.data.tables.files.pandas()
    from undrift.errors import UndriftError

    bomb = next((each for each in BOMBS if each.name == name), None)
    start, outcome = time.perf_counter(), "read"
    if bomb is not None:
        try:
            bomb.read(Path(sys.argv[2]))
        except (UndriftError, ValueError):
            outcome = "refused"
    seconds = time.perf_counter() - start
    print(outcome, seconds, memory("VmHWM"))


def _in_process(name: str, folder: Path) -> tuple[str, float, float]:
    command = [sys.executable, "-m", "benchmarks.bombs", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcome, seconds, peak = done.stdout.split()
    return outcome, float(seconds), float(peak)


def main() -> None:
    if len(sys.argv) == 3:
        sys.argv = [sys.argv[0], sys.argv[2], sys.argv[1]]
        _measure(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as place:
        _, _, base = _in_process("none", Path(place))
        print("| file | bytes | outcome | took | memory |\n|---|---|---|---|---|")
        for i, bomb in enumerate(BOMBS):
            folder = Path(place) / str(i)
            folder.mkdir()
            size = bomb.make(folder, GIGABYTE)
            outcome, seconds, peak = _in_process(bomb.name, folder)
            memory = f"{max(0.0, peak - base) / 1e6:.0f} MB"
            row = [bomb.name, f"{size:,}", outcome, f"{seconds:.2f} s", memory]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
