"""FedaGrac: Theorems 4.1 to 4.3 of Wu's thesis with their corollaries and Appendices C to E.

Theorem 4.1 is about FedAvg with unequal steps. Its gap has the constant 1 in the limit lr -> 0 and
is a bound there; everything else is an order, because the proofs say "sufficiently small" where
constants would be. What differs from the print (docs/theory/fedagrac.md):

* Corollary 4.2.1 drops K-bar mean(1 / K_i), a factor of the third term of Theorem 4.2. In the case
  of the remark (K_i = 1 for all but one huge client) it is K-bar: FedaGrac loses the factor that
  the remark holds against FedNova, and so does Corollary 4.3.1. `noise` has the closed form.
* The fast clients' first gradients enter nu with the variance of one minibatch, so that at lam = 1
  the noise of FedaGrac is above FedNova's by K-bar^2 sum_fast w_i^2 (1 - 1 / K_i).
* The proofs of Appendices C and D divide by K_i - 1: the remark's K_i = 1 is outside of them.
* For lam < 1 the factor of the gradients must be positive, a condition on B that is not printed.
* lr = O(1 / (mu L T K-bar)) has an L too many for the lemma that the proofs cite.
* Theorem 4.1 changes when a constant is added to F_i, which changes no run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from undrift.check import require, require_positive
from undrift.theory.judgement import Advice, Bound, Condition, Constants, Order, at_most
from undrift.theory.noise import LocalWork, work

GAP = "F at the limit of FedAvg less the minimum of F"
NON_CONVEX = "The mean over rounds of ||grad F(x)||^2"


def conditions(
    constants: Constants,
    *,
    lr: float,
    steps: Sequence[int],
    weights: Sequence[float] | None = None,
    lam: float = 1.0,
) -> tuple[Condition, ...]:
    """Return the conditions of Theorems 4.2 and 4.3 and of their proofs."""
    require_positive("fedagrac", lr=lr)
    w, c = work(steps, weights), constants
    longest = float(w.steps.max())
    ratio = w.mean / longest
    kept = lam * ratio + (1 - lam) * (1 - (1 - ratio) * c.B**2)
    return (
        at_most("lr <= 1 / (L K-bar)", lr, 1 / (c.L * w.mean), "Theorems 4.1 and 4.3", c),
        at_most(
            "lr <= 1 / (2 sqrt(2) L K_max)",
            lr,
            1 / (math.sqrt(8) * c.L * longest),
            "proof of Theorem 4.2",
            c,
        ),
        at_most("K_i >= 2", 2, float(w.steps.min()), "proofs of Theorems 4.1 and 4.2"),
        at_most(
            "lam K-bar + (1 - lam) K_max (1 - (1 - K-bar / K_max) B^2) > 0",
            -kept,
            -1e-9,
            "proof of Theorem 4.2",
        ),
        at_most("lam = 1", abs(lam - 1), 0, "Theorem 4.3"),
    )


def theorem_4_1(
    minima: Sequence[float], *, steps: Sequence[int], weights: Sequence[float] | None = None
) -> Bound:
    """Return sum_i w_i (K_i / K_min - 1) F_i(x*), the bound of FedAvg's gap as lr -> 0.

    `minima` are F_i(x*) >= 0 at the minimum x* of F, which the proof needs to be non-negative.
    """
    w, losses = work(steps, weights), np.asarray(minima, dtype=float)
    require(
        losses.shape == w.steps.shape, "fedagrac.theorem_4_1", f"{len(w.steps)} losses", losses.size
    )
    require(
        bool((losses >= 0).all()),
        "fedagrac.theorem_4_1",
        "losses F_i(x*) >= 0",
        float(losses.min()),
        "Theorem 4.1 is for non-negative objectives",
    )
    value = float((w.weights * (w.steps / w.steps.min() - 1) * losses).sum())
    return Bound(GAP, {"step asynchronism": value}, "Theorem 4.1")


def theorem_4_2(
    constants: Constants,
    *,
    lam: float,
    steps: Sequence[int],
    rounds: int,
    weights: Sequence[float] | None = None,
) -> Order:
    """Return the five terms of Theorem 4.2 without their constants, at lr = sqrt(M / (T K-bar))."""
    require_positive("fedagrac.theorem_4_2", lam=lam, rounds=rounds)
    w, c = work(steps, weights), constants
    M, K, T, square = len(w.steps), w.mean, rounds, c.sigma**2
    reference = (K - w.steps) ** 2 / (K * w.steps) + 1
    inner = float((w.weights**2 / w.steps).sum())
    terms = {
        "start": c.known_gap("fedagrac.theorem_4_2") / (lam * math.sqrt(K * M * T)),
        "noise": square * c.L * math.sqrt(M / (K**3 * T)) * _sum(w.weights**2 * w.steps) / lam,
        "noise of the references": square
        * c.L
        * lam
        * math.sqrt(M / (K * T))
        * _sum(w.weights**2 * reference),
        "drift": c.L**2 * square * M / (lam * K**2 * T) * _sum(w.weights * w.steps**4),
        "drift by the references": c.L**2
        * square
        * lam
        * M
        / (K**2 * T)
        * _sum(w.weights * w.steps**3 * (w.steps * inner + 1)),
    }
    return Order(NON_CONVEX, terms, "Theorem 4.2")


def corollary_4_2_1(*, steps: Sequence[int], rounds: int) -> Order:
    """Return the claimed 1 / sqrt(M T K-bar), and what Theorem 4.2 gives beside it."""
    require_positive("fedagrac.corollary_4_2_1", rounds=rounds)
    w = work(steps, None)
    claimed = 1 / math.sqrt(len(w.steps) * rounds * w.mean)
    return Order(
        NON_CONVEX,
        {
            "1 / sqrt(M T K-bar)": claimed,
            "the same times K-bar mean(1 / K_i)": claimed * asynchrony(steps),
        },
        "Corollary 4.2.1",
    )


def theorem_4_3(
    constants: Constants,
    *,
    mu: float,
    distance: float,
    steps: Sequence[int],
    rounds: int,
    weights: Sequence[float] | None = None,
) -> Order:
    """Return the terms of Theorem 4.3 for mu-strongly convex F; distance is ||x_1 - x*||."""
    require_positive("fedagrac.theorem_4_3", mu=mu, rounds=rounds)
    w, c = work(steps, weights), constants
    K, square = w.mean, c.sigma**2
    H = square / K**2 * _sum(w.weights**2 * (w.steps + K + (K - w.steps) ** 2 / w.steps))
    P = c.L**2 * square / mu * _sum(w.weights * w.steps**3) * _sum(w.weights**2 / w.steps)
    terms = {
        "start": mu * distance**2 * math.exp(-mu * rounds / c.L),
        "H / (mu T)": H / (mu * rounds),
        "P / (mu T)^2": P / (mu * rounds) ** 2,
    }
    return Order("F(x_T) - F*", terms, "Theorem 4.3")


def corollary_4_3_1(constants: Constants, *, mu: float, steps: Sequence[int], rounds: int) -> Order:
    """Return the claimed sigma^2 / (mu M T K-bar), and what Theorem 4.3 gives beside it."""
    require_positive("fedagrac.corollary_4_3_1", mu=mu, rounds=rounds)
    w = work(steps, None)
    claimed = constants.sigma**2 / (mu * len(w.steps) * rounds * w.mean)
    return Order(
        "F(x_T) - F*",
        {
            "sigma^2 / (mu M T K-bar)": claimed,
            "the same times K-bar mean(1 / K_i)": claimed * asynchrony(steps),
        },
        "Corollary 4.3.1",
    )


def asynchrony(steps: Sequence[int]) -> float:
    """Return K-bar mean(1 / K_i): 1 for equal steps, near K-bar if one client is huge."""
    w = work(steps, None)
    return float(w.mean * (1 / w.steps).mean())


def noise(*, lam: float, steps: Sequence[int], weights: Sequence[float] | None = None) -> float:
    """Return the variance that a round adds to the model in the long run, in (lr sigma)^2.

    A gradient of a slow client counts 1 - lam now and lam K-bar / K_i by way of the references of
    the next round; of a fast client only the first gradient counts in nu, with lam K-bar.
    """
    w = work(steps, weights)
    return float((w.weights**2 * _counts(w, lam)).sum())


def _counts(w: LocalWork, lam: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    K, mean = w.steps, w.mean
    slow = K * (1 - lam + lam * mean / K) ** 2
    fast = (1 - lam + lam * mean) ** 2 + (K - 1) * (1 - lam) ** 2
    return np.where(mean >= K, slow, fast)


def recommended(constants: Constants, *, steps: Sequence[int], rounds: int) -> Advice:
    """Return lam = 1 and lr of order sqrt(M / (T K-bar)), at most what the proofs allow."""
    w = work(steps, None)
    order = math.sqrt(len(w.steps) / (rounds * w.mean))
    limit = 1 / (math.sqrt(8) * constants.L * float(w.steps.max()))
    lr = min(order, limit)
    sentence = (
        f"lam = 1 removes the bias; lr = {lr:.3g}, of sqrt(M / (T K-bar)) = {order:.3g} and the "
        f"largest that the proof allows, {limit:.3g}."
    )
    return Advice({"lr": lr, "lam": 1.0}, sentence, conditions(constants, lr=lr, steps=steps))


def _sum(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(values.sum())
