"""undrift: training on heterogeneous data without client drift.

Names are imported when they are first used, so `import undrift` costs next to nothing and the
command line answers without waiting for torch. The methods are listed in `undrift.algorithms`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `_MODULES` says at run time, for type checkers and editors
    from undrift import comm as comm
    from undrift import cost as cost
    from undrift import data as data
    from undrift import ddp as ddp
    from undrift import federation as federation
    from undrift import fleet as fleet
    from undrift import models as models
    from undrift import optim as optim
    from undrift import tasks as tasks
    from undrift import theory as theory
    from undrift import topology as topology
    from undrift.aggregation import attacks as attacks
    from undrift.aggregation import robust as robust
    from undrift.algorithms import *  # noqa: F403
    from undrift.algorithms.accelerated import Accelerated as Accelerated
    from undrift.algorithms.compressed import Compressed as Compressed
    from undrift.analysis.drift import Drift as Drift
    from undrift.comm.codecs import (
        QSGD as QSGD,
    )
    from undrift.comm.codecs import (
        ScaledSign as ScaledSign,
    )
    from undrift.comm.codecs import (
        TopK as TopK,
    )
    from undrift.config.experiment import Experiment as Experiment
    from undrift.core import (
        AllReduce as AllReduce,
    )
    from undrift.core import (
        Cohort as Cohort,
    )
    from undrift.core import (
        Comm as Comm,
    )
    from undrift.core import (
        Federated as Federated,
    )
    from undrift.core import (
        Gossip as Gossip,
    )
    from undrift.core import (
        Loop as Loop,
    )
    from undrift.core import (
        Merge as Merge,
    )
    from undrift.core import (
        Objective as Objective,
    )
    from undrift.core import (
        Peer as Peer,
    )
    from undrift.core import (
        Prelude as Prelude,
    )
    from undrift.core import (
        Vector as Vector,
    )
    from undrift.data import (
        Clients as Clients,
    )
    from undrift.data import (
        Dataset as Dataset,
    )
    from undrift.data import (
        Deadline as Deadline,
    )
    from undrift.data import (
        Epochs as Epochs,
    )
    from undrift.data import (
        GaussianSteps as GaussianSteps,
    )
    from undrift.data import (
        Replaced as Replaced,
    )
    from undrift.data import (
        Resampled as Resampled,
    )
    from undrift.data import (
        Spans as Spans,
    )
    from undrift.data import (
        Steps as Steps,
    )
    from undrift.data import (
        UniformSteps as UniformSteps,
    )
    from undrift.engine.early_stopping import EarlyStopping as EarlyStopping
    from undrift.engine.execution.cohort import Upload as Upload
    from undrift.engine.participation import (
        Bernoulli as Bernoulli,
    )
    from undrift.engine.participation import (
        Cohorts as Cohorts,
    )
    from undrift.engine.participation import (
        FixedSize as FixedSize,
    )
    from undrift.engine.participation import (
        WithReplacement as WithReplacement,
    )
    from undrift.engine.run import Run as Run
    from undrift.engine.settings import (
        EvaluationOptions as EvaluationOptions,
    )
    from undrift.engine.settings import (
        ExecutionOptions as ExecutionOptions,
    )
    from undrift.engine.settings import (
        ExecutionRecord as ExecutionRecord,
    )
    from undrift.engine.simulate import simulate as simulate
    from undrift.errors import (
        CheckpointError as CheckpointError,
    )
    from undrift.errors import (
        DataError as DataError,
    )
    from undrift.errors import (
        DivergenceError as DivergenceError,
    )
    from undrift.errors import (
        StallWarning as StallWarning,
    )
    from undrift.errors import (
        TaskWarning as TaskWarning,
    )
    from undrift.errors import (
        UndriftError as UndriftError,
    )
    from undrift.errors import (
        WorkerError as WorkerError,
    )
    from undrift.fleet import (
        Device as Device,
    )
    from undrift.fleet import (
        Fleet as Fleet,
    )
    from undrift.models.layout import group_norm as group_norm
    from undrift.optim.rules import (
        SGD as SGD,
    )
    from undrift.optim.rules import (
        Adam as Adam,
    )
    from undrift.optim.rules import (
        AdamW as AdamW,
    )
    from undrift.optim.rules import (
        Momentum as Momentum,
    )
    from undrift.optim.schedules import (
        Schedule as Schedule,
    )
    from undrift.optim.schedules import (
        cosine as cosine,
    )
    from undrift.optim.schedules import (
        exponential as exponential,
    )
    from undrift.optim.schedules import (
        piecewise as piecewise,
    )
    from undrift.optim.schedules import (
        staircase as staircase,
    )
    from undrift.optim.schedules import (
        warmup as warmup,
    )
    from undrift.outer import (
        Outer as Outer,
    )
    from undrift.outer import (
        Seconds as Seconds,
    )
    from undrift.results import metrics as metrics
    from undrift.results.record import (
        PeerRecord as PeerRecord,
    )
    from undrift.results.record import (
        Record as Record,
    )
    from undrift.results.record import (
        Totals as Totals,
    )
    from undrift.runs.api import run as run
    from undrift.runs.comparing import compare as compare
    from undrift.runs.result import ExperimentResult as ExperimentResult
    from undrift.runs.saved_model import SavedModel as SavedModel
    from undrift.tasks import Metric as Metric

__version__ = "0.1.0"

_PACKAGES = "comm cost data ddp federation fleet models optim tasks theory topology"
_MODULES = {  # module: the names that are taken from it
    "aggregation": "attacks robust",
    "algorithms.accelerated": "Accelerated",
    "algorithms.compressed": "Compressed",
    "analysis.drift": "Drift",
    "comm.codecs": "QSGD ScaledSign TopK",
    "config.experiment": "Experiment",
    "core": "AllReduce Cohort Comm Federated Gossip Loop Merge Objective Peer Prelude Vector",
    "data": (
        "Clients Dataset Deadline Epochs GaussianSteps Replaced Resampled Spans Steps UniformSteps"
    ),
    "fleet": "Device Fleet",
    "engine.early_stopping": "EarlyStopping",
    "engine.execution.cohort": "Upload",
    "engine.participation": "Bernoulli Cohorts FixedSize WithReplacement",
    "engine.run": "Run",
    "engine.settings": "EvaluationOptions ExecutionOptions ExecutionRecord",
    "engine.simulate": "simulate",
    "errors": (
        "CheckpointError DataError DivergenceError StallWarning TaskWarning UndriftError "
        "WorkerError"
    ),
    "models.layout": "group_norm",
    "outer": "Outer Seconds",
    "optim.rules": "SGD Adam AdamW Momentum",
    "optim.schedules": "Schedule cosine exponential piecewise staircase warmup",
    "results.record": "PeerRecord Record Totals",
    "results": "metrics",
    "runs.api": "run",
    "runs.comparing": "compare",
    "runs.result": "ExperimentResult",
    "runs.saved_model": "SavedModel",
    "tasks": "Metric",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def _names() -> list[str]:
    """Return every public name, those of the methods included."""
    return sorted([*_HOMES, *_PACKAGES.split(), *_methods()])


def _methods() -> dict[str, Any]:
    """Return the methods and their list by name."""
    listed = import_module("undrift.algorithms").ALGORITHMS
    return {"ALGORITHMS": listed, **{cls.__name__: cls for cls in listed}}


def _submodule(name: str) -> Any:
    """Return a module of the package, or None if there is none of this name."""
    try:
        return import_module(f"undrift.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"undrift.{name}":
            raise  # the module exists and lacks another
        return None


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return _names()
        value = None
        if name in _HOMES:
            module = import_module(f"undrift.{_HOMES[name]}")
            value = getattr(module, name, None) or import_module(f"{module.__name__}.{name}")
        elif not name.startswith("_"):
            value = _submodule(name) or _methods().get(name)
        if value is None:
            raise AttributeError(_unknown(name), name=name)
        globals()[name] = value  # the next access does not come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), "__all__", *_names()})


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    meant = {"train": "simulate", "fit": "simulate", "Simulation": "simulate"}.get(name)
    if meant is not None:
        return f"undrift has no {name!r}; {meant}(...) trains a model."
    lower = {known.lower(): known for known in _names()}
    near = get_close_matches(name.lower(), lower, n=1)
    return f"undrift has no {name!r}{f'; the nearest is {lower[near[0]]!r}' if near else ''}."
