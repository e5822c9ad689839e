"""The simulator: a run is an iterator of records."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from undrift.check import is_whole, require, require_choice, require_nonnegative, require_positive
from undrift.comm import routes
from undrift.comm.routes import Route
from undrift.core import AllReduce, Federated, Gossip, Peer
from undrift.data.clients import Clients
from undrift.data.work import Deadline, Work
from undrift.devices import Fleet
from undrift.devices import parse as parse_devices
from undrift.engine import participation as laws
from undrift.engine.checkpoint import shards
from undrift.engine.clock import Clock, gradient_flops, measure, pace
from undrift.engine.execution.cohort import Executor, Tap
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.execution.pool import Pool
from undrift.engine.federated_run import FederatedRun
from undrift.engine.peer_run import PeerRun, require_equal_steps
from undrift.engine.plan import Planner
from undrift.engine.processes.rendezvous import TIMEOUT, launched
from undrift.engine.processes.workers import enter, follow
from undrift.engine.run import Run, RunSettings
from undrift.engine.tuning.probe import inspect
from undrift.engine.tuning.rules import row_cost, worth_trimming
from undrift.engine.tuning.select import ExecutionOptions, KernelWish, Workload, choose_execution
from undrift.gradients.task import Loss, Task
from undrift.models.layout import Layout, raw_bytes
from undrift.optim.schedules import resolve, scheduled
from undrift.topology import Links


def simulate(
    algorithm: Federated[Any, Any, Any, Any] | Peer[Any],
    model: nn.Module,
    clients: Clients,
    *,
    loss: Loss,
    work: Work,
    rounds: int,
    batch_size: int | None = None,
    participation: laws.AnyParticipation = 1.0,
    weighting: laws.Weighting | None = None,
    topology: Links | None = None,
    allreduce: str | Route | None = None,
    devices: Fleet | str | None = None,
    seed: int = 0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    evaluate_every: int = 1,
    evaluation_batch: int = 1000,
    train_loss: bool = False,
    node_accuracy: bool = True,
    gradient_norm: bool = False,
    mode: Literal["auto"] | Mode = "auto",
    chunk_size: int | None = None,
    threads: int | None = None,
    channels_last: bool | None = None,
    compile: bool = False,
    kernels: KernelWish = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: str | Path | None = None,
    tap: Tap | None = None,
    processes: int | None = None,
    timeout: float = TIMEOUT,
) -> Run:
    """Train `model` on `clients` with `algorithm`; iterate over the result for its records.

    Everything is checked here, before the first round.

    work: local steps of each client, e.g. `Epochs(5)`, `Steps(10)`, `GaussianSteps(500, 100)`.
    batch_size: samples per step; None takes the whole local data, deterministically.
    participation: a fraction (float), a count (int), `Bernoulli(p)`, `WithReplacement(n)`, or
        explicit cohorts per round. 1.0 is everybody, 1 is one client.
    weighting: "size" (w_i = n_i / n, the default), "uniform", or one weight per client. Peers are
        all alike: theirs is always "uniform".
    topology: the links of gossip methods, e.g. `topology.ring(8)`; may vary from round to round.
    allreduce: the route of all-reduce methods: "ring" (the default), "segmented-ring", "torus" or
        "torus:2x4", "tree", "server".
    devices: what the clients run on, in words ("phone:9,gpu-node:1") or as a `Fleet`, in which they
        may also be slow, fail or be away. Records gain a simulated clock. With `work=Deadline(60)`
        each client runs what its device can do in time.
    weight_decay, clip: on the data gradient, the clip (global L2 norm) first.
    evaluate_every: rounds between evaluations on the test set (the last is always evaluated);
        without a test set the training objective is reported.
    train_loss: whether to evaluate the objective on all training data as well.
    node_accuracy, gradient_norm: for peers, whether to evaluate each node's own model as well, and
        the gradient of the mean model on all training data.
    mode: "loop" runs one client at a time, "threads" several side by side (`threads`, by default as
        many as torch has), "stacked" `chunk_size` of them under vmap; "auto" finds out what suits
        the model, for long runs by a short calibration that is remembered. The results agree up to
        float rounding.
    channels_last: whether images go through the model with their channels innermost; None finds out
        as "auto" does.
    compile: whether gradients that have no kernel are made by torch's compiler, which takes a C++
        compiler and up to a minute before the first round, a few seconds when it has compiled the
        same before. It pays for convolutional nets of few channels, not for wide ones.
    kernels: whether gradients of small nets are made by C++ that is written and compiled for the
        model (docs/kernels.md), some seconds once; where that is not possible, or a run is short,
        torch makes them and `run.gradients` says why. "always" does not mind a short run, "require"
        refuses to do without.
    checkpoint, checkpoint_every, resume: a folder to save to, how often, and one to go on from.
    tap: called with every client's `Upload`, in the order in which clients run; see `Drift`.
    processes: how many share the work, this one included; others are started and ended as needed.
        Under torchrun its processes do, on however many machines (docs/distributed.md).
    timeout: seconds without an answer after which another process counts as hung.
    """
    arguments = dict(locals())
    if not isinstance(algorithm, Federated | Peer):
        raise ValueError(
            f"simulate needs an algorithm object such as FedAvg(lr=0.1), got {algorithm!r}."
        )
    require(isinstance(clients, Clients), "simulate", "undrift.Clients", type(clients).__name__)
    require(isinstance(model, nn.Module), "simulate", "an nn.Module as model", model)
    require(callable(loss), "simulate", "a function of outputs and targets as loss", loss)
    require(isinstance(work, Work), "simulate", "work such as Steps(10) or Epochs(5)", work)
    require(is_whole(seed), "simulate", "a whole number as seed", seed)
    require(is_whole(rounds) and rounds >= 0, "simulate", "rounds >= 0, a whole number", rounds)
    batches = batch_size is None or (is_whole(batch_size) and batch_size >= 1)
    require(batches, "simulate", "batch_size >= 1, a whole number or None", batch_size)
    counts = {
        "evaluate_every": evaluate_every,
        "evaluation_batch": evaluation_batch,
        "checkpoint_every": checkpoint_every,
        "chunk_size": 1 if chunk_size is None else chunk_size,
        "threads": 1 if threads is None else threads,
    }
    for name, count in counts.items():
        whole = is_whole(count) and count >= 1
        require(whole, "simulate", f"{name} >= 1, a whole number", count)
    require_nonnegative("simulate", weight_decay=weight_decay)
    require_positive("simulate", timeout=timeout)
    many = processes is None or (is_whole(processes) and processes >= 1)
    require(many, "simulate", "processes >= 1, a whole number or None", processes)
    require_shares(processes or 1, clients, tap)
    if clip is not None:
        require_positive("simulate", clip=clip)
    require_choice("simulate", "mode", mode, ("auto", *get_args(Mode)))
    given = kernels in ("always", "require") or isinstance(kernels, bool)
    require(given, "simulate", "kernels as True, False, 'always' or 'require'", kernels)
    work.check(len(clients))
    if isinstance(devices, str):
        devices = Fleet(parse_devices(devices, len(clients), seed=seed), seed=seed)
    law = laws.parse(participation)
    law.check(len(clients), rounds)
    _check_devices(algorithm, clients, work, law, devices)
    if isinstance(algorithm, Peer):
        weighting = _require_alike(algorithm, clients, law, weighting, tap)
    else:
        name = type(algorithm).__name__
        require(not gradient_norm, name, "no gradient_norm, which is of peers", gradient_norm)
        require(topology is None, name, "no topology, it has a server", topology)
        require(allreduce is None, name, "no allreduce, it has a server", allreduce)
    population = laws.population_weights("size" if weighting is None else weighting, clients.sizes)
    if scheduled(algorithm):
        for t in range(rounds):
            resolve(algorithm, t)

    trained = copy.deepcopy(model)
    if not model.training:  # as loaded; a part put into eval mode on purpose stays so
        trained.train()
    layout = Layout.of(trained)
    algorithm.check(trained)
    facts = inspect(trained, loss, clients)
    task = Task(trained, layout, loss, weight_decay, clip, facts.randomness, clients.prepare)
    planner = Planner(clients, population, law, work, batch_size, seed, devices)
    pool = Pool.of(clients, task)
    clock = None
    if devices is not None:
        limit = work.seconds if isinstance(work, Deadline) else None
        clock = Clock(devices, gradient_flops(task, clients), limit)
        if isinstance(work, Deadline) and isinstance(algorithm, Federated):
            bill = measure(algorithm, Executor(task, planner, pool, "loop", 1), len(clients))
            paced = pace(work, clock, bill, clients, batch_size)
            planner = replace(planner, work=paced)
    planner.check(rounds)

    links, route = None, None
    if isinstance(algorithm, Peer):
        links, route = _connections(algorithm, topology, allreduce, len(clients))
        for t in range(rounds):
            require_equal_steps(algorithm, planner.plan(t))
    else:
        resolve(algorithm, 0).init(layout.gather(trained))  # refuses what does not fit its size
    # Of several processes all must choose the same, on however many cores each is.
    alone = processes in (None, 1) and not launched()
    begun = None if resume is None else shards.manner(Path(resume))
    wishes = ExecutionOptions(mode, chunk_size, threads, channels_last, compile, kernels)
    load = Workload(algorithm, planner, pool, facts, rounds, alone)
    plain, arranged = task, choose_execution(load, task, wishes, begun)
    task, how = arranged.task, arranged.how

    # All that one process can refuse by itself has been refused; from here on it is with others.
    world = enter(simulate, arguments)
    require_shares(world.size, clients, tap)
    with world.failure_scope():
        if world.size > 1:
            saves = {"checkpoint": checkpoint is not None, "resume": resume is not None}
            measured = {"train_loss": train_loss, "node_accuracy": node_accuracy}
            measured["gradient_norm"] = gradient_norm
            world.require_same(_alike(layout, clients, measured, **saves))
            compiled = world.gather([arranged.kernels])
            if compiled.any() and not compiled.all():  # one of them may lack a compiler
                without = replace(wishes, kernels=False)
                arranged = choose_execution(load, plain, without, begun)
                words = "torch (no kernel: a process has none)"
                arranged = replace(arranged, gradients=words)
                task, how = arranged.task, arranged.how
            world.share_model(trained)
        several = threads or torch.get_num_threads()  # of this process, as it is now
        task = replace(task, oracle=task.oracle.with_threads(several))
        every = evaluate_every, evaluation_batch
        x0 = layout.unite(trained)
        training = tuple(part.training for part in model.modules())
        manner = how.why, arranged.gradients
        course = RunSettings(
            training, x0, facts, rounds, *every, *manner, checkpoint_every, clock, train_loss
        )
        run: Run
        settings = {}
        if isinstance(algorithm, Peer):
            trim = worth_trimming(facts, planner)
            peers = PeerExecutor(
                task, planner, pool, how.mode, how.chunk, world=world, threads=several, trim=trim
            )
            measured = {"node_accuracy": node_accuracy, "gradient_norm": gradient_norm}
            run = PeerRun(algorithm, peers, course, links, route, **measured)
            linked = links.digest() if links else "None"
            settings = {"topology": linked, "allreduce": repr(route)}
        else:
            cost = row_cost(facts, planner)
            executor = Executor(
                task,
                planner,
                pool,
                how.mode,
                how.chunk,
                world=world,
                threads=several,
                row_cost=cost,
            )
            run = FederatedRun(algorithm, executor, course, tap)
        run.keep_checkpoints(checkpoint, resume, **settings)
        return follow(run)


def _alike(
    layout: Layout, clients: Clients, measured: dict[str, bool], **saves: bool
) -> dict[str, str]:
    """What processes must have in common before they can even share a model or a score."""
    tested = hashlib.blake2b(digest_size=16)
    for tensor in clients.test or ():
        tested.update(raw_bytes(tensor))
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return {
        "the model's parameters": f"{shapes} {layout.dtype}",
        "the test set": tested.hexdigest(),
        **{name: repr(given) for name, given in measured.items()},
        **{f"whether there is a {name}": repr(given) for name, given in saves.items()},
    }


def require_shares(processes: int, clients: Clients, tap: Tap | None = None) -> None:
    """Refuse processes without a client, and what only one process could do."""
    enough = len(clients) >= processes
    expected = f"at least one client for each of {processes} processes"
    require(enough, "A run", expected, len(clients), "start fewer processes")
    require(tap is None or processes == 1, "A tap", "one process", f"{processes} processes")


def _check_devices(
    algorithm: Federated[Any, Any, Any, Any] | Peer[Any],
    clients: Clients,
    work: Work,
    law: laws.Participation,
    devices: Fleet | None,
) -> None:
    name = type(algorithm).__name__
    if isinstance(work, Deadline):
        remedy = "say devices='phone' (--devices phone), or use Steps(k)"
        require(devices is not None, "Deadline", "the clients' devices", devices, remedy)
        server = isinstance(algorithm, Federated)
        require(server, name, "a fixed number of steps, peers wait for all", work, "use Steps(k)")
    if devices is None:
        return
    words = "devices in words such as 'phone' or as a Fleet"
    require(isinstance(devices, Fleet), "simulate", words, devices)
    devices.check(len(clients))
    if isinstance(algorithm, Peer):
        there = devices.dropout == 0 and devices.trace is None
        expected = "devices that neither fail nor leave"
        require(there, name, expected, "dropout or a trace", "use dropped links")
    if devices.trace is not None:
        expected = "availability by rounds or by a trace of seconds"
        once = clients.availability is None
        require(once, "simulate", expected, "both", "leave one of them out")
        drawn = not isinstance(law, laws.Cohorts)
        expected = "cohorts drawn among those its trace has there"
        require(drawn, "Fleet", expected, "explicit ones", "use a fraction or a count")


def _require_alike(
    algorithm: Peer[Any],
    clients: Clients,
    law: laws.Participation,
    weighting: laws.Weighting | None,
    tap: Tap | None,
) -> laws.Weighting:
    """Peers have no server to choose or weigh them, nor uploads to tap."""
    name = type(algorithm).__name__
    everybody = law in (laws.Fraction(1.0), laws.FixedSize(len(clients)))
    require(everybody, name, "all peers in every round", law, "leave participation out")
    there = clients.availability is None
    require(there, name, "peers that are always there", clients.availability, "use dropped links")
    weights = laws.population_weights("uniform" if weighting is None else weighting, clients.sizes)
    alike = bool(np.allclose(weights, 1 / len(clients), rtol=1e-9, atol=0))
    require(alike, name, "peers that all weigh the same", weighting, "use weighting='uniform'")
    require(tap is None, name, "no tap, peers upload nothing", tap)
    return "uniform"


def _connections(
    algorithm: Peer[Any], topology: Links | None, allreduce: str | Route | None, workers: int
) -> tuple[Links | None, Route | None]:
    """Links and route, each refused where the method has no use for it."""
    name = type(algorithm).__name__
    if isinstance(algorithm, Gossip):
        require(allreduce is None, name, "a topology, not an all-reduce", allreduce)
        linked = isinstance(topology, Links) and not isinstance(topology, type)
        needed = "a topology such as undrift.topology.ring(8)"
        remedy = "make one of a matrix with Topology(W), of a graph with from_graph(graph)"
        got = topology if topology is None else type(topology).__name__
        require(linked, name, needed, got, remedy)
    if isinstance(algorithm, AllReduce):
        require(topology is None, name, "a route of all-reduce, not a topology", topology)
    if topology is not None:
        fits = topology.size == workers
        expected = f"{workers} nodes, one for each client"
        require(fits, "The topology", expected, topology.size, f"make it with {workers} nodes")
        topology.at(0)
    return topology, routes.parse("ring" if allreduce is None else allreduce, workers)
