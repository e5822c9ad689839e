"""A trained model as one file: its weights, how it is built, and the preprocessing of its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from undrift import models
from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.config.shorthand import parse_model
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.score import score
from undrift.errors import UndriftError
from undrift.results.export import load_safetensors, read_metadata
from undrift.results.filenames import MODEL
from undrift.runs.load import load_dataset
from undrift.runs.own import is_own
from undrift.usercode.names import Trust, digests, is_code, require_trust, require_unchanged

ARCHITECTURE, PREPROCESSING = "architecture", "preprocessing"  # keys of the file's metadata


def model_metadata(experiment: Experiment) -> dict[str, str]:
    """Return what a file of weights needs beside them to be used: text by key."""
    dataset = load_dataset(experiment.data)
    metadata = {}
    if not is_own(experiment.model.name):
        built = {
            "model": experiment.model.text,
            "shape": list(dataset.shape),
            "classes": dataset.classes,
            "code": digests([experiment.model.name] if is_code(experiment.model.name) else []),
        }
        metadata[ARCHITECTURE] = json.dumps(built)
    if dataset.preprocessing is not None:
        metadata[PREPROCESSING] = dataset.preprocessing.to_json()
    return metadata


@dataclass(frozen=True)
class SavedModel:
    """Holds a trained model and the preprocessing that it was trained with."""

    model: nn.Module
    preprocessing: Preprocessing

    @classmethod
    def read(cls, path: str | Path, *, trust: Trust = False) -> SavedModel:
        """Return the model of a file, or of a folder of results.

        A model of code, such as `mine.py:Net`, is refused without `trust`.
        """
        file = Path(path)
        file = file / MODEL if file.is_dir() else file
        there = file.is_file()
        remedy = "a single run saves it as model.safetensors, others with engine.save_models=true"
        require(there, "A prediction", "a file with a model, or its folder", str(path), remedy)
        metadata = read_metadata(file)
        for key in (ARCHITECTURE, PREPROCESSING):
            if key not in metadata:
                raise UndriftError(
                    f"A prediction needs a model that was trained on a table, got {str(file)!r} "
                    f"without its {key}; in Python, use the model itself."
                )
        built = _architecture(metadata[ARCHITECTURE], file)
        name, options = parse_model(built["model"])
        if is_code(name):
            require_trust([name], trust, file)
            require_unchanged(built["code"], [name], file)
        model = models.build(name, shape=built["shape"], classes=built["classes"], **options)
        load_safetensors(model, file)
        return cls(model, Preprocessing.from_json(metadata[PREPROCESSING]))

    def predict(self, rows: Any) -> Any:
        """Return a frame of predictions for the rows of a frame or a CSV file."""
        return score(self.model, self.preprocessing, rows)


def _architecture(text: str, file: Path) -> dict[str, Any]:
    try:
        values = json.loads(text)
        return {
            "model": str(values["model"]),
            "shape": [int(side) for side in values["shape"]],
            "classes": int(values["classes"]),
            "code": {str(place): str(digest) for place, digest in values["code"].items()},
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UndriftError(
            f"{file} needs an architecture as undrift writes it, got an error: {error}."
        ) from error
