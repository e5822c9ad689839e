"""Predicted seconds a round for up to 100,000 workers and 10^11 coordinates.

    python benchmarks/scale.py [--picture scale.png] [--measured FILE.json]

Prints the tables of docs/scale.md and draws its picture. FILE.json holds a list of measured rounds,

    {"route": "ring", "merge": "one-bit", "workers": 4, "coordinates": 25000000, "bandwidth": 1e9,
     "seconds": 0.13, "computation": 0, "compression": 0.07, "communication": 0.06}

with the bits a second to which the link was limited, or null. Two or more without a limit that
differ in bytes a hop, such as full precision and one bit, calibrate latency and the machine's own
speed: those with "calibrate": true, or else all without a limit. The others check the model.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from undrift import cost
from undrift.cost import CodecTimes, Machine, Merging, NetworkLink, Point, Round

ROUTES = ("ring", "torus", "server", "gossip")
BITS: dict[str, Merging] = {"32": "mean", "1": "one-bit"}
DEGREE = 4  # neighbours in gossip
SIZES = (10**6, 10**9, 10**11)
# Seconds a coordinate on one thread: a float32 addition in memory (torch, x86-64), and the table of
# speeds in docs/onebit.md.
MEAN = CodecTimes(merge=0.52e-9)
ONE_BIT = CodecTimes(pack=1 / 2.769e9, draw=1 / 0.888e9, merge=1 / 29.176e9, unpack=1 / 3.262e9)


class Setting(NamedTuple):
    title: str
    workers: int
    machine: Machine
    server: Machine | None = None  # or one of the workers


def machine(latency: float, bandwidth: float, threads: int) -> Machine:
    mean, one_bit = (
        CodecTimes(*(seconds / threads for seconds in vars(codec).values()))
        for codec in (MEAN, ONE_BIT)
    )
    return Machine(NetworkLink(latency, bandwidth), mean=mean, one_bit=one_bit)


SETTINGS = (
    Setting("8 workers in a rack, 100 Gbit/s, 10 us, 16 threads", 8, machine(1e-5, 1e11, 16)),
    Setting("1000 nodes, 10 Gbit/s, 50 us, 16 threads", 1000, machine(5e-5, 1e10, 16)),
    Setting("1000 nodes, 1 Gbit/s, 50 us, 16 threads", 1000, machine(5e-5, 1e9, 16)),
    Setting(
        "100,000 phones, 100 Mbit/s, 50 ms, 1 thread; server 100 Gbit/s, 64 threads",
        100_000,
        machine(5e-2, 1e8, 1),
        machine(5e-2, 1e11, 64),
    ),
)


def named(route: str, workers: int) -> str:
    return f"gossip:{min(DEGREE, workers - 1)}" if route == "gossip" else route


def total(setting: Setting, route: str, bits: str, size: int) -> float:
    way, workers = named(route, setting.workers), setting.workers
    return cost.predict(
        way, BITS[bits], workers, size, setting.machine, server=setting.server
    ).total


def duration(seconds: float) -> str:
    scales = ((86400, "d", 2), (3600, "h", 2), (60, "min", 2), (1, "s", 1), (1e-3, "ms", 1))
    for scale, unit, least in scales:
        if seconds >= least * scale:
            return f"{short(seconds / scale)} {unit}"
    return f"{short(1e6 * seconds)} us"


def rate(bandwidth: float) -> str:
    for scale, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bandwidth >= scale:
            return f"{short(bandwidth / scale)} {unit}"
    return f"{short(bandwidth)} bit/s"


def short(value: float) -> str:
    """Return two digits, or all before the point."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def tables() -> None:
    heads = [f"{route}, {bits}" for route in ROUTES for bits in BITS]
    for setting in SETTINGS:
        print(f"\n{setting.title}\n")
        print("| D | " + " | ".join(heads) + " | one bit pays in a ring |")
        print("|---" * (len(heads) + 2) + "|")
        for size in SIZES:
            cells = [
                duration(total(setting, route, bits, size)) for route in ROUTES for bits in BITS
            ]
            limit = cost.break_even("ring", setting.workers, size, setting.machine)
            print(f"| 1e{len(str(size)) - 1} | {' | '.join(cells)} | {pays(limit)} |")


