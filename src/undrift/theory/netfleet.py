"""NET-FLEET: Theorem 1 and Corollary 2 of Zhang et al., MobiHoc 2022.

Theorem 1 bounds the mean over all S K steps of E[||grad f(x-bar)||^2 + L^2 / m sum_i ||x_i -
x-bar||^2]. Its terms follow from its proof; its conditions do not (docs/theory/netfleet.md):

* sqrt(m (1 - w)^3 / (144 (1 + w K - w) L K^2)), which the proof uses, is left out of the theorem
  "due to r_4 <= r_5"; as the smaller one it is the one that counts.
* 1 / sqrt(12 C_1 L^2) is printed without the 6 of C_1.
* Two conditions on C_x have neither L nor the right power of K; here C_x >= 0 itself is required.

w is the second largest eigenvalue of W in absolute value, the paper's lambda. The conditions are
far below the steps of the experiments: for m = 50, K = 10 and L = 1 they ask for lr <= 2e-4, and
the experiments have 0.01. Corollary 2's K = S^(1/3) / m needs S >= m^3 rounds to be at least one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from undrift.check import require, require_positive
from undrift.theory.judgement import (
    Advice,
    Bound,
    Condition,
    Constants,
    Order,
    at_most,
)
from undrift.theory.judgement import (
    bound as judged_bound,
)

OF = "The mean over steps of ||grad f||^2 + L^2 consensus error"
THEOREM, PROOF = "Theorem 1", "proof of Theorem 1, A.3"


def _common(steps: int, w: float) -> tuple[float, float]:
    """Return 1 + w (K - 1) and C_1 of the potential function."""
    inner = 1 + w * (steps - 1)
    return inner, 6 * inner * steps / (1 - w) ** 2


def conditions(
    constants: Constants,
    *,
    lr: float,
    steps: int,
    nodes: int,
    eigenvalue: float,
    reading: str = "derived",
) -> tuple[Condition, ...]:
    """Return the conditions on lr, as the proof needs them or as Theorem 1 prints them."""
    _check(lr, steps, nodes, eigenvalue)
    c, L, K, m, w = constants, constants.L, steps, nodes, eigenvalue
    gap = 1 - w
    inner, C1 = _common(K, w)
    shared = {
        "lr <= 1 / (3 L)": 1 / (3 * L),
        "lr <= 1 / (m L^2 K^2)": 1 / (m * L**2 * K**2),
        "lr <= sqrt((1 - w) / (24 L^2 K^2))": math.sqrt(gap / 24) / (L * K),
        "lr <= sqrt(m (1 - w)^2 / (144 L K^2))": math.sqrt(m / L) * gap / (12 * K),
    }
    if reading == "printed":
        shared |= {
            "lr <= (1 - w) / sqrt(12 (1 + w K - w) K L^2)": gap / (L * math.sqrt(12 * inner * K)),
            "lr <= (1 - w)^3 m K / 144": gap**3 * m * K / 144,
            "lr <= (1 - w) / (3 (1 + w K - w) m K L^2)": gap / (3 * inner * m * K * L**2),
            "lr <= (1 - w)^2 (1 + w K - w) m / (144 K)": gap**2 * inner * m / (144 * K),
        }
        return tuple(at_most(name, lr, limit, THEOREM, c) for name, limit in shared.items())
    require(reading == "derived", "netfleet.conditions", "reading derived or printed", reading)
    shared |= {
        "lr <= 1 / sqrt(12 C_1 L^2)": 1 / (L * math.sqrt(12 * C1)),
        "lr <= sqrt(m (1 - w)^3 / (144 (1 + w K - w) L K^2))": math.sqrt(m * gap**3 / (inner * L))
        / (12 * K),
    }
    loss = 24 * C1 * (L * lr) ** 2 / gap + inner * m * K * L**2 * lr
    loss += 144 * (L * lr * K) ** 2 / gap**2
    limits = [at_most(name, lr, limit, PROOF, c) for name, limit in shared.items()]
    return (*limits, at_most("C_x >= 0", loss, gap, PROOF, c))


def largest_step(constants: Constants, *, steps: int, nodes: int, eigenvalue: float) -> float:
    """Return the largest lr for which all conditions of the proof hold, by bisection."""
    low, high = 0.0, 1 / (3 * constants.L)
    for _ in range(80):
        middle = (low + high) / 2
        held = conditions(constants, lr=middle, steps=steps, nodes=nodes, eigenvalue=eigenvalue)
        if all(each.value <= each.limit for each in held):
            low = middle
        else:
            high = middle
    return low


def bound(
    constants: Constants,
    *,
    lr: float,
    steps: int,
    rounds: int,
    nodes: int,
    eigenvalue: float,
    tracker_spread: float = 0.0,
) -> Bound:
    """Return the bound of Theorem 1; `tracker_spread` is sum_i ||y_i - y-bar||^2 at the start."""
    require_positive("netfleet", rounds=rounds)
    held = conditions(constants, lr=lr, steps=steps, nodes=nodes, eigenvalue=eigenvalue)
    c, K, m, gap = constants, steps, nodes, 1 - eigenvalue
    inner, C1 = _common(K, eigenvalue)
    work, noise = rounds * K * lr, lr * c.sigma**2 / m
    terms = {
        "start": 2 * c.known_gap("netfleet.bound") / work,
        "spread of the trackers": 2 * C1 * lr**2 * tracker_spread / (m**2 * K) / work,
        "noise": 3 * c.L * noise,
        "noise in the network": 72 * noise / gap**2 + 72 * inner * noise / (gap**3 * K),
    }
    return judged_bound(OF, terms, THEOREM, held, c)


def corollary_2(*, steps: int, rounds: int, nodes: int) -> Order:
    """Return the order of Corollary 2, for lr = sqrt(m / (S K)) and K = S^(1/3) / m."""
    require_positive("netfleet.corollary_2", steps=steps, rounds=rounds, nodes=nodes)
    held = (
        at_most("K <= S^(1/3) / m", steps, rounds ** (1 / 3) / nodes, "Corollary 2"),
        at_most("m^(1/3) <= S K", nodes ** (1 / 3), rounds * steps, "Corollary 2"),
    )
    terms = {"1 / sqrt(S K m)": 1 / math.sqrt(rounds * steps * nodes)}
    return Order(OF, terms, "Corollary 2", held)


def recommended(constants: Constants, *, rounds: int, nodes: int, eigenvalue: float) -> Advice:
    """Return Corollary 2's K and lr, at most what the proof of Theorem 1 allows."""
    steps = max(1, round(rounds ** (1 / 3) / nodes))
    order = math.sqrt(nodes / (rounds * steps))
    limit = largest_step(constants, steps=steps, nodes=nodes, eigenvalue=eigenvalue)
    lr = min(order, limit)
    held = conditions(constants, lr=lr, steps=steps, nodes=nodes, eigenvalue=eigenvalue)
    sentence = (
        f"K = S^(1/3) / m = {rounds ** (1 / 3) / nodes:.3g}, taken as {steps}; lr = {lr:.3g}, of "
        f"sqrt(m / (S K)) = {order:.3g} and the largest that the proof allows, {limit:.3g}."
    )
    return Advice({"steps": steps, "lr": lr}, sentence, held)


