"""All methods, one line each, in the order in which lists and tables show them.

To add a method, add its line here and run `make names`; the names of `undrift`, the flags, help,
completion, schema and the tables of the docs follow from its class.
"""

# ruff: noqa: I001

from undrift.algorithms.fedavg import FedAvg as FedAvg
from undrift.algorithms.fedprox import FedProx as FedProx
from undrift.algorithms.scaffold import Scaffold as Scaffold
from undrift.algorithms.fedspeed import FedSpeed as FedSpeed
from undrift.algorithms.fedacg import FedACG as FedACG
from undrift.algorithms.fedagrac import FedaGrac as FedaGrac
from undrift.algorithms.fedavgm import FedAvgM as FedAvgM
from undrift.algorithms.diloco import DiLoCo as DiLoCo
from undrift.algorithms.fedadam import FedAdam as FedAdam
from undrift.algorithms.fedyogi import FedYogi as FedYogi
from undrift.algorithms.fedadagrad import FedAdagrad as FedAdagrad
from undrift.algorithms.fedcm import FedCM as FedCM
from undrift.algorithms.feddyn import FedDyn as FedDyn
from undrift.algorithms.fedpd import FedPD as FedPD
from undrift.algorithms.fedadmm import FedADMM as FedADMM
from undrift.algorithms.feddc import FedDC as FedDC
from undrift.algorithms.fednova import FedNova as FedNova
from undrift.algorithms.fedlin import FedLin as FedLin
from undrift.algorithms.fedsam import FedSAM as FedSAM
from undrift.algorithms.mofedsam import MoFedSAM as MoFedSAM
from undrift.algorithms.fedgamma import FedGamma as FedGamma
from undrift.algorithms.moon import MOON as MOON
from undrift.algorithms.fedmlb import FedMLB as FedMLB
from undrift.algorithms.dsgd import DSGD as DSGD
from undrift.algorithms.ldsgd import LDSGD as LDSGD
from undrift.algorithms.gtsgd import GTSGD as GTSGD
from undrift.algorithms.netfleet import NetFleet as NetFleet
from undrift.algorithms.psgd import PSGD as PSGD
from undrift.algorithms.signsgd import SignSGD as SignSGD
from undrift.algorithms.efsignsgd import EFSignSGD as EFSignSGD
from undrift.algorithms.ssdm import SSDM as SSDM
from undrift.algorithms.cascadingssdm import CascadingSSDM as CascadingSSDM
from undrift.algorithms.marsit import Marsit as Marsit

ALGORITHMS: tuple[type, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, type)
)
