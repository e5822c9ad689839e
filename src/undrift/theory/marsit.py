"""Marsit: Theorem 3.1 of Wu's thesis with Appendix B, and Theorems 1 and 2 of its Appendix A.

Appendix B bounds the mean over rounds of E||grad F(x_t)||^2 for SGD whose updates are synchronised
by one bit a coordinate and, every `period` rounds, in full precision. `bound` has its constants for
any lr and server_lr; `theorem_3_1` is the order at lr = sqrt(M / T) and server_lr = 1 / sqrt(T D).
What differs from the print (docs/theory/marsit.md):

* The sum over t of the compensation counts each gradient at most P - 1 times, which gives
  1 - L lr - 6 L^2 lr^2 (P + 1)(P - 1) in front of the gradients. Printed is 3 P (P + 1), which is
  smaller for P > 2 and does not follow.
* T >= 9 L^2 P^2 (P + 1)^2 misses the number of workers M, which is in lr = sqrt(M / T): for M = 4
  and P = 1 it leaves nothing of the factor. The condition on the factor itself is used here.
* The proof never uses that the bits are unbiased: only ||sign||^2 = D enters, so that the theorem
  holds for random bits, too (tests/theory/test_marsit.py).
* P = 100 and T = 400 of the experiments violate it by six orders of magnitude for L = 1; without
  full-precision rounds (period None) it says nothing.
"""

from __future__ import annotations

import math

from undrift.check import require, require_positive
from undrift.theory.judgement import (
    Advice,
    Bound,
    Condition,
    Constants,
    Order,
    Verdict,
    at_most,
)
from undrift.theory.judgement import (
    bound as judged_bound,
)

OF = "The mean over rounds of ||grad F(x)||^2"
NO_PERIOD = "without full-precision rounds the compensation has no bound in the proof"


def factor(L: float, lr: float, period: int, *, reading: str = "derived") -> float:
    """Return what is left in front of the gradients, which must be positive."""
    printed = 3 * period * (period + 1)
    curvature = printed if reading == "printed" else 6 * (period + 1) * (period - 1)
    return 1 - L * lr - curvature * (L * lr) ** 2


def conditions(
    constants: Constants, *, lr: float, period: int | None, rounds: int, reading: str = "derived"
) -> tuple[Condition, ...]:
    """Return the condition that the factor of the gradients is positive, or T as it is printed."""
    require_positive("marsit", lr=lr, rounds=rounds)
    if period is None:
        return (Condition("period <= T", math.inf, rounds, Verdict.VIOLATED, NO_PERIOD),)
    require(period >= 1, "marsit", "period >= 1", period)
    L, source = constants.L, "Appendix B"
    if reading == "printed":
        least = 9 * (L * period * (period + 1)) ** 2
        return (at_most("9 L^2 P^2 (P + 1)^2 <= T", least, rounds, source, constants),)
    left = factor(L, lr, period)
    name = "L lr + 6 L^2 lr^2 (P^2 - 1) < 1"
    return (at_most(name, 1 - left, 1 - 1e-9, source, constants),)


def largest_step(L: float, period: int) -> float:
    """Return the lr at which the factor of the gradients is zero; about 0.41 / (L period)."""
    curvature = 6 * (period**2 - 1)
    return 1 / L if period == 1 else (math.sqrt(1 + 4 * curvature) - 1) / (2 * curvature * L)


def bound(
    constants: Constants,
    *,
    lr: float,
    server_lr: float,
    period: int | None,
    rounds: int,
    clients: int,
    parameters: int,
) -> Bound:
    """Return the bound of Appendix B at these steps."""
    require_positive("marsit", server_lr=server_lr, clients=clients, parameters=parameters)
    held = conditions(constants, lr=lr, period=period, rounds=rounds)
    c, P = constants, period or rounds
    left = max(factor(c.L, lr, P), 1e-300)
    window = 6 * (P + 1) * (P - 1) * c.L**2  # rounds that a compensation may be old, at most P - 1
    terms = {
        "start": 2 * c.known_gap("marsit.bound") / (lr * rounds * left),
        "noise": c.L * lr * c.sigma**2 / (clients * left),
        "noise that is held back": window * lr**2 * c.sigma**2 / (clients * left),
        "one bit": window * server_lr**2 * parameters / left,
    }
    return judged_bound(OF, terms, "Appendix B of the thesis", held, c)


def theorem_3_1(*, clients: int, rounds: int, period: int) -> Order:
    """Return the order of Theorem 3.1, which treats L, sigma and the gap as constants."""
    require_positive("marsit.theorem_3_1", clients=clients, rounds=rounds, period=period)
    terms = {
        "1 / sqrt(M T)": 1 / math.sqrt(clients * rounds),
        "P (P + 1) / T": period * (period + 1) / rounds,
    }
    return Order("The smallest E||grad F(x)||^2", terms, "Theorem 3.1")


def recommended(
    constants: Constants, *, rounds: int, period: int, clients: int, parameters: int
) -> Advice:
    """Return the steps of Theorem 3.1, with the conditions that they may violate."""
    lr, server_lr = math.sqrt(clients / rounds), 1 / math.sqrt(rounds * parameters)
    held = conditions(constants, lr=lr, period=period, rounds=rounds)
    sentence = (
        f"lr = sqrt(M / T) = {lr:.3g}, server_lr = 1 / sqrt(T D) = {server_lr:.3g}; with period "
        f"{period} the proof needs lr < {largest_step(constants.L, period):.3g}."
    )
    return Advice({"lr": lr, "server_lr": server_lr, "period": period}, sentence, held)


def server_deviation(norm: float, *, clients: int, parameters: int) -> tuple[float, float]:
    """Return the bound of Appendix A's Theorem 1, D G^2, and the exact (D - 1) G^2 / M.

    `norm` is G, the common norm of the workers' gradients. The print does not use that the workers
    draw independently, so that its bound does not fall with M.
    """
    require_positive("marsit.server_deviation", norm=norm, clients=clients, parameters=parameters)
    return parameters * norm**2, (parameters - 1) * norm**2 / clients


def cascade_deviation(norm: float, *, clients: int, parameters: int) -> float:
    """Return the bound of Appendix A's Theorem 2, (2 D)^M G^2 / M, infinite beyond floats.

    At M = 1 it is 2 D G^2, twice the bound of Theorem 1, though the text calls them consistent.
    """
    require_positive("marsit.cascade_deviation", norm=norm, clients=clients, parameters=parameters)
    exponent = clients * math.log(2 * parameters) + 2 * math.log(norm) - math.log(clients)
    return math.exp(exponent) if exponent < 709 else math.inf
