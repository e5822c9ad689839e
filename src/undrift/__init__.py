"""undrift: training on heterogeneous data without client drift."""

from undrift import data, models, schedule
from undrift.algorithms import ALGORITHMS, FedACG, FedaGrac, FedAvg, FedProx, FedSpeed, Scaffold
from undrift.core import Cohort, Federated, Loop, Objective, Peer, Prelude, Vector
from undrift.data import Clients, Epochs, GaussianSteps, Steps, UniformSteps
from undrift.engine.execute import Upload
from undrift.engine.simulate import Run, simulate
from undrift.errors import CheckpointError, DivergenceError, UndriftError
from undrift.participation import Bernoulli, Cohorts, FixedSize, WithReplacement
from undrift.record import Record, Totals
from undrift.rule import SGD, Adam, Momentum
from undrift.schedule import Schedule, exponential, piecewise
from undrift.vector import group_norm

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "SGD",
    "Adam",
    "Bernoulli",
    "CheckpointError",
    "Clients",
    "Cohort",
    "Cohorts",
    "DivergenceError",
    "Epochs",
    "FedACG",
    "FedAvg",
    "FedProx",
    "FedSpeed",
    "FedaGrac",
    "Federated",
    "FixedSize",
    "GaussianSteps",
    "Loop",
    "Momentum",
    "Objective",
    "Peer",
    "Prelude",
    "Record",
    "Run",
    "Scaffold",
    "Schedule",
    "Steps",
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
