"""A rank that fails on its own, or ends early: the others say why, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.jobs import outer_failures as job
from tests.support.system import launch, made_once
from undrift.engine.processes import rendezvous

LOADER = (
    "WorkerError: Rank 1 failed: its script has ended while others wait to meet it; look at its "
    "output, and let all ranks take as many rounds, also where their loaders differ in length."
)
NOTHING = "nothing was raised"
NO_LOSS = (
    "Outer.step needs a closure that returns its loss, got NoneType; end it with `return loss`."
)
SCALER = (
    "Outer needs gradients without a GradScaler, which skips steps on single ranks, got one; use "
    "autocast with bfloat16, which needs none, and call outer.step()."
)
SECOND = (
    "Outer needs to be the only one that changes the model's parameters, got parameters that "
    "another optimiser or the script has changed since the last step; remove the other optimiser, "
    "or call load_state_dict to go on from another state. The model is back where Outer had put it."
)
STATE = "Outer.load_state_dict needs what Outer.state_dict() returned, got 'dict'."
SAID = {  # by rank 0 and by rank 1
    "closure": ("WorkerError: Rank 1 failed: no memory", "RuntimeError: no memory"),
    "closure_caught": (LOADER, NOTHING),
    "short_loader": (LOADER, NOTHING),
    "other_state": (f"WorkerError: Rank 1 failed: {STATE}", f"ValueError: {STATE}"),
    "broken_method": (
        "WorkerError: Rank 1 failed: a method of one's own is wrong",
        "TypeError: a method of one's own is wrong",
    ),
    "no_loss": (f"WorkerError: Rank 1 failed: {NO_LOSS}", f"ValueError: {NO_LOSS}"),
    "grad_scaler": (f"WorkerError: Rank 1 failed: {SCALER}", f"ValueError: {SCALER}"),
    "second_optimiser": (f"WorkerError: Rank 1 failed: {SECOND}", f"ValueError: {SECOND}"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        launch(2 * len(job.CASES), job, str(folder))

    return made_once(tmp_path_factory, "outer-failures", make)


@pytest.mark.parametrize("case", job.CASES)
def test_the_other_rank_says_what_has_failed(case: str, folder: Path) -> None:
    assert tuple((folder / f"{case}-{rank}").read_text() for rank in range(2)) == SAID[case]


def test_a_group_that_cannot_send_from_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("is_initialized", True),
        ("get_world_size", 2),
        ("get_backend_config", "cuda:nccl"),
    ):
        monkeypatch.setattr(dist, name, lambda value=value: value)
    with pytest.raises(ValueError, match=r"also sends from the CPU, got cuda:nccl; call init_proc"):
        rendezvous.join()
