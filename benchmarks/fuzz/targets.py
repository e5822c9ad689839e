"""What is fuzzed: functions of bytes that may raise typed errors and nothing else.

Each target takes the bytes of one file or message and hands them to the reader. `seeds` are sound
inputs, from which a fuzzer starts; a target that refuses one of them tests nothing.
"""

from __future__ import annotations

import atexit
import bz2
import gzip
import hashlib
import io
import json
import lzma
import pickle
import shutil
import struct
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.fuzz.target import TYPED, Target, as_file, memory
from benchmarks.fuzz.wholes import NETWORK, WHOLES, picture
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import undrift as ud
from undrift import models
from undrift.config.experiment import Experiment
from undrift.data import cache as parsed
from undrift.data.formats.archive import read_archive
from undrift.data.formats.cifar import read_cifar10, read_cifar100
from undrift.data.formats.idx import read_idx
from undrift.data.formats.images import decode
from undrift.data.formats.imdb import read_imdb
from undrift.data.formats.leaf import read_femnist, read_leaf_shakespeare
from undrift.data.formats.libsvm import read_libsvm
from undrift.data.formats.shakespeare import read_shakespeare
from undrift.data.stored import Samples, Stored
from undrift.data.tables.preprocessing import (
    CategoryColumn,
    NumberColumn,
    Preprocessing,
)
from undrift.data.tables.preprocessing import (
    Target as Aim,
)
from undrift.data.tables.read import read_table
from undrift.engine.checkpoint import store
from undrift.engine.processes.transport import announced_length, reserve
from undrift.federation import messages
from undrift.federation.sealed import read_sealed, write_sealed
from undrift.files import seal, seal_file, unseal
from undrift.fleet.roster import parse as parse_fleet
from undrift.fleet.trace import Trace
from undrift.optim import schedules
from undrift.results.export import load_safetensors
from undrift.results.trial import read_records, read_trial
from undrift.runs.folder import read_environment
from undrift.runs.jobs import read_choice
from undrift.runs.partition import read_partition
from undrift.runs.saved_model import SavedModel
from undrift.states.store import SegmentStore

EXPERIMENT = b"""title = "fuzz"
seeds = [0, 1]
[[methods]]
name = "fedspeed"
lr = "exponential(0.1, 0.998)"
lam = 10.0
[data]
name = "digits"
partition = "dirichlet:0.3"
[training]
rounds = 3
participation = 0.5
work = "steps:5"
aggregation = "krum:2"
[sweep.grid]
"fedspeed.lr" = [0.1, 0.3]
"""


def _experiment(data: bytes, folder: Path) -> None:
    """Read the bytes as an experiment without trust, so that no code that it names is imported."""
    as_file(lambda path: Experiment.read(path).to_toml(), "experiment.toml")(data, folder)


def _schedule(data: bytes, folder: Path) -> None:
    value = schedules.parse(data.decode("utf-8", "replace"))
    if isinstance(value, schedules.Schedule):
        for t in (0, 1, 1000):
            value.at(t)


def _schedule_seeds() -> list[bytes]:
    return [
        b"0.1",
        b"exponential(0.1, 0.998)",
        b"staircase(0.03, 0.1, 100)",
        b"piecewise(0.1, {4: 0.5, 12: 1.0})",
    ]


def _idx_seeds() -> list[bytes]:
    plain = struct.pack(">HBB2I", 0, 8, 2, 2, 3) + bytes(6)
    return [plain, gzip.compress(plain), struct.pack(">HBBI", 0, 0x0D, 1, 2) + bytes(8)]


def _libsvm_seeds() -> list[bytes]:
    plain = b"+1 1:0.5 3:1\n-1 2:1 # a comment\n\n0 123:1e-3\n"
    return [plain, gzip.compress(plain), bz2.compress(plain), lzma.compress(plain)]


def _cifar(data: bytes, folder: Path) -> None:
    """Read the bytes as a pickled batch; its five neighbours are the same."""
    for name in ("data_batch_1", *(f"data_batch_{i}" for i in range(2, 6)), "test_batch"):
        (folder / name).write_bytes(data)
    (folder / "batches.meta").write_bytes(data)
    read_cifar10(folder)


def _cifar_seeds() -> list[bytes]:
    content = {
        "data": np.zeros((2, 3072), np.uint8),
        "labels": [3, 9],
        "label_names": [f"class {i}" for i in range(10)],
    }
    return [pickle.dumps(content, protocol) for protocol in (2, 4, 5)]


