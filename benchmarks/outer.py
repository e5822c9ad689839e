"""A character GPT on Shakespeare's plays by `Outer`: test loss against bytes and against seconds.

    python -m benchmarks.outer --text pg100.txt.gz [--json runs/outer.json] [--plot docs/outer.png]

Two ranks, each with every second play, train the GPT of `examples/outer_gpt.py`. Every method has
the same grid of three learning rates (AdamW 1e-3, 3e-3, 1e-2; plain SGD 0.1, 0.3, 1), the best of
which on validation text, with a seed of its own, is then run with three other seeds; one that
diverges is out. Each play's
last tenth is held out: the first half of it is validation text, the second half is test text.

Training does not depend on the link, so it runs once, over loopback. What a meeting takes at a link
is measured between hosts (`benchmarks/network.py`, needs root): a few meetings of every method, the
median. Seconds are then steps times the median seconds of a local step, which is measured for each
method in turns, plus meetings times that. Whatever is finished is kept in --json, and a second call
goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.network import hosts, launch, this_machine
from examples.outer_gpt import GPT, METHODS, batches, read_plays, train
from torch import Tensor
from torch.nn.functional import cross_entropy

from undrift.errors import DivergenceError

PLAIN = ("fedspeed", "scaffold", "fedagrac")
EVERY, ROUNDS, TUNING_ROUNDS = 20, 12, 6
SEEDS, TUNING_SEED = (1, 2, 3), 0
LINKS = ("100mbit", "1gbit")
Row = dict[str, Any]


def rates(name: str) -> tuple[float, ...]:
    return (0.1, 0.3, 1.0) if name in PLAIN else (1e-3, 3e-3, 1e-2)


def steps_of(name: str, rank: int) -> int:
    """Return the local steps between two meetings; FedaGrac's ranks differ."""
    return EVERY // 2 if name == "fedagrac" and rank % 2 else EVERY


def loss_of(model: GPT, batch: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()))


