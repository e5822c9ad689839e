"""From an experiment's file to what centre and sites run: the same at both ends, without data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from undrift import models
from undrift.check import require
from undrift.config.defaults import with_defaults
from undrift.config.experiment import Experiment
from undrift.config.shorthand import parse_model
from undrift.core import Federated
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.work import parse_work
from undrift.engine.participation import FixedSize
from undrift.errors import DataError
from undrift.federation import FederatedExperiment
from undrift.runs.jobs import Job, jobs
from undrift.runs.load import declared_columns
from undrift.tasks import TaskKind, named_loss, task_kind
from undrift.untrusted import LONGEST_TOML
from undrift.usercode.names import code_fields
from undrift.usercode.names import digests as code_digests

# What needs the data at one place, or what sites do not have.
_REFUSED = {
    "data": ("availability", "validation", "train_samples", "test_samples"),
    "training": ("early_stopping", "aggregation", "attack"),
    "fleet": ("kind",),
    "evaluation": (
        *("metrics", "samples", "train_loss", "sharpness"),
        *("drift", "cka", "surface"),
    ),
    "engine": ("device", "precision", "threads", "compile"),
    "sweep": ("tune",),
}


# What of an experiment decides a trial, and what of its table what a site tells of its own.
_SHARED = "methods", "model", "training", "seeds", "sweep"
_OF_TABLES = "target", "task", "drop", "categorical", "missing", "missing_target", "test_fraction"


@dataclass(frozen=True)
class SampleForm:
    """Says what a sample is, so that a model can be built where there are none."""

    shape: tuple[int, ...]
    outputs: int
    task: TaskKind
    preprocessing: Preprocessing | None  # of tables


@dataclass(frozen=True)
class FederatedJob:
    """Holds one trial of an experiment, and what its centre and its sites share."""

    job: Job
    experiment: FederatedExperiment


def resolved(experiment: Experiment) -> Experiment:
    """Return the experiment with its defaults; raise if it is none of sites."""
    remedy = 'say sites = ["north", "south"] in [federation], or use `undrift run`'
    named = bool(experiment.federation.sites)
    require(named, "A federation", "an experiment with federation.sites", "none", remedy)
    for section, names in _REFUSED.items():
        values = getattr(experiment, section)
        for name in names:
            value = getattr(values, name)
            left_out = f"{section}.{name} left out, since the centre has no data"
            require(not value, "A federation", left_out, value, "remove it")
            swept = f"{section}.{name}" in experiment.sweep.paths
            require(not swept, "A federation", left_out, "a sweep of it", "remove it")
    several = experiment.engine.processes
    require(several == 1, "A federation", "engine.processes = 1", several, "leave it out")
    for method in experiment.methods:
        expected = "methods with a server such as fedavg"
        require(issubclass(method.cls, Federated), "A federation", expected, method.cls.__name__)
    if experiment.federation.agree:
        _require_tables(experiment)
    return with_defaults(_dropping(experiment))


def _require_tables(experiment: Experiment) -> None:
    """Raise unless tables can agree on their columns."""
    data, federation = experiment.data, experiment.federation
    who = "federation.agree"
    remedy = 'say path = "of-each-site.csv" and target = "column" in [data]'
    require(data.target is not None, who, "data.target, which is predicted", "none", remedy)
    known = bool(data.columns) or federation.columns is not None or bool(federation.inputs)
    require(not known, who, "no columns and no inputs", "some", "remove them, or agree")
    remedy = "leave it out where columns are agreed on"
    require(data.transformer is None, who, "no data.transformer", data.transformer, remedy)
    remedy = "name it in data.drop, as each site is one client"
    require(data.client is None, who, "no data.client", data.client, remedy)


def _dropping(experiment: Experiment) -> Experiment:
    """Return the experiment with what a federation does with bad replies, or raise."""
    training = experiment.training
    said = training.on_bad if "on_bad" in training.model_fields_set else "drop"
    expected = 'training.on_bad = "drop", since one bad site must not stop the others'
    require(said == "drop", "A federation", expected, said, "remove it")
    swept = "training.on_bad" in experiment.sweep.paths
    require(not swept, "A federation", expected, "a sweep of it", "remove it")
    changed = training.model_copy(update={"on_bad": "drop"})
    return experiment.model_copy(update={"training": changed})


def sample_form(experiment: Experiment, agreed: Preprocessing | None = None) -> SampleForm:
    """Return the form of samples that the experiment declares: columns, or inputs and outputs.

    `agreed` are the columns of sites that have agreed on them.
    """
    federation, task = experiment.federation, experiment.training.task
    columns = agreed or _columns(experiment)
    if columns is not None:
        outputs = max(1, len(columns.target.classes))
        kind = task_kind(task or columns.target.task)
        return SampleForm((len(columns.features),), outputs, kind, columns)
    declared = bool(federation.inputs) and federation.outputs is not None
    remedy = (
        "declare data.columns for tables, or say federation.agree = true, or federation.inputs = "
        "[1, 28, 28] and federation.outputs = 10"
    )
    require(declared, "A federation", "the form of its samples", "none", remedy)
    assert federation.outputs is not None
    kind = task_kind(task or "classification")
    return SampleForm(tuple(federation.inputs), federation.outputs, kind, None)


def _columns(experiment: Experiment) -> Preprocessing | None:
    """Return the columns that the experiment or its file of columns declares."""
    path, inside = experiment.federation.columns, declared_columns(experiment.data)
    if path is None:
        return inside
    once = "one of federation.columns and data.columns"
    require(inside is None, "A federation", once, "both", "remove one")
    there = path.is_file() and path.stat().st_size <= LONGEST_TOML
    require(there, "federation.columns", "a JSON file of columns", str(path))
    try:
        return Preprocessing.from_json(path.read_text(encoding="utf-8"))
    except (DataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


def federated_jobs(
    experiment: Experiment, agreed: Preprocessing | None = None
) -> list[FederatedJob]:
    """Return the trials of an experiment that `resolved` has returned."""
    form = sample_form(experiment, agreed)
    return [FederatedJob(job, _federated(job, form)) for job in jobs(experiment)]


def _federated(job: Job, form: SampleForm) -> FederatedExperiment:
    experiment = job.experiment
    training = experiment.training
    work = job.method.work or training.work
    assert work is not None  # a default
    share: Any = training.participation
    loss = form.task.loss if training.loss is None else named_loss(training.loss)
    return FederatedExperiment(
        algorithm=job.method.build(),
        model=_model(experiment, form, job.seed),
        loss=loss,
        work=parse_work(work),
        rounds=training.rounds,
        batch_size=training.batch_size or None,
        participation=FixedSize(share) if isinstance(share, int) else share,
        weighting=training.weighting or "size",
        seed=job.seed,
        weight_decay=training.weight_decay,
        clip=training.clip or None,
        evaluate_every=experiment.evaluation.every or 1,
        columns="" if form.preprocessing is None else form.preprocessing.to_json(),
        code=_code(experiment),
        run=job.name,
    )


def _model(experiment: Experiment, form: SampleForm, seed: int) -> torch.nn.Module:
    name, options = parse_model(experiment.model.text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models.build(name, shape=form.shape, classes=form.outputs, **options)


def agreement_facts(experiment: Experiment) -> dict[str, str]:
    """Return by name what centre and sites must have in common to agree on columns.

    It is all that decides a trial besides the columns, which nobody knows yet.
    """
    values = experiment.values()
    for table, field in code_fields(values):
        place, colon, name = table[field].rpartition(":")
        table[field] = f"{Path(place).name}{colon}{name}"
    table = {name: value for name, value in values["data"].items() if name in _OF_TABLES}
    shared = {"table": table} | {name: values.get(name) for name in _SHARED}
    facts = {name: json.dumps(each, sort_keys=True) for name, each in shared.items() if each}
    return {"columns": "agreed on by all sites", **facts, "code": _code(experiment)}


def agreement_digest(experiment: Experiment) -> str:
    """Return the digest by which a site tells about its columns, and takes those agreed on."""
    text = "\n".join(f"{name}: {value}" for name, value in agreement_facts(experiment).items())
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _code(experiment: Experiment) -> str:
    """Return the hash of each file of code that makes method, model or loss, without its folder."""
    files = code_digests([name for name in experiment.code if name != experiment.data.name])
    return ", ".join(sorted(f"{Path(place).name} {digest}" for place, digest in files.items()))


class Accepted(NamedTuple):
    """Says what a site's operator accepts: the facts, and digests by what they are of."""

    facts: Mapping[str, str]
    digests: Mapping[str, str]

    @classmethod
    def of(cls, experiment: Experiment) -> Accepted:
        """Return what an experiment asks of a site, whose trials are known when columns are."""
        if experiment.federation.agree:
            return cls(agreement_facts(experiment), {"columns": agreement_digest(experiment)})
        planned = federated_jobs(experiment)
        digests = {each.job.name: each.experiment.digest for each in planned}
        return cls(planned[0].experiment.facts, digests)
