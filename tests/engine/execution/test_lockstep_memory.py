"""How much memory peers take, measured in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import threading, torch, undrift as ud
from torch import nn

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 240), nn.ReLU(), nn.Linear(240, 10),
)
pairs = [(torch.randn(64, 1, 28, 28), torch.randint(10, (64,))) for _ in range(50)]
clients = ud.Clients(pairs)
del pairs
before, peak, over = resident(), 0.0, threading.Event()

def watch():
    global peak
    while not over.wait(0.002):
        peak = max(peak, resident())

threading.Thread(target=watch, daemon=True).start()
run = ud.simulate(
    ud.NetFleet(lr=0.01), model, clients, loss=nn.functional.cross_entropy, work=ud.Steps(3),
    batch_size=32, topology=ud.topology.erdos_renyi(50, 0.5), rounds=2,
    evaluation=ud.EvaluationOptions(node_accuracy=False),
)
for record in run:
    pass
over.set()
print(run.x.shape[1], run.mode, peak - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to be measured")
def test_fifty_workers_with_a_large_cnn_fit() -> None:
    """50 x 200k parameters: 40 MB a vector, of which a round needs about eight."""
    shown = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(shown[0]) > 190_000
    assert float(shown[2]) < 750, f"{shown[2]} MB beyond data and imports"
