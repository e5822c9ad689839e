"""`undrift predict`: the rows of a table, scored by a trained model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from undrift.check import require
from undrift.cli.options import TrustOption
from undrift.usercode.names import places_in


def predict(
    model: Annotated[
        Path, typer.Argument(help="A folder of results with its model, or model.safetensors.")
    ],
    file: Annotated[Path, typer.Argument(help="New rows: CSV or Parquet, columns as in training.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV to write; without it, the rows are printed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out.")] = False,
    separator: Annotated[
        str | None,
        typer.Option(help="Of FILE's cells: comma, semicolon, tab, pipe; found if left out."),
    ] = None,
    decimal: Annotated[
        str | None,
        typer.Option(help="Of FILE's numbers: point or comma; as in training if left out."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            "--model", help="The network, where MODEL does not say it: mlp:hidden=8, mine.py:Net."
        ),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Print the predictions for the rows of a table by a model that was trained on a table.

    Example: undrift predict runs/fedavg-1 new.csv --out scored.csv
    """
    from rich.console import Console

    from undrift.data.tables.files import pandas, read_frame
    from undrift.files import write_atomic
    from undrift.runs.saved_model import SavedModel

    new = out is None or force or not out.exists()
    range_index = pandas().RangeIndex  # which says what to install before anything is read
    require(new, "predict", "a new file", str(out), "choose another name, or say --force")
    saved = SavedModel.read(model, model=network, trust=trust or places_in(sys.argv[1:]))
    point = saved.preprocessing.decimal if decimal is None else decimal
    frame = read_frame(file, separator=separator, decimal=point)
    scored = frame.join(saved.predict(frame))
    text = scored.to_csv(index=not isinstance(scored.index, range_index))
    if out is None:
        print(text, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text)
    rows = f"{len(scored):,} rows, {len(scored.columns) - len(frame.columns)} columns added"
    Console(stderr=True).print(f"Written: {out} ({rows})", highlight=False, markup=False)
