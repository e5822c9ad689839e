"""What `tests/outer/test_failures.py` runs in two processes for each case: `main` with a folder.

Rank 1 fails on its own or ends early, and both write what they were told to FOLDER/CASE-RANK.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud
from tests.support import outer as support

METHOD = ud.FedAvg(lr=0.1)


class Broken(ud.FedAvg):
    """Fails on rank 1 before the ranks have met."""

    def check(self, model: nn.Module) -> None:
        if dist.get_rank() == 1:
            raise TypeError("a method of one's own is wrong")


def made() -> tuple[nn.Module, ud.Outer]:
    model = support.net()
    return model, ud.Outer(model, METHOD, every=2)


def out_of_memory(model: nn.Module) -> Callable[[], Tensor]:
    """Return a closure that fails on rank 1."""

    def closure() -> Tensor:
        loss = support.closure_of(model, support.batch())()
        if dist.get_rank() == 1:
            raise RuntimeError("no memory")
        return loss

    return closure


def closure() -> None:
    """Take a round, and then fail in the second step of the next."""
    model, outer = made()
    support.after(outer, model, 3)
    outer.step(out_of_memory(model))


def closure_caught() -> None:
    """Fail in a step and take it again; then end too early."""
    model, outer = made()
    try:
        outer.step(out_of_memory(model))
    except RuntimeError:
        support.after(outer, model, 1)
    support.after(outer, model, 1 if dist.get_rank() == 1 else 3)


def short_loader() -> None:
    model, outer = made()
    support.after(outer, model, 2 if dist.get_rank() == 1 else 4)


def other_state() -> None:
    model, outer = made()
    outer.load_state_dict({} if dist.get_rank() == 1 else outer.state_dict())
    support.after(outer, model, 2)


def broken_method() -> None:
    ud.Outer(support.net(), Broken(lr=0.1), every=2)


def no_loss() -> None:
    """Return no loss from a closure on rank 1, in the second step of a round."""
    model, outer = made()
    support.after(outer, model, 3)
    outer.step(support.closure_of(model, support.batch()) if dist.get_rank() == 0 else lambda: None)


def grad_scaler() -> None:
    """Step by a GradScaler on rank 1."""
    model = support.net(dtype=torch.float32)
    outer = ud.Outer(model, METHOD, every=1)
    inputs, targets = support.batch()
    loss = cross_entropy(model(inputs.float()), targets)
    if dist.get_rank() == 1:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss).backward()
        scaler.step(outer)
    else:
        loss.backward()
        outer.step()


def second_optimiser() -> None:
    """Let another optimiser change the parameters on rank 1, in the middle of a round."""
    model, outer = made()
    support.after(outer, model, 3)
    if dist.get_rank() == 1:
        support.closure_of(model, support.batch())()
        torch.optim.Adam(model.parameters()).step()
    support.after(outer, model, 1)


CASES = {
    each.__name__: each
    for each in (
        closure,
        closure_caught,
        short_loader,
        other_state,
        broken_method,
        no_loss,
        grad_scaler,
        second_optimiser,
    )
}


def main() -> None:
    folder, number = Path(sys.argv[1]), int(os.environ["RANK"])
    case, rank = list(CASES)[number // 2], number % 2
    torch.set_num_threads(1)
    # A group of the script's own; torchrun's variables would be those of all cases together.
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / case}.store", rank=rank, world_size=2
    )
    said = "nothing was raised"
    try:
        CASES[case]()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    (folder / f"{case}-{rank}").write_text(said)
