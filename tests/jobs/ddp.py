"""What `test_ddp.py` launches: trains with the hooks on several processes, writes what came out.

    python tests/jobs/ddp.py FOLDER 2 4 [--long]

For each number of processes: all scenarios, then new processes that resume what the first have
saved. Rank r's results go to FOLDER/<processes>/<r>.pt and resumed-<r>.pt; the tests judge them.
Processes are forked once everything is imported, since an import takes longer than a scenario.
"""

import contextlib
import hashlib
import io
import multiprocessing
import os
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import undrift as ud
from tests.support.system import ROOT
from undrift import ddp

LR = 0.5  # a power of two, so that scaling by it rounds nothing
DIM = 37
STEPS = 5
TO = 20 if "--long" in sys.argv else 8  # steps of a run that is resumed half-way

# name: (state, hook, settings, the simulator's method with the same key)
ONE_PARAMETER: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "marsit": (
        ddp.MarsitState,
        ddp.marsit_hook,
        {"server_lr": 0.03, "seed": 4},
        ud.Marsit(LR, server_lr=LR * 0.03),
    ),
    "marsit-3": (
        ddp.MarsitState,
        ddp.marsit_hook,
        {"server_lr": 0.03, "period": 3, "seed": 4},
        ud.Marsit(LR, server_lr=LR * 0.03, period=3),
    ),
    "marsit-tree": (
        ddp.MarsitState,
        ddp.marsit_hook,
        {"server_lr": 0.03, "seed": 4, "allreduce": "tree"},
        ud.Marsit(LR, server_lr=LR * 0.03),
    ),
    "marsit-torus": (
        ddp.MarsitState,
        ddp.marsit_hook,
        {"server_lr": 0.03, "seed": 4, "allreduce": "torus"},
        ud.Marsit(LR, server_lr=LR * 0.03),
    ),
    "psgd": (ddp.MarsitState, ddp.marsit_hook, {"period": 1}, ud.PSGD(LR)),
    "sign": (
        ddp.SignState,
        ddp.sign_majority_hook,
        {"server_lr": 0.01},
        ud.SignSGD(LR, server_lr=LR * 0.01),
    ),
    "sign-omega": (
        ddp.SignState,
        ddp.sign_majority_hook,
        {"server_lr": 0.01, "code": "omega"},
        ud.SignSGD(LR, server_lr=LR * 0.01, code="omega"),
    ),
    "ef": (ddp.EFSignState, ddp.ef_sign_hook, {}, ud.EFSignSGD(LR)),
    "ef-gamma": (
        ddp.EFSignState,
        ddp.ef_sign_hook,
        {"code": "gamma"},
        ud.EFSignSGD(LR, code="gamma"),
    ),
    "ssdm": (
        ddp.SSDMState,
        ddp.ssdm_hook,
        {"beta": 0.75, "seed": 4},
        ud.SSDM(LR, beta=0.75),
    ),
}

# name: (state, hook, settings)
HOOKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "marsit": (ddp.MarsitState, ddp.marsit_hook, {"server_lr": 0.01, "seed": 1}),
    "marsit-4": (ddp.MarsitState, ddp.marsit_hook, {"server_lr": 0.01, "period": 4, "seed": 1}),
    "sign": (ddp.SignState, ddp.sign_majority_hook, {"server_lr": 0.01}),
    "ef": (ddp.EFSignState, ddp.ef_sign_hook, {}),
    "ssdm": (ddp.SSDMState, ddp.ssdm_hook, {"scale": "max", "seed": 1}),
}

PLAIN = [name for name in HOOKS if name != "marsit-4"]
ANY_BUCKETS = ("marsit-4",)  # which are also resumed with other buckets


def problem(world: int) -> ud.data.Quadratics:
    return ud.data.quadratics(world, DIM, samples=40, seed=3)


class Net(nn.Module):
    """Five parameters, one of which only some inputs use."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 17, dtype=dtype)
        self.second = nn.Linear(17, 9, dtype=dtype)
        self.sometimes = nn.Linear(17, 9, bias=False, dtype=dtype)

    def forward(self, inputs: Tensor, *, wide: bool = True) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        out: Tensor = self.second(hidden)
        return out + self.sometimes(hidden) if wide else out


def batch(rank: int, t: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Of this rank at this step: inputs, and the class that the largest of them names."""
    rng = torch.Generator().manual_seed(1000 * t + rank)
    inputs = torch.randn(32, 6, generator=rng)
    return inputs.to(dtype), inputs.argmax(1)


