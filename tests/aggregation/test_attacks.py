"""Attacks by their formulas, and who attacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from undrift.aggregation import attacks
from undrift.aggregation.attacks import ALIE, ATTACKS, Gaussian, InnerProduct, Scaling, SignFlip

RNG = np.random.default_rng(0)
OWN = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
HONEST = torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_formulas() -> None:
    assert torch.equal(SignFlip(0.3).forged(OWN, HONEST, RNG), -OWN)
    assert torch.equal(Scaling(0.3, 100).forged(OWN, HONEST, RNG), 100 * OWN)
    mean = HONEST.mean(0)
    assert torch.allclose(InnerProduct(0.3, 0.1).forged(OWN, HONEST, RNG), -0.1 * mean.expand(3, 4))
    forged = ALIE(0.3, 1.5).forged(OWN, HONEST, RNG)
    assert torch.allclose(forged, (mean - 1.5 * HONEST.std(0)).expand(3, 4))


def test_alie_takes_the_z_of_its_paper() -> None:
    # n = 10, 3 attackers: 3 supporters are needed, so z is where 4 of 7 honest ones are below.
    forged = ALIE(0.3).forged(OWN, HONEST, RNG)
    z = (HONEST.mean(0) - forged[0]) / HONEST.std(0)
    assert z.numpy() == pytest.approx([0.18001] * 4, abs=1e-4)


def test_noise_is_as_large_as_it_should_be() -> None:
    honest, own = torch.full((5, 10_000), 2.0), torch.zeros(2, 10_000)
    noise = Gaussian(0.3, 3.0).forged(own, honest, np.random.default_rng(0))
    assert noise.std().item() == pytest.approx(6.0, rel=0.02)
    assert abs(noise.mean().item()) < 0.2


def test_attackers_are_drawn_by_the_seed() -> None:
    attack = SignFlip(0.2)
    first = attack.attackers(20, 0)
    assert len(first) == 4
    assert (np.diff(first) > 0).all()
    assert np.array_equal(first, attack.attackers(20, 0))
    assert not np.array_equal(first, attack.attackers(20, 1))
    assert len(SignFlip(0.3).attackers(10, 0)) == 3
    assert len(SignFlip(0.05).attackers(10, 0)) == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_forms(name: str) -> None:
    assert attacks.parse(f"{name}:0.2") == ATTACKS[name](0.2)
    if name != "label-flip":
        assert attacks.parse(f"{name}:0.2:3") == ATTACKS[name](0.2, 3.0)


@pytest.mark.parametrize(
    "text",
    ["sign-flip", "sign-flip:1", "sign-flip:0", "sing-flip:0.1", "alie:x", "label-flip:0.1:2"],
)
def test_forms_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="needs"):
        attacks.parse(text)
