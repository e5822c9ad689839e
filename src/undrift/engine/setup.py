"""The parts of a run, made of the arguments of `simulate` after all of them are checked."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from torch import Tensor, nn

from undrift.aggregation.policy import UploadPolicy
from undrift.comm.routes import Route
from undrift.core import Federated, Peer
from undrift.data.clients import Clients
from undrift.data.sources.fields import FieldModel
from undrift.data.work import Deadline
from undrift.engine import participation as laws
from undrift.engine import validate
from undrift.engine.clock import Clock, gradient_flops, measure, pace
from undrift.engine.early_stopping import EarlyStopping
from undrift.engine.execution.cohort import FederatedExecutor
from undrift.engine.execution.pool import Pool
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.hardware import as_device, as_precision, moved
from undrift.engine.plan import Planner
from undrift.engine.settings import SimulationRequest
from undrift.engine.tuning.probe import Facts, inspect
from undrift.engine.world import World
from undrift.fleet import Fleet
from undrift.fleet import parse as parse_fleet
from undrift.gradients.losses import plain_loss
from undrift.gradients.task import Task
from undrift.models.layout import Layout
from undrift.optim.schedules import resolve, scheduled
from undrift.tasks import (
    Loss,
    MetricSet,
    OutputShapeError,
    TaskKind,
    as_loss,
    deduced_task,
    implies_task,
    task_kind,
    task_of_loss,
)
from undrift.topology import Links

FLOPS = 1e10  # floating-point operations a second that torch reaches on one core
ACTIVATION_FLOPS = 300  # of a gradient for each number that a convolution writes, roughly
STEP_SECONDS = 1e-4  # of calling a gradient and of what is done around it


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Holds the parts of a run that do not depend on how it is executed."""

    task: Task
    clients: Clients  # with their targets as the loss takes them
    metrics: MetricSet
    planner: Planner
    pool: Pool
    facts: Facts
    clock: Clock | None
    links: Links | None
    route: Route | None
    policy: UploadPolicy

    @property
    def model(self) -> nn.Module:
        """Return the copy of the user's model whose parameters are trained."""
        return self.task.model

    @property
    def elements(self) -> int:
        """Return the activations of a client's step."""
        return self.planner.width * self.facts.activations

    def seconds(self, rounds: int) -> float:
        """Return about what the gradients of all rounds take with torch on one core, by counts."""
        gradients = rounds * int(self.planner.plan(0).counts.sum()) if rounds else 0
        flops = 6 * self.planner.width * self.task.layout.size + ACTIVATION_FLOPS * self.elements
        return gradients * (flops / FLOPS + STEP_SECONDS)


def prepare(request: SimulationRequest, world: World | None = None) -> Setup:
    """Check the request and return what its run is made of; nothing is trained.

    `world` is the ranks that agree on it where each has data of its own.
    """
    validate.check_arguments(request)
    policy = validate.upload_policy(request)
    if policy.attack is not None and policy.attack.flips_labels:
        attackers = policy.attack.attackers(len(request.clients), request.seed)
        request = replace(request, clients=request.clients.with_flipped_labels(attackers))
    algorithm, clients = request.algorithm, request.clients
    fleet = request.fleet
    if isinstance(fleet, str):
        kinds = parse_fleet(fleet, len(clients), seed=request.seed)
        fleet = Fleet(kinds, seed=request.seed)
    law = laws.parse(request.participation)
    law.check(len(clients), request.rounds)
    policy.check_cohort(laws.largest_cohort(law, len(clients)))
    validate.check_fleet(algorithm, clients, request.work, law, fleet)
    if isinstance(algorithm, Peer):
        validate.check_peers(request, law)
        weighting: laws.Weighting = "uniform"
    else:
        validate.check_federated(request)
        weighting = "size" if request.weighting is None else request.weighting
    population = laws.population_weights(weighting, clients.sizes)
    if scheduled(algorithm):
        for t in range(request.rounds):
            resolve(algorithm, t)

    model = _model(request)
    layout = Layout.of(model)
    precision = as_precision(request.precision, layout.dtype)
    algorithm.check(model)
    loss, metrics, facts, clients = _looked_at(request, model, clients)
    if world is not None and clients.rank_census is not None:
        facts = _agreed(facts, world)
    clients = clients.tested_on(layout.device)
    task = Task(
        model=model,
        layout=layout,
        loss=loss,
        weight_decay=request.weight_decay,
        clip=request.clip,
        randomness=facts.randomness,
        prepare=clients.prepare,
        precision=precision,
    )
    pool = Pool.of(clients, task)
    planner = Planner(
        census=clients,
        population=population,
        participation=law,
        work=request.work,
        batch_size=request.batch_size,
        seed=request.seed,
        fleet=fleet,
    )
    clock, planner = _with_clock(request, task, planner, pool)
    planner.check(request.rounds)
    if policy.aggregation is not None:
        policy.aggregation.check(len(planner.plan(0).ids))
    links, route = _check_method(request, layout.gather(model), planner)
    return Setup(
        task=task,
        clients=clients,
        metrics=metrics,
        planner=planner,
        pool=pool,
        facts=facts,
        clock=clock,
        links=links,
        route=route,
        policy=policy,
    )


