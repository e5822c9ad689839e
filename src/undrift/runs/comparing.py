"""`undrift.compare`: methods on one task, each at its tuned values, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from undrift.check import is_whole, known_keywords, require
from undrift.config.experiment import Experiment
from undrift.config.hyperparameters import METHODS, hyper_parameters
from undrift.config.shorthand import parse_model
from undrift.core import Federated, Peer
from undrift.data import Clients, Work
from undrift.data.work import work_text
from undrift.engine.validate import clients_remedy
from undrift.results.record import Record
from undrift.runs.api import run_with
from undrift.runs.build import resolve_experiment
from undrift.runs.folder import read_experiment
from undrift.runs.jobs import Job
from undrift.runs.options import RunOptions
from undrift.runs.own import OwnData, is_own, lent
from undrift.runs.result import ExperimentResult
from undrift.runs.spelling import Spelling
from undrift.usercode.names import place_of

if TYPE_CHECKING:
    from undrift.tasks import Loss


@known_keywords
def compare(
    methods: Sequence[Any],
    model: str | nn.Module = "mlp",
    clients: str | Clients = "digits",
    *,
    tune: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 1,
    loss: Loss | str | None = None,
    task: str | None = None,
    metrics: Any = None,
    rounds: int = 50,
    work: str | Work | None = None,
    batch_size: int | None = 20,
    participation: float | int | None = None,
    halving: bool = False,
    extend: int = 2,
    validation: float = 0.1,
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    jobs: int | None = None,
    on_record: Callable[[Job, Record], None] | None = None,
) -> ExperimentResult:
    """Compare methods on the same data, cohorts and batches, each at its tuned values.

        result = ud.compare([ud.FedAvg(lr=0.1), ud.FedACG(lr=0.1)], model, clients,
                            tune={"lr": [0.01, 0.03, 0.1, 0.3]}, seeds=5)
        print(result)              # means with intervals, paired differences, sentences

    It is what `undrift compare` does, and gives the same bits for the same names.

    methods: algorithms such as `ud.FedAvg(lr=0.1)`, names, or tables as an experiment has them.
    model, clients: your own `nn.Module` and `Clients`, or names of a network and a data set. Runs
        of your own objects are made in this process, one after the other.
    tune: values by field: "lr" is of all methods, "fedavgm.beta" of one. Every method has the same
        number of trials, on samples that are split off each client's for tuning alone.
    seeds: how many, or which ones; tuning has seeds of its own.
    loss, task, metrics: as in `simulate`; functions with clients of your own alone.
    rounds, work, batch_size, participation: as in `simulate`; work also as text, "epochs:5".
    halving, extend, validation: how cells are chosen (docs/comparing.md).
    changes: other fields of the experiment by name, such as {"data.clients": 10}.
    only: methods by name or label that are run now; resume runs the others.
    out, force, jobs, on_record: as in `run`; `on_record` hears of tuning's runs, too.
    resume: whether to go on with `out`, of the same comparison.
    """
    sections: dict[str, Any] = {
        "seeds": list(range(seeds)) if is_whole(seeds) else list(seeds),  # type: ignore
        "methods": [_method(each) for each in methods],
        "training": {
            "task": task,
            "rounds": rounds,
            "batch_size": batch_size or 0,
            "participation": participation,
            "work": work if work is None or isinstance(work, str) else work_text(work),
        },
    }
    if tune is not None:
        grid = {name if "." in name else f"method.{name}": list(v) for name, v in tune.items()}
        manner = {"halving": halving, "extend": extend, "validation": validation}
        sections["sweep"] = {"grid": grid, "tune": True, **manner}
    require(out is not None or not resume, "resume", "the folder to go on with", None, "name out")
    with ExitStack() as borrowed:
        own = _own_parts(clients, loss, metrics)
        sections["data"] = _data(clients, own, borrowed)
        sections["training"]["loss"] = loss if isinstance(loss, str) else None
        sections["evaluation"] = {"metrics": metrics if _are_names(metrics) else None}
        sections["model"] = _model(model, borrowed)
        experiment = Experiment.of(sections).changed(changes or {})
        here = _only_here(experiment)
        fits = not here or jobs in (None, 1)
        expected = "1 with objects of your own, which stay in this process"
        require(fits, "jobs", expected, jobs)
        folder = None if out is None else Path(out)
        if resume and folder is not None:
            experiment = _same(experiment, folder)
        go_on = None if folder is None else f"undrift.compare(..., out={str(out)!r}, resume=True)"
        options = RunOptions(
            out=None if resume else folder,
            force=force,
            resume=folder if resume else None,
            jobs=1 if here else jobs,
            only=[only] if isinstance(only, str) else only,
            hash_always=True,
            spelling=Spelling(flags=False, command=go_on if here else None),
        )
        return run_with(experiment, "compare", options, on_record)


def _method(method: Any) -> dict[str, Any]:
    """Return a method as an experiment has it."""
    if isinstance(method, str):
        return {"name": method}
    if isinstance(method, Mapping):
        return dict(method)
    known = isinstance(method, Federated | Peer) and not hasattr(method, "inner")
    remedy = "a table such as {'name': 'fedavg', 'codec': 'qsgd:4'} has what wraps a method"
    require(known, "compare", "algorithms, names or tables", method, remedy)
    cls = type(method)
    name = cls.__name__.lower()
    own_name = f"{cls.__module__}:{cls.__qualname__}"
    return {"name": name if METHODS.get(name) is cls else own_name, **hyper_parameters(method)}


def _are_names(metrics: Any) -> bool:
    """Return whether metrics can be written into an experiment's file."""
    return isinstance(metrics, str) or (
        isinstance(metrics, list | tuple) and all(isinstance(each, str) for each in metrics)
    )


