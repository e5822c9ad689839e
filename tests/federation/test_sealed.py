"""Sealed files come back as they were written, and others are a `ValueError`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from undrift.federation.sealed import read_sealed, write_sealed


def test_what_was_written_is_read(tmp_path: Path) -> None:
    tensors = [torch.arange(3.0), torch.tensor(7, dtype=torch.int64)]
    write_sealed(tmp_path / "a", {"round": 3}, tensors)
    header, found = read_sealed(tmp_path / "a")
    assert header == {"round": 3}
    assert all(torch.equal(one, other) for one, other in zip(tensors, found, strict=True))


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_sealed(path, {"round": 3}, [torch.arange(3.0)])
    sound = path.read_bytes()
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(ValueError, match="a does not match its hash"):
            read_sealed(path)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff" * 64,
        b"\2" + bytes(7) + b"{}" + bytes(8),
        save({"0": torch.zeros(1)}),
        save({"0": torch.zeros(1)}, {"header": "["}),
        save({"0": torch.zeros(1)}, {"header": "[" * 5000}),
        save({"0": torch.zeros(1)}, {"header": json.dumps([1])}),
    ],
    ids=["bytes", "no tensors", "no header", "no JSON", "deep", "a list"],
)
def test_a_body_that_is_none_is_a_value_error_although_its_hash_fits(
    body: bytes, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(hashlib.sha256(body).digest() + body)
    with pytest.raises(ValueError, match=r"^a (is no file of this kind|has a header that is no)"):
        read_sealed(tmp_path / "a")
