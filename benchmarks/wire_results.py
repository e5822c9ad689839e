"""What the wire benchmark measured becomes results of the thesis's Figures 3.1a and 3.5.

All methods and routes take turns in a repetition, so repetitions stand for seeds: differences are
paired by repetition.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift import __version__
from undrift.papers import catalogue
from undrift.papers.quantity import Quantity
from undrift.papers.store import StoredPanel, StoredPaper, StoredTrial, fingerprint, shipped

Row = Mapping[str, Any]
SCALE = "small"
NAMES = {"none": "no compression", "cascading": "cascading compression"}  # in Figure 3.1a
SECONDS, MEGABYTES = (Quantity(name).text for name in ("seconds_round", "megabytes_round"))


def panels_of(figure: str, route: str) -> dict[str, str]:
    """Return the panels of a figure that a route has, each with the seconds that it shows."""
    if figure == "3.1a":
        more = {"ring, compression": "compression"} if route == "ring" else {}
        return {route: "iteration", **more}
    phases = ("computation", "compression", "communication")
    return {**{f"{route}, {name}": name for name in phases}, f"{route}, round": "iteration"}


def trials_of(rows: Sequence[Row]) -> Iterator[StoredTrial]:
    """Return a trial for every panel, method and repetition."""
    for row in rows:
        method = NAMES.get(row["method"], row["method"])
        for panel, part in panels_of(row["figure"], row["route"]).items():
            for number, times in enumerate(row["repetitions"]):
                values: dict[str, float | str] = {SECONDS: times[part]}
                values[MEGABYTES] = row["all_bytes"] / 1e6
                seconds = times["iteration"] if part == "iteration" else 0.0
                yield StoredTrial(panel, method, number, "finished", values, seconds=seconds)


def results(rows: Sequence[Row]) -> StoredPaper:
    """Return the rows of one link as results."""
    one = rows[0]
    entry = catalogue.find(f"marsit/figure{one['figure'].replace('.', '_')}")
    trials = list(trials_of(rows))
    names = list(dict.fromkeys(trial.panel for trial in trials))
    link = "the loopback device" if one["bandwidth"] is None else f"a link of {one['link']}/s"
    said = (
        f"Measured between {one['workers']} workers and a server, each a process with one thread "
        f"and, on a limited link, a host of its own, joined by {link}; the vectors have "
        f"{one['coordinates']:,} random coordinates, and computation is a step of AlexNet with "
        f"23M parameters. Sums of signs are sent in {one['code']} code. A seed is a repetition, in "
        "which all methods and routes take turns. Megabytes are those that all workers and the "
        f"server send. The load average was {os.getloadavg()[0]:.0f} at the end."
    )
    return StoredPaper(
        name=entry.name,
        item=entry.paper.item,
        scale=SCALE,
        fingerprint=fingerprint(entry.paper, SCALE),
        undrift=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        panels=[StoredPanel(name, "random vectors", "alexnet", 1, same=False) for name in names],
        trials=trials,
        planned=len(trials),
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
        sentences=[said],
    )


def keep(rows: Sequence[Row]) -> Path:
    """Write the rows of one link into the package's results and return the file."""
    found = results(rows)
    path = shipped(catalogue.find(found.name), SCALE)
    found.write(path)
    return path
