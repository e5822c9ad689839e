"""Attacks of dishonest clients, to be tried in a simulation.

An attack has a share of all clients, drawn by the run's seed, that upload something else than they
computed. Attackers know each other's and the honest clients' uploads, as the papers assume.

    sign flip        -scale times their own upload
    Gaussian         normal numbers, `scale` times as large as the honest uploads' entries
    ALIE             Baruch et al., "A Little Is Enough", NeurIPS 2019: the honest mean less z
                     standard deviations in each coordinate, just within what rules take for usual
    inner product    Xie et al., "Fall of Empires", UAI 2019: -epsilon times the honest mean
    scaling          `factor` times their own upload
    label flip       their own upload, computed with label y as classes - 1 - y
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import keyed
from undrift.check import is_finite, require, require_choice, require_positive


@dataclass(frozen=True)
class Attack(ABC):
    """Is what a share of the clients do."""

    share: float
    name: ClassVar[str]
    flips_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sound = is_finite(self.share) and 0 < self.share < 1
        require(sound, type(self).__name__, "a share of the clients in (0, 1)", self.share)

    def attackers(self, clients: int, seed: int) -> NDArray[np.int64]:
        """Return the clients that attack, ascending: the share of them, rounded down."""
        order = keyed.generator(seed, "attackers").permutation(clients)
        return np.sort(order[: math.floor(self.share * clients + 1e-9)]).astype(np.int64)

    @abstractmethod
    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        """Return what the attackers upload, from their `own` (a, D) and the `honest` (h, D)."""


@dataclass(frozen=True)
class SignFlip(Attack):
    """Uploads the opposite of what was computed."""

    scale: float = 1.0
    name = "sign-flip"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        return -self.scale * own


@dataclass(frozen=True)
class Gaussian(Attack):
    """Uploads noise."""

    scale: float = 10.0
    name = "gaussian"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        usual = honest.square().mean().sqrt() if len(honest) else own.square().mean().sqrt()
        noise = torch.from_numpy(rng.standard_normal(tuple(own.shape))).to(own)
        return self.scale * usual * noise


@dataclass(frozen=True)
class ALIE(Attack):
    """Uploads the honest mean less z standard deviations; the paper's z unless it is given."""

    z: float | None = None
    name = "alie"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        if len(honest) < 2:
            return own
        n, a = len(own) + len(honest), len(own)
        z = self.z
        if z is None:
            supporters = n // 2 + 1 - a
            share = (n - a - supporters) / (n - a)
            z = NormalDist().inv_cdf(min(max(share, 0.5), 1 - 1e-6))
        return (honest.mean(0) - z * honest.std(0)).expand_as(own).clone()


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Uploads what points against the honest mean."""

    epsilon: float = 0.5
    name = "inner-product"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        return (-self.epsilon * honest.mean(0)).expand_as(own).clone() if len(honest) else own


@dataclass(frozen=True)
class Scaling(Attack):
    """Uploads many times what was computed."""

    factor: float = 10.0
    name = "scaling"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        return self.factor * own


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Uploads what was honestly computed from wrong labels."""

    name = "label-flip"
    flips_labels = True

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        return own


ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind for kind in (SignFlip, Gaussian, ALIE, InnerProduct, Scaling, LabelFlip)
}


def parse(text: str | Attack | None) -> Attack | None:
    """Return the attack that a text such as "sign-flip:0.2" or "scaling:0.2:100" names."""
    if text is None or isinstance(text, Attack):
        return text
    expected = f"an attack and its share of the clients, such as {next(iter(ATTACKS))}:0.2"
    require(isinstance(text, str), "attack", expected, text)
    name, *numbers = text.split(":")
    require_choice("attack", "its name", name, ATTACKS)
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    most = 1 if ATTACKS[name] is LabelFlip else 2
    require(1 <= len(values) <= most and all(map(math.isfinite, values)), "attack", expected, text)
    if len(values) == 2:
        require_positive("attack", strength=values[1])
    return ATTACKS[name](*values)
