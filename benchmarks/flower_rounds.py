"""What a round takes with Flower between centre and sites, whose own work is next to nothing.

    python -m benchmarks.flower_rounds [FOLDER] [--out benchmarks/results/flower_rounds.json]

It reads the records of a folder of results, or runs `undrift federation demo`, three sites with
small tables on this machine, and reads those. `exchange` is a request to all sites and their
replies, `evaluation` another, and `round` is both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.results import machine, now


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median and the largest number."""
    named = {"least": min(values), "median": statistics.median(values), "largest": max(values)}
    return {name: round(value, 2) for name, value in named.items()}


def floor_of(folder: Path) -> dict[str, Any]:
    """Return what the rounds of a folder of results took, those that had no evaluation apart."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    tested = [record for record in records if record.get("loss") is not None]
    result: dict[str, Any] = {
        "rounds": len(records),
        "exchange": spread([record["seconds"] for record in records]),
    }
    if tested:
        result["evaluation"] = spread([record["evaluation_seconds"] for record in tested])
        both = [record["seconds"] + record["evaluation_seconds"] for record in tested]
        result["round"] = spread(both)
    return result


def main() -> None:
    """Print the figures, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"date": now(), "machine": machine()}
    if options.folder is None:
        before = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "out"
            command = [sys.executable, "-m", "undrift", "federation", "demo"]
            command += [str(Path(place) / "sites"), "--out", str(out)]
            subprocess.run(command, check=True, stdout=sys.stderr)
            result |= {"load_average": [before, os.getloadavg()[0]], **floor_of(out)}
    else:
        result |= {"folder": str(options.folder), **floor_of(options.folder)}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
