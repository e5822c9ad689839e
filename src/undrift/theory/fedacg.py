"""FedACG: Theorems 1 and 2 of Kim et al. (Theorem 1 is the order of Theorem 2).

Theorem 2 bounds the smallest, and its proof the mean, of E||grad F(theta + lam m)||^2 over rounds.
`bound` is the inequality of Lemma 3 for the lr that is given, (d_0 / T + C_8 sigma^2 + C_9
sigma_g^2) / -C_10, with C_8, C_9, C_10 as its proof derives them; `theorem_2` is what follows when
lr is chosen by `recommended`. What differs from the print (docs/theory/fedacg.md):

* "By setting lr <= (1 - lam) / (100 K L (B^2 + 1))" is not enough: inequality (6) holds for the one
  lr that balances its terms, and for lr -> 0 nothing moves.
* The rate 1 / sqrt(|S| K T) does not follow: as K and |S| grow, psi_1 -> 5/2 + 2 (1 - lam) and
  psi_2 -> (1 - lam)^2 + 4 + 10 (1 - lam), since Lemma 7 bounds noise by lr^2 K^2 sigma^2 where
  lr^2 K sigma^2 / |S| is true, and heterogeneity by A >= 1.
* Lemma 3 has A (1 - lam^2 + 4), Theorem 2 A ((1 - lam)^2 + 4), which is smaller.
* The proof has no prox term: it is about beta = 0.
* Assumption (2) misses a square on the norm.
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
    at_most,
)
from undrift.theory.judgement import (
    bound as judged_bound,
)

OF = "The mean over rounds of ||grad F(theta + lam m)||^2"
LAM_LIMIT = (math.sqrt(25**2 + 100) - 25) / 2  # lam^2 <= 25 (1 - lam)


def participation_factor(clients: int, participants: int) -> float:
    """Return A = 1 + 4 N / ((N - 1) |S|) (1 - |S| / N), which is 1 if everybody takes part."""
    require(
        1 <= participants <= clients, "fedacg", f"participants in 1 ... {clients}", participants
    )
    if participants == clients:
        return 1.0
    return 1 + 4 * clients / ((clients - 1) * participants) * (1 - participants / clients)


def conditions(constants: Constants, *, lr: float, lam: float, steps: int) -> tuple[Condition, ...]:
    """Return the conditions of Theorem 2 and of its proof."""
    _check(lr, lam, steps)
    limit = (1 - lam) / (100 * steps * constants.L * (constants.B**2 + 1))
    name = "lr <= (1 - lam) / (100 K L (B^2 + 1))"
    return (
        at_most(name, lr, limit, "Theorem 2", constants),
        at_most("lam^2 <= 25 (1 - lam)", lam**2, 25 * (1 - lam), "proof of Lemma 3"),
    )


def coefficients(
    constants: Constants, *, lr: float, lam: float, steps: int, A: float
) -> tuple[float, float, float]:
    """Return C_8, C_9 and C_10 of Lemma 3 as its proof derives them, two misprints mended."""
    _check(lr, lam, steps)
    L, B, K, rest = constants.L, constants.B, steps, 1 - lam
    drift = (
        10 * lr**2 * K**2 * L / rest + A * L * (20 * lr**4 * K**4 * L**2 + lr**2 * K**2) / rest**2
    )
    momentum = L**2 * lam**4 / rest**2 * (L * lr**2 * K**2 + lr * K / 2) / rest  # C_4
    noise = lr**2 * K**2 * L / (2 * rest**2) + 5 * lr**2 * K * L / rest
    noise += 10 * lr**4 * K**3 * L**3 * A / rest**2  # C_5
    update = A * (40 * lr**4 * K**4 * L**2 + 2 * lr**2 * K**2)  # C_2
    c8 = noise + momentum * (lr**2 * K**2 + 20 * lr**4 * K**3 * L**2 * A) / rest**2
    c9 = drift + momentum * update / rest**2
    return c8, c9, B**2 * c9 + lr * K / rest * (lr * K * L - 0.5)


def bound(
    constants: Constants,
    *,
    lr: float,
    lam: float,
    steps: int,
    rounds: int,
    clients: int,
    participants: int | None = None,
) -> Bound:
    """Return the bound of Lemma 3 at this lr; C_10 < 0 is all that it needs."""
    who = "fedacg.bound"
    require_positive(who, rounds=rounds)
    A = participation_factor(clients, participants or clients)
    c8, c9, c10 = coefficients(constants, lr=lr, lam=lam, steps=steps, A=A)
    held = (at_most("C_10 < 0", c10, -1e-12 * lr * steps, "Lemma 3", constants),)
    terms = {
        "start": constants.known_gap(who) / (-c10 * rounds),
        "noise": c8 * constants.sigma**2 / -c10,
        "heterogeneity": c9 * constants.zeta**2 / -c10,
    }
    return judged_bound(OF, terms, "Lemma 3 of FedACG", held, constants)


def psi(lam: float, steps: int, A: float) -> tuple[float, float, float, float]:
    """Return psi_1 ... psi_4 of Theorem 2, as printed."""
    rest = 1 - lam
    psi_1 = A * (rest / steps + 1 / steps) + 5 / 2 + rest * (5 / steps + 2)
    psi_2 = A * (rest**2 + 4) + 10 * rest
    return psi_1, psi_2, rest / (20 * steps), rest**2 / 10


def theorem_2(
    constants: Constants,
    *,
    lam: float,
    steps: int,
    rounds: int,
    clients: int,
    participants: int | None = None,
) -> Bound:
    """Return inequality (6) as printed, which holds for the lr of `recommended`."""
    A = participation_factor(clients, participants or clients)
    psi_1, psi_2, psi_3, psi_4 = psi(lam, steps, A)
    c, start = constants, constants.L * constants.known_gap("fedacg.theorem_2")
    mean = psi_1 * c.sigma**2 + psi_2 * c.zeta**2
    small = psi_3 * c.sigma**2 + psi_4 * c.zeta**2
    terms = {
        "1 / T": 1000 * (c.B**2 + 1) * start / rounds,
        "1 / sqrt(T)": math.sqrt(40 * start * mean / rounds),
        "1 / T^(2/3)": (800 * start**2 * A * small) ** (1 / 3) / rounds ** (2 / 3),
    }
    held = (at_most("lam^2 <= 25 (1 - lam)", lam**2, 25 * (1 - lam), "proof of Lemma 3"),)
    return judged_bound(OF, terms, "Theorem 2 of FedACG", held, c)


def theorem_1(
    constants: Constants, *, lam: float, steps: int, rounds: int, clients: int, participants: int
) -> Order:
    """Return the order of Theorem 1, the second term of Theorem 2."""
    A = participation_factor(clients, participants)
    psi_1, psi_2, _, _ = psi(lam, steps, A)
    start = constants.L * constants.known_gap("fedacg.theorem_1") / rounds
    mean = psi_1 * constants.sigma**2 + psi_2 * constants.zeta**2
    return Order(
        OF,
        {"sqrt(L d_0 (psi_1 sigma^2 + psi_2 sigma_g^2) / T)": math.sqrt(start * mean)},
        "Theorem 1",
    )


def recommended(
    constants: Constants,
    *,
    lam: float,
    steps: int,
    rounds: int,
    clients: int,
    participants: int | None = None,
) -> Advice:
    """Return the lr for which inequality (6) follows from Lemma 3."""
    A = participation_factor(clients, participants or clients)
    psi_1, psi_2, psi_3, psi_4 = psi(lam, steps, A)
    c = constants
    start = 10 * c.L * c.known_gap("fedacg.recommended") / rounds
    mean = psi_1 * c.sigma**2 + psi_2 * c.zeta**2
    small = A * (psi_3 * c.sigma**2 + psi_4 * c.zeta**2)
    h = 1 / (100 * (c.B**2 + 1))  # lr K L / (1 - lam)
    if mean > 0:
        h = min(h, math.sqrt(start / mean), (start / small) ** (1 / 3))
    lr = h * (1 - lam) / (steps * c.L)
    held = conditions(c, lr=lr, lam=lam, steps=steps)
    sentence = f"lr = {lr:.3g} balances the terms of Theorem 2; lam has no optimum in it."
    return Advice({"lr": lr, "lam": lam}, sentence, held)


def _check(lr: float, lam: float, steps: int) -> None:
    require_positive("fedacg", lr=lr)
    require(0 <= lam < 1, "fedacg", "lam in [0, 1)", lam)
    require(steps >= 1, "fedacg", "steps >= 1", steps)
