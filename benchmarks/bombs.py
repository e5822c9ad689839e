"""What it takes to refuse a file that unpacks to a gigabyte: memory and seconds of each.

    python -m benchmarks.bombs

Each file is read in a process of its own, whose peak memory is compared with that of a process
that reads nothing.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
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
    Bomb("TOML key", _toml, _read_toml, "parts"),
]  # fmt: skip


def _measure(name: str) -> None:
    """Read one bomb in this process, and print seconds and peak memory; "none" reads nothing."""
    import undrift.config.experiment
    import undrift.data.formats.cifar
    import undrift.data.formats.libsvm
    import undrift.data.formats.shakespeare
    import undrift.data.tables.files

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
    print(outcome, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


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
