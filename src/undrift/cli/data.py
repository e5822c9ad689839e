"""`undrift data`: which data sets there are, and how a partition splits one among clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

SHOWN_CLIENTS = 20  # The table has so many clients; the picture has all of them.
SHOWN_LABELS = 20

data_app = typer.Typer(
    no_args_is_help=True,
    help="Look at data. Example: undrift data show mnist --partition dirichlet:0.1 --clients 100",
)


@data_app.command("list")
def list_data(data_dir: DataDirOption = None) -> None:
    """List all data sets by name, and where they are on this machine."""
    from rich.table import Table

    from undrift.data import NAMES
    from undrift.report.terminal import wide_console

    shown = Table("name", "where", title="Data sets")
    for name in NAMES:
        shown.add_row(name, _where(name, data_dir))
    wide_console().print(shown)


def _where(name: str, data_dir: Any) -> str:
    from undrift.data.datasets import PUBLISHED, find
    from undrift.data.remotes import BY_HAND, REMOTES

    if name not in PUBLISHED:
        return "embedded"
    folder = find(name, data_dir)
    if folder is not None:
        return str(folder)
    if name in BY_HAND:
        return f"not here: {BY_HAND[name]}"
    megabytes = sum(remote.size or 0 for remote in REMOTES[name]) / 1e6
    return f"not here; downloaded when first used, {megabytes:.0f} MB"


@data_app.command("show")
def show_data(
    name: Annotated[str, typer.Argument(help="A name, as `undrift data list` shows it.")],
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
    from undrift.report import plots
    from undrift.report.terminal import say_missing, wide_console
    from undrift.results.filenames import PARTITION
    from undrift.runs.build import build_clients, load_dataset
    from undrift.runs.folder import choose_folder, claim
    from undrift.runs.partition import label_counts
    from undrift.runs.spelling import FLAGS

    form = with_dirichlet(partition, dirichlet)
    values = {"name": name, "folder": data_dir, "clients": clients, "partition": form}
    section = Experiment.of({"methods": [{"name": "fedavg"}], "data": values}).data
    data, parts = load_dataset(name, data_dir), build_clients(section, seed)
    counts = label_counts(parts, data.classes)
    folder = choose_folder(out, f"data-{name}")
    claim(folder, force=force, spelling=FLAGS)
    console = wide_console(stderr=as_json)
    console.print(repr(data), highlight=False)
    _table(data, counts, console)
    title = f"{name}, {partition}, {len(parts)} clients"
    if plots.partition(counts, folder / PARTITION, title):
        console.print(f"Heat map: {folder / PARTITION}", highlight=False)
    else:
        say_missing("picture", "matplotlib", console)
    if as_json:
        print(json.dumps({"sizes": parts.sizes.tolist(), "labels": counts.tolist()}))


def _table(data: Dataset, counts: NDArray[np.int64], console: Console) -> None:
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
        shown.add_row(str(i), str(sizes[i]), str(held[i]), *map(str, row[:columns]))
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
