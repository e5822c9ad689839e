"""The experiment that a centre and its sites share: everything but the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from undrift.check import is_whole, require, require_nonnegative, require_positive
from undrift.core import Federated
from undrift.data.work import Deadline, Work
from undrift.engine import participation as laws
from undrift.federation.identity import digest_of, frozen_modes, without_addresses
from undrift.gradients.losses import plain_loss
from undrift.models.layout import Layout
from undrift.optim.schedules import resolve, scheduled
from undrift.tasks import Loss


@dataclass(frozen=True, kw_only=True)
class FederatedExperiment:
    """Describes an experiment whose data stay at their sites.

    The fields are arguments of `simulate`. `model` says what the model is; its parameters at the
    centre are the first model, those at a site are not used. `columns` says what samples mean where
    they are rows of tables, `code` has the hashes of the files of code that the experiment names,
    and `run` tells the runs of one file apart.
    """

    algorithm: Federated[Any, Any, Any, Any]
    model: nn.Module
    loss: Loss
    work: Work
    rounds: int
    batch_size: int | None = None
    participation: laws.AnyParticipation = 1.0
    weighting: laws.Weighting = "size"
    seed: int = 0
    weight_decay: float = 0.0
    clip: float | None = None
    evaluate_every: int = 1
    columns: str = ""
    code: str = ""
    run: str = ""

    def __post_init__(self) -> None:
        who = "A federation"
        algorithm: Any = self.algorithm
        server = isinstance(algorithm, Federated)
        remedy = "peers run under torchrun"
        expected = "a method with a server such as FedAvg(lr=0.1)"
        require(server, who, expected, type(algorithm).__name__, remedy)
        require(isinstance(self.model, nn.Module), who, "an nn.Module as model", self.model)
        work = isinstance(self.work, Work) and not isinstance(self.work, Deadline)
        require(work, who, "work such as Steps(10) or Epochs(5)", self.work)
        require(callable(self.loss), who, "a function of outputs and targets as loss", self.loss)
        for name, least in (("rounds", 0), ("evaluate_every", 1)):
            value = getattr(self, name)
            require(is_whole(value) and value >= least, who, f"{name} >= {least}", value)
        require_nonnegative(who, weight_decay=self.weight_decay)
        if self.clip is not None:
            require_positive(who, clip=self.clip)
        self.algorithm.check(self.model)
        if scheduled(self.algorithm):
            for t in range(self.rounds):
                resolve(self.algorithm, t)

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """Return by name what centre and sites must have in common."""
        layout = Layout.of(self.model)
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        loss = plain_loss(self.loss)
        computed = {
            "method": self.algorithm,
            "model": [self.model, frozen_modes(self.model)],
            "loss": loss,
            "work": self.work,
        }
        named = {"columns": self.columns, "code": self.code, "run": self.run}
        return {
            **{name: text for name, text in named.items() if text},
            "method": repr(self.algorithm),
            "model": f"{type(self.model).__name__} {shapes} {layout.dtype}",
            "loss": _name(loss),
            "work": repr(self.work),
            "batch_size": repr(self.batch_size),
            "seed": repr(self.seed),
            "weight_decay": repr(self.weight_decay),
            "clip": repr(self.clip),
            "digests": ", ".join(f"{name} {digest_of(what)}" for name, what in computed.items()),
        }

    @cached_property
    def digest(self) -> str:
        """Return a hash of what centre and sites must have in common."""
        text = "\n".join(f"{name}: {value}" for name, value in self.facts.items())
        return hashlib.sha256(without_addresses(text).encode()).hexdigest()[:32]


def _name(loss: Any) -> str:
    return str(getattr(loss, "__qualname__", repr(loss)))
