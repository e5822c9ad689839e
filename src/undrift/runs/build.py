"""From an experiment to runs: data and model by seed, the same for every method, and `simulate`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from undrift import models, topology
from undrift.core import AllReduce, Federated, Gossip
from undrift.data import Clients, Dataset, Deadline, Steps, load
from undrift.devices import Fleet, Trace
from undrift.devices import parse as parse_devices
from undrift.engine.run import Run
from undrift.engine.settings import EvaluationOptions, ExecutionOptions, ExecutionRecord
from undrift.engine.simulate import simulate
from undrift.config.experiment import Data, Devices, Experiment, Method, Model
from undrift.config.shorthand import parse_availability, parse_model, parse_slowdown, parse_work

DEFAULT_CLIENTS = 20
DEFAULT_TOPOLOGY, DEFAULT_ROUTE = "erdos-renyi", "ring"
DEFAULT_PARTICIPATION = 0.5


@lru_cache(maxsize=4)
def dataset(name: str, folder: Path | None) -> Dataset:
    return load(name, folder)


@lru_cache(maxsize=8)  # a handful of seeds, each used by every method of a comparison
def deal(data: Data, seed: int) -> Clients:
    """The data dealt to clients."""
    clients = data.clients
    if clients is None and data.partition != "natural":
        clients = DEFAULT_CLIENTS
    there = None if data.availability is None else parse_availability(data.availability, seed)
    return dataset(data.name, data.folder).split(
        data.partition,
        clients,
        seed=seed,
        augment=data.augment,
        test_samples=data.test_samples,
        availability=there,
    )


def label_counts(clients: Clients, classes: int) -> NDArray[np.int64]:
    """(clients, classes) how many samples of each label each client holds."""
    targets = clients.targets.numpy()
    counted = [np.bincount(targets[clients.of(i)], minlength=classes) for i in range(len(clients))]
    return np.stack(counted)


@lru_cache(maxsize=8)
def _network(text: str, data: Data, seed: int) -> nn.Module:
    name, options = parse_model(text)
    source = dataset(data.name, data.folder)
    if name in ("distilbert", "huggingface") and source.vocabulary:
        raise ValueError(
            f"The model {name} needs tokens of its own tokenizer, got the words of {data.name}; "
            "in Python, read them with undrift.data.read_imdb(folder, encode=...)."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models.build(name, shape=source.shape, classes=source.classes, **options)


def network(model: Model, data: Data, seed: int) -> nn.Module:
    """The model as every method starts with it; not to be changed."""
    return _network(model.text, data, seed)


def fleet(devices: Devices, clients: int, seed: int) -> Fleet | None:
    if devices.kind is None:
        return None
    there = (
        None if devices.trace is None else Trace.read(devices.trace, period=devices.trace_period)
    )
    slow = None if devices.slowdown is None else parse_slowdown(devices.slowdown)
    kinds = parse_devices(devices.kind, clients, seed=seed)
    return Fleet(kinds, slow, devices.failures, there, seed)


def default_work(cls: type) -> str:
    """Steps between two communications, as the documents have them."""
    if issubclass(cls, AllReduce):
        return "steps:1"
    return "steps:10" if issubclass(cls, Gossip) else "gaussian:20:100"


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def resolved(experiment: Experiment) -> Experiment:
    """The same with everything said that was left to defaults."""
    classes = [method.cls for method in experiment.methods]
    training = experiment.training
    said: dict[str, Any] = {}
    if training.participation is None and any(issubclass(c, Federated) for c in classes):
        said["participation"] = DEFAULT_PARTICIPATION
    if training.topology is None and any(issubclass(c, Gossip) for c in classes):
        said["topology"] = DEFAULT_TOPOLOGY
    if training.allreduce is None and any(issubclass(c, AllReduce) for c in classes):
        said["allreduce"] = DEFAULT_ROUTE
    data, swept = experiment.data, experiment.sweep.paths
    if data.clients is None and not {"data.clients", "data.partition", "data.name"} & set(swept):
        data = data.model_copy(update={"clients": len(deal(data, experiment.seeds[0]))})
    data = data.model_copy(update={"folder": _absolute(data.folder)})
    devices = experiment.devices
    devices = devices.model_copy(update={"trace": _absolute(devices.trace)})
    methods = [method.resolved() for method in experiment.methods]
    if training.work is None and "training.work" not in swept:
        usual = {default_work(method.cls) for method in methods if method.work is None}
        if len(usual) == 1:
            said["work"] = usual.pop()
        else:  # a method's own, which overrules the common one
            methods = [
                method.model_copy(update={"work": method.work or default_work(method.cls)})
                for method in methods
            ]
    engine = experiment.engine
    if engine.save_models is None:
        single = len(methods) * len(experiment.seeds) == 1 and experiment.sweep.empty
        # Peers in several processes would have to send each other their models for it.
        single = single and (engine.processes == 1 or issubclass(classes[0], Federated))
        engine = engine.model_copy(update={"save_models": single})
    return experiment.model_copy(
        update={
            "data": data,
            "devices": devices,
            "training": training.model_copy(update=said),
            "methods": methods,
            "engine": engine,
        }
    )


def start(
    experiment: Experiment,
    method: Method,
    seed: int,
    *,
    like: ExecutionRecord | None = None,
    **options: Any,
) -> Run:
    """One method of an experiment with one seed, ready to be iterated."""
    training, evaluation = experiment.training, experiment.evaluation
    algorithm = method.build()
    clients = deal(experiment.data, seed)
    work = parse_work(method.work or training.work or default_work(method.cls))
    if isinstance(algorithm, Gossip):
        text = training.topology or DEFAULT_TOPOLOGY
        options["topology"] = topology.parse(text, len(clients), seed)
        one_step = algorithm.every_step and not isinstance(work, Deadline)  # which it refuses
        work = Steps(1) if one_step else work
    elif isinstance(algorithm, AllReduce):
        options["allreduce"] = training.allreduce
    else:
        share = training.participation
        options["participation"] = DEFAULT_PARTICIPATION if share is None else share
    return simulate(
        algorithm,
        network(experiment.model, experiment.data, seed),
        clients,
        loss=nn.functional.cross_entropy,
        work=work,
        batch_size=training.batch_size or None,
        weighting=training.weighting,
        rounds=training.rounds,
        seed=seed,
        weight_decay=training.weight_decay,
        clip=training.clip or None,
        evaluation=EvaluationOptions(
            every=evaluation.every,
            train_loss=evaluation.train_loss,
            node_accuracy=evaluation.node_accuracy,
            gradient_norm=evaluation.gradient_norm and not isinstance(algorithm, Federated),
        ),
        execution=ExecutionOptions(
            threads=experiment.engine.threads, compile=experiment.engine.compile, like=like
        ),
        devices=fleet(experiment.devices, len(clients), seed),
        **{"mode": experiment.engine.mode, "kernels": experiment.engine.kernels, **options},
    )
