"""Targets that are a whole folder or several parts: data sets of images, tuning, results, models.

What sites tell of their tables, and archives of skops inside a saved model, are here too.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
from benchmarks.fuzz.target import SEPARATOR, Target, as_file, as_folder, joined
from safetensors.torch import save_file

from undrift import models
from undrift.config.experiment import Experiment
from undrift.data.formats.images import read_image_folder, read_image_table, read_tiny_imagenet
from undrift.data.formats.leaf import read_celeba
from undrift.data.tables.fit import agree
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.preprocessing import Target as Aim
from undrift.data.tables.statistics import (
    ColumnStatistics,
    NumberSums,
    TableStatistics,
    TargetStatistics,
)
from undrift.data.tables.transformer import TransformedColumns
from undrift.papers.store import StoredCell, StoredPanel, StoredPaper, StoredTrial, read_stored
from undrift.results.filenames import TUNED, TUNING
from undrift.runs.jobs import jobs
from undrift.runs.saved_model import ARCHITECTURE, PREPROCESSING, SavedModel
from undrift.runs.tuning_trials import read_tuning, tuning_experiment

NETWORK = '{"model": "logistic", "shape": [2], "classes": 2, "code": {}}'
TUNED_EXPERIMENT = {
    "seeds": [0],
    "methods": [{"name": "fedavg"}],
    "training": {"rounds": 2},
    "sweep": {"grid": {"method.lr": [0.1, 0.3]}, "tune": True},
}


@cache
def picture(kind: str, side: int = 32) -> bytes:
    """Return an image file of some colours."""
    from PIL import Image

    file = io.BytesIO()
    pixels = np.arange(side * side * 3, dtype=np.uint8).reshape(side, side, 3)
    Image.fromarray(pixels).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def _celeba_seeds() -> list[bytes]:
    data = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["0.png"], "y": [1]}}}
    split = json.dumps(data).encode()
    image = picture("PNG", 8)
    files = {"train/a.json": split, "test/a.json": split, "raw/img_align_celeba/0.png": image}
    return [joined(files)]


def _folder_seeds() -> list[bytes]:
    names = ("train/a/0.png", "train/b/0.jpg", "val/a/0.bmp")
    kinds = ("PNG", "JPEG", "BMP")
    return [
        joined({name: picture(kind, 8) for name, kind in zip(names, kinds, strict=True)}),
        joined({name.replace("val", "test"): picture("PNG", 4) for name in names}),
    ]


def _image_folder(folder: Path) -> None:
    read_image_folder(folder, 4 if (folder / "test").is_dir() else None)


def _image_table(folder: Path) -> None:
    client = "who" if (folder / "client").is_file() else None
    read_image_table(folder / "a.csv", image="image", target="label", client=client, size=4)


def _image_table_seeds() -> list[bytes]:
    rows = b"image,label,who\n0.png,a,x\n0.png,b,x\n0.png,a,y\n0.png,b,y\n0.png,a,y\n"
    files = {"a.csv": rows, "0.png": picture("PNG", 8)}
    return [joined(files), joined({**files, "client": b""})]


def _tiny_imagenet_seeds() -> list[bytes]:
    files = {
        "wnids.txt": b"n01\n",
        "words.txt": b"n01\ta fish\n",
        "val/val_annotations.txt": b"0.png\tn01\t0\t0\t62\t62\n",
        "val/images/0.png": picture("PNG", 4),
        "train/n01/images/0.png": picture("PNG", 4),
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(f"tiny-imagenet-200/{name}", data)
    return [joined(files), joined({"tiny-imagenet-200.zip": archive.getvalue()})]


def _statistics(data: bytes, folder: Path) -> None:
    """Read the bytes as what one site tells of its table, and join it with another's."""
    told = TableStatistics.from_json(data.decode("utf-8", "replace"))
    sound = TableStatistics.from_json(_statistics_seeds()[0].decode())
    agree([told, sound], "label", "impute", ["site a", "site b"])
    told.to_json()


def _statistics_seeds() -> list[bytes]:
    columns = {
        "size": ColumnStatistics("number", NumberSums.of(np.array([0.5, 2.0]))),
        "colour": ColumnStatistics("category", words={"red": 1, "blue": 1}),
    }
    aim = TargetStatistics(words={"no": 1, "yes": 1})
    return [TableStatistics(2, columns, aim).to_json().encode()]


