"""Checks of the arguments of `simulate`; each raises one sentence before any work starts."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from undrift.aggregation import attacks, robust
from undrift.aggregation.policy import OnBad, UploadPolicy
from undrift.check import is_whole, require, require_choice, require_nonnegative, require_positive
from undrift.comm import routes
from undrift.comm.routes import Route
from undrift.core import AllReduce, Federated, Gossip, Peer
from undrift.data.clients import Clients
from undrift.data.dataset import Dataset
from undrift.data.sources.samples import is_source
from undrift.data.tables.files import is_frame
from undrift.data.work import Deadline, Work
from undrift.engine import participation as laws
from undrift.engine.execution.cohort import Tap
from undrift.engine.execution.executor import Mode
from undrift.engine.plan import Plan
from undrift.engine.settings import (
    Algorithm,
    EvaluationOptions,
    ExecutionOptions,
    SimulationRequest,
)
from undrift.fleet import Fleet
from undrift.results.record import PeerRecord
from undrift.tasks import MetricSet
from undrift.topology import Links


def check_arguments(request: SimulationRequest) -> None:
    """Raise for arguments of a wrong type or out of range."""
    if not isinstance(request.algorithm, Federated | Peer):
        remedy = ""
        if isinstance(request.algorithm, type):
            remedy = f"make an object of it: {request.algorithm.__name__}(lr=0.1)"
        elif isinstance(request.algorithm, str):
            remedy = "names of methods are for undrift.compare and files"
        elif isinstance(request.algorithm, nn.Module | Clients):
            remedy = "the method comes first: simulate(method, model, clients)"
        expected = "an algorithm object such as FedAvg(lr=0.1)"
        require(False, "simulate", expected, request.algorithm, remedy)
    clients, model, work = request.clients, request.model, request.work
    fits = isinstance(clients, Clients)
    require(fits, "simulate", "undrift.Clients", type(clients).__name__, clients_remedy(clients))
    remedy = ""
    if isinstance(model, type):
        remedy = f"make an object of it: {model.__name__}(...)"
    elif isinstance(model, str):
        remedy = f"undrift.models.build({model!r}, shape=..., classes=...) makes one by name"
    require(isinstance(model, nn.Module), "simulate", "an nn.Module as model", model, remedy)
    _refuse_wrapped(model)
    tensors = (*model.named_parameters(), *model.named_buffers())
    empty = next((name for name, tensor in tensors if tensor.is_meta), None)
    remedy = "load its weights, or make it without device='meta'"
    require(empty is None, "The model", "values in all of its tensors", empty, remedy)
    remedy = f"say work=Steps({work})" if is_whole(work) else ""
    expected = 'work such as Steps(10), Epochs(5) or "epochs:5"'
    require(isinstance(work, Work), "simulate", expected, work, remedy)
    _warn_of_one(request.participation, len(clients))
    require(is_whole(request.seed), "simulate", "a whole number as seed", request.seed)
    nonnegative = is_whole(request.rounds) and request.rounds >= 0
    require(nonnegative, "simulate", "rounds >= 0, a whole number", request.rounds)
    _require_count_or_none("batch_size", request.batch_size)
    _require_count_or_none("processes", request.processes)
    _require_count_or_none("checkpoint_every", request.checkpoint_every)
    _check_options(request.evaluation, request.execution)
    require_nonnegative("simulate", weight_decay=request.weight_decay)
    require_positive("simulate", timeout=request.timeout)
    require_enough_clients(request.processes or 1, clients, request.tap, request.attack)
    if request.clip is not None:
        require_positive("simulate", clip=request.clip)
    require_choice("simulate", "mode", request.mode, ("auto", *get_args(Mode)))
    known = request.kernels in ("always", "require") or isinstance(request.kernels, bool)
    require(known, "simulate", "kernels as True, False, 'always' or 'require'", request.kernels)
    work.check(len(clients))
    if clients.rank_census is not None:
        _check_ranks(request)


def _refuse_wrapped(model: nn.Module) -> None:
    """Raise for a model that another tool has wrapped, whose parameters cannot be replaced."""
    parallel = nn.DataParallel, nn.parallel.DistributedDataParallel
    expected, kind = "the plain nn.Module as model", type(model).__name__
    remedy = "pass the module inside: model.module"
    require(not isinstance(model, parallel), "simulate", expected, kind, remedy)
    remedy = "pass the model before torch.jit; compile=True of ExecutionOptions compiles it"
    require(not isinstance(model, torch.jit.ScriptModule), "simulate", expected, kind, remedy)


def clients_remedy(data: Any) -> str:
    """Return how clients are made of what was given in their place."""
    if isinstance(data, Dataset):
        return "deal the data set: data.split('dirichlet:0.3', 20)"
    if isinstance(data, str):
        return f"load and deal the data set: undrift.data.load({data!r}).split('iid', 20)"
    if is_frame(data):
        return "say which columns are which: undrift.Clients(frame, target='...', client='...')"
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], tuple | list):
        parts = "undrift.data.partition.iid(targets, 20)"
        return f"deal inputs and targets: undrift.Clients.split(inputs, targets, {parts})"
    if is_source(data):
        return "pass one for each client: undrift.Clients([first, second], test=test_data)"
    return "make them: undrift.Clients(data_of_each_client, test=test_data)"


def _check_ranks(request: SimulationRequest) -> None:
    """Raise for what needs all samples in one process, where every rank has data of its own."""
    sharpness = request.evaluation.sharpness
    expected = "all samples in one process"
    require(not sharpness, "evaluation.sharpness", expected, "Clients.here", "leave it out")


def _warn_of_one(participation: laws.AnyParticipation, clients: int) -> None:
    """Say that 1 is a count, where 1.0 may be meant."""
    if is_whole(participation) and participation == 1 and clients > 1:
        warnings.warn(
            f"participation=1 is one client of {clients} in a round; write 1.0 for all, or "
            "FixedSize(1) for one.",
            stacklevel=2,
        )


def check_metrics(metrics: MetricSet) -> None:
    """Raise for a metric that has the name of something else in a record."""
    known = {each.name for each in fields(PeerRecord)}
    for name in metrics.names:
        if name != "accuracy":
            remedy = "give it another: metrics={'my_name': function}"
            require(name not in known, "A metric", "a name of its own", name, remedy)


def _check_options(evaluation: EvaluationOptions, execution: ExecutionOptions) -> None:
    expected = "evaluation as undrift.EvaluationOptions(every=10)"
    require(isinstance(evaluation, EvaluationOptions), "simulate", expected, evaluation)
    expected = "execution as undrift.ExecutionOptions(threads=2)"
    require(isinstance(execution, ExecutionOptions), "simulate", expected, execution)
    for name in ("every", "samples", "batch_size", "node_samples"):
        count = getattr(evaluation, name)
        _require_counts("EvaluationOptions", **{name: 1 if count is None else count})
    chunk_size = 1 if execution.chunk_size is None else execution.chunk_size
    threads = 1 if execution.threads is None else execution.threads
    _require_counts("ExecutionOptions", chunk_size=chunk_size, threads=threads)


def _require_counts(who: str = "simulate", **counts: int) -> None:
    for name, count in counts.items():
        positive = is_whole(count) and count >= 1
        require(positive, who, f"{name} >= 1, a whole number", count)


def _require_count_or_none(name: str, count: int | None) -> None:
    fits = count is None or (is_whole(count) and count >= 1)
    remedy = "batch_size=None takes all samples of a client" if name == "batch_size" else ""
    require(fits, "simulate", f"{name} >= 1, a whole number or None", count, remedy)


def require_enough_clients(
    processes: int, clients: Clients, tap: Tap | None = None, attack: Any = None
) -> None:
    """Raise for processes without a client, and for what sees all uploads with several of them."""
    enough, got = len(clients) >= processes, f"{processes} processes"
    expected = f"at least one client for each of {got}"
    require(enough, "A run", expected, len(clients), "start fewer processes")
    require(tap is None or processes == 1, "A tap", "one process", got)
    alone = attack is None or processes == 1
    require(alone, "attack", "one process", got, "attackers know all uploads")


def check_fleet(
    algorithm: Algorithm,
    clients: Clients,
    work: Work,
    law: laws.Participation,
    fleet: Fleet | None,
) -> None:
    """Raise for devices that fit neither the work, the method nor the participation."""
    name = type(algorithm).__name__
    if isinstance(work, Deadline):
        remedy = "say fleet='phone' (--fleet phone), or use Steps(k)"
        require(fleet is not None, "Deadline", "the clients' devices", fleet, remedy)
        server = isinstance(algorithm, Federated)
        require(server, name, "a fixed number of steps, peers wait for all", work, "use Steps(k)")
    if fleet is None:
        return
    expected = "fleet in words such as 'phone' or as a Fleet"
    require(isinstance(fleet, Fleet), "simulate", expected, fleet)
    fleet.check(len(clients))
    if isinstance(algorithm, Peer):
        stay = fleet.dropout == 0 and fleet.trace is None
        expected = "devices that neither fail nor leave"
        require(stay, name, expected, "dropout or a trace", "use dropped links")
    if fleet.trace is not None:
        expected = "availability by rounds or by a trace of seconds"
        once = clients.availability is None
        require(once, "simulate", expected, "both", "leave one of them out")
        drawn = not isinstance(law, laws.Cohorts)
        expected = "cohorts drawn among those its trace has there"
        require(drawn, "Fleet", expected, "explicit ones", "use a fraction or a count")


def check_federated(request: SimulationRequest) -> None:
    """Raise for options that only methods without a server have."""
    name = type(request.algorithm).__name__
    gradient_norm = request.evaluation.gradient_norm
    require(not gradient_norm, name, "no gradient_norm, which is of peers", gradient_norm)
    require(request.topology is None, name, "no topology, it has a server", request.topology)
    require(request.allreduce is None, name, "no allreduce, it has a server", request.allreduce)


def upload_policy(request: SimulationRequest) -> UploadPolicy:
    """Return what is done with uploads; raise where the method or the options do not allow it."""
    require_choice("simulate", "on_bad", request.on_bad, get_args(OnBad))
    aggregation, attack = robust.parse(request.aggregation), attacks.parse(request.attack)
    policy = UploadPolicy(request.on_bad, request.quorum, aggregation, attack)
    policy.check("simulate")
    algorithm, name = request.algorithm, type(request.algorithm).__name__
    if isinstance(algorithm, Peer):
        usual = policy == UploadPolicy()
        expected = "no on_bad, quorum, aggregation or attack, peers upload nothing"
        require(usual, name, expected, ", ".join(policy.settings()) or "one")
        return policy
    if policy.aggregation is not None and algorithm.needs_mean:
        raise ValueError(
            f"{name} needs the weighted mean of its uploads, got {policy.aggregation!r}: "
            f"{algorithm.needs_mean}; use a method such as FedAvg or FedACG with it."
        )
    return policy


def check_peers(request: SimulationRequest, law: laws.Participation) -> None:
    """Raise for options that only a server could grant: selection, weights and a tap."""
    clients, weighting = request.clients, request.weighting
    name = type(request.algorithm).__name__
    everybody = law in (laws.Fraction(1.0), laws.FixedSize(len(clients)))
    require(everybody, name, "all peers in every round", law, "leave participation out")
    always = clients.availability is None
    require(always, name, "peers that are always there", clients.availability, "use dropped links")
    weights = laws.population_weights("uniform" if weighting is None else weighting, clients.sizes)
    equal = bool(np.allclose(weights, 1 / len(clients), rtol=1e-9, atol=0))
    require(equal, name, "peers that all weigh the same", weighting, "use weighting='uniform'")
    require(request.tap is None, name, "no tap, peers upload nothing", request.tap)
    if clients.rank_census is not None:
        later = np.flatnonzero(np.diff(clients.rank_census.ranks) < 0)
        got = "" if not len(later) else f"client {later[0] + 1} on an earlier rank than {later[0]}"
        remedy = "leave numbers= of Clients.here out"
        require(not got, name, "nodes that are numbered in the order of ranks", got, remedy)


def connections(
    algorithm: Peer[Any],
    topology: Links | None,
    allreduce: str | Route | None,
    workers: int,
    member: str = "client",
) -> tuple[Links | None, Route | None]:
    """Return the links and the route of a peer method; raise for one that it does not use.

    `member` is what a message calls a worker.
    """
    name = type(algorithm).__name__
    if isinstance(algorithm, Gossip):
        require(allreduce is None, name, "a topology, not an all-reduce", allreduce)
        linked = isinstance(topology, Links) and not isinstance(topology, type)
        expected = 'a topology such as "ring" or undrift.topology.ring(8)'
        remedy = "make one of a matrix with Topology(W), of a graph with from_graph(graph)"
        got = topology if topology is None else type(topology).__name__
        require(linked, name, expected, got, remedy)
    if isinstance(algorithm, AllReduce):
        require(topology is None, name, "a route of all-reduce, not a topology", topology)
    if topology is not None:
        fits = topology.size == workers
        expected = f"{workers} nodes, one for each {member}"
        require(fits, "The topology", expected, topology.size, f"make it with {workers} nodes")
        topology.at(0)
    return topology, routes.parse("ring" if allreduce is None else allreduce, workers)


def require_equal_steps(algorithm: Peer[Any], plan: Plan) -> None:
    """Raise for unequal K_i where nodes would wait for each other inside a round."""
    low, high = int(plan.counts.min()), int(plan.counts.max())
    always = algorithm.every_step or isinstance(algorithm, AllReduce)
    if low != high and (always or low < algorithm.meetings):
        few, many = plan.ids[plan.counts.argmin()], plan.ids[plan.counts.argmax()]
        raise ValueError(
            f"{type(algorithm).__name__} needs the same number of local steps on every client, "
            f"got {low} for client {few} and {high} for client {many}; use work=Steps(k)."
        )
