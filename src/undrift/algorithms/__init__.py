"""All methods. `ALGORITHMS` is the only list there is: add a class here and it is everywhere."""

from undrift.algorithms.fedacg import FedACG
from undrift.algorithms.fedagrac import FedaGrac
from undrift.algorithms.fedavg import FedAvg
from undrift.algorithms.fedprox import FedProx
from undrift.algorithms.fedspeed import FedSpeed
from undrift.algorithms.scaffold import Scaffold

ALGORITHMS: tuple[type, ...] = (FedAvg, FedProx, Scaffold, FedSpeed, FedACG, FedaGrac)

__all__ = ["ALGORITHMS", "FedACG", "FedAvg", "FedProx", "FedSpeed", "FedaGrac", "Scaffold"]
