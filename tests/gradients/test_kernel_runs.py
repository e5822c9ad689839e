"""Runs with compiled gradients: every method, every mode, and what happens where there are none."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift import builder, tree
from undrift.engine.tuning import select
from undrift.errors import DivergenceError
from undrift.files import part_of
from undrift.gradients.kernels import Kernels
from undrift.testing import finish, start

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
CE = nn.functional.cross_entropy
ADDING = ud.MOON, ud.FedMLB  # to the loss, which is torch's business
SIGNS = ud.SignSGD, ud.SSDM, ud.EFSignSGD, ud.CascadingSSDM, ud.Marsit  # which may flip
EVERY = [cls(lr=0.1) for cls in ud.ALGORITHMS if cls not in ADDING]


def small(algorithm: Any = None, **options: Any) -> ud.Run:
    given = {"dtype": torch.float32, "kernels": "require", **options}
    return start(algorithm or ud.FedAvg(lr=0.1), **given)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def trial_in(folder: Path) -> dict[str, Any]:
    """What the folder of one run says of it."""
    (text,) = (text for p in folder.glob("*.json") if '"facts"' in (text := p.read_text()))
    return json.loads(text)


class TestMethods:
    @pytest.mark.parametrize("algorithm", EVERY, ids=lambda given: type(given).__name__)
    def test_every_method_goes_as_with_torch(self, algorithm: Any) -> None:
        run = small(algorithm, mode="stacked")
        assert run.execution.kernels
        by_torch = small(algorithm, kernels=False)
        assert not by_torch.execution.kernels
        rounds = 1 if isinstance(algorithm, SIGNS) else 4
        for _ in range(rounds):
            next(run), next(by_torch)
        for a, b in zip(tree.leaves(run.state), tree.leaves(by_torch.state), strict=True):
            scale = 1 + float(b.abs().max()) if b.numel() else 1.0
            assert not b.numel() or apart(a, b) < 2e-5 * scale

    @pytest.mark.parametrize(
        "algorithm",
        [ud.FedAvg(lr=0.1), ud.FedSpeed(lr=0.1), ud.Scaffold(lr=0.1), ud.NetFleet(lr=0.1)],
        ids=lambda given: type(given).__name__,
    )
    def test_modes_and_threads_agree(self, algorithm: Any) -> None:
        """FedAvg and the like have no sum whose order depends on the mode: they agree to the bit
        but for the mean over clients."""
        alone = finish(small(algorithm, mode="loop"))
        assert torch.equal(
            finish(small(algorithm, mode="threads", execution=ud.ExecutionOptions(threads=3))),
            alone,
        )
        stacked = finish(small(algorithm, mode="stacked", execution=ud.ExecutionOptions(threads=1)))
        assert apart(stacked, alone) < 1e-6
        assert torch.equal(
            finish(small(algorithm, mode="stacked", execution=ud.ExecutionOptions(threads=4))),
            stacked,
        )

    def test_fedprox_without_its_term_is_fedavg_to_the_bit(self) -> None:
        one, other = small(ud.FedProx(lr=0.1, mu=0.0)), small(ud.FedAvg(lr=0.1))
        assert torch.equal(finish(one), finish(other))

    def test_clip_and_weight_decay_go_around_the_kernel(self) -> None:
        options = {"clip": 0.05, "weight_decay": 0.1, "mode": "stacked"}
        assert apart(finish(small(**options)), finish(small(kernels=False, **options))) < 1e-5

    @pytest.mark.parametrize("cls", ADDING)
    def test_a_method_that_adds_to_the_loss_has_torch(self, cls: Any) -> None:
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Linear(5, 3))
        run = small(cls(lr=0.1), model=net, kernels=True, rounds=10**6)
        assert run.gradients == f"torch (no kernel: {cls.__name__} adds to the loss)"
        with pytest.raises(ValueError, match=f"got {cls.__name__} adds to the loss"):
            small(cls(lr=0.1), model=net)


class TestChoice:
    def test_a_short_run_is_not_worth_it(self) -> None:
        run = small(kernels=True)
        assert not run.execution.kernels
        assert run.gradients == "torch (too short a run to compile a kernel for)"

    def test_the_threshold_is_near_the_time_of_a_build(self) -> None:
        """Equal calls decide alike, whatever lies in the cache; small() has built it before."""
        run = small()
        oracle = run._task.oracle
        assert isinstance(oracle, Kernels)
        assert oracle.chain.build_seconds == 0.25 + 2 * 0.5
        gradients = int(run._planner.plan(0).counts.sum())
        each = 2 * oracle.chain.products * 4 / select.TORCH_FLOPS + select.STEP_SECONDS / 3
        least = 1.5 * (oracle.chain.build_seconds + 0.5) / each / gradients
        assert small(kernels=True, rounds=round(1.1 * least)).execution.kernels
        assert not small(kernels=True, rounds=round(0.9 * least)).execution.kernels

    def test_a_long_run_is(self) -> None:
        run = small(kernels=True, rounds=10**6, mode="auto")
        assert run.execution.kernels
        assert run.mode == "stacked"
        assert "a compiled kernel, " in run.gradients

    def test_what_is_not_supported_is_named(self) -> None:
        net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
        run = small(kernels=True, model=net)
        assert run.gradients == "torch (no kernel: GELU)"
        with pytest.raises(ValueError, match=r"kernels='require' needs .*, got GELU; use"):
            small(model=net)
        with pytest.raises(ValueError, match=r"got parameters of torch.float64"):
            small(dtype=torch.float64)

    @pytest.mark.parametrize("kernels", ["yes", 1, None])
    def test_anything_else_is_refused(self, kernels: Any) -> None:
        with pytest.raises(ValueError, match="kernels as True, False, 'always' or 'require'"):
            small(kernels=kernels)

    def test_a_file_is_told_the_same(self, call: Any, tmp_path: Path) -> None:
        file = tmp_path / "one.toml"
        file.write_text('[engine]\nkernels = "maybe"\n[[methods]]\nname = "fedavg"\n')
        code, _, err = call("run", str(file), "--out", str(tmp_path / "a"))
        assert code == 2
        assert 'kernels needs true, false, "always" or "require", got \'maybe\'' in err

    def test_a_model_that_fits_already_has_a_kernel(self) -> None:
        """Its gradient is rounding alone, in which the two need not agree."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 3))
        clients = ud.Clients([(10 * torch.eye(6)[:3], torch.arange(3))] * 2)
        with torch.no_grad():
            net[0].weight.copy_(2 * torch.eye(3, 6))
        run = small(model=net, clients=clients, work=ud.Steps(1), participation=2)
        assert run.execution.kernels

    def test_what_never_reaches_the_kernel_is_told(self) -> None:
        clients = ud.Clients([(torch.randn(4, 6), torch.ones(4, 3, dtype=torch.int64))] * 2)
        net = nn.Sequential(nn.Linear(6, 3))
        given = {"model": net, "clients": clients, "work": ud.Steps(1), "participation": 2}
        with pytest.raises(ValueError, match=r"torch.int64 under Squared"):
            small(loss=nn.functional.mse_loss, **given)

    def test_an_error_of_the_method_is_its_own(self) -> None:
        @dataclass(frozen=True)
        class Bad(ud.FedAvg):
            def local(self, down: Any, client: Any, steps: Any) -> Any:
                raise RuntimeError("not today")

        with pytest.raises(RuntimeError, match="not today"):
            finish(small(Bad(lr=0.1)))

    def test_a_wrong_gradient_is_never_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = Kernels.gradient
        monkeypatch.setattr(Kernels, "gradient", lambda *given: right(*given) + 0.1)
        with pytest.raises(ValueError, match="differs from torch's by"):
            small()

    def test_it_goes_on_as_it_was_begun(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = finish(small(rounds=6))
        half = small(rounds=3, checkpoint=tmp_path / "a")
        finish(half)
        rest = small(rounds=6, kernels=True, resume=tmp_path / "a")
        assert rest.execution.kernels  # though so short a run would not begin with one
        with pytest.warns(UserWarning, match="goes on with kernels = False"):
            without = small(rounds=6, kernels=False, resume=tmp_path / "a")
        assert not without.execution.kernels
        assert torch.equal(finish(rest), whole)
        finish(small(rounds=3, kernels=False, checkpoint=tmp_path / "b"))
        monkeypatch.setattr(select, "KERNEL_WORTH", 0.0)
        rest = small(rounds=6, kernels=True, resume=tmp_path / "b")
        assert not rest.execution.kernels
        assert rest.gradients == "torch (as it was begun)"

    @pytest.mark.parametrize("kernels", ["always", "require", False])
    def test_a_folders_experiment_is_repeated_with_the_same_bits(
        self,
        call: Any,
        kernels: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        file = tmp_path / "one.toml"
        file.write_text(
            f"[training]\nrounds = 2\n[engine]\nkernels = {json.dumps(kernels)}\n"
            '[[methods]]\nname = "fedavg"\nlr = 0.1\n'
        )
        assert call("run", str(file), "--quiet", "--out", str(tmp_path / "a"))[0] == 0
        monkeypatch.setattr(select, "KERNEL_WORTH", 0.0)
        again = str(tmp_path / "a" / "experiment.toml")
        assert call("run", again, "--quiet", "--out", str(tmp_path / "b"))[0] == 0
        one, other = trial_in(tmp_path / "a"), trial_in(tmp_path / "b")
        assert one["facts"]["kernels"] is other["facts"]["kernels"] is (kernels is not False)
        assert one["model_sha256"] == other["model_sha256"]

    def test_processes_of_which_one_has_no_compiler_agree(self, tmp_path: Path) -> None:
        script = tmp_path / "job.py"
        script.write_text(
            "import os\n"
            "if os.environ['RANK'] == '1':\n"
            "    os.environ['CXX'] = 'no-such-compiler'\n"
            "import torch, undrift as ud\n"
            "from undrift.testing import start\n"
            "run = start(ud.FedAvg(lr=0.1), dtype=torch.float32, kernels='always')\n"
            "for record in run: pass\n"
            "print(f'{run.execution.kernels} {run.gradients}\\n', end='')\n"  # in one piece
        )
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ran = subprocess.run(
            [*torchrun, "--nproc-per-node=2", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count("False torch (no kernel: a process has none)\n") == 2

    def test_the_choice_is_recorded_and_shown(
        self,
        call: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(select, "KERNEL_WORTH", 0.0)
        given = "--rounds", "2", "--out", str(tmp_path / "r"), "--verbose"
        code, out, err = call("run", "fedavg", *given)
        assert code == 0, err
        assert "gradients by a compiled kernel, " in out + err
        facts = trial_in(tmp_path / "r")["facts"]
        assert facts["kernels"] is True
        assert facts["gradients"].startswith("a compiled kernel, ")


class TestBuilder:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(builder, "_loaded", {})
        self.folder = tmp_path / "cache" / "kernels"

    SOURCE = 'extern "C" int answer() { return 42; }'

    def test_builds_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert builder.library(self.SOURCE).answer() == 42
        monkeypatch.setattr(builder, "_loaded", {})
        monkeypatch.setattr(builder, "_compile", None)  # cannot be called
        assert builder.library(self.SOURCE).answer() == 42
        assert sorted(p.suffix for p in self.folder.iterdir()) == [".json", ".so"]

    @pytest.mark.parametrize("damage", ["truncated", "replaced", "unsealed", "half a seal"])
    def test_what_is_damaged_is_built_again(self, damage: str) -> None:
        builder.library(self.SOURCE)
        (kept,), (seal,) = self.folder.glob("*.so"), self.folder.glob("*.json")
        kept_bytes = kept.read_bytes()
        kept.unlink()  # as this process has it loaded
        if damage == "truncated":
            kept.write_bytes(kept_bytes[:200])
        elif damage == "replaced":
            kept.write_bytes(kept_bytes.replace(b"answer", b"nswera"))
        else:
            kept.write_bytes(kept_bytes)
            seal.unlink() if damage == "unsealed" else seal.write_text('{"dig')
        builder._loaded.clear()
        assert builder.library(self.SOURCE).answer() == 42
        assert len(kept.read_bytes()) == len(kept_bytes)
        assert b"answer" in kept.read_bytes()

    @pytest.mark.parametrize(
        ("compiler", "said"),
        [("no-such-compiler -x", "no C\\+\\+ compiler"), ("false", "fails")],
    )
    def test_without_a_compiler_torch_does_it(
        self, compiler: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", compiler)
        run = small(kernels=True, rounds=10**6)
        assert not run.execution.kernels
        assert run.gradients.startswith("torch (no kernel: ")
        with pytest.raises(ValueError, match=said):
            small()
        next(run)

    def test_a_cache_that_cannot_be_written_is_done_without(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cache").write_text("a file")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert builder.library(self.SOURCE).answer() == 42
        assert not list(tmp_path.glob("undrift-kernels-*"))  # loaded, it needs no file
        monkeypatch.setattr(builder, "_compile", None)  # cannot be called
        assert builder.library(self.SOURCE).answer() == 42

    def test_a_cache_may_be_named_from_where_one_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("UNDRIFT_CACHE", "here")
        assert builder.library(self.SOURCE).answer() == 42
        assert len(list((tmp_path / "here" / "kernels").glob("*.so"))) == 1

    def test_the_folder_of_libraries_is_private(self) -> None:
        builder.library(self.SOURCE)
        assert self.folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o077 for path in self.folder.glob("*.so")} == {0}

    @pytest.mark.parametrize(
        "planted", ["by another user", "writable", "in a writable folder", "in another's folder"]
    )
    @pytest.mark.parametrize("above", [0o755, 0o777])
    @pytest.mark.skipif(getattr(os, "getuid", lambda: 1)() != 0, reason="needs root to give away")
    def test_a_library_that_others_may_have_written_is_not_loaded(
        self, planted: str, above: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:  # What is loaded once stays, whatever its file is.
            patch.setattr(builder, "_load", lambda path: None)
            builder.library(self.SOURCE)
        (kept,), (seal,) = self.folder.glob("*.so"), self.folder.glob("*.json")
        source = self.SOURCE.replace("42", "13")
        command = [*builder._compiler(), *builder.FLAGS]
        kept.write_bytes(builder._compile(source, command, self.folder.parent).read_bytes())
        seal.write_text(f'{{"digest": "{builder._digest(kept)}"}}')
        if planted == "by another user":
            os.chown(kept, 4711, 4711)
        elif planted == "writable":
            kept.chmod(0o666)
        elif planted == "in a writable folder":
            self.folder.chmod(0o777)
        else:
            os.chown(self.folder, 4711, 4711)
        self.folder.parent.chmod(above)
        builder._loaded.clear()
        assert builder.library(self.SOURCE).answer() == 42

    def test_what_a_killed_build_has_left_is_swept(self) -> None:
        self.folder.mkdir(parents=True)
        old, new = (part_of(self.folder / "kernel.so") for _ in range(2))
        old.touch(), new.touch()
        os.utime(old, (0, 0))
        builder.library(self.SOURCE)
        assert not old.exists()
        assert new.exists()

    def test_a_compiler_may_have_arguments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))))
        monkeypatch.setenv("CXX", f"{found} -DANSWER=43")
        assert builder.library(self.SOURCE.replace("42", "ANSWER")).answer() == 43

    def test_many_may_start_at_once(self) -> None:
        context = multiprocessing.get_context("spawn")
        with context.Pool(3) as pool:
            assert pool.map(_answer, [self.SOURCE] * 3) == [42] * 3
        assert sorted(p.suffix for p in self.folder.iterdir()) == [".json", ".so"]

    def test_a_forked_child_has_workers_of_its_own(self) -> None:
        run = small(mode="stacked", execution=ud.ExecutionOptions(threads=2), rounds=3)
        next(run)
        child = os.fork()
        if child == 0:
            next(run)
            os._exit(0 if run.round == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        next(run)


def _answer(source: str) -> int:
    return int(builder.library(source).answer())


def test_errors_of_training_are_as_ever() -> None:
    with pytest.raises(DivergenceError):
        finish(small(ud.FedAvg(lr=3e38), mode="stacked", rounds=20))