def _cifar_binary(data: bytes, folder: Path) -> None:
    """Read the bytes as class names, two zeros, and a binary batch; all batches are the same."""
    names, _, rows = data.partition(b"\0\0")
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "train", "test"):
        (folder / f"{name}.bin").write_bytes(rows)
    for name in ("batches.meta", "fine_label_names"):
        (folder / f"{name}.txt").write_bytes(names)
    (read_cifar100 if len(rows) % 3074 == 0 else read_cifar10)(folder)


def _cifar_binary_seeds() -> list[bytes]:
    def batches(labels: bytes, classes: int) -> bytes:
        names = "\n".join(f"class {i}" for i in range(classes)).encode()
        return names + b"\0\0" + 2 * (labels + bytes(3072))

    return [batches(b"\3", 10), batches(b"\3\x20", 100)]


def _mosaic(data: bytes, folder: Path) -> None:
    """Read the bytes as the labels of mosaics, which are sound."""
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / f"{name}.webp").write_bytes(picture("WEBP"))
    (folder / "labels.npy").write_bytes(data)
    read_cifar10(folder)


def _npy_seeds() -> list[bytes]:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype=np.uint8))
    return [file.getvalue()]


def _image(data: bytes) -> None:
    decode("a", data)


def _archive_seeds() -> list[bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/wnids.txt", "n01 n02")
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        member = tarfile.TarInfo("a/wnids.txt")
        member.size = 7
        tar.addfile(member, io.BytesIO(b"n01 n02"))
    return [zipped.getvalue(), tarred.getvalue(), gzip.compress(tarred.getvalue())]


def _leaf(data: bytes, folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split).mkdir()
        (folder / split / "all.json").write_bytes(data)
    with suppress(*TYPED):
        read_femnist(folder)
    read_leaf_shakespeare(folder)


def _leaf_seeds() -> list[bytes]:
    def users(x: Any, y: Any) -> bytes:
        data = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [x], "y": [y]}}}
        return json.dumps(data).encode()

    return [users("e" * 80, "f"), users("  " * 40, " ")]


def _text_seeds() -> list[bytes]:
    speech = "ROMEO:\n" + "But soft, what light through yonder window breaks?\n" * 4
    return [speech.encode(), gzip.compress(speech.encode())]


def _imdb_seeds() -> list[bytes]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for split in ("train", "test"):
            for sentiment in ("neg", "pos"):
                member = tarfile.TarInfo(f"aclImdb/{split}/{sentiment}/0_9.txt")
                member.size = 9
                tar.addfile(member, io.BytesIO(b"good film"))
    return [content.getvalue()]


def _table(path: Path) -> None:
    for read in (
        Trace.read,
        lambda p: parse_fleet(str(p), 2),
        lambda p: read_table(p, target="label"),
    ):
        with suppress(*TYPED):
            read(path)


def _table_seeds() -> list[bytes]:
    return [
        b"label,size,colour\n1,2.5,red\n0,3.5,blue\n1,1e3,red\n",
        b"client,start,end\n0,0,10\n1,5.5,20\n",
        b"client,device\n0,phone\n1,gpu-node\n",
    ]


RECORD = {
    "round": 1, "clients": 2, "loss": None, "accuracy": 0.5, "bytes_up": 8, "bytes_down": 8,
    "gradients": 4, "samples": 80, "seconds": 0.1, "nonfinite": {"/loss": "NaN"},
}  # fmt: skip
TRIAL = {
    "label": "FedAvg", "method": "FedAvg", "settings": {"lr": 0.1}, "seed": 0, "rounds": 1,
    "status": "finished", "reason": "", "totals": None, "model_sha256": None, "facts": {},
}  # fmt: skip


def _records(data: bytes, folder: Path) -> None:
    """Read the bytes as every file of a folder of results."""
    for name in ("a.jsonl", "a.json", "partition.json", "search.json", "environment.json"):
        (folder / name).write_bytes(data)
    read_records(folder / "a.jsonl")
    for read in (read_partition, read_choice, read_environment):
        with suppress(*TYPED):
            read(folder)
    read_trial(folder, "a")


def _record_seeds() -> list[bytes]:
    values = [
        RECORD,
        TRIAL,
        {"labels": ["a", "b"], "samples": [[1, 2], [3, 4]]},
        {"count": 1, "cells": {"FedAvg": [{"lr": 0.1}]}},
    ]
    return [json.dumps(value).encode() for value in values]


def _header(data: bytes, folder: Path) -> None:
    numbers = struct.unpack("<3q", data[:24].ljust(24, b"\0"))
    length = announced_length(numbers, "uploads of round 1")
    if length is not None:
        reserve(length, "uploads of round 1")


def _header_seeds() -> list[bytes]:
    digest = hashlib.blake2b(b"uploads of round 1", digest_size=8).digest()
    return [digest + struct.pack("<2q", length, 0) for length in (0, 1 << 20, -1, 1 << 62)]


