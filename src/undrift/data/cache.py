"""A cache of parsed data sets: one safetensors file each, mapped into memory when read again."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from undrift.data.stored import Samples, Stored
from undrift.files import atomic_file, user_cache
from undrift.untrusted import parse_json

FORMAT = "2"  # changes when the cache or the result of a reader changes


def fingerprint(files: Iterable[Path]) -> str:
    """Return a hash that changes when a file is added, removed, replaced or touched."""
    digest = hashlib.blake2b(FORMAT.encode(), digest_size=16)
    for path in sorted(files):
        status = path.stat()
        digest.update(f"{path}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def place(name: str, folder: Path) -> Path:
    """Return the path of the cached form of the data set in that folder."""
    mark = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=6).hexdigest()
    return user_cache() / "parsed" / f"{name}-{mark}.safetensors"


def read(path: Path, mark: str) -> Stored | None:
    """Return the data set cached for this fingerprint, or None if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != mark:
                return None
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if metadata.get("digest") != _digest(tensors, metadata):
            return None
        return _stored(tensors, metadata)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError):
        return None


def _digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return a hash of all tensors and of what is said of them; each is hashed on a thread."""

    def of(name: str) -> str:
        tensor = tensors[name]
        content = tensor.reshape(-1).view(torch.uint8).numpy().data
        return f"{name} {tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}"

    with ThreadPoolExecutor() as pool:  # Hashing releases Python's lock.
        parts = list(pool.map(of, sorted(tensors)))
    said = [metadata.get(key, "") for key in ("fingerprint", "classes", "texts")]
    return hashlib.sha256("\n".join([*said, *parts]).encode()).hexdigest()


def _stored(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Stored:
    """Return a data set from its tensors and its metadata."""
    texts = parse_json(metadata["texts"])

    def part(which: str) -> Samples:
        owners = tensors.get(f"{which}.owners")
        inputs, targets = tensors[f"{which}.inputs"], tensors[f"{which}.targets"]
        return Samples(inputs.numpy(), targets.numpy(), None if owners is None else owners.numpy())

    return Stored(
        part("train"),
        part("test"),
        int(metadata["classes"]),
        labels=tuple(texts["labels"]),
        names=tuple(texts["names"]),
        vocabulary=tuple(texts["vocabulary"]),
    )


def write(path: Path, mark: str, stored: Stored) -> None:
    """Write a data set to the cache, or warn if the cache cannot be written."""
    tensors: dict[str, Tensor] = {}
    for which, part in (("train", stored.train), ("test", stored.test)):
        arrays = {"inputs": part.inputs, "targets": part.targets, "owners": part.owners}
        for field, array in arrays.items():
            if array is not None:
                tensors[f"{which}.{field}"] = torch.from_numpy(np.ascontiguousarray(array))
    texts = {field: getattr(stored, field) for field in ("labels", "names", "vocabulary")}
    metadata = {"fingerprint": mark, "classes": str(stored.classes), "texts": json.dumps(texts)}
    metadata["digest"] = _digest(tensors, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            save_file(tensors, partial, metadata=metadata)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"The parsed data could not be kept in {path.parent} ({error}); it is read anew each "
            "time until $UNDRIFT_CACHE names a writable folder.",
            stacklevel=2,
        )
