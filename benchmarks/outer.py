"""A character GPT on Shakespeare's plays by `Outer`: test loss against bytes and against seconds.

    python -m benchmarks.outer train --text pg100.txt.gz
    python -m benchmarks.outer link 100mbit --text pg100.txt.gz
    python -m benchmarks.outer link 1gbit --text pg100.txt.gz
    python -m benchmarks.outer report

Two ranks, each with every second play, train the GPT of `examples/outer_gpt.py`. Every method has
four learning rates (AdamW 1e-3, 3e-3, 1e-2, 3e-2; plain SGD 0.1, 0.3, 0.5, 1), the best of which on
validation text, with a seed of its own, is then run with three other seeds; one that diverges is
out. As in `undrift compare --tune`, every method has one value more, at most twice, while a choice
lies at an edge: the next beyond the edge, and for others one between the best and its better
neighbour. Each play's last tenth is held out: the first half of it is validation text, the second
half is test text.

`train` runs all of this over loopback, since losses do not depend on the link. `link` runs the
trainings of the three seeds once more between two hosts with such a link (`benchmarks/network.py`,
needs root), the methods in turns, and keeps the seconds at which each meeting ended, without the
tests. `report` prints the table, with the medians of these seconds, and draws the plot; a dash or
a missing curve is a method whose three seeds have not all been run over that link. Whatever is
finished is kept in --json, and a second call goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.network import hosts, launch, this_machine
from examples.outer_gpt import GPT, METHODS, batches, read_plays, train
from torch import Tensor
from torch.nn.functional import cross_entropy

from undrift.errors import DivergenceError
from undrift.runs.axes import NumericAxis

PLAIN = ("fedspeed", "scaffold", "fedagrac")
EVERY, ROUNDS = 20, 20
EXTENSIONS = 2  # of the values that are tried, as `undrift compare --tune` has them
SEEDS, TUNING_SEED = (1, 2, 3), 0
LINKS = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
RESULTS = Path(__file__).parent / "results" / "outer.json"
Row = dict[str, Any]


def rates(name: str) -> tuple[float, ...]:
    return (0.1, 0.3, 0.5, 1.0) if name in PLAIN else (1e-3, 3e-3, 1e-2, 3e-2)


def steps_of(name: str, rank: int) -> int:
    """Return the local steps between two meetings; FedaGrac's ranks differ."""
    return EVERY // 2 if name == "fedagrac" and rank % 2 else EVERY


def loss_of(model: GPT, batch: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()))


