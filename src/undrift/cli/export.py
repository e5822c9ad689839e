"""`undrift export`: a run's model for other programs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from undrift.check import require, require_choice
from undrift.cli.options import TrustOption


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

    from undrift.results.filenames import MODEL
    from undrift.runs.folder import read, trusted_experiment
    from undrift.runs.saved_model import export_trained
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
    path = out or Path("model.safetensors")
    require(force or not path.exists(), "export", "a new file", str(path), "or say --force")
    note = export_trained(experiment, folder / name, path, experiment.seeds[0])
    said = f"Written: {path}" + (f"\n{note}" if note else "")
    Console(stderr=True).print(said, highlight=False, markup=False, soft_wrap=True)
