"""`undrift data`: which data sets there are, and how a partition splits one among clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undrift.cli.foreign import Command, CommandGroup
from undrift.cli.options import (
    ClientsOption,
    DataDirOption,
    DirichletOption,
    ForceOption,
    JsonOption,
    OutOption,
    PartitionOption,
    SeedOption,
)
from undrift.cli.shared import with_dirichlet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from undrift.data import Dataset
    from undrift.data.tables.preprocessing import Preprocessing

SHOWN_CLIENTS = 20  # The table has so many clients; the picture has all of them.
SHOWN_LABELS = 20
WIDTH = 200  # of a list where there is no terminal

data_app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Look at data. Example: undrift data show mnist --partition dirichlet:0.1 --clients 100",
)


@data_app.command("list", cls=Command)
def list_data(data_dir: DataDirOption = None) -> None:
    """List all data sets by name, and where they are on this machine."""
    from rich.console import Console
    from rich.table import Table

    from undrift.data.places import NAMES

    shown = Table("name", "where", title="Data sets")
    for name in NAMES:
        shown.add_row(name, _where(name, data_dir))
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(shown)


def _where(name: str, data_dir: Any) -> str:
    from undrift.data.places import PLACES, find
    from undrift.data.remotes import BY_HAND, REMOTES

    if name not in PLACES:
        return "embedded"
    folder = find(name, data_dir)
    if folder is not None:
        return str(folder)
    if name in BY_HAND:
        return f"not here: {BY_HAND[name]}"
    megabytes = sum(remote.size or 0 for remote in REMOTES[name]) / 1e6
    return f"not here; downloaded when first used, {megabytes:.0f} MB"


@data_app.command("show", cls=Command)
def show_data(
    name: Annotated[
        str,
        typer.Argument(
            help="A name, as `undrift data list` shows it, or a table, patients.csv:target=died."
        ),
    ],
    clients: ClientsOption = None,
    partition: PartitionOption = "dirichlet",
    dirichlet: DirichletOption = None,
    data_dir: DataDirOption = None,
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show sizes and labels of the clients, and draw their heat map."""
    from undrift.config.experiment import Experiment
    from undrift.config.shorthand import parse_data
    from undrift.report import plots
    from undrift.report.terminal import say_missing, wide_console
    from undrift.results.filenames import PARTITION
    from undrift.runs.build import build_clients
    from undrift.runs.folder import choose_folder, claim
    from undrift.runs.load import load_dataset
    from undrift.runs.partition import label_counts
    from undrift.runs.spelling import FLAGS

    form = with_dirichlet(partition, dirichlet)
    own = parse_data(name)
    values = {**own, "folder": data_dir, "clients": clients, "partition": form}
    if "path" in own and partition == "dirichlet" and dirichlet is None:
        del values["partition"]
    section = Experiment.of({"methods": [{"name": "fedavg"}], "data": values}).data
    data, parts = load_dataset(section), build_clients(section, seed)
    console = wide_console(stderr=as_json)
    if data.preprocessing is not None:
        _columns(data.preprocessing, console)
        if section.task is None:
            console.print(data.preprocessing.target.sentence("task="), highlight=False)
    if parts.targets.is_floating_point():
        console.print(f"{data!r}\n{parts!r}", highlight=False)
        return
    counts = label_counts(parts, data.classes)
    folder = choose_folder(out, f"data-{section.title}")
    claim(folder, force=force, spelling=FLAGS)
    console.print(repr(data), highlight=False)
    _table(data, counts, parts.names, console)
    title = f"{section.title}, {section.partition}, {len(parts)} clients"
    if plots.partition(counts, folder / PARTITION, title):
        console.print(f"Heat map: {folder / PARTITION}", highlight=False)
    else:
        say_missing("picture", "matplotlib", console)
    if as_json:
        print(json.dumps({"sizes": parts.sizes.tolist(), "labels": counts.tolist()}))


def _columns(preprocessing: Preprocessing, console: Console) -> None:
    """Print what each column of a table is."""
    from rich.table import Table

    from undrift.data.tables.preprocessing import CategoryColumn, NumberColumn

    shown = Table("column", "kind", "as the model sees it", title="Columns")
    for column in preprocessing.columns:
        if isinstance(column, NumberColumn):
            scaled = f"(value - {column.mean:.4g}) / {column.scale:.4g}"
            shown.add_row(column.name, "number", scaled)
        elif isinstance(column, CategoryColumn):
            some = _some(column.categories)
            shown.add_row(column.name, "category", f"{len(column.categories)}: {some}")
        else:
            made = f"{len(column.features)} features: {_some(column.features)}"
            shown.add_row(", ".join(column.names), "your transformer's", made)
    target = preprocessing.target
    classes = f"{len(target.classes)} classes: {_some(target.classes)}"
    shown.add_row(target.name, "target", classes if target.classes else "regression, scaled")
    console.print(shown)


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _table(
    data: Dataset, counts: NDArray[np.int64], clients: Sequence[str], console: Console
) -> None:
    """Print how many samples of each label each client has, by name where it has one."""
    from rich.table import Table

    sizes, held = counts.sum(1), (counts > 0).sum(1)
    console.print(
        f"{len(counts)} clients; samples each: {_range(sizes)}; labels each: {_range(held)}; "
        f"{counts.sum()} of {len(data.stored_train[1])} samples dealt",
        highlight=False,
    )
    labels = counts.shape[1]
    # A table has no room for many labels, so their totals follow it and the picture has them all.
    columns = labels if labels <= SHOWN_LABELS else 0
    names = data.labels or tuple(map(str, range(labels)))
    shown = Table("client", "samples", "labels", *names[:columns])
    for i, row in enumerate(counts[:SHOWN_CLIENTS]):
        shown.add_row(
            clients[i] if clients else str(i), str(sizes[i]), str(held[i]), *map(str, row[:columns])
        )
    if len(counts) > SHOWN_CLIENTS:
        shown.add_row("...", *[""] * (2 + columns))
    total = counts.sum(0)
    shown.add_section()
    shown.add_row("all", str(total.sum()), str((total > 0).sum()), *map(str, total[:columns]))
    console.print(shown)
    if not columns:
        each = ", ".join(f"{name} {count}" for name, count in zip(names, total, strict=True))
        console.print(f"Samples of each label: {each}", highlight=False, markup=False)


def _range(values: NDArray[np.int64]) -> str:
    import numpy as np

    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}, median {np.median(values):g}"
