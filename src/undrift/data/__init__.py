"""Data, how it is dealt to clients, and how much each client runs."""

from undrift.data.availability import Availability, Replaced, Resampled, Spans
from undrift.data.clients import Clients
from undrift.data.embedded import Dataset, digits
from undrift.data.partition import dirichlet, iid, shards
from undrift.data.synthetic import Quadratics, quadratics
from undrift.data.work import Epochs, GaussianSteps, Steps, UniformSteps, Work

__all__ = [
    "Availability",
    "Clients",
    "Dataset",
    "Epochs",
    "GaussianSteps",
    "Quadratics",
    "Replaced",
    "Resampled",
    "Spans",
    "Steps",
    "UniformSteps",
    "Work",
    "digits",
    "dirichlet",
    "iid",
    "quadratics",
    "shards",
]
