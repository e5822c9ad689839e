"""Sealed files: JSON and tensors behind their hash, in one file that is whole or not there.

A site keeps the states of its client in such files, and a centre its checkpoints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from undrift.files import write_atomic
from undrift.untrusted import parse_json

_HASH = 32  # bytes of SHA-256 at the beginning of a file


def write_sealed(path: Path, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
    """Write a sealed file; when this returns, it is on disk."""
    named = {f"{k:04d}": leaf.detach().cpu().clone().contiguous() for k, leaf in enumerate(tensors)}
    body = save(named, {"header": json.dumps(header)})
    write_atomic(path, hashlib.sha256(body).digest() + body)


def read_sealed(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Return what was written; raise `ValueError` if the file is damaged, `OSError` if missing."""
    content = path.read_bytes()
    body = content[_HASH:]
    if len(content) <= _HASH + 8 or hashlib.sha256(body).digest() != content[:_HASH]:
        raise ValueError(f"{path.name} does not match its hash")
    length = int.from_bytes(body[:8], "little")
    try:
        header = parse_json(parse_json(body[8 : 8 + length])["__metadata__"]["header"])
        named = load(body)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of this kind ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path.name} has a header that is no object")
    return header, [named[name] for name in sorted(named)]
