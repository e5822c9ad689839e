"""`undrift init` and `undrift schema`: a file to begin with, and what an editor needs to help."""

import json
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from undrift.check import require


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("experiment.toml"),
    methods: Annotated[
        str, typer.Option(help="Methods to begin with, by commas.")
    ] = "fedavg,fedspeed",
    force: Annotated[bool, typer.Option("--force", help="Replace a file.")] = False,
) -> None:
    """Write a commented experiment that runs as it is.

    Example: undrift init experiment.toml && undrift run experiment.toml
    """
    from rich.console import Console

    from undrift.config.experiment import Experiment
    from undrift.config.hyperparameters import method_class
    from undrift.config.template import experiment_template
    from undrift.results.trial import write_result

    if file.exists() and not force:
        raise ValueError(f"init needs a new file, got {str(file)!r}; choose another, or --force.")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    require(bool(names), "--methods", "at least one name", methods, "say --methods fedavg")
    for name in names:
        method_class(name)
    text = experiment_template(names)
    Experiment.of(tomllib.loads(text))
    write_result(file, text)
    sentence = f"Written: {file}; run it with undrift run {file}"
    Console(stderr=True).print(sentence, highlight=False, markup=False)


def schema() -> None:
    """Print the JSON Schema of experiments, for editors.

    Example: undrift schema > experiment.schema.json
    """
    from undrift.config.schema import json_schema

    print(json.dumps(json_schema(), indent=1))
