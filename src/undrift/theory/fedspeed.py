"""FedSpeed: Theorem 4.4 and Corollary 4.5 of Sun et al., ICLR 2023.

Theorem 4.4 bounds the mean over rounds of ||grad F(z_t)||^2 for the sequence of its equation (5),

    z = x - lam (1 - 2 gamma) / gamma mean_i g^_i,   gamma = 1 - (1 - lr / lam)^K,

under full participation. `bound` has the constants that the steps of its proof give; `printed` is
the theorem as it stands. They differ (docs/theory/fedspeed.md has each step):

* Phi is printed with a factor lam, which the division by lam kappa removes.
* The noise of the step, (lam L / 2) sigma^2 sum_k (gamma_k / gamma)^2 / m, is missing: the proof
  has E||mean g~||^2 on one side and ||mean E g~||^2 on the other. With K = 1 and lr = lam z
  follows SGD with step lam, and the printed bound is violated (tests/theory/test_fedspeed.py).
* The drift is bounded with a = 1, which needs 2 (1 - lr / lam)^2 <= 1 - lr / lam, so lr >= lam / 2;
  the experiments have lr = lam / 100. With a free, drift is of order lam^2 and not lr^2 K: a larger
  K does not reduce it, and Corollary 4.5's O(1 / T) at a constant lam does not follow.
* Two conditions of the proof are not in the theorem: P <= 2 and `8 lam^2 L^2 q + lam L <= 1`. The
  last is printed with a factor m^2 that belongs to a sum and not to a mean.
* lr <= lam is needed, not 2 lam: beyond it the weights gamma_k change sign.

With alpha rho > 0 the gradient at the ascended point is biased by its own noise; the bound then
takes the noise to be additive, the same at all points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from undrift.check import require, require_nonnegative, require_positive
from undrift.theory.judgement import (
    Advice,
    Bound,
    Condition,
    Constants,
    Order,
    at_most,
    violated,
)
from undrift.theory.judgement import (
    bound as judged_bound,
)

OF = "The mean over rounds of ||grad F(z)||^2"
PROOF = "proof of Theorem 4.4, C.4"
SPLITS = tuple(10 ** (k / 8) for k in range(-48, 49))  # values of a in (1 + a) x^2 + (1 + 1/a) y^2


@dataclass(frozen=True)
class _Parts:
    """Holds the quantities of the proof."""

    gamma: float
    q: float  # ((1 - 2 gamma) / gamma)^2
    P: float
    w: float  # coefficient of mean_i ||g^_i||^2 in the drift, times P
    drift: float  # E in docs/theory/fedspeed.md: mean ||y - x||^2 <= E ((16 + 12 w) ...)
    spread: float  # sum_k (gamma_k / gamma)^2
    kappa: float


def gamma(lr: float, lam: float, steps: int) -> float:
    """Return 1 - (1 - lr / lam)^K."""
    return -math.expm1(steps * math.log1p(-lr / lam)) if lr < lam else 1 - (1 - lr / lam) ** steps


def auxiliary(x: float, dual: float, *, lr: float, lam: float, steps: int) -> float:
    """Return z from the model and the mean of the corrections, numbers or vectors alike."""
    g = gamma(lr, lam, steps)
    return x - lam * (1 - 2 * g) / g * dual


def _parts(c: Constants, lr: float, lam: float, steps: int, rho: float, alpha: float) -> _Parts:
    g, r = gamma(lr, lam, steps), lr / lam
    q = ((1 - 2 * g) / g) ** 2
    rest = 1 - 24 * (lam * c.L) ** 2 * q
    P = 1 / rest if rest > 0 else math.inf
    w = 3 * P + 2 / 3 * (P - 1)
    drift = min(2 * (1 + 1 / a) * lr**2 * _geometric(a, r, lr * c.L, steps) for a in SPLITS)
    weights = [r * (1 - r) ** (steps - 1 - k) / g for k in range(steps)]
    kappa = 0.5 - 3 * (alpha * rho * c.L) ** 2 - 4 * c.L**2 * drift * (16 + 12 * w)
    return _Parts(g, q, P, w, drift, math.fsum(v * v for v in weights), kappa)


def _geometric(a: float, r: float, step: float, steps: int) -> float:
    """Return sum_(j < K - 1) beta^j of the drift's recursion c_k <= beta c_(k-1) + b."""
    beta = (1 + a) * (1 - r) ** 2 + (1 + 1 / a) * 16 * step**2
    if beta * (steps - 1) > 700:  # the power would overflow
        return math.inf
    return float(steps - 1) if beta == 1 else (1 - beta ** (steps - 1)) / (1 - beta)


