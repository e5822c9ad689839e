"""From an experiment to a run: its clients, its model and the call of `simulate`.

Clients and model depend on the seed alone, so every method of a comparison has the same ones.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from undrift import models, topology
from undrift.config.defaults import (
    DEFAULT_CLIENTS,
    DEFAULT_PARTICIPATION,
    DEFAULT_TOPOLOGY,
    default_work,
    with_defaults,
)
from undrift.config.experiment import Data, Experiment, FleetOptions, Method, Model
from undrift.config.shorthand import parse_availability, parse_model, parse_slowdown
from undrift.core import AllReduce, Federated, Gossip
from undrift.data import Clients, Dataset, Deadline, Steps, Work
from undrift.data.work import parse_work
from undrift.engine.participation import FixedSize
from undrift.engine.run import Run
from undrift.engine.settings import EvaluationOptions, ExecutionOptions, ExecutionRecord, RunSize
from undrift.engine.simulate import check, simulate, size
from undrift.engine.tuning.frequency import RunCounts, settle
from undrift.fleet import Fleet, Trace
from undrift.fleet import parse as parse_fleet
from undrift.runs.load import load_clients, load_dataset
from undrift.runs.own import is_own, own
from undrift.tasks import deduced_task, output_count, task_kind, task_of_loss


def data_counts(data: Data) -> dict[str, int]:
    """Return how much of a data set is on this machine: its samples, and its natural clients.

    Where every rank has data of its own, it is what all ranks have.
    """
    given = load_clients(data)
    if given is not None and given.clients.rank_census is not None:
        clients = given.clients
        return {"train": int(clients.sizes.sum()), "test": sum(clients.counts("test"))}
    dataset = load_dataset(data)
    counts = {"train": len(dataset.stored_train[1]), "test": len(dataset.stored_test[1])}
    owners = dataset.natural_clients
    return counts if owners is None else {**counts, "natural_clients": owners}


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the counts of a data set in words."""
    owners = counts.get("natural_clients")
    whose = "" if owners is None else f" of {owners:,} natural clients"
    return f"{counts['train']:,} training and {counts['test']:,} test samples{whose}"


@lru_cache(maxsize=8)  # A comparison uses the clients of a few seeds once for every method.
def build_clients(data: Data, seed: int) -> Clients:
    """Return the data set as it is split among the clients with this seed."""
    own_data = load_clients(data)
    if own_data is not None:
        return own_data.split(data.validation, seed)
    clients = data.clients
    if clients is None and data.partition != "natural":
        clients = DEFAULT_CLIENTS
    availability = data.availability
    return load_dataset(data).split(
        data.partition,
        clients,
        seed=seed,
        augment=data.augment,
        train_samples=data.train_samples,
        test_samples=data.test_samples,
        validation=data.validation,
        availability=None if availability is None else parse_availability(availability, seed),
    )


def resolve_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment with its defaults, and the data set's own number of clients."""
    experiment = with_defaults(experiment)
    data, swept = experiment.data, set(experiment.sweep.paths)
    if data.clients is not None or {"data.clients", "data.partition", "data.name"} & swept:
        return experiment
    clients = len(build_clients(data, experiment.seeds[0]))
    return experiment.model_copy(update={"data": data.model_copy(update={"clients": clients})})


def build_model(
    model: Model, data: Data, seed: int, task: str | None = None, loss: str | None = None
) -> nn.Module:
    """Return a new model with the parameters that every method starts from with this seed.

    It has as many outputs as the task needs, by default that of the loss or of the targets.
    """
    return copy.deepcopy(_initial_model(model.text, data, seed, task, loss))


@lru_cache(maxsize=8)
def _initial_model(
    text: str, data: Data, seed: int, task: str | None, loss: str | None
) -> nn.Module:
    """Return the model of a text such as `resnet18-gn:stem=7`; callers copy it."""
    if is_own(text):
        model: nn.Module = own(text)
        return model
    name, options = parse_model(text)
    dataset = load_dataset(data)
    if name in ("distilbert", "huggingface") and dataset.vocabulary:
        raise ValueError(
            f"The model {name} needs tokens of its own tokenizer, got the words of {data.name}; "
            "in Python, read them with undrift.data.read_imdb(folder, encode=...)."
        )
    outputs = outputs_of(dataset, task, loss)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models.build(name, shape=dataset.shape, classes=outputs, **options)


def outputs_of(dataset: Dataset, task: str | None, loss: str | None) -> int:
    """Return how many outputs a model has for the task, by default that of loss or targets."""
    targets = dataset.stored_train[1]
    kind = None if task is None else task_kind(task)
    if kind is None and loss is not None:
        kind = task_of_loss(loss, targets, None)
    return output_count(kind or deduced_task(targets), targets, dataset.classes)


