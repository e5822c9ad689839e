"""A method's hyper-parameters as options of `undrift run`.

Written down here, because the classes that have them need torch; a test compares the two. A line
has a class and each of its fields with its default.
"""

import inspect
from typing import Annotated, Any

import typer

_LINES = """\
FedAvg lr=0.1 server_lr=1.0 rule=sgd
FedProx lr=0.1 mu=0.1 rule=sgd
Scaffold lr=0.1 server_lr=1.0 option=II
FedSpeed lr=0.1 lam=10.0 rho=0.1 alpha=0.9375 normalise=true \
correction=true prox=true perturbation=true aggregation=all
FedACG lr=0.1 lam=0.85 beta=0.01 rule=sgd
FedaGrac lr=0.1 lam=1.0 scheme=fedagrac local_reference=avg nu_scope=participants
FedAvgM lr=0.1 beta=0.4 server_lr=1.0 mu=0.0 rule=sgd
FedAdam lr=0.1 server_lr=0.1 beta1=0.9 beta2=0.99 tau=0.001
FedYogi lr=0.1 server_lr=0.1 beta1=0.9 beta2=0.99 tau=0.001
FedAdagrad lr=0.1 server_lr=0.1 beta1=0.0 tau=0.001
FedCM lr=0.1 alpha=0.1
FedDyn lr=0.1 alpha=0.1
FedPD lr=0.1 eta=10.0 p=0.0 start=own coin=0
FedADMM lr=0.1 rho=0.1 l1=0.0
FedDC lr=0.1 alpha=0.01
FedNova lr=0.1 mu=0.0 rho=0.0
FedLin lr=0.1
FedSAM lr=0.1 rho=0.1 normalise=true
MoFedSAM lr=0.1 rho=0.1 alpha=0.1
FedGamma lr=0.1 rho=0.1 server_lr=1.0
MOON lr=0.1 mu=1.0 tau=0.5 rule=momentum:0.9
FedMLB lr=0.1 lam1=1.0 lam2=1.0 temperature=1.0 rule=sgd
DSGD lr=0.1 form=cta
LDSGD lr=0.1 form=cta gossip=1
GTSGD lr=0.1 form=cta
NetFleet lr=0.1
PSGD lr=0.1 rule=sgd
SignSGD lr=0.1 server_lr=none rule=sgd code=fixed
EFSignSGD lr=0.1 rule=sgd code=fixed
SSDM lr=0.1 beta=0.9 norm=none code=fixed
CascadingSSDM lr=0.1 beta=0.9
Marsit lr=0.1 server_lr=0.01 period=none rule=sgd decay=1.0
"""
WORDS = {  # what fields take that are no numbers
    "rule": "sgd|momentum|adam",
    "option": "I|II",
    "aggregation": "all|participants",
    "scheme": "fedagrac|avg|first|reverse",
    "local_reference": "avg|sent",
    "nu_scope": "participants|all",
    "start": "own|server",
    "form": "cta|atc",
    "code": "fixed|gamma|delta|omega",
    "norm": "none|max",
}
_FIELDS = {cls.lower(): (cls, fields) for cls, *fields in map(str.split, _LINES.splitlines())}


def flags_of(method: str) -> list[inspect.Parameter]:
    """One option for each field."""
    cls, fields = _FIELDS[method]
    return [_flag(f"{cls}'s hyper-parameters", *field.split("=")) for field in fields]


def _flag(panel: str, name: str, default: str) -> inspect.Parameter:
    value: Any = default
    kind: Any = Annotated[str, typer.Option(rich_help_panel=panel, metavar=_metavar(name, default))]
    if default in ("true", "false"):
        value = default == "true"
        kind = Annotated[bool, typer.Option(rich_help_panel=panel)]
    by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, by_name, default=value, annotation=kind)


def _metavar(name: str, default: str) -> str:
    return WORDS.get(name, "NUMBER|none" if default == "none" else "NUMBER")