def several_buckets(net: nn.Module, **options: Any) -> DistributedDataParallel:
    """First one bucket, then two: the cap is somewhat less than half."""
    nbytes = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters())
    return DistributedDataParallel(net, **{"bucket_cap_mb": 0.45 * nbytes / 2**20, **options})


def digest(model: nn.Module) -> str:
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        hashed.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def sentence(action: Callable[[], object]) -> str:
    """How the action failed."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# Scenarios


def one_parameter(rank: int, world: int) -> dict[str, Any]:
    """The path of x on quadratics, whole local data at every step."""
    bed, paths = problem(world), {}
    inputs, targets = bed.clients[rank]
    for name, (State, hook, settings, _) in ONE_PARAMETER.items():
        model = DistributedDataParallel(bed.model())
        model.register_comm_hook(State(**settings), hook)
        optimiser = torch.optim.SGD(model.parameters(), LR)
        path = []
        for _ in range(STEPS):
            optimiser.zero_grad()
            bed.loss(model(inputs), targets).backward()
            optimiser.step()
            path.append(flat(model.parameters()))
        paths[name] = torch.stack(path)
    return paths


def several_parameters(rank: int, world: int) -> dict[str, Any]:
    """Gradients, buffers, models and bytes of every step, with several buckets."""
    results = {}
    for name, (State, hook, settings) in HOOKS.items():
        net = Net(torch.float64)
        model, state = several_buckets(net), State(**settings)
        calls: list[list[list[int]]] = []

        def watched(state, bucket, hook=hook, calls=calls):
            calls[-1].append([parameter.numel() for parameter in bucket.parameters()])
            return hook(state, bucket)

        model.register_comm_hook(state, watched)
        optimiser = torch.optim.SGD(model.parameters(), LR)
        log: dict[str, list[Any]] = {"x": [flat(net.parameters())], "g": [], "c": [], "bytes": []}
        for t in range(STEPS):
            inputs, targets = batch(rank, t, torch.float64)
            calls.append([])
            loss = nn.functional.cross_entropy(net(inputs), targets)
            log["g"].append(flat(torch.autograd.grad(loss, list(net.parameters()))))
            optimiser.zero_grad()
            before = state.bytes_sent
            nn.functional.cross_entropy(model(inputs), targets).backward()
            log["bytes"].append(state.bytes_sent - before)
            optimiser.step()
            log["x"].append(flat(net.parameters()))
            held = state.state_dict()["buffers"]
            log["c"].append(flat(held[n] for n in reversed(range(len(held)))) if held else None)
        results[name] = {**log, "buckets": calls, "step": state.step}
    return results


SCHEDULE = (1.0, 0.1, 0.0, 2.0, 0.5)  # of the learning rate, in units of LR


def schedules(rank: int, world: int) -> dict[str, Any]:
    """Gradients, updates that are owed, and models under a schedule that the states know of."""
    results = {}
    for name, (State, hook, settings) in HOOKS.items():
        if State not in (ddp.MarsitState, ddp.EFSignState):
            continue
        net = Net(torch.float64)
        model = several_buckets(net)
        optimiser = torch.optim.SGD(model.parameters(), LR)
        model.register_comm_hook(state := State(optimizer=optimiser, **settings), hook)
        log: dict[str, list[Any]] = {"x": [flat(net.parameters())], "g": [], "c": []}
        for t, factor in enumerate(SCHEDULE):
            optimiser.param_groups[0]["lr"] = LR * factor
            inputs, targets = batch(rank, t, torch.float64)
            loss = nn.functional.cross_entropy(net(inputs), targets)
            log["g"].append(flat(torch.autograd.grad(loss, list(net.parameters()))))
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
            log["x"].append(flat(net.parameters()))
            held = state.state_dict()["buffers"]
            log["c"].append(flat(held[n] for n in reversed(range(len(held)))))
        results[name] = log
    return results


def train(
    name: str,
    rank: int,
    steps: range,
    *,
    loaded: Any = None,
    halfway: str = "",
    optimiser: Any = None,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[dict[str, Any], list[float]]:
    """A checkpoint after these steps, and the loss at each."""
    State, hook, settings = HOOKS[name]
    net = Net(dtype)
    if loaded is not None:
        net.load_state_dict(loaded["model"])
    model, state = several_buckets(net, **options), State(**settings)
    model.register_comm_hook(state, hook)
    make = optimiser or (lambda parameters: torch.optim.SGD(parameters, 0.3, momentum=0.9))
    optimiser = make(model.parameters())
    if loaded is not None:
        optimiser.load_state_dict(loaded["optimiser"])
        state.load_state_dict(loaded["hook"])

    def checkpoint() -> dict[str, Any]:
        return {
            "model": net.state_dict(),
            "optimiser": optimiser.state_dict(),
            "hook": state.state_dict(),
            "digest": digest(net),
        }

    losses = []
    for t in steps:
        if halfway and 2 * t == len(steps):
            torch.save(checkpoint(), halfway)
        inputs, targets = batch(rank, t, dtype)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return checkpoint(), losses


def file_of(name: str, rank: int) -> str:
    """In the folder of the world size, where the processes are."""
    return f"{name}-{rank}.checkpoint"


def resume(rank: int, world: int) -> dict[str, Any]:
    """All steps with a checkpoint half-way, and the second half anew with other buckets."""
    results = {}
    for name in HOOKS:
        runs = {"whole": train(name, rank, range(TO), halfway=file_of(name, rank))}
        if name in ANY_BUCKETS:
            runs["one bucket"] = second_half(name, rank, bucket_cap_mb=25)
            runs["unused"] = second_half(name, rank, find_unused_parameters=True)
        results[name] = {key: saved["digest"] for key, (saved, _) in runs.items()}
    return results


def second_half(name: str, rank: int, **options: Any) -> tuple[dict[str, Any], list[float]]:
    loaded = torch.load(file_of(name, rank), weights_only=True)
    return train(name, rank, range(TO // 2, TO), loaded=loaded, **options)


def resume_in_new_processes(rank: int, world: int) -> dict[str, Any]:
    return {name: second_half(name, rank)[0]["digest"] for name in HOOKS}


def learning(rank: int, world: int) -> dict[str, Any]:
    runs: dict[str, tuple[str, Any]] = {
        "marsit-momentum": ("marsit", partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        "marsit-adam": ("marsit", partial(torch.optim.Adam, lr=0.02)),
        "sign-momentum": ("sign", partial(torch.optim.SGD, lr=0.3, momentum=0.9)),
        "ef-momentum": ("ef", partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        "ssdm-momentum": ("ssdm", partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    }
    results = {}
    for key, (name, optimiser) in runs.items():
        saved, losses = train(name, rank, range(12), optimiser=optimiser, bucket_cap_mb=25)
        results[key] = {"losses": losses, "digest": saved["digest"]}
    return results


def dtypes(rank: int, world: int) -> dict[str, Any]:
    results = {}
    for dtype in (torch.float16, torch.bfloat16):
        for name in PLAIN if dtype == torch.float16 else ("marsit",):
            saved, losses = train(name, rank, range(6), dtype=dtype, bucket_cap_mb=25)
            kept = {str(buffer.dtype) for buffer in saved["hook"]["buffers"].values()}
            results[f"{name}-{dtype}"] = {
                "losses": losses,
                "digest": saved["digest"],
                "kept": sorted(kept),
            }
    return results


def unused(rank: int, world: int) -> dict[str, Any]:
    """A parameter that only rank 0 uses, and in the last steps nobody."""
    results = {}
    for name in PLAIN:
        State, hook, settings = HOOKS[name]
        net = Net()
        model = several_buckets(net, find_unused_parameters=True)
        model.register_comm_hook(State(**settings), hook)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        start = net.sometimes.weight.detach().clone()
        losses, after_some = [], start
        for t in range(4):
            inputs, targets = batch(rank, t)
            optimiser.zero_grad()
            wide = rank == 0 and t < 3
            loss = nn.functional.cross_entropy(model(inputs, wide=wide), targets)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            if t == 2:
                after_some = net.sometimes.weight.detach().clone()
        results[name] = {
            "digest": digest(net),
            "losses": losses,
            "moved": float((after_some - start).abs().max()),
            "moved later": float((net.sometimes.weight.detach() - after_some).abs().max()),
        }
    return results


def numbering(rank: int, world: int) -> dict[str, Any]:
    """The number of each parameter of a deeper net, by DDP's options."""
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "one bucket": {"bucket_cap_mb": 25},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
    }
    results = {}
    for way, options in ways.items():
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(11, 11) for _ in range(6)))
        names = {parameter: name for name, parameter in net.named_parameters()}
        model, state = several_buckets(net, **options), ddp.SignState()
        seen: list[list[str]] = []

        def watched(state, bucket, seen=seen, names=names):
            seen[-1].append(" ".join(names[parameter] for parameter in bucket.parameters()))
            return ddp.sign_majority_hook(state, bucket)

        model.register_comm_hook(state, watched)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for t in range(4 if way == "static" else 3):
                seen.append([])
                if t == 0 and way != "static":
                    with model.no_sync():  # which must not count as the first step
                        model(torch.ones(1, 11)).sum().backward()
                    continue
                model(torch.ones(1, 11)).sum().backward()
        numbers = {names[parameter]: number for parameter, number in state._numbers.items()}
        results[way] = {"numbers": numbers, "seen": seen}
    return results