def conditions(
    constants: Constants,
    *,
    lr: float,
    lam: float,
    steps: int,
    rho: float = 0.0,
    alpha: float = 1.0,
    reading: str = "derived",
) -> tuple[Condition, ...]:
    """Return the conditions of Theorem 4.4, as its proof needs them or as it prints them."""
    _check(lr, lam, steps, rho, alpha)
    c, L = constants, constants.L
    ascent = at_most(
        "alpha rho <= 1 / (sqrt(6) L)", alpha * rho, 1 / (math.sqrt(6) * L), "Theorem 4.4", c
    )
    long = at_most("K >= lam / lr", lam / lr, steps, "Theorem 4.4")
    if reading == "printed":
        limit = 1 / (32 * math.sqrt(3 * steps) * L)
        return (
            ascent,
            at_most("lr <= 1 / (32 sqrt(3 K) L)", lr, limit, "Theorem 4.4", c),
            at_most("lr <= 2 lam", lr, 2 * lam, "Theorem 4.4"),
            long,
        )
    require(reading == "derived", "fedspeed.conditions", "reading derived or printed", reading)
    parts = _parts(c, lr, lam, steps, rho, alpha)
    twice = 1 if steps == 1 else 2
    step = twice * (8 * (lam * L) ** 2 * parts.q + lam * L)
    weight = 24 * parts.w * L**2 * parts.drift / 2
    return (
        ascent,
        at_most("lr <= lam", lr, lam, PROOF),
        long,
        at_most("24 lam^2 L^2 q <= 1/2", 24 * (lam * L) ** 2 * parts.q, 0.5, PROOF, c),
        at_most("8 lam^2 L^2 q + lam L <= 1 (twice it if K > 1)", step, 1, PROOF, c),
        at_most("24 w L^2 drift <= 1/2", weight, 0.5, PROOF, c),
        at_most("kappa > 0", -parts.kappa, -1e-9, PROOF, c),
    )


def bound(
    constants: Constants,
    *,
    lr: float,
    lam: float,
    steps: int,
    rounds: int,
    clients: int,
    rho: float = 0.0,
    alpha: float = 1.0,
) -> Bound:
    """Return the bound of Theorem 4.4 that follows from its proof, from the first round on.

    All g^_i begin at zero, so the two terms of Theorem 4.4 in their first values vanish.
    """
    who = "fedspeed.bound"
    require_positive(who, rounds=rounds, clients=clients)
    held = conditions(constants, lr=lr, lam=lam, steps=steps, rho=rho, alpha=alpha)
    c, L = constants, constants.L
    p = _parts(c, lr, lam, steps, rho, alpha)
    ascent = (alpha * rho * L) ** 2
    noise = c.sigma**2 * ((1 + alpha * rho * L) ** 2 + 3 * ascent)  # of the perturbed gradient
    twice = 1 if steps == 1 else 2
    drift = 4 * L**2 * p.drift * ((16 + 12 * p.w) * c.zeta**2 + (1 + p.w) * noise)
    step = twice * (4 * (lam * L) ** 2 * p.q + lam * L / 2) * noise * p.spread / clients
    terms = {
        "start": c.known_gap(who) / (lam * p.kappa * rounds),
        "drift": drift / p.kappa,
        "noise of a step": step / p.kappa,
        "ascent": ascent * (3 * c.zeta**2 + c.sigma**2) / p.kappa,
    }
    return judged_bound(OF, terms, "Theorem 4.4 with its proof's constants", held, c)


