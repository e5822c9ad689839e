"""A run computes where it is told to: proven on a stand-in device that mixes with no other.

`tests/support/standin.py` is a device of torch's key PrivateUse1. No GPU was there to run this on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.system import ROOT
from undrift import testing
from undrift.engine import hardware

PACKED = ("Marsit", "CascadingSSDM", "SSDM")  # whose bytes are made on the CPU


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return printed()


@pytest.fixture(scope="module")
def widely() -> dict[str, Any]:
    return printed("wide")


def printed(*words: str) -> dict[str, Any]:
    """Return what `tests/jobs/standin.py` prints, in a process whose torch has the device."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.standin", *words],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_tensor_on_the_wrong_device_fails(found: dict[str, Any]) -> None:
    assert "same device" in found["mixed"]


def test_every_mode_gives_on_the_device_what_it_gives_on_the_cpu(found: dict[str, Any]) -> None:
    for case, each in found.items():
        if isinstance(each, dict):
            require_alike(each, case)


@pytest.mark.long
def test_all_methods_and_features_give_on_the_device_what_they_give_on_the_cpu(
    widely: dict[str, Any],
) -> None:
    assert len(widely) > 88
    for case, each in widely.items():
        require_alike(each, case)
        if not case.startswith((*PACKED, "PSGD", "SignSGD", "EFSignSGD", "lazy")):
            assert each["largest"][:1] <= [4], case


def require_alike(each: dict[str, Any], case: str) -> None:
    for name in ("apart", "loss", "metrics", "clients", "sharpness", "predictions"):
        assert each[name] < 1e-12, (case, name)
    assert each["validated"], case
    assert each["device"] == ["standin", "standin"], case


def test_a_round_copies_to_the_cpu_a_number_a_client_and_no_vector(found: dict[str, Any]) -> None:
    for case, each in found.items():
        if isinstance(each, dict) and not case.startswith(PACKED):
            assert each["largest"][0] <= 4, case


def test_kernels_stay_on_the_cpu_and_say_so(found: dict[str, Any]) -> None:
    assert (
        "kernels compute on the CPU, the model is on standin"
        in found["Scaffold, loop"]["gradients"]
    )


def test_a_run_goes_on_from_a_checkpoint_of_the_device(found: dict[str, Any]) -> None:
    assert found["resumed"]


def test_the_cpu_is_a_device_and_auto_is_what_is_there() -> None:
    plain = testing.finish(testing.start(ud.FedAvg(lr=0.1)))
    assert testing.finish(testing.start(ud.FedAvg(lr=0.1), device="cpu")).equal(plain)
    there = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert there or hardware.as_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:0", "device needs hardware that this machine has, got 'cuda:0'.*say cpu"),
        ("gpu", "auto, cpu, cuda:0 or mps, got 'gpu'; a GPU is 'cuda', or"),
        (0, 'device as "auto"'),
        ("phone", r"got 'phone'; simulated hardware of clients is fleet='phone' \(--fleet phone\)"),
        ("mps", r"got 'mps' \(torch finds no MPS, which Macs have\); say cpu"),
    ],
)
def test_a_device_that_is_not_there(device: Any, message: str) -> None:
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if (cuda and device == "cuda:0") or (mps and device == "mps"):
        pytest.skip("this machine has it")
    with pytest.raises(ValueError, match=message):
        testing.start(ud.FedAvg(lr=0.1), device=device)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_bf16_rounds_the_passes_and_not_the_model(mode: Any) -> None:
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    pair = inputs, (inputs[:, 0] > 0).long()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    clients = ud.Clients([pair, pair])
    exact, rounded = (
        ud.simulate(
            ud.FedAvg(lr=0.1), model, clients, work="steps:3", rounds=2, mode=mode, precision=bits
        )
        for bits in (None, "bf16")
    )
    x, y = testing.finish(exact), testing.finish(rounded)
    assert x.dtype == y.dtype == torch.float32
    assert not x.equal(y)
    assert (x - y).abs().max() < 0.01
    assert "own precision" in rounded.gradients


def test_a_precision_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="precision needs one of fp32, bf16"):
        testing.start(ud.FedAvg(lr=0.1), precision="fp16")
    with pytest.raises(ValueError, match=r"precision bf16 needs a model of float32.*model.float"):
        testing.start(ud.FedAvg(lr=0.1), precision="bf16")