def _model(request: SimulationRequest) -> nn.Module:
    """Return a copy of the model that reads the clients' samples, trains, and is on the device."""
    model = copy.deepcopy(request.model)
    if request.clients.fields:
        model = FieldModel(model, request.clients.fields)
    if not request.model.training:  # as loaded; a part in eval mode on purpose stays so
        model.train()
    if request.device is not None:
        model = moved(model, as_device(request.device))
    return model


def _looked_at(
    request: SimulationRequest, model: nn.Module, clients: Clients
) -> tuple[Loss, MetricSet, Facts, Clients]:
    """Return loss, metrics, what a few samples tell of the model, and the clients, all checked."""
    kind, loss = _task(request)
    metrics = MetricSet.of(request.metrics, kind, _units(clients))
    validate.check_metrics(metrics)
    with intra_op_threads(0):  # A few samples are not worth sharing, least of all when busy.
        try:
            facts, clients = inspect(model, loss, clients, metrics)
        except OutputShapeError:
            # A loss of one's own may take other outputs, such as a mean and a variance.
            if request.task is not None or request.loss is None or implies_task(request.loss):
                raise
            metrics = MetricSet.of(request.metrics, None)
            facts, clients = inspect(model, loss, clients, metrics)
    if request.early_stopping is not None:
        validated, options = clients.validation is not None, request.evaluation
        EarlyStopping.of(request.early_stopping).check(
            metrics.names,
            labels=kind is None or kind.name != "regression",
            validated=validated,
            over_clients=options.client_metrics,
        )
    return loss, metrics, facts, clients


def _units(clients: Clients) -> tuple[float, float] | None:
    """Return mean and deviation of a table's target, by which its numbers were scaled."""
    target = None if clients.preprocessing is None else clients.preprocessing.target
    return None if target is None or target.classes else (target.mean, target.scale)


def _agreed(facts: Facts, world: World) -> Facts:
    """Return what all ranks know of the model, of which each has tried its own samples."""
    kinds = ("none", "dropout", "other")
    own = [kinds.index(facts.randomness), not facts.separable, facts.activations]
    randomness, inseparable, activations = world.gather(own).max(0).tolist()
    return Facts(kinds[randomness], not inseparable, activations)


def _task(request: SimulationRequest) -> tuple[TaskKind | None, Loss]:
    """Return the task that was named or that targets and loss are of, and the loss."""
    kind = None if request.task is None else task_kind(request.task)
    targets, fitted = request.clients.targets, request.clients.preprocessing
    if kind is None and request.loss is None:
        kind = deduced_task(targets)
    elif kind is None:
        table = None if fitted is None else fitted.target.task
        kind = task_of_loss(request.loss, targets, table)
    loss = kind.loss if kind is not None and request.loss is None else as_loss(request.loss)
    return kind, plain_loss(loss)


def _with_clock(
    request: SimulationRequest, task: Task, planner: Planner, pool: Pool
) -> tuple[Clock | None, Planner]:
    """Return the simulated clock of the devices, and the planner with a deadline as steps."""
    fleet, work, clients = planner.fleet, request.work, pool.clients
    if fleet is None:
        return None, planner
    limit = work.seconds if isinstance(work, Deadline) else None
    clock = Clock(fleet, gradient_flops(task, clients), limit)
    if isinstance(work, Deadline) and isinstance(request.algorithm, Federated):
        executor = FederatedExecutor(task, planner, pool, mode="loop", chunk=1)
        bill = measure(request.algorithm, executor, len(clients))
        planner = replace(planner, work=pace(work, clock, bill, clients, request.batch_size))
    return clock, planner


def _check_method(
    request: SimulationRequest, x0: Tensor, planner: Planner
) -> tuple[Links | None, Route | None]:
    """Raise where the method does not fit the model's size or the plans; return its connections."""
    algorithm = request.algorithm
    if not isinstance(algorithm, Peer):
        resolve(algorithm, 0).init(x0)
        return None, None
    topology, allreduce = request.topology, request.allreduce
    links, route = validate.connections(algorithm, topology, allreduce, len(request.clients))
    for t in range(request.rounds):
        validate.require_equal_steps(algorithm, planner.plan(t))
    return links, route
