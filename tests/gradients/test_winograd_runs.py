"""Runs whose wide convolutions are compiled: who uses them, and what is recorded and resumed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift import builder
from undrift.engine.tuning import select
from undrift.gradients.winograd import Winograd, library
from undrift.testing import finish

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
SIGNS = ud.SignSGD, ud.SSDM, ud.EFSignSGD, ud.CascadingSSDM, ud.Marsit  # which may flip
BY_WINOGRAD = "torch, 3 of 4 convolutions by Winograd"


class Wide(nn.Module):
    """A residual net with convolutions wide enough and one that is not."""

    blocks = ("stem", "body")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.body = nn.Sequential(
            *(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(2, 32), nn.Tanh()),
            *(nn.Conv2d(32, 40, 3, padding=1), nn.AvgPool2d(2), nn.Tanh()),
            *(nn.Conv2d(40, 48, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.classifier = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        return self.classifier(self.body(h))


def clients(number: int = 4) -> ud.Clients:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(number * 9, 3, 10, 10, generator=generator)
    targets = torch.randint(0, 3, (number * 9,), generator=generator)
    return ud.Clients([(inputs[i::number], targets[i::number]) for i in range(number)])


def start(algorithm: Any = None, **options: Any) -> ud.Run:
    given: dict[str, Any] = {
        "loss": F.cross_entropy,
        "work": ud.Steps(2),
        "batch_size": 6,
        "rounds": 2,
        "mode": "loop",
        "kernels": "always",
        **options,
    }
    algorithm = algorithm or ud.FedAvg(lr=0.1)
    if isinstance(algorithm, ud.Gossip):
        given.setdefault("topology", ud.topology.ring(4))
    return ud.simulate(algorithm, given.pop("model", None) or Wide(), clients(), **given)


class TestMethods:
    @pytest.mark.wide(daily=lambda chosen: chosen["cls"] in (ud.FedAvg, ud.FedSpeed, ud.MOON))
    @pytest.mark.parametrize("cls", [cls for cls in ud.ALGORITHMS if cls not in SIGNS])
    def test_every_method_goes_as_with_torch(self, cls: Any) -> None:
        run, by_torch = start(cls(lr=0.05)), start(cls(lr=0.05), kernels=False)
        assert run.execution.kernels
        assert not by_torch.execution.kernels
        ours, theirs = finish(run), finish(by_torch)
        assert not torch.equal(ours, theirs)
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5

    def test_clients_on_threads_have_the_bits_of_one_at_a_time(self) -> None:
        options = [ud.ExecutionOptions(threads=n) for n in (2, 3)]
        alone = finish(start())
        for each in options:
            assert torch.equal(finish(start(mode="threads", execution=each)), alone)

    def test_dropout_is_keyed_as_before(self) -> None:
        model = nn.Sequential(Wide(), nn.Dropout(0.5))
        ours, theirs = finish(start(model=model)), finish(start(model=model, kernels=False))
        assert not torch.equal(ours, theirs)
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5

    def test_evaluation_and_sharpness_are_torchs_own(self) -> None:
        """Second derivatives must not be lost, and evaluation does not depend on the oracle."""
        options = {"rounds": 1, "evaluation": ud.EvaluationOptions(sharpness=True)}
        frozen = ud.FedAvg(lr=1e-12)  # so that both are evaluated at the same model
        ours, theirs = (next(start(frozen, kernels=k, **options)) for k in ("always", False))
        assert ours.loss == theirs.loss
        assert ours.hessian == theirs.hessian


class TestChoice:
    def test_is_told(self) -> None:
        run = start()
        assert run.gradients == BY_WINOGRAD
        assert isinstance(run._task.oracle, Winograd)

    def test_a_short_run_is_not_worth_it(self) -> None:
        run = start(kernels=True)
        assert run.gradients == "torch (too short a run to compile convolutions for)"
        assert not run.execution.kernels
        assert start(kernels=True, rounds=10**6).gradients == BY_WINOGRAD

    def test_equal_calls_choose_alike_whatever_is_in_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(select, "WINOGRAD_SECONDS", 0.0)
        first = start(kernels=True).execution
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
        assert start(kernels=True).execution == first

    def test_kernels_off_is_torch(self) -> None:
        assert start(kernels=False).gradients == "torch (kernels are off)"

    def test_stacked_clients_and_compile_have_torch(self) -> None:
        assert start(mode="stacked").gradients.startswith("torch (no kernel: ")
        compiled = start(execution=ud.ExecutionOptions(compile=True))
        assert compiled.gradients == "torch.compile"
        assert not compiled.execution.kernels

    def test_double_precision_has_torch(self) -> None:
        run = start(model=Wide().double())
        assert run.gradients == "torch (no kernel: parameters of torch.float64)"

    def test_it_may_be_required(self) -> None:
        assert start(kernels="require").gradients == BY_WINOGRAD

    def test_without_a_compiler_torch_does_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
        monkeypatch.setenv("CXX", "no-such-compiler")
        monkeypatch.setattr(builder, "_loaded", {})
        run = start()
        assert run.gradients == "torch (no kernel: no C++ compiler (no-such-compiler not found))"
        with pytest.raises(ValueError, match=r"kernels='require' needs .*no C\+\+ compiler"):
            start(kernels="require")
        finish(run)

    def test_a_library_that_computes_something_else_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = library.Convolutions.forward
        wrong = lambda *given: right(*given) * 1.001  # noqa: E731
        monkeypatch.setattr(library.Convolutions, "forward", wrong)
        library._checked.cache_clear()
        assert "a compiled convolution that is wrong by" in start().gradients

    def test_it_goes_on_as_it_was_begun(self, tmp_path: Path) -> None:
        whole = finish(start(rounds=3))
        finish(start(rounds=2, checkpoint=tmp_path / "a"))
        rest = start(rounds=3, kernels=True, resume=tmp_path / "a")
        assert rest.gradients == BY_WINOGRAD  # though so short a run would not begin with it
        assert torch.equal(finish(rest), whole)
        finish(start(rounds=2, kernels=False, checkpoint=tmp_path / "b"))
        rest = start(rounds=3, kernels=True, resume=tmp_path / "b")
        assert rest.gradients == "torch (as it was begun)"

    @pytest.mark.long
    def test_processes_of_which_one_has_no_compiler_agree(self, tmp_path: Path) -> None:
        script = tmp_path / "job.py"
        script.write_text(
            "import os\n"
            "if os.environ['RANK'] == '1':\n"
            "    os.environ['CXX'] = 'no-such-compiler'\n"
            "    os.environ['UNDRIFT_CACHE'] = 'none'\n"
            "from tests.gradients.test_winograd_runs import start\n"
            "run = start()\n"
            "for record in run: pass\n"
            "print(f'{run.execution.kernels} {run.gradients}\\n', end='')\n"  # in one piece
        )
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ran = subprocess.run(
            [*torchrun, "--nproc-per-node=2", str(script)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count("False torch (no kernel: a process has none)\n") == 2
