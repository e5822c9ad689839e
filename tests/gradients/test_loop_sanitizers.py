"""The C++ of kernels and loops under the compiler's sanitizers, as a program of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from undrift.gradients.kernels import read
from undrift.gradients.kernels.emitter import emit
from undrift.gradients.loops.emit import emit_loop
from undrift.gradients.loops.trace import trace_program
from undrift.gradients.task import Task
from undrift.models.layout import Layout

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]

# Every buffer is as long as it must be and not a byte longer, so that a step beyond is seen.
MAIN = """
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" int undrift_gradient(const float*, float*, const float*, const void*,
                                const std::int64_t*, long, long, std::int64_t);
struct Call {
  decltype(&undrift_gradient) gradient;
  float* const* carries;
  const float* const* tensors;
  const std::int64_t* strides;
  const float* numbers;
  const float* inputs;
  const void* targets;
  const std::int64_t *index, *counts, *keys, *lengths;
  std::int32_t* status;
  std::int64_t clients, steps, batch, size, features, start, threads;
};
extern "C" void undrift_loop(const Call*);

int main() {
  const long clients = 5, steps = 4, batch = 7, samples = 23;
  std::vector<float> x(clients * SIZE), m(clients * SIZE), s(clients), t(clients * SIZE);
  std::vector<float> numbers(16, 0.1f), inputs(samples * FEATURES);
  std::vector<std::int64_t> targets(samples), index(clients * steps * batch), keys(clients * steps);
  std::vector<std::int64_t> counts(clients * steps), lengths(clients), strides{SIZE, 0};
  std::vector<std::int32_t> status(clients, -1);
  std::uint32_t state = 1;
  auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (auto* all : {&x, &m, &s, &t, &inputs})
    for (float& value : *all) value = (float)(draw() % 2001) / 1000.0f - 1.0f;
  for (auto& target : targets) target = draw() % CLASSES;
  for (auto& at : index) at = draw() % samples;
  for (auto& key : keys) key = draw();
  for (auto& count : counts) count = 1 + draw() % batch;
  for (long i = 0; i < clients; ++i) lengths[i] = i;  // one of them takes no step
  float* carries[] = {x.data(), m.data(), s.data()};
  const float* tensors[] = {t.data(), t.data()};
  for (long start : {0, 4})
    for (long threads : {1, 3}) {
      Call call{&undrift_gradient, carries, tensors, strides.data(), numbers.data(), inputs.data(),
                targets.data(), index.data(), counts.data(), keys.data(), lengths.data(),
                status.data(), clients, steps, batch, SIZE, FEATURES, start, threads};
      undrift_loop(&call);
      for (std::int32_t each : status)
        if (each != 0) return 2;
    }
  std::puts("done");
}
"""


def step(carry: Any, f: Any) -> Any:
    """Uses two gradients, norms, a first step of its own, vectors of each client and of all."""
    y, m, s = carry
    g = f.grad(y)
    g = f.grad(y + 0.1 * g / (g.norm() + 1e-7)).lerp(g, 0.3)
    m = 0.9 * m + g
    s = s + 1.0
    y = y - 0.01 * (torch.where(m > 0, m, g) + 0.1 * (y - OWN) + 0.1 * SHARED / s)
    return y, g if f.k == 0 else m, s


OWN = SHARED = torch.empty(0)  # set to vectors of the model's size

NETS = {
    "perceptron": ([nn.Linear(13, 9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 3)], (13,)),
    "convolutional": (
        [
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(0.3),
            nn.Flatten(),
            nn.Linear(27, 3),
        ],
        (1, 7, 7),
    ),
}


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize("name", NETS)
def test_nothing_is_found(
    name: str, sanitizers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, shape = NETS[name]
    net = nn.Sequential(*parts)
    task = Task(net, Layout.of(net), nn.functional.cross_entropy, randomness="dropout")
    size = task.layout.size
    for tensor in ("OWN", "SHARED"):
        monkeypatch.setitem(globals(), tensor, torch.zeros(size))
    init = torch.zeros(size), torch.zeros(size), torch.zeros(())
    program = trace_program(step, init, task, 0)
    assert len(program.variants) == 2
    numbers = sum(len(variant.numbers) for variant in program.variants)
    tensors = sum(len(variant.tensors) for variant in program.variants)
    features = torch.Size(shape).numel()
    sizes = f"constexpr long SIZE = {size}, FEATURES = {features}, CLASSES = 3;\n"
    sources = {
        "kernel.cpp": emit(read(task, shape, ())),
        "loop.cpp": emit_loop(program.structure),
        "main.cpp": sizes
        + MAIN.replace("16, 0.1f", f"{numbers}, 0.1f")
        .replace("{SIZE, 0}", "{" + ", ".join(["SIZE, 0"] * (tensors // 2)) + "}")
        .replace("{t.data(), t.data()}", "{" + ", ".join(["t.data()"] * tensors) + "}"),
    }
    for file, source in sources.items():
        (tmp_path / file).write_text(source)
    assert COMPILER is not None
    flags = ["-std=c++17", "-O1", "-g", "-pthread", "-w", "-march=native", "-ffp-contract=off"]
    command = [COMPILER, *flags, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    target = tmp_path / "program"
    paths = [str(tmp_path / file) for file in sources]
    subprocess.run([*command, *paths, "-o", str(target)], check=True, timeout=300)
    ran = subprocess.run([target], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "done\n"
