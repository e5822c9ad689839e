"""What `test_group.py` runs in 1, 2, 3 and 4 processes: `main` with a folder as its argument.

With a second argument only those settings are run that every day has time for. Rank 0 writes what
every part found to FOLDER/found.json and the models to FOLDER/models.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch.func needs it; so copies of this process need not import it each
from safetensors.torch import save_file
from torch import nn

import undrift as ud
from tests.support.methods import DEFAULTS, VARIANTS
from undrift import testing
from undrift.engine.processes.rendezvous import join
from undrift.files import write_atomic


def worth_a_launch(algorithm: Any) -> bool:
    """Every method, and of the variants those that send something else."""
    plain = type(algorithm)(lr=0.1)
    return algorithm == plain or isinstance(algorithm, ud.SSDM | ud.Marsit | ud.EFSignSGD)


METHODS = {
    **{
        repr(algorithm): algorithm
        for algorithm in (*DEFAULTS, *VARIANTS)
        if worth_a_launch(algorithm)
    },
    "compressed": ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4)),
    "compressed, two uploads": ud.Compressed(
        ud.Scaffold(lr=0.1), ud.ScaledSign(), error_feedback=True
    ),
    "accelerated": ud.Accelerated(ud.FedMLB(lr=0.1)),
}
# What a run is besides its method: who takes part, how it is executed, over which links.
SETTINGS: dict[str, dict[str, Any]] = {
    "loop": {},
    "stacked": {"mode": "stacked"},
    "lonely": {"participation": ud.FixedSize(1)},  # most processes have nobody in a round
    "torus": {"allreduce": "torus:2x2"},
    "server": {"allreduce": "server"},
    "random links": {"topology": ud.topology.erdos_renyi(4, 0.5, seed=1)},
}


def settings_of(algorithm: Any) -> list[str]:
    """All of its family where every field has its default, one for the variants."""
    if algorithm in VARIANTS:
        return ["loop"]
    if isinstance(algorithm, ud.AllReduce):
        return ["loop", "torus", "server"]
    if isinstance(algorithm, ud.Gossip):
        return ["loop", "random links"]
    # Stacking and empty shares are the executor's own affair; a few methods stand for all.
    some = isinstance(algorithm, ud.Scaffold | ud.FedSpeed | ud.FedLin | ud.FedNova)
    return ["loop", "lonely", "stacked"] if some else ["loop"]


DAILY = (ud.FedSpeed, ud.NetFleet, ud.Marsit)  # one of each family in all of its settings


def runs(daily: bool = False) -> dict[str, Callable[[], ud.Run]]:
    """Every method in every setting of its family, or most of them in the first one, by name."""

    def start(algorithm: Any, setting: str) -> ud.Run:
        return testing.start(
            algorithm, rounds=4, evaluation=ud.EvaluationOptions(every=2), **SETTINGS[setting]
        )

    return {
        f"{name} | {setting}": lambda a=algorithm, s=setting: start(a, s)
        for name, algorithm in METHODS.items()
        for setting in settings_of(algorithm)
        if not daily or setting == "loop" or isinstance(algorithm, DAILY)
    } | {name: lambda make=make: make() for name, make in ODD.items()}


def seven(algorithm: Any, **options: Any) -> ud.Run:
    """Seven clients, which no number of processes divides."""
    clients = testing.small_clients((9, 4, 7, 9, 12, 5, 8))
    return testing.start(algorithm, clients=clients, rounds=4, work=ud.Steps(3), **options)


ODD: dict[str, Callable[[], ud.Run]] = {
    "seven, some away": lambda: seven(ud.Scaffold(lr=0.1), participation=ud.Bernoulli(0.3)),
    "seven, a schedule": lambda: seven(ud.FedSpeed(lr=ud.exponential(0.1, 0.9))),
    "seven, with devices": lambda: seven(ud.FedLin(lr=0.1), fleet="phone:5,gpu-node:2"),
    "seven, newcomers": lambda: testing.start(
        ud.FedDyn(lr=0.1),
        clients=ud.Clients(
            [testing.small_clients()[i] for i in range(4)],
            availability=ud.Spans([(0, None), (0, None), (1, None), (2, None)]),
        ),
        participation=2,
        rounds=4,
    ),
    "seven nodes, links that fail": lambda: seven(
        ud.NetFleet(lr=0.05), topology=ud.topology.DroppedLinks(ud.topology.ring(7), 0.3, seed=2)
    ),
    "seven workers, torus": lambda: seven(ud.Marsit(lr=0.1), allreduce="torus:7x1"),
}


def records_of(run: ud.Run) -> dict[str, Any]:
    """Run to the end; return records without their seconds and the hash of the model."""
    records = [record.to_dict() for record in run]
    for record in records:
        del record["seconds"], record["evaluation_seconds"]
    return {"records": records, "sha256": run.model_sha256}


class Spoiled(nn.Module):
    """A net whose loss is not finite for the client with the largest inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = testing.small_net()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.where(inputs.abs().max() > 50, torch.nan, 1.0) * self.inner(inputs)


