"""A trained model as one file: its weights, how it is built, and the preprocessing of its table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from undrift import models
from undrift.check import require
from undrift.config.experiment import Experiment, Model
from undrift.config.shorthand import parse_model
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.read import as_frame
from undrift.data.tables.score import score
from undrift.engine.export import PREPROCESSING, export
from undrift.errors import UndriftError
from undrift.results.export import OWN_METADATA, load_safetensors, read_metadata
from undrift.results.filenames import MODEL
from undrift.runs.build import build_clients, build_model, outputs_of
from undrift.runs.load import load_dataset
from undrift.runs.own import is_own
from undrift.untrusted import parse_json
from undrift.usercode.load import only_code_of
from undrift.usercode.names import Trust, digests, is_code, require_trust, require_unchanged

ARCHITECTURE = "architecture"  # key of the file's metadata


def model_metadata(experiment: Experiment) -> dict[str, str]:
    """Return what a file of weights needs beside them to be used: text by key."""
    dataset, training = load_dataset(experiment.data), experiment.training
    outputs = dataset.classes
    if not is_own(experiment.model.name):
        outputs = outputs_of(dataset, training.task, training.loss)
    return saved_metadata(experiment.model, dataset.shape, outputs, dataset.preprocessing)


def saved_metadata(
    model: Model, shape: Sequence[int], classes: int, preprocessing: Preprocessing | None
) -> dict[str, str]:
    """Return how a model is built and what its inputs mean: text by key."""
    metadata = {}
    if not is_own(model.name):
        built = {
            "model": model.text,
            "shape": list(shape),
            "classes": classes,
            "code": digests([model.name] if is_code(model.name) else []),
        }
        metadata[ARCHITECTURE] = json.dumps(built)
    if preprocessing is not None:
        metadata[PREPROCESSING] = preprocessing.to_json()
    return metadata


def export_trained(experiment: Experiment, file: Path, path: Path, seed: int) -> str:
    """Write the model of a file in a folder of results; return what must be known of its inputs."""
    with only_code_of(experiment.code, file.parent):
        training = experiment.training
        model = build_model(experiment.model, experiment.data, seed, training.task, training.loss)
        clients = build_clients(experiment.data, seed)
    metadata = load_safetensors(model, file)
    own = {key: value for key, value in metadata.items() if key not in OWN_METADATA}
    return export(model, clients, path, own)


@dataclass(frozen=True)
class SavedModel:
    """Holds a trained model and the preprocessing that it was trained with."""

    model: nn.Module
    preprocessing: Preprocessing

    @classmethod
    def read(
        cls, path: str | Path, *, model: nn.Module | str | None = None, trust: Trust = False
    ) -> SavedModel:
        """Return the model of a file, or of a folder of results.

        A model of code, such as `mine.py:Net`, is refused without `trust`. A file that `run.export`
        has written does not say its network, which is `model`: a module of the same structure, or
        a name such as `mine.py:Net`.
        """
        file = Path(path)
        file = file / MODEL if file.is_dir() else file
        there = file.is_file()
        remedy = "a single run saves it as model.safetensors, others with engine.save_models=true"
        require(there, "A prediction", "a file with a model, or its folder", str(path), remedy)
        metadata = read_metadata(file)
        if PREPROCESSING not in metadata:
            raise UndriftError(
                f"A prediction needs a model that was trained on a table, got {str(file)!r} "
                "without its preprocessing; in Python, use the model itself."
            )
        fitted = Preprocessing.from_json(metadata[PREPROCESSING], trust=trust is True)
        if model is None:
            model = _built(metadata, file, trust)
        elif isinstance(model, str):
            name, options = parse_model(model)
            width, classes = len(fitted.features), max(1, len(fitted.target.classes))
            model = models.build(name, shape=(width,), classes=classes, **options)
        load_safetensors(model, file)
        return cls(model, fitted)

    def predict(
        self, rows: Any, *, separator: str | None = None, decimal: str | None = None
    ) -> Any:
        """Return a frame of predictions for the rows of a frame or a file.

        `separator` and `decimal` are those of a CSV file, as `data.read_table` takes them; the
        decimal point is that of the training table where none is named.
        """
        decimal = self.preprocessing.decimal if decimal is None else decimal
        return score(
            self.model, self.preprocessing, as_frame(rows, separator=separator, decimal=decimal)
        )


def _built(metadata: Mapping[str, str], file: Path, trust: Trust) -> nn.Module:
    """Return the network that a file says, with new parameters."""
    if ARCHITECTURE not in metadata:
        raise UndriftError(
            f"A prediction needs the network of {str(file)!r}, which the file does not say; name "
            "it with --model mine.py:Net (model= in Python)."
        )
    built = _architecture(metadata[ARCHITECTURE], file)
    name, options = parse_model(built["model"])
    if is_code(name):
        require_trust([name], trust, file)
        require_unchanged(built["code"], [name], file)
    else:
        _require_room(built, file)
    with only_code_of([name] if is_code(name) else [], file):
        return models.build(name, shape=built["shape"], classes=built["classes"], **options)


def _require_room(built: Mapping[str, Any], file: Path) -> None:
    """Raise `UndriftError` where a file has less bytes than the parameters of its network."""
    name, options = parse_model(built["model"])
    try:
        with torch.device("meta"):  # which allocates nothing
            form = models.build(name, shape=built["shape"], classes=built["classes"], **options)
        needed = sum(leaf.nbytes for leaf in form.parameters())
    except RuntimeError as error:
        raise UndriftError(f"{file} needs a network that can be built, got {error}.") from error
    least = f"a file of at least the {needed:,} bytes of its network's parameters"
    require(needed <= file.stat().st_size, "A prediction", least, file.stat().st_size)


def _size(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise ValueError(f"sizes are whole numbers above 0, got {str(value)[:20]}")
    return value


def _architecture(text: str, file: Path) -> dict[str, Any]:
    try:
        values = parse_json(text)
        return {
            "model": str(values["model"]),
            "shape": [_size(side) for side in values["shape"]],
            "classes": _size(values["classes"]),
            "code": {str(place): str(digest) for place, digest in values["code"].items()},
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UndriftError(
            f"{file} needs an architecture as undrift writes it, got an error: {error}."
        ) from error