def pays(limit: float) -> str:
    if limit in (0, math.inf):
        return "always" if limit else "never"
    return f"below {rate(limit)}"


class Measured(NamedTuple):
    route: str
    merge: Merging
    workers: int
    coordinates: int
    bandwidth: float | None  # that the link was limited to
    seconds: float
    computation: float
    compression: float
    communication: float
    calibrate: bool = False

    @property
    def point(self) -> Point:
        path = cost.critical_path(self.route, self.merge, self.workers, self.coordinates)
        return Point(*path, self.communication)


def read(path: Path) -> list[Measured]:
    """Return the rows of a file, or raise an error that names the wrong one."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"--measured needs a JSON file, got {path}: {error}.") from error
    if not isinstance(rows, list) or len(rows) < 2:
        raise ValueError(f"--measured needs a list of two rounds or more, got another {path}.")
    return [_row(path, number, row) for number, row in enumerate(rows)]


def _row(path: Path, number: int, row: Any) -> Measured:
    try:
        made = Measured(**row)
        limit = math.inf if made.bandwidth is None else made.bandwidth
        if not (limit > 0 and made.seconds > 0 and made.communication > 0 and made.workers > 1):
            raise ValueError("it needs bandwidth, seconds and communication > 0 and workers > 1.")
        cost.critical_path(made.route, made.merge, made.workers, made.coordinates)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Row {number} of {path} is not a measured round: {error}") from error
    return made


def calibrating(rows: Sequence[Measured]) -> list[Measured]:
    unlimited = [row for row in rows if row.bandwidth is None]
    return [row for row in unlimited if row.calibrate] or unlimited


def predictions(rows: Sequence[Measured]) -> list[Round]:
    """Return predictions for the rows; compression is that of the merge's first calibrating row."""
    chosen = calibrating(rows)
    host = cost.fit([row.point for row in chosen])
    print(
        f"Calibrated on {len(chosen)} of {len(rows)} measured rounds: latency "
        f"{duration(host.latency)}, machine {rate(host.bandwidth)}"
    )
    found = []
    for row in rows:
        like = next(each for each in (*chosen, *rows) if each.merge == row.merge)
        codec = CodecTimes(pack=like.compression / like.coordinates)
        link = (
            host if row.bandwidth is None else cost.in_series(host, NetworkLink(0, row.bandwidth))
        )
        node = Machine(link, row.computation, mean=codec, one_bit=codec, signs=codec)
        found.append(cost.predict(row.route, row.merge, row.workers, row.coordinates, node))
    return found


def compare(rows: Sequence[Measured], predicted: Sequence[Round]) -> None:
    chosen = calibrating(rows)
    print("\n| route | merge | M | D | link | measured: compression, communication, round |"
          " predicted | error of the round | |")  # fmt: skip
    print("|---" * 9 + "|")
    for row, guess in zip(rows, predicted, strict=True):
        seen = ", ".join(map(duration, (row.compression, row.communication, row.seconds)))
        made = ", ".join(map(duration, (guess.compression, guess.communication, guess.total)))
        limit = rate(row.bandwidth) if row.bandwidth else "no limit"
        print(
            f"| {row.route} | {row.merge} | {row.workers} | {row.coordinates:,} | {limit} "
            f"| {seen} | {made} | {guess.total / row.seconds - 1:+.0%} "
            f"| {'calibrates' if row in chosen else ''} |"
        )
    rest = [
        abs(guess.total / row.seconds - 1)
        for row, guess in zip(rows, predicted, strict=True)
        if row not in chosen
    ]
    if rest:
        print(f"\nLargest error of the {len(rest)} other rounds: {max(rest):.0%}")