def spoiled_clients() -> ud.Clients:
    clients = testing.small_clients()
    pairs = [clients[i] for i in range(len(clients))]
    pairs[3] = (pairs[3][0] + 100, pairs[3][1])
    return ud.Clients(pairs)


def diverged(algorithm: Any) -> str:
    # Evaluation never sees the bad client's data: there is a test set without it.
    clients = spoiled_clients()
    clients.test = clients[0]
    run = testing.start(algorithm, model=Spoiled(), clients=clients, participation=1.0)
    before = run.x.clone()
    try:
        next(run)
    except ud.DivergenceError as error:
        assert torch.equal(run.x, before), "the last good state is kept"
        return str(error)
    return "none"


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, ud.UndriftError) as error:
        return str(error)
    return "none"


def main() -> None:
    folder, daily = Path(sys.argv[1]), len(sys.argv) > 2
    torch.set_num_threads(1)
    found: dict[str, Any] = {"runs": {}}
    models: dict[str, torch.Tensor] = {}
    for number, (name, start) in enumerate(runs(daily).items()):
        run = start()
        found["runs"][name] = records_of(run) | {"number": number}
        models[str(number)] = run.x.clone()
    world = join()
    rank = world.rank
    found["again"] = {
        name: records_of(start())["sha256"]
        for name, start in runs(daily).items()
        if "FedSpeed" in name
    }
    found["diverged"] = {
        "FedAvg": diverged(ud.FedAvg(lr=0.1)),
        **{cls.__name__: refusal(lambda c=cls: spoiled_peers(c)) for cls in PEERS},
    }
    found["others"] = {
        "seed": refusal(lambda: testing.start(ud.FedAvg(lr=0.1), seed=rank)),
        "lr": refusal(lambda: testing.start(ud.FedAvg(lr=0.1 if rank == 0 else 0.2))),
        "rounds": refusal(lambda: testing.start(ud.FedAvg(lr=0.1), rounds=3 + (rank > 0))),
        "test set": refusal(lambda: testing.start(ud.FedAvg(lr=0.1), clients=tested_on(rank))),
    }
    for name, algorithm in SAVED.items():
        run = testing.start(algorithm, rounds=4, checkpoint=folder / "saved" / name)
        next(run), next(run)
    found["resumed"] = {}
    for name, algorithm in SAVED.items():
        run = testing.start(algorithm, rounds=4, resume=folder / "given" / name)
        found["resumed"][name] = records_of(run) | {"x": run.x.tolist()}
    if world.size > 1:
        found["sent"] = sent_by_marsit(world)
        found["packed"] = {name: sent_packed(world, codec) for name, codec in CODECS.items()}
    found["refused"] = [
        refusal(lambda: testing.start(ud.FedAvg(lr=0.1), batch_size=0)),
        refusal(lambda: testing.finish(testing.start(ud.FedAvg(lr=0.1), rounds=1))),
        refusal(lambda: testing.start(ud.FedAvg(lr=0.1), attack="alie:0.3")),
    ]
    # Every process must have found the same.
    texts = world.texts(json.dumps(found, sort_keys=True))
    found["same everywhere"] = len(set(texts)) == 1
    if rank == 0:
        save_file(models, folder / "models.safetensors")
        (folder / "found.json").write_text(json.dumps(found))
    if world.size > 1:
        files = [folder / f"told-{each}.json" for each in range(world.size)]
        write_atomic(files[rank], json.dumps(told_by(rank, files)))


