"""SCAFFOLD: it converges to the optimum for any K_i; its noise with everybody taking part."""

from __future__ import annotations

from collections.abc import Sequence

from undrift.theory import fednova


def noise(*, steps: Sequence[int], weights: Sequence[float] | None = None) -> float:
    """Return K-bar^2 sum_i w_i^2 / K_i, the variance that a round adds in the long run.

    A gradient of client i counts 1 in its round and K-bar / K_i - 1 by way of c - c_i in the next.
    """
    return fednova.noise(steps=steps, weights=weights)
