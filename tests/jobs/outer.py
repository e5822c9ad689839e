"""What `tests/outer/test_ranks.py` runs in 2 and 4 processes: `main` with a folder as its argument.

Every rank writes what it found to FOLDER/found-RANK.json and its models to FOLDER/models-RANK.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # torch.func needs it; so copies of this process need not import it each
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import distribute_module

import undrift as ud
from tests.support import outer as support
from undrift.engine.processes.rendezvous import join
from undrift.outer import agreement

SMALL = ud.FedAvg(lr=0.1)
SAVED = {  # which go on from the middle of each round
    "Scaffold": ud.Scaffold(lr=0.1),
    "error feedback": support.METHODS["error feedback"],
    "DSGD": ud.DSGD(lr=0.1),
    "GTSGD": ud.GTSGD(lr=0.1),
    "NetFleet": ud.NetFleet(lr=0.1),
    "Marsit": ud.Marsit(lr=0.1, server_lr=0.01, period=2, rule=ud.Momentum(0.9), decay=0.5),
}
CONSERVING = {
    "Marsit": ud.Marsit(lr=0.5),
    "Marsit, period": ud.Marsit(lr=0.5, server_lr=0.01, period=3),
    "EFSignSGD": ud.EFSignSGD(lr=0.5),
}


def accepted() -> dict[str, Any]:
    """Return the methods that Outer takes, by name."""
    return {name: m for name, m in support.METHODS.items() if not support.refused(m)}


def refusal(call: Callable[[], Any]) -> str:
    """Return the sentence of the error that the call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def not_a_number(model: nn.Module, rank: int) -> str:
    """Return the sentence about a NaN of one rank, after which the round is taken again."""
    outer = ud.Outer(model, SMALL, every=1)
    before = outer.server.x.clone()
    batch = next(support.Batches(rank, join().size, 1).of(0))
    spoiled = (batch[0] * float("nan"), batch[1]) if rank == 1 else batch
    said = refusal(lambda: outer.step(support.closure_of(model, spoiled)))
    same = torch.equal(before, outer.server.x) and torch.equal(before, model_vector(model))
    outer.step(support.closure_of(model, batch))
    return f"{said} kept={same} t={outer.t}"


def model_vector(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def other_code(outer: Callable[[], ud.Outer], one: bool) -> str:
    """Return what is said where rank 1 has another version of the package."""
    digest = "0" * 32 if one else agreement.code_digest()
    with mock.patch.object(agreement, "code_digest", return_value=digest):
        return refusal(outer)


def own_method(stays: bool) -> ud.FedAvg:
    """Return a method of one's own, which has the same name and fields with another `update`."""

    class Mine(ud.FedAvg):
        if stays:

            def update(self, server: Any, mean: Any, cohort: Any) -> Any:
                return server

        else:

            def update(self, server: Any, mean: Any, cohort: Any) -> Any:
                return super().update(server, mean, cohort)

    return Mine(lr=0.1)


def averaged_later() -> str:
    """Return what the forward pass says of a model that is put into DDP after Outer was made."""
    model = support.net()
    outer = ud.Outer(model, SMALL, every=1)
    around = nn.parallel.DistributedDataParallel(model)
    said = refusal(lambda: around(support.batch()[0]))
    copied = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    support.closure_of(copied, support.batch())()  # a copy is no affair of Outer's
    del outer
    gc.collect()
    return f"{said} Without Outer {refusal(lambda: around(support.batch()[0]))}."


def adamw(parameters: Any, lr: float = 0.02) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr, (0.9, 0.999), weight_decay=0.1)


ADAMW: dict[str, Any] = {  # the same local steps by torch and by the rule
    "AdamW of torch": (ud.DiLoCo(lr=7.0), adamw),
    "AdamW of ours": (ud.DiLoCo(lr=0.02, rule=ud.AdamW(decay=0.1)), None),
}


def mean_over_ranks(own: torch.Tensor) -> torch.Tensor:
    return join().sum(own.clone()) / join().size


def law_under_a_schedule(method: Any, rank: int) -> dict[str, float]:
    """Return how far x minus the mean buffer ever is from the sum of the mean updates.

    The updates are those of a plain loop that begins each round at the model, with a learning rate
    that changes at every step; the least that any rank ever owes comes with it.
    """
    factors = (1.0, 0.1, 3.0, 0.0)
    model, plain = support.net(seed=rank), support.net()
    optimiser = adamw(plain.parameters())
    outer = ud.Outer(model, method, every=3, inner=adamw(model.parameters()))
    scheduler = torch.optim.lr_scheduler.LambdaLR(outer, lambda k: factors[k % len(factors)])
    expected, apart, owed = model_vector(model), 0.0, math.inf
    for t in range(4):
        start = model_vector(model)
        nn.utils.vector_to_parameters(start.clone(), plain.parameters())
        for k in range(3):
            batch = support.batch(100 * rank + 3 * t + k)
            optimiser.param_groups[0]["lr"] = outer.param_groups[0]["lr"]
            optimiser.zero_grad()
            support.closure_of(plain, batch)()
            optimiser.step()
            outer.step(support.closure_of(model, batch))
            scheduler.step()
        expected += mean_over_ranks(model_vector(plain) - start)
        left = outer.server.c if isinstance(method, ud.Marsit) else outer.server.e
        apart = max(apart, float((outer.server.x - mean_over_ranks(left) - expected).abs().max()))
        owed = min(owed, float(left.abs().max()))
    return {"apart": apart, "owed": owed}


