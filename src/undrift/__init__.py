"""undrift: training on heterogeneous data without client drift."""

from undrift import data, models, schedule
from undrift.accelerated import Accelerated
from undrift.algorithms import (
    ALGORITHMS,
    MOON,
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
    MoFedSAM,
    Scaffold,
)
from undrift.codec import QSGD, ScaledSign, TopK
from undrift.core import Cohort, Federated, Loop, Objective, Peer, Prelude, Vector
from undrift.data import (
    Clients,
    Epochs,
    GaussianSteps,
    Replaced,
    Resampled,
    Spans,
    Steps,
    UniformSteps,
)
from undrift.engine.execute import Upload
from undrift.engine.simulate import Run, simulate
from undrift.errors import CheckpointError, DivergenceError, UndriftError
from undrift.participation import Bernoulli, Cohorts, FixedSize, WithReplacement
from undrift.record import Record, Totals
from undrift.rule import SGD, Adam, Momentum
from undrift.schedule import Schedule, exponential, piecewise
from undrift.vector import group_norm
from undrift.wrap import Compressed

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "MOON",
    "QSGD",
    "SGD",
    "Accelerated",
    "Adam",
    "Bernoulli",
    "CheckpointError",
    "Clients",
    "Cohort",
    "Cohorts",
    "Compressed",
    "DivergenceError",
    "Epochs",
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
    "GaussianSteps",
    "Loop",
    "MoFedSAM",
    "Momentum",
    "Objective",
    "Peer",
    "Prelude",
    "Record",
    "Replaced",
    "Resampled",
    "Run",
    "Scaffold",
    "ScaledSign",
    "Schedule",
    "Spans",
    "Steps",
    "TopK",
    "Totals",
    "UndriftError",
    "UniformSteps",
    "Upload",
    "Vector",
    "WithReplacement",
    "data",
    "exponential",
    "group_norm",
    "models",
    "piecewise",
    "schedule",
    "simulate",
]