def join(rank: int, world: int) -> dict[str, Any]:
    """Rank r has 2 + r batches; who has no more takes part with zero gradients."""
    results = {}
    for name in PLAIN:
        State, hook, settings = HOOKS[name]
        net = Net(torch.float64)
        model, state = several_buckets(net), State(**settings)
        model.register_comm_hook(state, hook)
        optimiser = torch.optim.SGD(model.parameters(), LR)
        start, total = flat(net.parameters()), torch.zeros(0)
        with model.join():
            for t in range(2 + rank):
                inputs, targets = batch(rank, t, torch.float64)
                loss = nn.functional.cross_entropy(net(inputs), targets)
                g = flat(torch.autograd.grad(loss, list(net.parameters())))
                total = g if t == 0 else total + g
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
        held = state.state_dict()["buffers"]
        results[name] = {
            "x0": start,
            "x": flat(net.parameters()),
            "g": total,
            "c": flat(held[n] for n in reversed(range(len(held)))) if held else None,
            "step": state.step,
            "digest": digest(net),
        }
    return results


def not_finite(rank: int, world: int) -> dict[str, Any]:
    """The last rank's second batch makes a gradient that is not finite."""
    full = (ddp.MarsitState, ddp.marsit_hook, {"period": 1})
    results = {}
    for name, (State, hook, settings) in {**HOOKS, "full": full}.items():
        for value in (torch.nan, torch.inf) if name in ("marsit", "full") else (torch.nan,):
            model = several_buckets(Net())
            model.register_comm_hook(State(**settings), hook)

            def steps(model: nn.Module = model, value: float = value) -> None:
                for t in range(3):
                    out = model(batch(rank, t)[0]).mean()
                    (out * value if rank == world - 1 and t == 1 else out).backward()

            results[f"{name}-{value}"] = sentence(steps)
    return results