def curve(name: str, lr: float, seed: int, plays: list[Tensor], part: str, where: str) -> Row:
    """Return the loss, the bytes that a rank has sent and the seconds, after every meeting."""
    row: Row = {"method": name, "lr": lr, "seed": seed, "part": part, "where": where}
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = GPT(1 + max(int(play.max()) for play in plays))
    own = [play[: -len(play) // 10] for play in plays[rank::size]]
    loader = batches(own, 8, seed=100 * seed + rank)
    batch = next(batches([held_out(play, part) for play in plays], 256, seed=7))
    every = [steps_of(name, each) for each in range(size)]
    losses, sent, seconds = [loss_of(model, batch)], [0], [0.0]
    ring = 8 * (size - 1) / size * sum(p.numel() for p in model.parameters())
    dist.barrier()
    began = time.perf_counter()
    try:
        for k, outer in enumerate(train(model, METHODS[name](lr), every, lr, loader), 1):
            if k % every[rank] == 0:
                now = time.perf_counter()
                seconds.append(now - began)
                losses.append(loss_of(model, batch))
                sent.append(round(k * ring) if name == "ddp" else outer.bytes_sent)
                began += time.perf_counter() - now  # the test takes no time
            if len(losses) > ROUNDS:
                break
    except DivergenceError:  # on all ranks alike
        row["diverged"] = True
    return row | {"losses": losses, "bytes": sent, "seconds": seconds}


def held_out(play: Tensor, part: str) -> Tensor:
    """Return the first half of a play's last tenth for validation, the second half for tests."""
    tenth = play[-len(play) // 10 :]
    half = len(tenth) // 2
    return tenth[:half] if part == "validation" else tenth[half:]


def train_worker(options: argparse.Namespace) -> None:
    """Run what is missing in --json on this rank; rank 0 writes each result as it comes."""
    plays, rows = read_plays(str(options.text)), read(options.json)
    tried = {name: list(rates(name)) for name in METHODS}
    for extension in range(1 + EXTENSIONS):
        for name, own in tried.items():
            for lr in own:
                run(rows, (name, lr, TUNING_SEED), plays, "validation", "loopback", options.json)
        if extension == EXTENSIONS or not any(at_edge(rows, *each) for each in tried.items()):
            break
        for name, own in tried.items():
            own.append(further(rows, name, own))
    for seed in SEEDS:
        for name in METHODS:
            run(rows, (name, best(rows, name), seed), plays, "test", "loopback", options.json)


def link_worker(options: argparse.Namespace) -> None:
    """Run all seeds of every method over the link between these hosts, the methods in turns."""
    plays, rows = read_plays(str(options.text)), read(options.json)
    for seed in SEEDS:
        for name in METHODS:
            chosen = (name, best(rows, name), seed)
            run(rows, chosen, plays, "test", options.link, options.json)


def run(
    rows: list[Row], trial: tuple[str, float, int], plays: Any, part: str, where: str, path: Path
) -> None:
    kind = (*trial, part, where)
    if any((r["method"], r["lr"], r["seed"], r["part"], r["where"]) == kind for r in rows):
        return
    rows.append(curve(*trial, plays, part, where))
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(rows))
        path.with_suffix(".part").replace(path)
        end = f"{rows[-1]['losses'][-1]:.4f} {rows[-1]['seconds'][-1]:.1f} s"
        print(*kind, end, f"load average {os.getloadavg()[0]:.1f}", flush=True)


def best(rows: list[Row], name: str, among: Sequence[float] | None = None) -> float:
    """Return the learning rate with the least validation loss, of all or of some."""
    tuned = [r for r in rows if r["method"] == name and r["part"] == "validation"]
    tuned = [r for r in tuned if among is None or r["lr"] in among]
    return float(min(tuned, key=lambda r: ("diverged" in r, r["losses"][-1]))["lr"])


def at_edge(rows: list[Row], name: str, own: Sequence[float]) -> bool:
    return best(rows, name, own) in (min(own), max(own))


def further(rows: list[Row], name: str, own: Sequence[float]) -> float:
    """Return the value beyond an edge, or between the best one and its better neighbour."""
    axis = NumericAxis("lr", tuple(sorted(own)), whole=False, closed=False)
    chosen = best(rows, name, own)
    if axis.side(chosen):
        return float(axis.beyond(chosen))
    return float(axis.between(chosen, best(rows, name, axis.neighbours(chosen))))


def read(path: Path) -> list[Row]:
    return json.loads(path.read_text()) if path.exists() else []


def finals(rows: list[Row], name: str, where: str = "loopback") -> list[Row]:
    """Return the runs with the chosen learning rate, one a seed."""
    kind = (name, best(rows, name), "test", where)
    return [r for r in rows if (r["method"], r["lr"], r["part"], r["where"]) == kind]


def over_link(rows: list[Row], name: str, link: str) -> list[list[float]]:
    """Return the seconds of each seed's meetings; none unless all seeds were run over the link."""
    mine = finals(rows, name, link)
    complete = sorted(r["seed"] for r in mine) == sorted(SEEDS)
    return [r["seconds"] for r in mine] if complete else []


def report(rows: list[Row]) -> list[str]:
    """Return the lines of the table in docs/outer.md."""
    columns = ["method", "lr", "test loss", "MB sent by a rank"]
    columns += [f"s at {label}" for label in LINKS.values()]
    lines = [
        f"| {' | '.join(columns)} |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(METHODS, key=lambda each: mean_end(rows, each)):
        mine = finals(rows, name)
        ends = [r["losses"][-1] for r in mine]
        seconds = [seconds_of(rows, name, link) for link in LINKS]
        loss = f"{statistics.mean(ends):.3f} +- {statistics.stdev(ends):.3f}"
        cells = [name, f"{mine[0]['lr']:g}", loss, f"{mine[0]['bytes'][-1] / 1e6:.3g}", *seconds]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def seconds_of(rows: list[Row], name: str, link: str) -> str:
    """Return the median and the range of a whole training's seconds, or a dash without them."""
    ends = [seconds[-1] for seconds in over_link(rows, name, link)]
    if not ends:
        return "-"
    return f"{statistics.median(ends):.1f} ({min(ends):.1f} to {max(ends):.1f})"


def mean_end(rows: list[Row], name: str) -> float:
    return statistics.mean(r["losses"][-1] for r in finals(rows, name))


def plot(rows: list[Row], path: Path) -> None:
    """Draw the test loss against bytes, and against seconds for each link that was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    links = [link for link in LINKS if any(over_link(rows, name, link) for name in METHODS)]
    figure = Figure(figsize=(4.2 * (1 + len(links)), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + len(links), sharey=True, squeeze=False)[0]
    for number, name in enumerate(METHODS):
        mine = finals(rows, name)
        losses = torch.tensor([r["losses"] for r in mine])
        mean, low, high = losses.mean(0), losses.min(0).values, losses.max(0).values
        across = [[b / 1e6 for b in mine[0]["bytes"]]]
        for link in links:
            meetings = zip(*over_link(rows, name, link), strict=True)
            across.append([statistics.median(seconds) for seconds in meetings])
        for axis, x in zip(axes, across, strict=True):
            if x:
                axis.plot(x[1:], mean[1:], label=name, color=f"C{number}")
                axis.fill_between(x[1:], low[1:], high[1:], alpha=0.2, color=f"C{number}")
    labels = ["MB sent by a rank", *(f"seconds at {LINKS[link]}" for link in links)]
    for axis, label in zip(axes, labels, strict=True):
        axis.set_xlabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_xscale("log")
    axes[0].set_ylabel("test loss, mean and range of three seeds")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["train", "link", "report"])
    parser.add_argument("link", nargs="?", choices=LINKS)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, default=Path("docs/outer.png"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "report":
        print("\n".join(report(read(options.json))))
        plot(read(options.json), options.plot)
    elif options.text is None or (options.what == "link") != (options.link is not None):
        parser.error("train needs --text, and link needs a link and --text")
    elif options.worker:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        (train_worker if options.what == "train" else link_worker)(options)
        dist.destroy_process_group()
    else:
        argv = ["-m", "benchmarks.outer", options.what, *([options.link] if options.link else [])]
        argv += ["--text", str(options.text), "--json", str(options.json), "--worker"]
        if options.what == "train":
            launch([this_machine()] * 2, argv, timeout=24 * 3600)
        else:
            with hosts(2, rate=options.link) as two:
                launch(two, argv, timeout=3600)


if __name__ == "__main__":
    main()