def build_fleet(fleet: FleetOptions, clients: int, seed: int) -> Fleet | None:
    """Return the devices that the clients run on, or None if the experiment names none."""
    if fleet.kind is None:
        return None
    trace = fleet.trace
    return Fleet(
        parse_fleet(fleet.kind, clients, seed=seed),
        None if fleet.slowdown is None else parse_slowdown(fleet.slowdown),
        fleet.failures,
        None if trace is None else Trace.read(trace, period=fleet.trace_period),
        seed,
    )


def build_run(experiment: Experiment, method: Method, seed: int, **options: Any) -> Run:
    """Return the run of one method with one seed; `options` are further keywords of `simulate`."""
    return simulate(**_arguments(experiment, method, seed, **options))


def check_run(experiment: Experiment, method: Method, seed: int, **options: Any) -> RunCounts:
    """Raise what `build_run` would raise, without building the run; return its work in counts."""
    return check(**_arguments(experiment, method, seed, **options))


def evaluation_options(experiment: Experiment) -> EvaluationOptions:
    """Return what the experiment says about evaluation."""
    names = {field.name for field in fields(EvaluationOptions)} - {"batch_size"}
    return EvaluationOptions(**{name: getattr(experiment.evaluation, name) for name in names})


def with_tests(experiment: Experiment, counts: Sequence[RunCounts]) -> Experiment:
    """Return the experiment with how often all its runs are tested, decided for them together.

    Methods are compared in the same rounds on the same samples, however much each of them does.
    """
    if experiment.evaluation.every is not None or not counts:
        return experiment
    settled = settle(evaluation_options(experiment), counts)
    names = ("every", "first", "samples", "node_samples")
    chosen = {name: getattr(settled, name) for name in names}
    evaluation = experiment.evaluation.model_copy(update=chosen)
    return experiment.model_copy(update={"evaluation": evaluation})


def run_size(experiment: Experiment, method: Method, seed: int) -> RunSize:
    """Return how large the run of one method with one seed is, without building it."""
    return size(**_arguments(experiment, method, seed))


def _arguments(
    experiment: Experiment,
    method: Method,
    seed: int,
    *,
    like: ExecutionRecord | None = None,
    force: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of `simulate`, of which `options` overrule the experiment's."""
    training, evaluation, engine = experiment.training, experiment.evaluation, experiment.engine
    algorithm = method.build()
    data = experiment.data
    clients = build_clients(data, seed)
    return {
        "algorithm": algorithm,
        "model": build_model(experiment.model, data, seed, training.task, training.loss),
        "clients": clients,
        **_objective(experiment),
        "work": local_work(algorithm, method.work or training.work),
        "batch_size": training.batch_size or None,
        "weighting": training.weighting,
        "rounds": training.rounds,
        "seed": seed,
        "weight_decay": training.weight_decay,
        "clip": training.clip or None,
        "early_stopping": training.early_stopping,
        "evaluation": replace(
            evaluation_options(experiment),
            gradient_norm=evaluation.gradient_norm and not isinstance(algorithm, Federated),
        ),
        "execution": ExecutionOptions(
            threads=engine.threads, compile=engine.compile, like=like, force_resume=force
        ),
        "fleet": build_fleet(experiment.fleet, len(clients), seed),
        "mode": engine.mode,
        "kernels": engine.kernels,
        "device": engine.device,
        "precision": engine.precision,
        **_family_arguments(algorithm, experiment, len(clients), seed),
        **options,
    }


def _objective(experiment: Experiment) -> dict[str, Any]:
    """Return task, loss and metrics as `simulate` takes them; the targets decide what is open."""
    training, metrics = experiment.training, experiment.evaluation.metrics
    given: Any = own(experiment.data.name) if is_own(experiment.data.name) else None
    return {
        "task": training.task,
        "loss": training.loss or (None if given is None else given.loss),
        "metrics": given.metrics if metrics is None and given is not None else metrics,
    }


def local_work(algorithm: Any, text: str | None) -> Work:
    """Return the local work of a round; a method that communicates at every step has one step."""
    work = parse_work(text or default_work(type(algorithm)))
    # Gossip methods refuse deadlines themselves, so a deadline stays as it is.
    if isinstance(algorithm, Gossip) and algorithm.every_step and not isinstance(work, Deadline):
        return Steps(1)
    return work


def _family_arguments(
    algorithm: Any, experiment: Experiment, clients: int, seed: int
) -> dict[str, Any]:
    """Return the arguments that only methods of the algorithm's family take."""
    training = experiment.training
    if isinstance(algorithm, Federated):
        share = training.participation
        law = FixedSize(share) if isinstance(share, int) else share  # A file means what it says.
        return {
            "participation": DEFAULT_PARTICIPATION if law is None else law,
            "on_bad": training.on_bad,
            "quorum": training.quorum,
            "aggregation": training.aggregation,
            "attack": training.attack,
        }
    if isinstance(algorithm, Gossip):
        links = topology.parse(training.topology or DEFAULT_TOPOLOGY, clients, seed)
        return {"topology": links}
    if isinstance(algorithm, AllReduce):
        return {"allreduce": training.allreduce}
    return {}