# Okabe and Ito's colours, which the colour-blind tell apart, with a marker each.
LOOKS = {
    "ring": ("#0072B2", "o"),
    "torus": ("#E69F00", "s"),
    "server": ("#CC79A7", "^"),
    "gossip": ("#009E73", "D"),
}


def picture(path: Path, rows: Sequence[Measured], predicted: Sequence[Round]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = 3 if rows else 2
    figure = Figure(figsize=(5.2 * panels, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels)
    nodes = SETTINGS[1]
    squares = sorted({round(10 ** (k / 16)) ** 2 for k in range(4, 41)})
    counts = [2, *squares, 100_000]  # squares, so that the torus can be square
    sizes = [10**k for k in range(3, 12)]
    for route in ROUTES:
        for bits in BITS:
            by_count = [total(nodes._replace(workers=n), route, bits, 10**9) for n in counts]
            by_size = [total(nodes, route, bits, size) for size in sizes]
            _line(axes[0], counts, by_count, route, bits)
            _line(axes[1], sizes, by_size, route, bits)
    axes[0].set(title="$10^9$ coordinates", xlabel="workers M", ylabel="seconds a round")
    axes[0].set_xlim(1, 2e5)
    axes[1].set(title="1000 workers", xlabel="coordinates D", ylabel="seconds a round")
    if rows:
        _against(axes[2], rows, predicted)
    for axis in axes:
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    _legend(axes[0])
    figure.suptitle(
        "Predicted synchronisation: 10 Gbit/s, latency 50 us, compression on 16 threads, "
        f"gossip with {DEGREE} neighbours",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)


def _line(axis: Any, x: Sequence[int], y: Sequence[float], route: str, bits: str) -> None:
    colour, marker = LOOKS[route]
    full = bits == "32"
    width, layer = (3.5, 1) if route == "ring" else (1.6, 2)  # seen where the torus is as fast
    style: Any = "-" if full else (0, (12 / width, 5 / width))
    axis.plot(x, y, linestyle=style, color=colour, linewidth=width, zorder=layer)
    every = slice(None, None, max(1, len(x) // 7))
    filled, size = colour if full else "white", 8 if route == "ring" else 5
    axis.plot(x[every], y[every], marker, color=colour, mfc=filled, markersize=size, zorder=layer)


def _legend(axis: Any) -> None:
    from matplotlib.lines import Line2D

    routes = [
        Line2D([], [], color=colour, marker=marker, label=route)
        for route, (colour, marker) in LOOKS.items()
    ]
    full = Line2D([], [], color="black", marker="o", label="32 bits")
    bit = Line2D([], [], color="black", linestyle="--", marker="o", mfc="white", label="1 bit")
    axis.legend(handles=[*routes, full, bit], frameon=False, loc="upper left", ncols=2)


def _against(axis: Any, rows: Sequence[Measured], predicted: Sequence[Round]) -> None:
    for row, guess in zip(rows, predicted, strict=True):
        colour, marker = LOOKS.get(row.route.partition(":")[0], ("black", "x"))
        filled = {"mean": colour, "one-bit": "white"}.get(row.merge, "lightgrey")
        axis.plot(row.seconds, guess.total, marker, color=colour, mfc=filled)
    ends = [min(row.seconds for row in rows) / 2, 2 * max(row.seconds for row in rows)]
    axis.plot(ends, ends, color="grey", linewidth=1, zorder=0)
    title = "measured rounds (grey inside: sums of signs)"
    if all(row.merge in BITS.values() for row in rows):
        title = "measured rounds"
    axis.set(title=title, xlabel="measured seconds", ylabel="predicted seconds")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="where to draw, such as docs/scale.png")
    parser.add_argument("--measured", type=Path, help="a JSON file of measured rounds")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.measured) if options.measured else []
        predicted = predictions(rows) if rows else []
    except ValueError as error:
        sys.exit(str(error))
    tables()
    if rows:
        compare(rows, predicted)
    if options.picture:
        try:
            picture(options.picture, rows, predicted)
        except ImportError:
            sys.exit("--picture needs matplotlib; pip install 'undrift[report]'.")


if __name__ == "__main__":
    main()
