"""W1's gradient under the roof of one core: `python -m benchmarks.speed.roofline [--write PAGE]`.

The roof is what the machine can do: as many multiply-adds as a loop of nothing else makes, or what
memory delivers for as few operations per byte. Torch and the kernel take turns; the best counts.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable
from datetime import date
from importlib.resources import files
from pathlib import Path

import torch
from benchmarks.speed.results import machine
from benchmarks.speed.table import replaced
from torch.nn import functional as F

import undrift as ud
from undrift.builder import library
from undrift.gradients.kernels import build, read
from undrift.gradients.task import Autograd, Batch, Task
from undrift.models.layout import Layout

BEGIN, END = "<!-- roofline:begin -->", "<!-- roofline:end -->"
TURNS = 30
LOOPS = 10**6
PEAK = """
extern "C" double undrift_peak(long loops) {
  vec sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = all(0.5f + 0.01f * i);
  vec a = all(0.999f), b = all(0.0005f);
  for (long n = 0; n < loops; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = sums[i] * a + b;
  }
  double total = 0;
  for (int i = 0; i < 12; ++i) total += sum(sums[i]);
  return total;
}
extern "C" int undrift_lanes() { return V; }
"""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak() -> float:
    """Return GFLOP/s of one core that only multiplies and adds what is in registers."""
    header = files("undrift.gradients.kernels").joinpath("vectors.hpp").read_text(encoding="utf-8")
    made = library(header + PEAK)
    made.undrift_peak.argtypes = [ctypes.c_long]
    flops = 2.0 * 12 * made.undrift_lanes() * LOOPS
    return max(flops / seconds(lambda: made.undrift_peak(LOOPS)) for _ in range(TURNS)) / 1e9


def bandwidth() -> float:
    """Return GB/s of one core that adds two long vectors into a third."""
    a, b = torch.ones(2, 2**24).unbind()
    c = torch.empty_like(a)
    return max(12e-9 * 2**24 / seconds(lambda: torch.add(a, b, out=c)) for _ in range(TURNS))


def measured() -> tuple[float, float, float]:
    """Return GFLOP/s of torch and of the kernel, and operations per byte that is moved."""
    model = ud.models.build("cnn2", shape=(1, 28, 28), classes=10, dropout=0.0)
    task = Task(model, Layout.of(model), F.cross_entropy)
    chain = read(task, (1, 28, 28), ())
    kernels, x = build(task, chain, 1), task.layout.gather(model)
    batch = Batch(torch.randn(50, 1, 28, 28), torch.randint(10, (50,)))
    best = {"torch": math.inf, "kernel": math.inf}
    for _ in range(TURNS):
        for name, oracle in (("torch", Autograd()), ("kernel", kernels)):
            best[name] = min(best[name], seconds(lambda o=oracle: o.gradient(task, x, batch)))
    flops = 2e-9 * chain.products * 50
    moved = 4e-9 * (batch.inputs.numel() + 2 * x.numel())
    return flops / best["torch"], flops / best["kernel"], flops / moved


def chart(top: float, wide: float, points: dict[str, float], intensity: float) -> str:
    """Return a chart of GFLOP/s over operations per byte, with logarithmic axes."""
    height, width, low, left, right = 16, 62, 0.5, 0.05, 2000.0

    def row(rate: float) -> int:
        share = math.log(rate / low) / math.log(2 * top / low)
        return round((height - 1) * (1 - share))

    def column(ops: float) -> int:
        return round((width - 1) * math.log(ops / left) / math.log(right / left))

    canvas = [[" "] * width for _ in range(height)]
    for i in range(width):
        ops = left * (right / left) ** (i / (width - 1))
        rate = min(top, wide * ops)
        if rate >= low:
            canvas[row(rate)][i] = "-" if rate == top else "/"
    for mark, rate in points.items():
        canvas[row(rate)][column(intensity)] = mark
    shown = {row(rate): f"{rate:6.1f} " for rate in (top, *points.values())}
    lines = [shown.get(i, " " * 7) + "|" + "".join(line).rstrip() for i, line in enumerate(canvas)]
    marks = "  0.1         1            10           100          1000   operations per byte"
    return "\n".join(["GFLOP/s", *lines, " " * 7 + "+" + "-" * width, " " * 7 + marks])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="a page with the two markers to put it between")
    options = parser.parse_args()
    torch.set_num_threads(1)
    top, wide = peak(), bandwidth()
    by_torch, by_kernel, intensity = measured()
    drawn = chart(top, wide, {"T": by_torch, "K": by_kernel}, intensity)
    about = machine()
    text = (
        f"```text\n{drawn}\n```\n\nT torch, {by_torch:.1f} GFLOP/s; K the kernel, {by_kernel:.1f}, "
        f"{by_kernel / by_torch:.1f} times as much and {100 * by_kernel / top:.0f} % of the limit, "
        f"{top:.0f}; memory delivers {wide:.1f} GB/s. One core, best of {TURNS} turns; "
        f"{date.today()}, {about['cpu']}, {about['cores']} cores, torch {torch.__version__}."
    )
    print(text)
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(replaced(page, text, BEGIN, END), encoding="utf-8")


if __name__ == "__main__":
    main()