def curve(name: str, lr: float, seed: int, rounds: int, plays: list[Tensor], part: str) -> Row:
    """Return the loss after every meeting, the bytes that a rank has sent, and seconds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = GPT(1 + max(int(play.max()) for play in plays))
    own = [play[: -len(play) // 10] for play in plays[rank::size]]
    loader = batches(own, 8, seed=100 * seed + rank)
    batch = next(batches([held_out(play, part) for play in plays], 256, seed=7))
    every = [steps_of(name, each) for each in range(size)]
    losses, sent, seconds, meetings, met = [loss_of(model, batch)], [0], [], [], 0
    ring = 8 * (size - 1) / size * sum(p.numel() for p in model.parameters())
    began = time.perf_counter()
    for k, outer in enumerate(train(model, METHODS[name](lr), every, lr, loader), 1):
        if k % every[rank] == 0:
            met += 1
            losses.append(loss_of(model, batch))
            sent.append(round(k * ring) if name == "ddp" else outer.bytes_sent)
            if name == "ddp":
                meetings.append((time.perf_counter() - began) / every[rank])
            else:
                seconds.append(outer.metrics["local_seconds"] / every[rank])
                meetings.append(outer.metrics["meeting_seconds"])
            began = time.perf_counter()
        if met == rounds:
            break
    return {
        "method": name,
        "lr": lr,
        "seed": seed,
        "part": part,
        "losses": losses,
        "bytes": sent,
        "step": statistics.median(seconds) if seconds else None,
        "meeting": statistics.median(meetings),
    }


def held_out(play: Tensor, part: str) -> Tensor:
    """Return the first half of a play's last tenth for validation, the second half for tests."""
    tenth = play[-len(play) // 10 :]
    half = len(tenth) // 2
    return tenth[:half] if part == "validation" else tenth[half:]


def worker(options: argparse.Namespace) -> None:
    """Run what is missing in --json on this rank; rank 0 writes each result as it comes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plays = read_plays(str(options.text))
    rows = read(options.json)
    for name in METHODS:
        for lr in rates(name):
            run(rows, name, lr, TUNING_SEED, TUNING_ROUNDS, plays, "validation", options.json)
    for seed in SEEDS:
        for name in METHODS:
            run(rows, name, best(rows, name), seed, ROUNDS, plays, "test", options.json)
    dist.destroy_process_group()


def run(
    rows: list[Row], name: str, lr: float, seed: int, rounds: int, plays: Any, part: str, path: Path
) -> None:
    if any((r["method"], r["lr"], r["seed"], r["part"]) == (name, lr, seed, part) for r in rows):
        return
    try:
        rows.append(curve(name, lr, seed, rounds, plays, part))
    except DivergenceError:  # on all ranks alike
        base = {"method": name, "lr": lr, "seed": seed, "part": part}
        rows.append({**base, "losses": [float("inf")], "bytes": [0], "step": None, "meeting": None})
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(rows))
        path.with_suffix(".part").replace(path)
        print(name, lr, seed, part, f"{rows[-1]['losses'][-1]:.4f}", flush=True)


def best(rows: list[Row], name: str) -> float:
    """Return the learning rate with the least validation loss."""
    tuned = [r for r in rows if r["method"] == name and r["part"] == "validation"]
    return float(min(tuned, key=lambda r: r["losses"][-1])["lr"])


def link_worker(options: argparse.Namespace) -> None:
    """Print the seconds of a meeting of every method over the link between these hosts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plays = read_plays(str(options.text))
    found = {}
    for name in METHODS:
        found[name] = curve(name, rates(name)[0], 0, 2 if name == "ddp" else 5, plays, "test")
    if dist.get_rank() == 0:
        print(json.dumps({name: [row["step"], row["meeting"]] for name, row in found.items()}))
    dist.destroy_process_group()


def read(path: Path) -> list[Row]:
    return json.loads(path.read_text()) if path.exists() else []


def seconds_of(name: str, links: Row, link: str, meetings: int) -> list[float]:
    """Return the seconds at which each meeting ends; DDP meets at every step."""
    step, meeting = links[link][name]
    a_round = EVERY * meeting if name == "ddp" else EVERY * step + meeting
    return [k * a_round for k in range(meetings + 1)]


def report(rows: list[Row], links: Row) -> None:
    print(
        f"{'method':>12} {'lr':>6} {'test loss':>16} {'MB a rank':>9} "
        + " ".join(f"{'s at ' + link:>12}" for link in links)
    )
    for name in METHODS:
        mine = [r for r in rows if r["method"] == name and r["part"] == "test"]
        ends = [r["losses"][-1] for r in mine]
        times = " ".join(f"{seconds_of(name, links, link, ROUNDS)[-1]:12.1f}" for link in links)
        print(
            f"{name:>12} {mine[0]['lr']:6g} {statistics.mean(ends):9.3f}"
            f" +- {statistics.stdev(ends):.3f} {mine[0]['bytes'][-1] / 1e6:9.2f} {times}"
        )


def plot(rows: list[Row], links: Row, path: Path) -> None:
    """Draw the test loss against bytes, and against seconds for each link."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * (1 + len(links)), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + len(links), sharey=True)
    for name in METHODS:
        mine = [r for r in rows if r["method"] == name and r["part"] == "test"]
        losses = torch.tensor([r["losses"] for r in mine])
        mean, low, high = losses.mean(0), losses.min(0).values, losses.max(0).values
        across = {"MB sent by a rank": [b / 1e6 for b in mine[0]["bytes"]]}
        across |= {f"seconds at {link}/s": seconds_of(name, links, link, ROUNDS) for link in links}
        for axis, (label, x) in zip(axes, across.items(), strict=True):
            (line,) = axis.plot(x[1:], mean[1:], label=name)
            axis.fill_between(x[1:], low[1:], high[1:], alpha=0.2, color=line.get_color())
            axis.set_xlabel(label)
            axis.set_xscale("log")
            axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test loss, mean and range of three seeds")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=Path("runs/outer.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/outer.png"))
    parser.add_argument("--worker", choices=["train", "link"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        (worker if options.worker == "train" else link_worker)(options)
        return
    argv = ["-m", "benchmarks.outer", "--text", str(options.text), "--json", str(options.json)]
    launch([this_machine()] * 2, [*argv, "--worker", "train"], timeout=24 * 3600)
    measured = options.json.with_name("outer-links.json")
    links = json.loads(measured.read_text()) if measured.exists() else {}
    for link in LINKS:
        if link not in links:
            with hosts(2, rate=link) as two:
                (out, *_) = launch(two, [*argv, "--worker", "link"], timeout=3600)
            links[link] = json.loads(out.splitlines()[-1])
            measured.write_text(json.dumps(links))
    rows = read(options.json)
    report(rows, links)
    plot(rows, links, options.plot)
    print(f"load average {os.getloadavg()[0]:.1f}; {options.json} and {options.plot} written")


if __name__ == "__main__":
    main()
