"""Images in class folders, in Tiny-ImageNet's layout, in archives, or listed in a CSV file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_whole, require
from undrift.data.formats.archive import read_archive
from undrift.data.formats.csv_cells import check_columns, read_csv, with_labels
from undrift.data.holdout import check_fraction
from undrift.data.stored import Samples, Stored, damaged
from undrift.errors import optional

Pixels = NDArray[np.uint8]
Source = tuple[str, Callable[[], bytes]]  # the name of a file for messages, and its bytes

_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # Pillow would run other programs for some formats.
_MOST_PIXELS = 1 << 25  # of one image, which takes up to 8 bytes a pixel
_LAYOUT = "train/<class>/<image> and val/<class>/<image> (or test/<class>/<image>)"


def pillow() -> Any:
    """Return Pillow's Image module, or raise `UndriftError`."""
    return optional("PIL.Image", "Reading images", "images", package="Pillow")


def decode(name: str, data: bytes) -> Pixels:
    """Return the RGB pixels (H, W, 3) of an image file, also of a greyscale one."""
    return np.array(opened(name, data))


def opened(name: str, data: bytes) -> Any:
    """Return a decoded RGB image, or raise `DataError`."""
    Image = pillow()
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:  # This comes before anything is decoded.
                raise ValueError(f"{width:,} x {height:,} pixels, of {_MOST_PIXELS:,} at most")
            image.load()
            if "transparency" in image.info:
                image = image.convert("RGBA")
            mode, colours = image.mode, image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise errors of every kind
        unknown = isinstance(
            error, Image.UnidentifiedImageError
        )  # the text of this error has an address in it
        got = "bytes of no known image format" if unknown else error
        raise damaged(name, "an image that decodes", got, "replace or remove the file") from error
    if mode[0] in "IF":
        remedy = "convert the file to 8 bits"
        raise damaged(name, "an image of 8 bits per channel", f"mode {mode}", remedy)
    return colours


def _cropped(image: Any, size: int) -> Any:
    """Resize the short side to `size`, and cut out the centre square."""
    width, height = image.size
    scale = size / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), pillow().Resampling.BILINEAR)
    return image.crop((left, top, left + size, top + size))


def decode_all(sources: Sequence[Source], size: int | None) -> Pixels:
    """Return all images as (N, 3, H, W); without `size` they must have the same size."""
    require(size is None or (is_whole(size) and size >= 1), "Reading images", "a size >= 1", size)
    pillow()

    def pixels(source: Source) -> Pixels:
        name, read = source
        try:
            image = opened(name, read())
        except OSError as error:
            raise damaged(name, "a readable file", error.strerror or error, "check it") from error
        return np.array(image if size is None else _cropped(image, size))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _stacked([name for name, _ in sources], pool.map(pixels, sources))


def _stacked(names: Sequence[str], images: Iterator[Pixels]) -> Pixels:
    """Return images of the same size as one array, or raise `DataError`."""
    first = next(images)
    height, width, _ = first.shape
    batch = np.empty((len(names), 3, height, width), np.uint8)
    batch[0] = first.transpose(2, 0, 1)
    for i, image in enumerate(images, 1):
        if image.shape != first.shape:
            expected = f"{width} x {height} pixels as {names[0]} has"
            got = f"{image.shape[1]} x {image.shape[0]}"
            raise damaged(names[i], expected, got, "pass a common size, such as size=64")
        batch[i] = image.transpose(2, 0, 1)
    return batch