def printed(
    constants: Constants,
    *,
    lr: float,
    lam: float,
    steps: int,
    rounds: int,
    corrections: tuple[float, float] = (0.0, 0.0),
    rho: float = 0.0,
    alpha: float = 1.0,
) -> Bound:
    """Return Theorem 4.4 as printed; the gap is that of z_1.

    `corrections` are mean_i ||g^_i||^2 and ||mean_i g^_i||^2 after the first round.
    """
    held = conditions(
        constants, lr=lr, lam=lam, steps=steps, rho=rho, alpha=alpha, reading="printed"
    )
    c, L = constants, constants.L
    kappa = 0.5 - 3 * (alpha * rho * L) ** 2 - 1536 * (lr * L) ** 2 * steps
    held = (*held, at_most("kappa > 0", -kappa, -1e-9, "Theorem 4.4", c))
    local = 32 * lam * (lr * L) ** 2 * steps * (16 * c.zeta**2 + c.sigma**2)
    ascent = lam * (alpha * rho * L) ** 2 * (3 * c.zeta**2 + c.sigma**2)
    terms = {
        "start": 2 * c.known_gap("fedspeed.printed") / (lam * kappa * rounds),
        "corrections": 64 * lr * L**2 * steps * corrections[0] / (kappa * rounds),
        "mean correction": 32 * (lam * L) ** 2 * corrections[1] / (kappa * rounds),
        "Phi": (local + ascent) / kappa,
    }
    return judged_bound(OF, terms, "Theorem 4.4 as printed", held, c)


def corollary_4_5(constants: Constants, *, rounds: int) -> Order:
    """Return the order that Corollary 4.5 claims for K = T, rho = 1 / sqrt(T) and lr = 1 / K.

    It does not follow: at a constant lam the drift of a round is of order lam^2 for every K.
    """
    require_positive("fedspeed.corollary_4_5", rounds=rounds)
    return Order(OF, {"1 / T": 1 / rounds}, "Corollary 4.5")


def recommended(constants: Constants, *, steps: int, rounds: int, clients: int) -> Advice:
    """Return lam and lr = lam / K that make the derived bound smallest, without perturbation."""
    require(steps >= 1, "fedspeed.recommended", "steps >= 1", steps)
    best, lam = math.inf, math.nan
    for k in range(241):
        trial = 10 ** (-k / 40) / constants.L
        here = bound(
            constants, lr=trial / steps, lam=trial, steps=steps, rounds=rounds, clients=clients
        )
        if here.value < best:
            best, lam = here.value, trial
    require(best < math.inf, "fedspeed.recommended", "constants with a finite bound", constants)
    held = conditions(constants, lr=lam / steps, lam=lam, steps=steps)
    limit = 1 / math.sqrt(rounds)
    sentence = (
        f"lam = {lam:.3g} and lr = lam / K = {lam / steps:.3g} make the bound smallest, "
        f"{best:.3g}; Corollary 4.5 has rho of order {limit:.3g}."
    )
    assert not violated(held)
    return Advice({"lam": lam, "lr": lam / steps, "rho": 0.0}, sentence, held)


def _check(lr: float, lam: float, steps: int, rho: float, alpha: float) -> None:
    require_positive("fedspeed", lr=lr, lam=lam)
    require_nonnegative("fedspeed", rho=rho)
    require(steps >= 1, "fedspeed", "steps >= 1", steps)
    require(0 <= alpha <= 1, "fedspeed", "alpha in [0, 1]", alpha)


def stall(lam: float, zeta: float, *, clients: int, participants: int) -> float:
    """Return lam times the root mean square of ||mean_S grad F_i(x*)|| over random cohorts S.

    Line 16 as printed averages what the participants send, so that even at the optimum the model
    moves by this much; Theorem 4.4 is for full participation, where it is zero.
    """
    require(
        1 <= participants <= clients,
        "fedspeed.stall",
        f"1 ... {clients} participants",
        participants,
    )
    if clients == 1:
        return 0.0
    share = (clients - participants) / (clients - 1) / participants
    return lam * zeta * math.sqrt(share)
