"""`undrift run` under torchrun, where each rank has the data of its own clients alone.

`make test-federation` runs it, since starting Python in so many processes takes long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import PROGRAM
from tests.support.system import ROOT
from undrift.runs.saved_model import SavedModel

CODE = """
import os
import torch
import undrift as ud

def of(rank):
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(60 + 20 * rank, 5, generator=generator)
    targets = (inputs.sum(1) > rank).long()
    half = len(inputs) // 2
    return [(inputs[:half], targets[:half]), (inputs[half:], targets[half:])]

def load():
    own = of(int(os.environ["RANK"]))
    return ud.Clients.here(own, test=own[0])

def everything():
    both = of(0) + of(1)
    test = [torch.cat([both[0][k], both[2][k]]) for k in (0, 1)]
    return ud.Clients(both, test=tuple(test))
"""
METHODS = {"scaffold": ["--participation", "1.0"], "netfleet": ["--topology", "ring"]}
COMMON = ["--lr", "0.1", "--rounds", "3", "--work", "steps:2", "--batch-size", "10", "--quiet"]


def command(method: str, data: str, out: str) -> list[str]:
    options = METHODS[method]
    return ["run", method, *options, *COMMON, "--data", data, "--out", out]


def final(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "records.jsonl").read_text().splitlines()[-1])
    return record


@pytest.mark.long
def test_commands_with_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., tuple[int, str, str]]
) -> None:
    """Data by code, for a method with a server and for peers, and a table of each rank."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    Path("program.py").write_text(PROGRAM)
    for rank in range(2):
        ages = range(20 + 20 * rank, 70 + 20 * rank)
        rows = [f"{age},{ward},{age > 55}" for age in ages for ward in ("a", f"only {rank}")]
        Path(f"patients-{rank}.csv").write_text("\n".join(["age,ward,stays", *rows]))
    commands = [command(method, "mine.py:load", f"own-{method}") for method in METHODS]
    commands.append(command("scaffold", "patients-{rank}.csv:target=stays,here=true", "tables"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--monitor-interval", "0.2"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*torchrun, "program.py", json.dumps(commands)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for method in METHODS:
        code, _, errors = call(*command(method, "mine.py:everything", f"all-{method}"))
        assert code == 0, errors
        mine, alone = final(Path(f"own-{method}")), final(Path(f"all-{method}"))
        assert mine["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert mine["gradients"] == alone["gradients"]
    assert final(Path("tables"))["clients"] == 2
    columns = {each.name: each for each in SavedModel.read("tables").preprocessing.columns}
    assert set(columns["ward"].categories) == {"a", "only 0", "only 1"}
