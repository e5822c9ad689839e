"""undrift itself. Variants: "" (all at its default), "torch" (without kernels), "compile" (torch's
compiler instead of them), and for A1 "full-precision"."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from benchmarks.speed.protocol import Line, Options
from benchmarks.speed.workloads import CLASSES, WORKLOADS, Data, Workload, read
from torch.nn import functional as F

import undrift as ud
from undrift import keyed
from undrift.comm import compiled
from undrift.comm.merges import Mean, OneBit
from undrift.comm.routes import Ring
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.collectives.inprocess import Loopback
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.world import RankBlocks

ENDLESS = 10**6  # rounds; as many as are asked for are played, and none is evaluated
ENDLESS_OF_PEERS = 10**3  # each of which is planned in advance
SWITCHES: dict[str, dict[str, Any]] = {  # arguments of simulate
    "torch": {"kernels": False},
    "compile": {"kernels": False, "execution": ud.ExecutionOptions(compile=True)},
}


def clients_of(path: str, first: int | None = None) -> ud.Clients:
    """Return all clients of a data file, or so many."""
    data = read(path)
    inputs, targets = (torch.from_numpy(array[:first]) for array in data[:2])
    parts = np.arange(targets.numel()).reshape(targets.shape)
    test = torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets)
    tested = test if len(data.test_targets) else None
    return ud.Clients.split(inputs.flatten(0, 1), targets.flatten(), list(parts), test=tested)


def simulation(
    workload: Workload, clients: ud.Clients, method: Any = None, **switches: Any
) -> ud.Run:
    """Return an endless run of FedAvg, of NetFleet on its own net, or of the given method."""
    torch.manual_seed(0)
    known = {"cnn2": {"dropout": 0.0}, "resnet18-gn": {"stem": workload.stem}}
    options: dict[str, Any] = known.get(workload.net, {})
    net = ud.models.build(workload.net, shape=workload.shape, classes=CLASSES, **options)
    if method is None:
        method = (ud.NetFleet if workload.net == "netfleet-cnn" else ud.FedAvg)(lr=workload.lr)
    peers = isinstance(method, ud.Peer)
    settings: dict[str, Any] = {}
    evaluation = ud.EvaluationOptions(every=ENDLESS, node_accuracy=not peers)
    if not peers:
        settings["participation"] = workload.cohort
    elif not isinstance(method, ud.AllReduce):
        settings["topology"] = ud.topology.erdos_renyi(len(clients), 0.5)
    return ud.simulate(
        method,
        net,
        clients,
        loss=F.cross_entropy,
        work=ud.Steps(workload.steps),
        batch_size=workload.batch,
        rounds=ENDLESS_OF_PEERS if peers else ENDLESS,
        evaluation=evaluation,
        **settings,
        **switches,
    )


def play(line: Line, run: ud.Run, clients: ud.Clients) -> None:
    def accuracy() -> float | None:
        return run.evaluate().accuracy if clients.test is not None else None

    while line.next(accuracy):
        record = next(run)
        line.worked(record.gradients, record.samples, execution_of(run))


def execution_of(run: ud.Run) -> dict[str, str]:
    """Return how the run is executed, and why so."""
    return {"mode": run.mode, "why": run.why, "gradients": run.gradients}


def play_whole_runs(line: Line, workload: Workload, path: str) -> None:
    """Play runs from start to end, each in a forked process that has compiled nothing yet.

    Until the fork torch computes nothing, as its threads would be missing in the child.
    """
    data = read(path)
    importlib.import_module("undrift.engine.simulate")  # which undrift imports when it is used
    importlib.import_module("undrift.algorithms")
    while line.next():
        with tempfile.TemporaryDirectory() as cache:
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            child = context.Process(target=whole_run, args=(workload, data, cache, theirs))
            child.start()
            line.worked(*ours.recv())
            child.join()


def whole_run(workload: Workload, data: Data, cache: str, answer: Connection) -> None:
    """Run what a user would write, with everything at its default."""
    os.environ["UNDRIFT_CACHE"] = cache
    torch.manual_seed(0)
    targets = torch.from_numpy(data.targets)
    parts = np.arange(targets.numel()).reshape(targets.shape)
    run = ud.simulate(
        ud.FedAvg(lr=workload.lr),
        ud.models.build(workload.net, shape=workload.shape, classes=CLASSES),
        ud.Clients.split(
            torch.from_numpy(data.inputs).flatten(0, 1), targets.flatten(), list(parts)
        ),
        loss=F.cross_entropy,
        work=ud.Steps(workload.steps),
        batch_size=workload.batch,
        rounds=workload.rounds,
    )
    for _ in run:
        pass
    answer.send((run.totals.gradients, run.totals.samples, execution_of(run)))
    training = sum(record.seconds for record in run.records)
    print(f"{run.mode} ({run.why}); {run.gradients}; {training:.2f} s of rounds", file=sys.stderr)


def synchronise(line: Line, workload: Workload, variant: str) -> None:
    """Run all hops of a ring of workers in memory, with the messages of every worker."""
    noise = torch.Generator().manual_seed(0)
    workers = workload.clients
    vectors = {m: [torch.randn(*workload.shape, generator=noise)] for m in range(workers)}
    compiled.loader.build()  # as after the first seconds of a long run
    how = Mean() if variant == "full-precision" else OneBit()
    turn = 0

    def generator(purpose: str, *place: int) -> Any:
        return keyed.generator(turn, purpose, *place)

    while line.next():
        traffic = Traffic(workers)
        all_reduce(
            Loopback(),
            vectors,
            how,
            Ring(),
            [generator],
            blocks=RankBlocks(workers, 1),
            traffic=traffic,
        )
        turn += 1
        line.worked(*workload.amount())


def main() -> None:
    options, line = Options.parse(), Line()
    workload = WORKLOADS[options.workload]
    if workload.net == "vector":
        synchronise(line, workload, options.variant)
    elif workload.rounds > 1:
        play_whole_runs(line, workload, options.data)
    else:
        clients = clients_of(options.data)
        switches = SWITCHES.get(options.variant, {})
        play(line, simulation(workload, clients, **switches), clients)


if __name__ == "__main__":
    main()
