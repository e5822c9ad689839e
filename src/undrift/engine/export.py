"""A trained model as a file for other programs, with the preprocessing of its data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from undrift.check import require, require_choice
from undrift.data.clients import Clients
from undrift.data.prepare import Images
from undrift.data.tables.onnx import completed, is_exportable
from undrift.results.export import save_safetensors
from undrift.results.onnx import save_onnx

PREPROCESSING = "preprocessing"  # key of the metadata of a safetensors file
ENDINGS = (".safetensors", ".onnx")


def export(
    model: nn.Module,
    clients: Clients,
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write a model, and return what a reader must know of the file's inputs.

    The ending of the path decides: `.safetensors` holds the weights and the preprocessing as JSON,
    `.onnx` the net, and around it the preprocessing of a table.
    """
    path = Path(path)
    require_choice("export", "the ending of the file", path.suffix, ENDINGS)
    fitted = clients.preprocessing
    if path.suffix == ".safetensors":
        own = {} if fitted is None else {PREPROCESSING: fitted.to_json()}
        save_safetensors(model, path, {**(metadata or {}), **own})
        return ""
    names = ", ".join(field.name for field in clients.fields)
    remedy = "export it as .safetensors"
    require(not names, "An export to ONNX", "a model of one tensor", f"inputs {names}", remedy)
    stored = clients.inputs[:2]
    example = stored if clients.prepare is None else clients.prepare(stored, torch.float32)
    device = next(model.parameters()).device
    if fitted is not None and is_exportable(fitted):
        save_onnx(model, example.to(device), path, complete=partial(completed, model, fitted))
        outputs = "prediction and probabilities" if fitted.target.classes else "prediction"
        return f"It takes the table's columns by name, (rows, 1) each, and returns {outputs}."
    save_onnx(model, example.to(device), path)
    return f"It holds the net alone: {_inputs(clients)}."


def _inputs(clients: Clients) -> str:
    """Return what the inputs of the net are, and how samples become them."""
    prepare = clients.prepare
    if clients.preprocessing is not None:
        return (
            "ONNX has no form for a transformer of one's own, whose features are its input; export "
            "as .safetensors, too, and use SavedModel.read(FILE).preprocessing.inputs(frame)"
        )
    if isinstance(prepare, Images):
        mean, std = (
            ", ".join(f"{each:g}" for each in part) for part in (prepare.mean, prepare.std)
        )
        return f"its input is (pixel / 255 - mean) / std, with mean {mean} and std {std}"
    if prepare is not None:
        return "its input is what your transforms return, which are not in the file"
    return "its input is a sample as the clients hold it"
