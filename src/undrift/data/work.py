"""The work of each client in a round, in local steps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, Literal, Protocol, runtime_checkable

from undrift import keyed
from undrift.check import require, require_choice, require_nonnegative, require_positive


@runtime_checkable
class Work(Protocol):
    """Decides how many local steps each client runs in a round."""

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        """Return K_i of a client in round t; `epoch` is the number of minibatches in one pass."""
        ...

    def check(self, population: int) -> None:
        """Raise `ValueError` for work that does not fit this many clients, before any work."""
        ...


@dataclass(frozen=True)
class Steps:
    """Runs k steps on every client, or as many as each client's own number says."""

    k: int | Sequence[int]

    def __post_init__(self) -> None:
        listed = isinstance(self.k, Iterable) and not isinstance(self.k, str)
        for k in self.k if listed else (self.k,):  # type: ignore[union-attr]
            integral = isinstance(k, Integral) and not isinstance(k, bool)
            require(integral, "Steps", "a whole number of steps", k)
        value = tuple(int(k) for k in self.k) if listed else int(self.k)  # type: ignore[union-attr, arg-type]
        object.__setattr__(self, "k", value)
        for i, k in enumerate(self._all()):
            where = "" if isinstance(self.k, int) else f" for client {i}"
            require(k >= 1, "Steps", f"at least one step{where}", k, "raise it")

    def _all(self) -> Sequence[int]:
        return (self.k,) if isinstance(self.k, int) else self.k

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        return self.k if isinstance(self.k, int) else self.k[client]

    def check(self, population: int) -> None:
        if not isinstance(self.k, int) and len(self.k) != population:
            raise ValueError(f"Steps needs one number per client, {population}, got {len(self.k)}.")


@dataclass(frozen=True)
class Epochs:
    """Runs passes over the local data of ceil(n_i / batch_size) steps each; fractions round up."""

    epochs: float

    def __post_init__(self) -> None:
        require_positive("Epochs", epochs=self.epochs)

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        return max(1, math.ceil(self.epochs * epoch - 1e-9))

    def check(self, population: int) -> None: ...


@dataclass(frozen=True)
class GaussianSteps:
    """Draws K_i = |N(mean, variance)| rounded down, at least 1 (the thesis's step asynchronism).

    `mode="fixed"` draws once per client, and "random" anew in every round.
    """

    mean: float
    variance: float
    mode: Literal["fixed", "random"] = "fixed"

    def __post_init__(self) -> None:
        require_positive("GaussianSteps", mean=self.mean)
        require_nonnegative("GaussianSteps", variance=self.variance)
        require_choice("GaussianSteps", "mode", self.mode, ("fixed", "random"))

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        rng = keyed.generator(seed, "work", t if self.mode == "random" else 0, client)
        return max(1, int(abs(rng.normal(self.mean, math.sqrt(self.variance)))))

    def check(self, population: int) -> None: ...


@dataclass(frozen=True)
class UniformSteps:
    """Draws K_i uniformly among the integers low, ..., high (both included)."""

    low: int
    high: int
    mode: Literal["fixed", "random"] = "fixed"

    def __post_init__(self) -> None:
        require(self.low >= 1, "UniformSteps", "low >= 1", self.low)
        require(self.high >= self.low, "UniformSteps", f"high >= low = {self.low}", self.high)
        require_choice("UniformSteps", "mode", self.mode, ("fixed", "random"))

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        rng = keyed.generator(seed, "work", t if self.mode == "random" else 0, client)
        return int(rng.integers(self.low, self.high, endpoint=True))

    def check(self, population: int) -> None: ...


@dataclass(frozen=True)
class Deadline:
    """Runs what each client's device can do in so many simulated seconds, with its messages.

    This is how step asynchronism arises in practice. It needs `simulate(..., fleet=...)`; a
    client that cannot do a single step in time misses the round. `at_most` limits fast clients.
    """

    seconds: float
    at_most: Work | None = None

    def __post_init__(self) -> None:
        require_positive("Deadline", seconds=self.seconds)
        plain = self.at_most is None or (
            isinstance(self.at_most, Work) and not isinstance(self.at_most, Deadline)
        )
        require(plain, "Deadline", "at_most to be work such as Epochs(5)", self.at_most)

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        raise ValueError(
            "Deadline needs the clients' devices, got none; say simulate(fleet='phone')."
        )

    def check(self, population: int) -> None:
        if self.at_most is not None:
            self.at_most.check(population)


def _deadline(seconds: float, epochs: float | None = None) -> Work:
    return Deadline(seconds, None if epochs is None else Epochs(epochs))


@lru_cache(maxsize=256)  # An experiment asks for the same text once for every method and cell.
def parse_work(text: str) -> Work:
    """Return the local work of a text such as `steps:10`, `epochs:5` or `deadline:60:5`."""
    makers: dict[str, tuple[Callable[..., Work], Callable[[str], Any]]] = {
        "steps": (Steps, int),
        "epochs": (Epochs, float),
        "gaussian": (GaussianSteps, float),
        "uniform": (UniformSteps, int),
        "deadline": (_deadline, float),
    }
    name, *parts = text.split(":")
    require_choice("work", "its first word", name, makers)
    maker, number = makers[name]
    modes = [part for part in parts if part in ("fixed", "random")]
    try:
        numbers = [number(part) for part in parts if part not in modes]
        inspect.signature(maker).bind(*numbers, *modes)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"work needs a form such as steps:10, epochs:5, gaussian:20:100, uniform:5:30 or "
            f"deadline:60:5, got {text!r}."
        ) from error
    return maker(*numbers, *modes)


def work_text(work: Work) -> str:
    """Return the text that `parse_work` reads as this work, or raise if there is none."""
    names = {Steps: "steps", Epochs: "epochs", GaussianSteps: "gaussian", UniformSteps: "uniform"}
    name = names.get(type(work))
    values = vars(work).values()
    with suppress(ValueError):
        text = ":".join(map(str, [name, *values]))
        if parse_work(text) == work:
            return text
    raise ValueError(
        f"work needs a form that can be written down, such as 'epochs:5', got {work!r}."
    )
