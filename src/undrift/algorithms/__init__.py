"""All methods. `ALGORITHMS` is the only list there is: add a class here and it is everywhere."""

from undrift.algorithms.cascadingssdm import CascadingSSDM
from undrift.algorithms.dsgd import DSGD
from undrift.algorithms.efsignsgd import EFSignSGD
from undrift.algorithms.fedacg import FedACG
from undrift.algorithms.fedadagrad import FedAdagrad
from undrift.algorithms.fedadam import FedAdam
from undrift.algorithms.fedadmm import FedADMM
from undrift.algorithms.fedagrac import FedaGrac
from undrift.algorithms.fedavg import FedAvg
from undrift.algorithms.fedavgm import FedAvgM
from undrift.algorithms.fedcm import FedCM
from undrift.algorithms.feddc import FedDC
from undrift.algorithms.feddyn import FedDyn
from undrift.algorithms.fedgamma import FedGamma
from undrift.algorithms.fedlin import FedLin
from undrift.algorithms.fedmlb import FedMLB
from undrift.algorithms.fednova import FedNova
from undrift.algorithms.fedpd import FedPD
from undrift.algorithms.fedprox import FedProx
from undrift.algorithms.fedsam import FedSAM
from undrift.algorithms.fedspeed import FedSpeed
from undrift.algorithms.fedyogi import FedYogi
from undrift.algorithms.gtsgd import GTSGD
from undrift.algorithms.ldsgd import LDSGD
from undrift.algorithms.marsit import Marsit
from undrift.algorithms.mofedsam import MoFedSAM
from undrift.algorithms.moon import MOON
from undrift.algorithms.netfleet import NetFleet
from undrift.algorithms.psgd import PSGD
from undrift.algorithms.scaffold import Scaffold
from undrift.algorithms.signsgd import SignSGD
from undrift.algorithms.ssdm import SSDM

ALGORITHMS: tuple[type, ...] = (
    FedAvg,
    FedProx,
    Scaffold,
    FedSpeed,
    FedACG,
    FedaGrac,
    FedAvgM,
    FedAdam,
    FedYogi,
    FedAdagrad,
    FedCM,
    FedDyn,
    FedPD,
    FedADMM,
    FedDC,
    FedNova,
    FedLin,
    FedSAM,
    MoFedSAM,
    FedGamma,
    MOON,
    FedMLB,
    DSGD,
    LDSGD,
    GTSGD,
    NetFleet,
    PSGD,
    SignSGD,
    EFSignSGD,
    SSDM,
    CascadingSSDM,
    Marsit,
)

__all__ = [
    "ALGORITHMS",
    "DSGD",
    "GTSGD",
    "LDSGD",
    "MOON",
    "PSGD",
    "SSDM",
    "CascadingSSDM",
    "EFSignSGD",
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
    "Marsit",
    "MoFedSAM",
    "NetFleet",
    "Scaffold",
    "SignSGD",
]