class Breaking(nn.Module):
    """A net that raises on the last rank, in the middle of training."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.inner, self.breaks, self.calls = testing.small_net(), breaks, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.breaks and self.calls > 12:
            raise RuntimeError("a bad day")
        return self.inner(inputs)


def told_by(rank: int, files: list[Path]) -> tuple[str, float]:
    """What this rank says to an error of rank 1, which lives on, and after how many seconds.

    Rank 1 waits until the others have written theirs.
    """
    start = time.monotonic()
    model = Breaking(rank == 1)
    try:
        testing.finish(testing.start(ud.FedAvg(lr=0.1), model=model, participation=1.0, rounds=50))
    except (RuntimeError, ud.UndriftError) as error:
        told = f"{type(error).__name__}: {error}", time.monotonic() - start
        others = [file for file in files if file != files[rank]]
        while rank == 1 and time.monotonic() < start + 20 and not all(map(Path.exists, others)):
            time.sleep(0.05)  # with its connections, if it has not closed them
        return told
    return "nothing", 0.0


SAVED: dict[str, Any] = {
    "scaffold": ud.Scaffold(lr=0.1),
    "netfleet": ud.NetFleet(lr=0.05),
    "marsit": ud.Marsit(lr=0.1),
}
PEERS = (ud.NetFleet, ud.PSGD, ud.Marsit, ud.SSDM)


def tested_on(rank: int) -> ud.Clients:
    """The same clients for all, tested on something else by each."""
    pairs = [(pair[0], pair[1]) for pair in testing.small_clients()]
    inputs, targets = pairs[0]
    return ud.Clients(pairs, test=(inputs + rank, targets))


def spoiled_peers(cls: type) -> None:
    clients = spoiled_clients()
    clients.test = clients[0]
    next(testing.start(cls(lr=0.1), model=Spoiled(), clients=clients))


CODECS = {"sign": ud.ScaledSign(), "qsgd": ud.QSGD(bits=4), "top": ud.TopK(0.25)}


def sent_packed(world: Any, codec: Any) -> dict[str, Any]:
    """Return the bytes of packed uploads in two rounds: those sent, and those that are recorded."""
    sent: list[int] = []
    exchange = world.transport.exchange

    def counted(outgoing: Any, incoming: Any) -> Any:
        sent.extend(each.data.nbytes for each in outgoing if "packed uploads" in each.label)
        return exchange(outgoing, incoming)

    world.transport.exchange = counted
    try:
        run = seven(ud.Compressed(ud.FedAvg(lr=0.1), codec))
        records = [next(run), next(run)]
    finally:
        del world.transport.exchange
    return {
        "sent": int(world.gather([sum(sent)]).sum()),
        "recorded": sum(record.bytes_up for record in records),
        "plain": 2 * 7 * run.x.nbytes,
    }


def sent_by_marsit(world: Any) -> dict[str, int]:
    """Bytes that one round of Marsit handed to the backend, by all ranks together."""
    clients = testing.small_clients((9,) * world.size)
    net = nn.Linear(6, 3, bias=False).double()
    with torch.no_grad():
        net.weight.zero_()
    run = testing.start(
        ud.Marsit(lr=0.1),
        model=net,
        clients=clients,
        rounds=2,
        evaluation=ud.EvaluationOptions(every=2),
    )
    before = world.transport.sent
    next(run)
    sent = int(world.gather([world.transport.sent - before]).sum())
    return {"bytes": sent, "coordinates": 18, "messages": 2 * (world.size - 1) * world.size}
