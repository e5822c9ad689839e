"""The defaults of an experiment, and an experiment with all of them written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undrift.config.experiment import Experiment
from undrift.config.methods import Method
from undrift.config.sections import Data, Engine, Model, Training
from undrift.core import AllReduce, Federated, Gossip
from undrift.usercode.names import absolute_name

DEFAULT_CLIENTS = 20
DEFAULT_TOPOLOGY, DEFAULT_ROUTE = "erdos-renyi", "ring"
DEFAULT_PARTICIPATION = 0.5


def default_work(cls: type) -> str:
    """Return the steps between two communications that the papers of a method's family take."""
    if issubclass(cls, AllReduce):
        return "steps:1"
    return "steps:10" if issubclass(cls, Gossip) else "gaussian:20:100"


def with_defaults(experiment: Experiment) -> Experiment:
    """Return the experiment with every default written out and every path absolute.

    The number of clients stays open where it is swept, and where only the data set can tell it
    (`data.partition = "natural"`).
    """
    methods = [method.with_defaults() for method in experiment.methods]
    training = _training(experiment)
    if training.work is None and "training.work" not in experiment.sweep.paths:
        training, methods = _with_work(training, methods)
    fleet = experiment.fleet
    return experiment.model_copy(
        update={
            "data": _data(experiment),
            "model": _model(experiment),
            "fleet": fleet.model_copy(update={"trace": _absolute(fleet.trace)}),
            "training": training,
            "methods": methods,
            "engine": _engine(experiment),
        }
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _data(experiment: Experiment) -> Data:
    data, swept = experiment.data, set(experiment.sweep.paths)
    values: dict[str, Any] = {
        "folder": _absolute(data.folder),
        "path": _absolute(data.path),
        "name": absolute_name(data.name, Path()),
    }
    varies = {"data.clients", "data.partition", "data.name"} & swept
    if sites := experiment.federation.sites:
        values["clients"] = len(sites)
    elif data.clients is None and data.partition != "natural" and not varies:
        values["clients"] = DEFAULT_CLIENTS
    return data.model_copy(update=values)


def _model(experiment: Experiment) -> Model:
    model = experiment.model
    return model.model_copy(update={"name": absolute_name(model.name, Path())})


def _training(experiment: Experiment) -> Training:
    """Return the training section with the options of the families that the methods are of."""
    classes = [method.cls for method in experiment.methods]
    training = experiment.training
    values: dict[str, Any] = {}
    if training.participation is None and any(issubclass(cls, Federated) for cls in classes):
        values["participation"] = 1.0 if experiment.federation.sites else DEFAULT_PARTICIPATION
    if training.topology is None and any(issubclass(cls, Gossip) for cls in classes):
        values["topology"] = DEFAULT_TOPOLOGY
    if training.allreduce is None and any(issubclass(cls, AllReduce) for cls in classes):
        values["allreduce"] = DEFAULT_ROUTE
    return training.model_copy(update=values)


def _with_work(training: Training, methods: list[Method]) -> tuple[Training, list[Method]]:
    """Return both with the default work: in the training section if all methods share it."""
    usual = {default_work(method.cls) for method in methods if method.work is None}
    if len(usual) == 1:
        return training.model_copy(update={"work": usual.pop()}), methods
    return training, [
        method.model_copy(update={"work": method.work or default_work(method.cls)})
        for method in methods
    ]


def _engine(experiment: Experiment) -> Engine:
    """Return the engine section that says whether models are saved: by default a single run's."""
    engine, methods = experiment.engine, experiment.methods
    if engine.save_models is not None:
        return engine
    single = len(methods) * len(experiment.seeds) == 1 and experiment.sweep.empty
    # Peers in several processes would have to send each other their models to save one.
    cheap = engine.processes == 1 or issubclass(methods[0].cls, Federated)
    return engine.model_copy(update={"save_models": single and cheap})