def read_image_folder(folder: str | Path, size: int | None = None) -> Stored:
    """Read `train/<class>/**`, and `val/<class>/**` or else `test/<class>/**`.

    Classes are sorted by name. Images must have one size, unless `size` resizes their short side
    and cuts out the centre square.
    """
    folder = Path(folder)
    held_out = next((folder / part for part in ("val", "test") if (folder / part).is_dir()), None)
    if not (folder / "train").is_dir() or held_out is None:
        missing = "no val or test" if (folder / "train").is_dir() else "no train"
        raise damaged(folder, _LAYOUT, f"{missing} folder", "arrange the images so")
    classes = tuple(sorted(path.name for path in _folders(folder / "train")))
    if not classes:
        raise damaged(folder / "train", _LAYOUT, "no class folder", "arrange the images so")
    unknown = sorted({path.name for path in _folders(held_out)} - set(classes))
    if unknown:
        remedy = "add training images of it or remove it"
        raise damaged(held_out, "only classes that train has", repr(unknown[0]), remedy)
    train = [_images_below(folder / "train" / name) for name in classes]
    test = [_images_below(held_out / name) for name in classes]
    empty = next((name for name, paths in zip(classes, train, strict=True) if not paths), None)
    if empty is not None or not any(test):
        place = held_out if empty is None else folder / "train" / empty
        raise damaged(place, "at least one image", "none", f"add {', '.join(_ENDINGS)} files")
    parts = [[(p, i) for i, paths in enumerate(part) for p in paths] for part in (train, test)]
    chosen = [[((str(path), path.read_bytes), i) for path, i in part] for part in parts]
    return _decoded(chosen[0], chosen[1], size, classes)


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]


