"""`undrift export`: a run's model for other programs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.check import require, require_choice
from undrift.cli.options import TrustOption

if TYPE_CHECKING:
    from torch import Tensor

    from undrift.data import Clients


def export(
    folder: Annotated[Path, typer.Argument(help="A folder of results with its model.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; its ending, .safetensors or .onnx, decides.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out.")] = False,
    trial: Annotated[
        str | None, typer.Option(help="Which of several, by the name of its files.")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Write a trained model as safetensors, or as ONNX.

    Example: undrift export runs/fedspeed-1 --out model.onnx
    """
    from rich.console import Console

    from undrift.results.export import OWN_METADATA, load_safetensors, save_onnx, save_safetensors
    from undrift.results.filenames import MODEL
    from undrift.runs.build import build_clients, build_model
    from undrift.runs.folder import read, trusted_experiment
    from undrift.usercode.names import places_in

    results = read(folder, "export")
    saved = sorted(path.name for path in folder.glob(f"*{MODEL}"))
    name = MODEL if trial is None else f"{trial}-{MODEL}"
    if not saved:
        raise ValueError(
            f"export needs a model, got none in {str(folder)!r}; a single run saves it, a "
            "comparison does with --set engine.save_models=true."
        )
    if trial is None and MODEL not in saved:
        names = ", ".join(file.removesuffix(f"-{MODEL}") for file in saved)
        raise ValueError(f"export needs --trial, one of {names}.")
    require_choice("export", "--trial", name, saved)
    if results.experiment is None:
        raise ValueError(f"export needs experiment.toml in {str(folder)!r}, which says the model.")
    experiment = trusted_experiment(folder, trust or places_in(sys.argv[1:]))
    seed = experiment.seeds[0]
    path = out or Path("model.safetensors")
    require(force or not path.exists(), "export", "a new file", str(path), "or say --force")
    model = build_model(experiment.model, experiment.data, seed, experiment.training.task)
    metadata = load_safetensors(model, folder / name)
    if path.suffix == ".onnx":
        save_onnx(model, _example(build_clients(experiment.data, seed)), path)
    elif path.suffix == ".safetensors":
        own = {key: value for key, value in metadata.items() if key not in OWN_METADATA}
        save_safetensors(model, path, own)
    else:
        require_choice("export", "the ending of --out", path.suffix, (".safetensors", ".onnx"))
    Console(stderr=True).print(f"Written: {path}", highlight=False)


def _example(clients: "Clients") -> "Tensor":
    """Return two samples as the model sees them."""
    import torch

    stored = clients.inputs[:2]
    return stored if clients.prepare is None else clients.prepare(stored, torch.float32)