def leaving(rank: int, world: int) -> dict[str, Any]:
    """The last rank has two batches, the others four; they wait no longer than the timeout."""
    results = {}
    ddp.PATIENCE = 0.5
    for period in (None, 1):
        group = dist.new_group(timeout=timedelta(seconds=1))
        model = several_buckets(Net(), process_group=group)
        state = ddp.MarsitState(server_lr=0.01, period=period, process_group=group)
        model.register_comm_hook(state, ddp.marsit_hook)

        def steps(model: nn.Module = model) -> None:
            for t in range(2 if rank == world - 1 else 4):
                model(batch(rank, t)[0]).mean().backward()

        began = time.monotonic()
        said = sentence(steps)
        results[str(period)] = {"said": said, "seconds": time.monotonic() - began}
        dist.barrier()
    return results


def disagreement(rank: int, world: int) -> dict[str, Any]:
    """The last rank has other settings, or begins at another step."""

    def backward(state: Any) -> Any:
        model = DistributedDataParallel(Net())
        model.register_comm_hook(state, ddp.marsit_hook)
        return sentence(lambda: model(batch(rank, 0)[0]).mean().backward())

    odd = rank == world - 1
    other = ddp.MarsitState(server_lr=0.02 if odd else 0.01, period=1)
    late = ddp.MarsitState(period=2)
    late.load_state_dict({**late.state_dict(), "step": 3 if odd else 2})
    return {"settings": backward(other), "step": backward(late)}