def consensus_noise(sigma: float, *, lr: float, steps: int, eigenvalues: Sequence[float]) -> float:
    """Return the stationary mean_i E||x_i - x-bar||^2 that gradient noise leaves, for small K lr L.

    A node's correction c <- w c + (w - 1) n takes the noise n of one minibatch a round, and all K
    steps of the round use it: its part grows like (K lr)^2, and that of the other minibatches like
    K lr^2. The condition lr <= 1 / (m L^2 K^2) hides the first in Theorem 1. In a mode of W with
    eigenvalue w, n enters x by (a - z) / (1 - w z)^2 with a = 1 - (1 - w)(K - 1) and the delay z.
    `eigenvalues` are all of W.
    """
    require_positive("netfleet.consensus_noise", sigma=sigma, lr=lr, steps=steps)
    values = sorted(eigenvalues)[:-1]
    require(bool(values), "netfleet.consensus_noise", "two nodes or more", len(values) + 1)
    total = 0.0
    for w in values:
        a, rest = 1 - (1 - w) * (steps - 1), 1 - w**2
        total += ((a**2 + 1) * (1 + w**2) - 4 * a * w) / rest**3 + (steps - 1) / rest
    return (lr * sigma) ** 2 * total / (len(values) + 1)


def _check(lr: float, steps: int, nodes: int, eigenvalue: float) -> None:
    require_positive("netfleet", lr=lr)
    require(steps >= 1, "netfleet", "steps >= 1", steps)
    require(nodes >= 2, "netfleet", "two nodes or more", nodes)
    require(
        0 <= eigenvalue < 1,
        "netfleet",
        "an eigenvalue in [0, 1)",
        eigenvalue,
        "it is 1 on a graph that is not connected",
    )