def bad_inputs(rank: int) -> dict[str, str]:
    """Return what is said where one rank, or all, have something that does not fit."""
    one = rank == 1
    ring = ud.topology.ring(3)

    def outer(method: Any = SMALL, every: Any = 3, model: Any = None, **options: Any) -> ud.Outer:
        return ud.Outer(support.net() if model is None else model, method, every, **options)

    def extended(name: str, size: int) -> nn.Module:
        model = support.net()
        if name == "buffer":
            model.register_buffer("more", torch.zeros(size))
        else:
            model.more = nn.Parameter(torch.zeros(size), requires_grad=False)
        return model

    batch_norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    mesh = init_device_mesh("cpu", (join().size,))
    on_cpu = {"device_id": torch.device("cpu")}
    averaged = nn.parallel.DistributedDataParallel(support.net())
    return {
        "other method": refusal(lambda: outer(ud.FedProx(lr=0.1) if one else SMALL)),
        "other lr": refusal(lambda: outer(ud.FedAvg(lr=0.2) if one else SMALL)),
        "other every": refusal(lambda: outer(every=4 if one else 3)),
        "other model": refusal(lambda: outer(model=nn.Linear(6, 4).double() if one else None)),
        "other buffer": refusal(lambda: outer(model=extended("buffer", 2 + one))),
        "more frozen": refusal(lambda: outer(model=extended("frozen", 2) if one else None)),
        "other code": other_code(outer, one),
        "other code of one's own": refusal(lambda: outer(own_method(stays=one))),
        "other code inside": refusal(lambda: outer(ud.Accelerated(own_method(stays=one)))),
        "batch norm": refusal(lambda: outer(model=batch_norm)),
        "batch norm on one": refusal(lambda: outer(model=batch_norm if one else None)),
        "no weight on one": refusal(lambda: outer(weight=0.0 if one else 1.0)),
        "weights of peers": refusal(lambda: outer(ud.Marsit(lr=0.1), weight=1.0 + one)),
        "topology": refusal(lambda: outer(ud.DSGD(lr=0.1), topology=ring)),
        "steps of Marsit": refusal(
            lambda: outer(ud.Marsit(lr=0.1), every=[3] * (join().size - 1) + [4])
        ),
        "DTensor": refusal(lambda: outer(model=distribute_module(support.net(), mesh))),
        "FSDP": refusal(lambda: outer(model=FullyShardedDataParallel(support.net(), **on_cpu))),
        "FSDP 2": refusal(lambda: outer(model=fully_shard(support.net(), mesh=mesh))),
        "DDP": refusal(lambda: outer(model=averaged)),
        "DDP later": averaged_later(),
        "not a number": not_a_number(support.net(), rank),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    world = join()
    rank, size = world.rank, world.size
    found: dict[str, Any] = {"bytes": {}}
    models: dict[str, torch.Tensor] = {}
    for name, method in accepted().items():
        outer = support.trained(method, rank, size)
        models[name] = outer.server.x.clone()
        found["bytes"][name] = outer.bytes_sent
        if isinstance(method, ud.Peer):
            models[f"{name} | average"] = outer.average()
    torus = {"allreduce": f"torus:2x{size // 2}"}
    for method in (ud.Marsit(lr=0.1), ud.SignSGD(lr=0.1)):
        models[f"{method!r} | torus"] = support.trained(method, rank, size, **torus).server.x
    for name, method in SAVED.items():
        # All ranks load at the same step, so all have as many.
        whole = support.trained(method, rank, size, every=[3] * size)
        loaded = support.trained(
            method, rank, size, every=[3] * size, interrupt=support.saved_and_loaded
        )
        models[f"{name} | whole"], models[f"{name} | loaded"] = whole.server.x, loaded.server.x
    for name, (method, inner) in ADAMW.items():
        models[name] = support.trained(method, rank, size, inner=inner).server.x.clone()
    found["law"] = {name: law_under_a_schedule(method, rank) for name, method in CONSERVING.items()}
    found["said"] = bad_inputs(rank)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    save_file({k: v.contiguous() for k, v in models.items()}, folder / f"models-{rank}")
    world.close()