def refusals(rank: int, world: int) -> dict[str, str]:
    """What each rank is told of states, routes and models that do not fit."""
    saved = train("marsit", rank, range(2))[0]["hook"]
    _, hook, settings = HOOKS["marsit"]

    def load(change: dict[str, Any], State: Any = ddp.MarsitState) -> str:
        return sentence(lambda: State().load_state_dict({**saved, **change}))

    def run(net: nn.Module, state: Any, hook: Any = hook, **options: Any) -> str:
        model = DistributedDataParallel(net, **options)
        model.register_comm_hook(state, hook)
        return sentence(lambda: model(torch.ones(2, 6)).sum().backward())

    def with_state(change: dict[str, Any]) -> Any:
        state = ddp.MarsitState(**settings)
        state.load_state_dict({**saved, **change})
        return state

    shapes = saved["shapes"]
    used = ddp.MarsitState(**settings)
    return {
        "torus": sentence(lambda: ddp.MarsitState(allreduce="torus:3x3")),
        "segments": sentence(lambda: ddp.EFSignState(allreduce="segmented-ring")),
        "route": sentence(lambda: ddp.SSDMState(allreduce="rign")),
        "server_lr": sentence(lambda: ddp.MarsitState(server_lr=0.0)),
        "period": sentence(lambda: ddp.MarsitState(period=0)),
        "seed": sentence(lambda: ddp.SSDMState(seed=0.5)),  # type: ignore[arg-type]
        "beta": sentence(lambda: ddp.SSDMState(beta=1.0)),
        "code": sentence(lambda: ddp.SignState(code="gama")),  # type: ignore[arg-type]
        "hook": load({}, ddp.EFSignState),
        "world": load({"world_size": world + 1}),
        "rank": load({"rank": (rank + 1) % world}),
        "keys": sentence(lambda: ddp.MarsitState().load_state_dict({"step": 1})),
        "kind": sentence(lambda: ddp.MarsitState().load_state_dict([])),  # type: ignore[arg-type]
        "shape": run(Net(), with_state({"shapes": [[9, 18], *shapes[1:]]})),
        "fewer": run(Net(), with_state({"shapes": shapes[:-1]})),
        "more": run(Net(), with_state({"shapes": [*shapes, [3]]})),
        "no error": run(Net(), used),
        "two models": run(Net(), used),
        "other hook": run(Net(), ddp.SignState()),
        "sparse": run(Sparse(), ddp.MarsitState(**settings)),
    }


def example(rank: int, world: int) -> dict[str, Any]:
    """examples/ddp_onebit.py as it stands, in the group that is there already."""
    path = ROOT / "examples" / "ddp_onebit.py"
    printed = io.StringIO()
    begin, end = dist.init_process_group, dist.destroy_process_group
    dist.init_process_group = dist.destroy_process_group = lambda *args, **options: None
    try:
        with contextlib.redirect_stdout(printed):
            names = runpy.run_path(str(path), run_name="__main__")
    finally:
        dist.init_process_group, dist.destroy_process_group = begin, end
    return {
        "printed": printed.getvalue(),
        "accuracy": names["accuracy"],
        "bits": names["bits"],
        "size": names["size"],
        "digest": digest(names["model"]),
    }


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=True)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.table(inputs.long())
        return out


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        one_parameter,
        several_parameters,
        schedules,
        resume,
        learning,
        dtypes,
        unused,
        numbering,
        join,
        not_finite,
        disagreement,
        refusals,
        example,
        leaving,  # last, since it breaks its groups
    )
}


def work(rank: int, world: int, folder: Path, prefix: str, scenarios: dict[str, Any]) -> None:
    """One process."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    torch.set_num_threads(1)
    early: list[Any] = []  # made where there is no group yet for it to fit
    unfit = sentence(lambda: early.append(ddp.MarsitState(allreduce="torus:3x3")))
    store = dist.FileStore(str(folder / f"{prefix}store"), world)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    model = DistributedDataParallel(Net())
    model.register_comm_hook(early[0], ddp.marsit_hook)
    late = sentence(lambda: model(batch(rank, 0)[0]).sum().backward())
    results: dict[str, Any] = {"before the group": unfit, "late torus": late, "seconds": {}}
    for name, scenario in scenarios.items():
        began = time.monotonic()
        results[name] = scenario(rank, world)
        results["seconds"][name] = time.monotonic() - began
        dist.barrier()
    torch.save(results, folder / f"{prefix}{rank}.pt")
    dist.destroy_process_group()


def launch(world: int, folder: Path, prefix: str, scenarios: dict[str, Any]) -> None:
    fork = multiprocessing.get_context("fork")
    arguments = (world, folder, prefix, scenarios)
    ranks = [fork.Process(target=work, args=(rank, *arguments)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        sys.exit(f"{world} processes ended with {[process.exitcode for process in ranks]}")


def main(folder: Path, worlds: list[int], *, long: bool) -> None:
    ud.data.digits()  # imports what the example needs
    for world in worlds:
        own = folder.resolve() / str(world)
        launch(world, own, "", {"resume": resume} if long else SCENARIOS)
        launch(world, own, "resumed-", {"resume": resume_in_new_processes})


if __name__ == "__main__":
    counts = [int(argument) for argument in sys.argv[2:] if argument.isdecimal()]
    main(Path(sys.argv[1]), counts, long="--long" in sys.argv)