def _images_below(folder: Path) -> list[Path]:
    """Return all images in a folder and its sub-folders except hidden ones."""
    images = (path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
    visible = (path for path in images if "/." not in f"/{path.relative_to(folder).as_posix()}")
    return sorted(path for path in visible if path.is_file())


def _decoded(
    train: Sequence[tuple[Source, int]],
    test: Sequence[tuple[Source, int]],
    size: int | None,
    labels: tuple[str, ...],
) -> Stored:
    """Return the data set of these images and their classes; all must have one size."""
    inputs = decode_all([source for source, _ in (*train, *test)], size)
    targets = np.array([i for _, i in (*train, *test)], dtype=np.int64)
    cut = len(train)
    parts = Samples(inputs[:cut], targets[:cut]), Samples(inputs[cut:], targets[cut:])
    return Stored(*parts, classes=len(labels), labels=labels)


def read_tiny_imagenet(folder: str | Path) -> Stored:
    """Read Tiny-ImageNet in its original layout.

    `folder` may also hold the original sub-folder or an archive. Classes are the sorted ids of
    wnids.txt, `labels` are their words; the validation images are the test part, in the order of
    val_annotations.txt.
    """
    where, files = _tiny_files(Path(folder))
    for name in ("wnids.txt", "val/val_annotations.txt"):
        if name not in files:
            raise damaged(where, f"the file {name}", "none", "unpack the whole archive")
    classes = tuple(sorted(set(_text(where, files, "wnids.txt").split())))
    number = {wnid: i for i, wnid in enumerate(classes)}
    parts = [
        [((f"{where}/{name}", files[name]), i) for name, i in chosen]
        for chosen in (_tiny_train(where, files, number), _tiny_val(where, files, number))
    ]
    words = _tiny_words(where, files)
    return _decoded(parts[0], parts[1], None, tuple(words.get(wnid, wnid) for wnid in classes))


def _tiny_files(folder: Path) -> tuple[Path, dict[str, Callable[[], bytes]]]:
    """Return the place of the data set, and its files by their names."""
    for root in (folder, folder / "tiny-imagenet-200"):
        if (root / "wnids.txt").is_file():
            names = (path.relative_to(root).as_posix() for path in root.rglob("*"))
            return root, {
                name: (root / name).read_bytes for name in names if _in_tiny_imagenet(name)
            }
    archives = sorted(folder.glob("tiny-imagenet*.zip")) + sorted(
        folder.glob("tiny-imagenet*.tar*")
    )
    if not archives:
        expected = "the folder tiny-imagenet-200, tiny-imagenet-200.zip or tiny-imagenet*.tar"
        raise damaged(folder, expected, "none of them", "put one into it")
    members = read_archive(archives[0], _in_tiny_imagenet)
    root_of = [name.removesuffix("wnids.txt") for name in members if name.endswith("wnids.txt")]
    if not root_of:
        raise damaged(archives[0], "the file wnids.txt", "none", "fetch the archive again")
    prefix = min(root_of, key=len)
    inside = {name.removeprefix(prefix): data for name, data in members.items()}
    return archives[0], {name: _returning(data) for name, data in inside.items()}


def _returning(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def _in_tiny_imagenet(name: str) -> bool:
    """Return whether the reader uses a file of this name."""
    path = PurePosixPath(name)
    if path.suffix.lower() in _ENDINGS:
        return path.parent.name == "images" and "test" not in path.parts  # test has no labels
    return path.name in ("wnids.txt", "words.txt", "val_annotations.txt")


def _text(where: Path, files: dict[str, Callable[[], bytes]], name: str) -> str:
    try:
        return files[name]().decode()
    except UnicodeDecodeError as error:
        raise damaged(f"{where}/{name}", "UTF-8 text", error, "fetch it again") from error


def _tiny_words(where: Path, files: dict[str, Callable[[], bytes]]) -> dict[str, str]:
    """Return the words of each class id."""
    if "words.txt" not in files:
        return {}
    pairs = (line.split("\t") for line in _text(where, files, "words.txt").splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) > 1}


def _tiny_train(
    where: Path, files: dict[str, Callable[[], bytes]], number: dict[str, int]
) -> list[tuple[str, int]]:
    """Return the training images with their classes."""
    chosen = []
    for name in sorted(name for name in files if name.startswith("train/")):
        wnid = name.split("/")[1]
        if wnid not in number:
            expected = "training folders of the classes in wnids.txt alone"
            raise damaged(where, expected, wnid, "complete wnids.txt or remove the folder")
        chosen.append((name, number[wnid]))
    empty = sorted(set(number) - {name.split("/")[1] for name, _ in chosen})
    if empty or not chosen:
        got = f"none for {empty[0]}" if empty else "none"
        raise damaged(where, "training images of every class", got, "unpack the whole archive")
    return chosen


def _tiny_val(
    where: Path, files: dict[str, Callable[[], bytes]], number: dict[str, int]
) -> list[tuple[str, int]]:
    """Return the validation images with their classes."""
    listing = "val/val_annotations.txt"
    chosen: dict[str, int] = {}
    for i, line in enumerate(_text(where, files, listing).splitlines(), 1):
        image, wnid = [*line.split("\t"), "", ""][:2]
        name = f"val/images/{image}"
        if name not in files or wnid not in number:
            expected = "an image of val/images and a class of wnids.txt"
            got, remedy = repr(line[:60]), "unpack the whole archive"
            raise damaged(f"{where}/{listing}, line {i}", expected, got, remedy)
        chosen[name] = number[wnid]
    unlabelled = [name for name in files if name.startswith("val/images/") and name not in chosen]
    if unlabelled or not chosen:
        got = f"none for {sorted(unlabelled)[0]}" if unlabelled else "none"
        raise damaged(f"{where}/{listing}", "a label for every image", got, "fetch it again")
    return list(chosen.items())


def read_image_table(
    csv_path: str | Path,
    *,
    image: str,
    target: str,
    client: str | None = None,
    size: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Stored:
    """Read a CSV file with columns of image paths (relative to it), labels, and maybe clients.

    A keyed random `test_fraction` of the rows becomes the test part.
    """
    check_fraction("read_image_table", test_fraction)
    table = read_csv(csv_path)
    check_columns("read_image_table", table, {"image": image, "target": target, "client": client})
    for column in (target, client):  # before the images, whose decoding takes long
        if column is not None:
            table.filled(column)
    sources: list[Source] = []
    for row, cell in enumerate(table.filled(image)):
        path = table.path.parent / cell
        if not os.path.isfile(path):  # which a name that is too long is not, either
            raise table.bad(row, "an image file", f"{path}, which is none", "correct the path")
        sources.append((str(path), path.read_bytes))
    inputs = decode_all(sources, size)
    return with_labels(
        table, inputs, target=target, client=client, test_fraction=test_fraction, seed=seed
    )
