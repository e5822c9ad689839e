"""`undrift init` and `undrift schema`: a file to begin with, and what an editor needs to help.

Both print what `make names` has written beside this file, so that they do not wait for torch.
"""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.check import require
from undrift.cli.names import FAMILIES
from undrift.files import write_atomic

TEMPLATE, SCHEMA = (Path(__file__).with_name(name) for name in ("template.json", "schema.json"))
HEAD = """\
# An experiment of undrift. Run it: undrift run THIS_FILE
# Lines in comments show what holds where nothing is said.

title = ""
seeds = [0, 1]
"""
SWEEP = """
# In [sweep], `tune = true` tunes methods on validation samples and compares them with new seeds.
# Values to try with `undrift sweep THIS_FILE`: every combination, and rows that go together.
# [sweep.grid]
# "method.lr" = [0.03, 0.1, 0.3]
# [[sweep.together]]
# "training.rounds" = [40, 20, 8]
# "training.work" = ["epochs:1", "epochs:2", "epochs:5"]
"""


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

    if file.exists() and not force:
        raise ValueError(f"init needs a new file, got {str(file)!r}; choose another, or --force.")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    require(bool(names), "--methods", "at least one name", methods, "say --methods fedavg")
    write_atomic(file, experiment_template(names))
    sentence = f"Written: {file}; run it with undrift run {file}"
    Console(stderr=True).print(sentence, highlight=False, markup=False)


def experiment_template(names: list[str]) -> str:
    """Return a file that runs as it is, with all other fields in comments."""
    written: dict[str, Any] = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    known = [name if ":" in name else name.lower() for name in names]
    if all(name in FAMILIES for name in known):
        server = all(FAMILIES[name] == "federated" for name in known)
        lines = list(written["sections"]["server" if server else "peers"])
        for name in known:
            lines += written["methods"][name]
        return _text(lines)
    from undrift.config.experiment import Experiment
    from undrift.config.hyperparameters import method_class
    from undrift.config.template import method_lines, section_lines
    from undrift.core import Federated

    server = all(issubclass(method_class(name), Federated) for name in names)
    lines = section_lines(server=server)
    for name in names:
        lines += method_lines(name)
    Experiment.of(tomllib.loads(_text(lines)))  # which refuses what could not be run
    return _text(lines)


def _text(lines: list[str]) -> str:
    return HEAD + "\n".join(lines) + "\n" + SWEEP


def schema() -> None:
    """Print the JSON Schema of experiments, for editors.

    Example: undrift schema > experiment.schema.json
    """
    print(SCHEMA.read_text(encoding="utf-8"), end="")
