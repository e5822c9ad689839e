"""undrift: training on heterogeneous data without client drift.

What is here is imported when it is first asked for, so that `import undrift` costs next to nothing
and the command line need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undrift import cost, data, ddp, devices, merge, metrics, models, route, schedule, topology
    from undrift.accelerated import Accelerated
    from undrift.algorithms import (
        ALGORITHMS,
        DSGD,
        GTSGD,
        LDSGD,
        MOON,
        PSGD,
        SSDM,
        CascadingSSDM,
        EFSignSGD,
        FedACG,
        FedAdagrad,
        FedAdam,
        FedADMM,
        FedaGrac,
        FedAvg,
        FedAvgM,
        FedCM,
        FedDC,
        FedDyn,
        FedGamma,
        FedLin,
        FedMLB,
        FedNova,
        FedPD,
        FedProx,
        FedSAM,
        FedSpeed,
        FedYogi,
        Marsit,
        MoFedSAM,
        NetFleet,
        Scaffold,
        SignSGD,
    )
    from undrift.codec import QSGD, ScaledSign, TopK
    from undrift.core import (
        AllReduce,
        Cohort,
        Comm,
        Federated,
        Gossip,
        Loop,
        Merge,
        Objective,
        Peer,
        Prelude,
        Vector,
    )
    from undrift.data import (
        Clients,
        Dataset,
        Deadline,
        Epochs,
        GaussianSteps,
        Replaced,
        Resampled,
        Spans,
        Steps,
        UniformSteps,
    )
    from undrift.devices import Device, Fleet
    from undrift.drift import Drift
    from undrift.engine.execute import Upload
    from undrift.engine.run import Run
    from undrift.engine.simulate import simulate
    from undrift.errors import (
        CheckpointError,
        DataError,
        DivergenceError,
        UndriftError,
        WorkerError,
    )
    from undrift.experiment import Experiment
    from undrift.participation import Bernoulli, Cohorts, FixedSize, WithReplacement
    from undrift.record import PeerRecord, Record, Totals
    from undrift.rule import SGD, Adam, Momentum
    from undrift.schedule import Schedule, exponential, piecewise
    from undrift.vector import group_norm
    from undrift.wrap import Compressed

__version__ = "0.1.0"

_NAMES = {  # module -> what is taken from it
    "accelerated": "Accelerated",
    "algorithms": (
        "ALGORITHMS DSGD GTSGD LDSGD MOON PSGD SSDM CascadingSSDM EFSignSGD FedACG FedAdagrad "
        "FedAdam FedADMM FedaGrac FedAvg FedAvgM FedCM FedDC FedDyn FedGamma FedLin FedMLB "
        "FedNova FedPD FedProx FedSAM FedSpeed FedYogi Marsit MoFedSAM NetFleet Scaffold "
        "SignSGD"
    ),
    "codec": "QSGD ScaledSign TopK",
    "core": "AllReduce Cohort Comm Federated Gossip Loop Merge Objective Peer Prelude Vector",
    "data": (
        "Clients Dataset Deadline Epochs GaussianSteps Replaced Resampled Spans Steps UniformSteps"
    ),
    "devices": "Device Fleet",
    "drift": "Drift",
    "engine.execute": "Upload",
    "engine.run": "Run",
    "engine.simulate": "simulate",
    "errors": "CheckpointError DataError DivergenceError UndriftError WorkerError",
    "experiment": "Experiment",
    "participation": "Bernoulli Cohorts FixedSize WithReplacement",
    "record": "PeerRecord Record Totals",
    "rule": "SGD Adam Momentum",
    "schedule": "Schedule exponential piecewise",
    "vector": "group_norm",
    "wrap": "Compressed",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # to which every name would seem to be there

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            found = getattr(import_module(f"undrift.{_HOMES[name]}"), name)
            globals()[name] = found  # the next time it is simply there
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"undrift.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"undrift.{name}":
                    raise  # the module is there, and lacks another
        raise AttributeError(_unknown(name), name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    lower = {known.lower(): known for known in __all__}
    near = get_close_matches(name.lower(), lower, n=1)
    return f"undrift has no {name!r}{f'; the nearest is {lower[near[0]]!r}' if near else ''}."


__all__ = [
    "ALGORITHMS",
    "DSGD",
    "GTSGD",
    "LDSGD",
    "MOON",
    "PSGD",
    "QSGD",
    "SGD",
    "SSDM",
    "Accelerated",
    "Adam",
    "AllReduce",
    "Bernoulli",
    "CascadingSSDM",
    "CheckpointError",
    "Clients",
    "Cohort",
    "Cohorts",
    "Comm",
    "Compressed",
    "DataError",
    "Dataset",
    "Deadline",
    "Device",
    "DivergenceError",
    "Drift",
    "EFSignSGD",
    "Epochs",
    "Experiment",
    "FedACG",
    "FedADMM",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDC",
    "FedDyn",
    "FedGamma",
    "FedLin",
    "FedMLB",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedSAM",
    "FedSpeed",
    "FedYogi",
    "FedaGrac",
    "Federated",
    "FixedSize",
    "Fleet",
    "GaussianSteps",
    "Gossip",
    "Loop",
    "Marsit",
    "Merge",
    "MoFedSAM",
    "Momentum",
    "NetFleet",
    "Objective",
    "Peer",
    "PeerRecord",
    "Prelude",
    "Record",
    "Replaced",
    "Resampled",
    "Run",
    "Scaffold",
    "ScaledSign",
    "Schedule",
    "SignSGD",
    "Spans",
    "Steps",
    "TopK",
    "Totals",
    "UndriftError",
    "UniformSteps",
    "Upload",
    "Vector",
    "WithReplacement",
    "WorkerError",
    "cost",
    "data",
    "ddp",
    "devices",
    "exponential",
    "group_norm",
    "merge",
    "metrics",
    "models",
    "piecewise",
    "route",
    "schedule",
    "simulate",
    "topology",
]