def _own_parts(clients: str | Clients, loss: Any, metrics: Any) -> OwnData | None:
    """Return the user's own clients with loss and metrics, None for a data set by its name."""
    if not isinstance(clients, str):
        fits = isinstance(clients, Clients)
        kind, remedy = type(clients).__name__, "" if fits else clients_remedy(clients)
        require(fits, "compare", "clients, or the name of a data set", kind, remedy)
        return OwnData(clients, loss, None if _are_names(metrics) else metrics)
    plain = loss is None or isinstance(loss, str)
    remedy = "name one, such as loss='huber', or make clients with undrift.data.load(...).split"
    require(plain, "compare", "the name of a loss for a data set by name", loss, remedy)
    plain = metrics is None or _are_names(metrics)
    remedy = "name them, such as metrics=['auroc', 'file.py:function']"
    require(plain, "compare", "names of metrics for a data set by name", metrics, remedy)
    return None


def _data(clients: str | Clients, own: OwnData | None, borrowed: ExitStack) -> dict[str, Any]:
    if own is None:
        return {"name": clients}
    (name,) = borrowed.enter_context(lent(own))
    return {"name": name, "partition": "natural", "clients": len(own.clients)}


def _model(model: str | nn.Module, borrowed: ExitStack) -> dict[str, Any]:
    if isinstance(model, str):
        name, options = parse_model(model)
        return {"name": name, **options}
    require(isinstance(model, nn.Module), "compare", "an nn.Module, or a model's name", model)
    (name,) = borrowed.enter_context(lent(model))
    return {"name": name}


def _only_here(experiment: Experiment) -> bool:
    """Return whether other processes would not find what is run."""
    names = [experiment.data.name, experiment.model.name]
    here = any(method.name.startswith("__main__:") for method in experiment.methods)
    return here or any(map(is_own, names))


def _same(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment of a folder, or raise if it is another."""
    trusted = {place_of(name) for name in experiment.code}
    before = read_experiment(folder, trust=trusted)
    asked, known = (
        each.model_dump(exclude={"evaluation", "title"})
        for each in (resolve_experiment(experiment), before)
    )
    other = next((name for name in asked if asked[name] != known[name]), None)
    remedy = "choose another out, or give the same arguments"
    expected = f"the comparison that {str(folder)!r} holds"
    require(other is None, "resume", expected, f"other {other}", remedy)
    return before