@cache
def _transformed() -> TransformedColumns:
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    made = ColumnTransformer([("a", StandardScaler(), ["size"]), ("b", OneHotEncoder(), ["hue"])])
    return TransformedColumns.fit(made, pd.DataFrame({"size": [0.5, 2.0], "hue": ["r", "b"]}))


def _skops(data: bytes, folder: Path) -> None:
    """Read the bytes, or a zip of their parts, as the archive of a transformer in a saved model."""
    archive = io.BytesIO(data)
    if not data.startswith(b"PK"):
        with zipfile.ZipFile(archive, "w") as packed:
            for part in data.split(SEPARATOR):
                name, _, content = part.partition(b"\n")
                text = name.decode("utf-8", "replace").replace("\0", "")
                packed.writestr(text[:99] or "a", content)
    columns = (TransformedColumns(("size", "hue"), ("a", "b", "c"), archive.getvalue(), None),)
    table = Preprocessing(columns, Aim("label", ("no", "yes"))).to_json()
    path = folder / "model.safetensors"
    metadata = {ARCHITECTURE: NETWORK, PREPROCESSING: table}
    save_file(models.build("logistic", shape=(2,), classes=2).state_dict(), path, metadata)
    SavedModel.read(path)


def _skops_seeds() -> list[bytes]:
    archive = _transformed().archive
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    return [archive, joined(files)]


@cache
def _tuned_experiment() -> Experiment:
    return Experiment.of(TUNED_EXPERIMENT)


def _tuning(folder: Path) -> None:
    read_tuning(folder, _tuned_experiment())


def _tuning_seeds() -> list[bytes]:
    """Return the files of a tuned run with two cells."""
    experiment = tuning_experiment(_tuned_experiment())
    record = {
        "round": 1, "clients": 2, "loss": None, "accuracy": 0.5, "validation_accuracy": 0.5,
        "bytes_up": 8, "bytes_down": 8, "gradients": 4, "samples": 80, "seconds": 0.1,
    }  # fmt: skip
    tried = {"count": 2, "cells": {"FedAvg": [{"method.lr": 0.1}, {"method.lr": 0.3}]}}
    chosen = {"count": 2, "cells": {"FedAvg": [{"method.lr": 0.3}]}}
    files = {TUNED: chosen, f"{TUNING}/{TUNED}": tried}
    for job in jobs(experiment):
        files[f"{TUNING}/{job.name}.json"] = {
            "label": job.label, "method": "FedAvg", "settings": {"lr": 0.1}, "seed": job.seed,
            "rounds": 1, "status": "finished", "reason": "", "totals": None,
            "model_sha256": None, "facts": {},
        }  # fmt: skip
        files[f"{TUNING}/{job.name}.jsonl"] = record
    return [joined({name: json.dumps(each).encode() for name, each in files.items()})]


def _stored_seeds() -> list[bytes]:
    trial = StoredTrial("a", "FedAvg", 0, "finished", {"accuracy": 0.5, "loss": "diverges"})
    paper = StoredPaper(
        "fedspeed", "table 1", "small", "0" * 16, "0.1.0", "2025-01-01",
        [StoredPanel("a", "digits", "mlp", 3, False)], [trial], 1,
        tried=[StoredCell("a", "FedAvg", "lr=0.1", 0.5, "chosen")],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        paper.write(Path(folder) / "a.json")
        return [(Path(folder) / "a.json").read_bytes()]


WHOLES: dict[str, Target] = {
    "celeba": Target(as_folder(read_celeba), _celeba_seeds),
    "image-folder": Target(as_folder(_image_folder), _folder_seeds),
    "image-table": Target(as_folder(_image_table), _image_table_seeds),
    "tiny-imagenet": Target(as_folder(read_tiny_imagenet), _tiny_imagenet_seeds),
    "statistics": Target(_statistics, _statistics_seeds, ('"number"', '"category"', '"words"')),
    "skops": Target(_skops, _skops_seeds, ('"__loader__"', '"__module__"', '"NdArrayNode"')),
    "tuning": Target(as_folder(_tuning), _tuning_seeds, ('"cells"', '"training.rounds"')),
    "stored": Target(as_file(read_stored, "a.json"), _stored_seeds, ('"curves"', '"values"')),
}
