"""The C++ of losses under the compiler's sanitizers, as a program of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.forward_nets import NETS, SHAPE, net, task_of
from undrift.gradients.kernels import read
from undrift.gradients.kernels.forward import emit_forward

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]

# Every array is as long as it must be and not a byte longer, so that a step beyond is seen. Scores
# must have the same bits for any number of threads, and for samples that are read by an index.
MAIN = """
#include <cstdio>
#include <vector>

extern "C" int undrift_losses(const float*, long, float*, std::uint8_t*, const float*, const void*,
                              const std::int64_t*, long, long, int);

unsigned state = 1;
unsigned draw() { return (state = state * 1664525u + 1013904223u) >> 8; }

std::vector<float> drawn(long size) {
  std::vector<float> values(size);
  for (float& value : values) value = (float)(draw() % 2001) / 1000.0f - 1.0f;
  return values;
}

template <class Target>
bool right(long models, long samples, std::vector<Target> targets) {
  const auto x = drawn(models * SIZE), inputs = drawn(samples * FEATURES);
  std::vector<std::int64_t> index(models * samples);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = i % samples;
  std::vector<float> first, losses(models * samples);
  std::vector<std::uint8_t> first_hits, hits(models * samples);
  const std::int64_t* indices[] = {nullptr, index.data()};
  for (int threads : {1, 3})
    for (const std::int64_t* at : indices) {
      if (undrift_losses(x.data(), SIZE, losses.data(), hits.data(), inputs.data(), targets.data(),
                         at, models, samples, threads))
        return false;
      if (first.empty()) first = losses, first_hits = hits;
      if (losses != first || hits != first_hits) return false;
    }
  return true;
}

int main() {
  for (long models : {1, 5})
    for (long samples : {1, 7, 128, 150, 300}) {
      if (LABELS) {
        std::vector<std::int64_t> labels(samples);
        for (auto& label : labels) label = draw() % OUTPUTS;
        if (!right(models, samples, labels)) return 2;
        labels[samples - 1] = OUTPUTS;
        if (right(models, samples, labels)) return 3;
      } else if (!right(models, samples, drawn(samples * OUTPUTS))) {
        return 4;
      }
    }
  std::puts("right");
}
"""


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("logistic", F.binary_cross_entropy_with_logits),
        ("perceptron", F.cross_entropy),
        ("pooled", F.cross_entropy),
        ("strided", F.mse_loss),
    ],
)
def test_nothing_is_found(name: str, loss: object, sanitizers: str, tmp_path: Path) -> None:
    model = nn.Sequential(*NETS[name]) if name == "perceptron" else net(*NETS[name])
    task = task_of(model, loss)
    outputs = model.eval()(torch.zeros(1, *SHAPE)).shape[1]
    labels = loss is F.cross_entropy
    chain = read(task, SHAPE, () if labels else (outputs,))
    sizes = {"SIZE": task.layout.size, "FEATURES": torch.Size(SHAPE).numel(), "OUTPUTS": outputs}
    numbers = ", ".join(f"{key} = {value}" for key, value in sizes.items())
    driver = f"constexpr long {numbers}, LABELS = {int(labels)};\n" + MAIN
    text, program = tmp_path / "program.cpp", tmp_path / "program"
    text.write_text(emit_forward(chain) + driver)
    assert COMPILER is not None
    flags = ["-std=c++17", "-O1", "-g", "-pthread", "-w", "-march=native", "-ffp-contract=off"]
    command = [COMPILER, *flags, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    subprocess.run([*command, str(text), "-o", program], check=True, timeout=900)
    ran = subprocess.run([program], capture_output=True, text=True, timeout=900, check=False)
    assert (ran.returncode, ran.stdout) == (0, "right\n"), ran.stderr