def _model(data: bytes, folder: Path) -> None:
    as_file(lambda path: load_safetensors(torch.nn.Linear(2, 1), path), "m.safetensors")(
        data, folder
    )


def _model_seeds() -> list[bytes]:
    from safetensors.torch import save

    state = torch.nn.Linear(2, 1).state_dict()
    return [save(state), save(state, metadata={"undrift": "0"})]


@cache
def _saved() -> tuple[Path, Any]:
    """Return a folder with one checkpoint, and the run that has saved it."""
    folder = Path(tempfile.mkdtemp(dir=memory(), prefix="undrift-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    problem = ud.data.quadratics(2, 2)
    run = ud.simulate(
        ud.Scaffold(lr=0.1), problem.model(), problem.clients, loss=problem.loss,
        work=ud.Steps(1), rounds=2, mode="loop", kernels=False, checkpoint=folder,
    )  # fmt: skip
    next(run)
    run.close()
    return folder, run


def _checkpoint(data: bytes, folder: Path) -> None:
    """Read the bytes as the manifest of a checkpoint, sealed, so that its fields are looked at."""
    saved, run = _saved()
    shutil.copytree(saved, folder / "c")
    (folder / "c" / "round-00000001" / "manifest.json").write_bytes(seal(data))
    store.recorded_execution(folder / "c")
    for round in store.sound_rounds(folder / "c"):
        store.read(
            folder / "c",
            round,
            settings=run._saved_settings,
            templates=run._templates,
            record_type=ud.Record,
            device=torch.device("cpu"),
        )


def _checkpoint_seeds() -> list[bytes]:
    content = (_saved()[0] / "round-00000001" / "manifest.json").read_bytes()
    return [unseal(content, "manifest.json")]


@cache
def _segments() -> Path:
    """Return a folder of clients' states with one version."""
    folder = Path(tempfile.mkdtemp(dir=memory(), prefix="undrift-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    states = SegmentStore(folder / "s")
    for i in range(3):
        states.put(i, {"c": torch.arange(4.0) + i})
    states.commit(1)
    states.close()
    return folder / "s"


def _segment(data: bytes, folder: Path) -> None:
    """Read the bytes as a version's manifest, or as a segment whose hashes fit; "M" says which."""
    shutil.copytree(_segments(), folder / "s")
    version = folder / "s" / "version-00000001.json"
    if data[:1] == b"M":
        version.write_bytes(seal(data[1:]))
    else:
        body = json.loads(unseal(version.read_bytes(), "version"))
        entry = body["segments"][0]
        index = data[1:][-16 * entry["records"] :]
        entry["bytes"] = len(data) - 1
        entry["sha256"] = hashlib.sha256(data[1:]).hexdigest()
        entry["index_sha256"] = hashlib.sha256(index).hexdigest()
        for path in (folder / "s").glob("segment-*"):
            path.write_bytes(data[1:])
        version.write_bytes(seal(json.dumps(body).encode()))
    SegmentStore.verify(folder / "s", 1)
    states = SegmentStore(folder / "s", 1)
    for client in states:
        states.get(client)
    states.close()


def _segment_seeds() -> list[bytes]:
    content = (_segments() / "version-00000001.json").read_bytes()
    segment = next(path for path in _segments().glob("segment-*") if path.suffix == "")
    return [b"M" + unseal(content, "version"), b"S" + segment.read_bytes()]


def _parquet(data: bytes, folder: Path) -> None:
    as_file(lambda path: read_table(path, target="label"), "a.parquet")(data, folder)


def _parquet_seeds() -> list[bytes]:
    import pandas as pd

    file = io.BytesIO()
    columns = {"label": [0, 1] * 10, "size": [2.5, 1.0] * 10, "colour": ["a", "b"] * 10}
    pd.DataFrame(columns).to_parquet(file)
    return [file.getvalue()]


def _predicted(data: bytes, folder: Path) -> None:
    """Read the bytes as what a saved model says of its network and of its table."""
    text = data.decode("utf-8", "replace")
    path = folder / "model.safetensors"
    network, table = text.split("\n", 1) if "\n" in text else (NETWORK, text)
    metadata = {"architecture": network, "preprocessing": table}
    save_file(models.build("logistic", shape=(2,), classes=2).state_dict(), path, metadata)
    SavedModel.read(path)


def _predicted_seeds() -> list[bytes]:
    columns = (NumberColumn("size", 1.0, 2.0), CategoryColumn("colour", ("red",), "red"))
    table = Preprocessing(columns, Aim("label", ("no", "yes"))).to_json()
    return [f"{NETWORK}\n{table}".encode(), table.encode()]


def _sealed(data: bytes, folder: Path) -> None:
    """Read the bytes as the body of a sealed file whose hash fits."""
    (folder / "a").write_bytes(hashlib.sha256(data).digest() + data)
    read_sealed(folder / "a")


def _sealed_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_sealed(Path(folder) / "a", {"round": 1}, [torch.zeros(3)])
        return [(Path(folder) / "a").read_bytes()[32:]]


def _outer() -> ud.Outer:
    return ud.Outer(torch.nn.Linear(2, 1), ud.Scaffold(lr=0.1), every=1)


def _resumed(data: bytes, folder: Path) -> None:
    """Read the bytes as the checkpoint of an Outer whose hash fits."""
    path = folder / "outer-0000000001-rank-0.pt"
    path.write_bytes(data)
    seal_file(path)
    _outer().resume(folder)


def _resumed_seeds() -> list[bytes]:
    outer = _outer()
    parameters = outer.param_groups[0]["params"]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    outer.step()
    with tempfile.TemporaryDirectory() as folder:
        outer.save(folder, epoch=1)
        (path,) = Path(folder).glob("outer-*.pt")
        return [unseal(path.read_bytes(), path.name)]


def _parsed(data: bytes, folder: Path) -> None:
    """Read the bytes as parsed data as they are, and again with a digest that fits."""
    path = folder / "a.safetensors"
    path.write_bytes(data)
    if parsed.read(path, "mark") is not None:
        return
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    metadata["fingerprint"] = "mark"
    metadata["digest"] = parsed._digest(tensors, metadata)
    save_file(tensors, path, metadata)
    parsed.read(path, "mark")


def _parsed_seeds() -> list[bytes]:
    train, test = (
        Samples(np.zeros((2, 3), np.float32), np.array([0, 1]), np.array([0, 0])) for _ in range(2)
    )
    stored = Stored(train, test, 2, labels=("no", "yes"), names=("a",), vocabulary=("b",))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        parsed.write(path, "mark", stored)
        return [path.read_bytes()]


def _message_seeds() -> list[bytes]:
    header = messages.ExchangeReply(
        client=1, t=0, stage="upload", attempt=0, gradients=3, samples=9, seconds=0.5
    )
    plain = messages.SiteMessage(messages.CensusRequest(experiment="a"))
    return [
        messages.encode(messages.SiteMessage(header, [torch.zeros(3)])),
        messages.encode(plain),
    ]


def _message(data: bytes, folder: Path) -> None:
    messages.decode(data)


TARGETS: dict[str, Target] = {
    "checkpoint": Target(_checkpoint, _checkpoint_seeds),
    "segments": Target(_segment, _segment_seeds),
    "outer": Target(_resumed, _resumed_seeds),
    "cache": Target(_parsed, _parsed_seeds, ('"digest"', '"classes"', '"texts"')),
    "messages": Target(_message, _message_seeds),
    "experiment": Target(_experiment, lambda: [EXPERIMENT], ("steps:", "krum:", "mine.py:Net")),
    "schedule": Target(_schedule, _schedule_seeds, ("exponential(", "staircase(", "piecewise(")),
    "model": Target(_model, _model_seeds),
    "records": Target(_records, _record_seeds, ('"nonfinite"', '"consensus"', "NaN")),
    "idx": Target(as_file(read_idx, "a-idx2-ubyte"), _idx_seeds),
    "libsvm": Target(as_file(lambda path: read_libsvm(path, 123), "a9a"), _libsvm_seeds),
    "cifar": Target(_cifar, _cifar_seeds),
    "cifar-binary": Target(_cifar_binary, _cifar_binary_seeds),
    "mosaic": Target(_mosaic, _npy_seeds),
    "images": Target(
        lambda data, folder: _image(data),
        lambda: [picture(kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")],
    ),
    "archive": Target(
        as_file(lambda path: read_archive(path, lambda name: True), "a.tar"), _archive_seeds
    ),
    "leaf": Target(_leaf, _leaf_seeds),
    "shakespeare": Target(
        lambda data, folder: as_file(lambda path: read_shakespeare(folder), "pg100.txt")(
            data, folder
        ),
        _text_seeds,
    ),
    "imdb": Target(
        lambda data, folder: as_file(lambda path: read_imdb(folder), "aclImdb_v1.tar.gz")(
            data, folder
        ),
        _imdb_seeds,
    ),
    "tables": Target(as_file(_table, "a.csv"), _table_seeds),
    "parquet": Target(_parquet, _parquet_seeds),
    "predict": Target(_predicted, _predicted_seeds, ('"kind"', '"fill"', '"shape"')),
    "sealed": Target(_sealed, _sealed_seeds),
    "header": Target(_header, _header_seeds),
    **WHOLES,
}
