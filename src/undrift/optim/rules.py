"""Local update rules: how a client turns its gradient into a direction.

A method whose algebra allows it has a field `rule`; the step is then `y <- y - lr * d` with
`d, s = rule(g, s, y)`. With a server the state starts anew in every round, as in the documents,
unless the method's field `keep_rule` says that a client keeps it; a worker of an all-reduce method
keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from undrift.check import require, require_choice
from undrift.core import Loop, Objective, Vector
from undrift.field_help import documented


class Rule(Protocol):
    """Turns a gradient into a direction, with a state that goes in and comes out."""

    def init(self, x: Tensor) -> Any:
        """Return the state before the first step, from the point at which the steps start."""

    def __call__(self, g: Tensor, s: Any, y: Tensor) -> tuple[Tensor, Any]:
        """Return the direction for the gradient g at y in state s, and the next state."""


def require_rule(method: Any) -> None:
    """Raise a ValueError unless a method's rule is one; words such as "adamw" become the rule."""
    rule = method.rule
    if isinstance(rule, str):
        # The method is being made, so that nobody has seen it with its words.
        object.__setattr__(method, "rule", parse(rule))
        return
    fits = not isinstance(rule, type) and callable(rule) and hasattr(rule, "init")
    who, expected = type(method).__name__, 'a rule such as Momentum(0.9) or "adamw"'
    got = type(rule) if isinstance(rule, torch.optim.Optimizer) else rule  # whose text is long
    require(fits, who, expected, got, "" if fits else _instead_of(rule))


def _instead_of(rule: Any) -> str:
    """Return what to write for an optimiser of torch or the class of a rule."""
    kind = rule if isinstance(rule, type) else type(rule)
    own = RULES.get(kind.__name__.lower())
    if own is None:
        return "write undrift.Momentum(0.9), undrift.Adam() or undrift.AdamW()"
    return f"write undrift.{kind.__name__}()"


@dataclass(frozen=True)
class SGD:
    """Follows the gradient: d = g."""

    def __str__(self) -> str:
        return "sgd"

    def init(self, x: Tensor) -> tuple[()]:
        return ()

    def __call__(self, g: Tensor, s: tuple[()], y: Tensor) -> tuple[Tensor, tuple[()]]:
        return g, s


@documented
@dataclass(frozen=True)
class Momentum:
    """Follows heavy-ball momentum as torch.optim.SGD does: m <- beta m + g; d = m."""

    beta: float = 0.9
    """Share of the old momentum that stays, in [0, 1)."""
    nesterov: bool = False
    """Look ahead: d = g + beta m."""

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "Momentum", "beta in [0, 1)", self.beta)

    def __str__(self) -> str:
        return f"momentum:{self.beta}{':nesterov' if self.nesterov else ''}"

    def init(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def __call__(self, g: Tensor, s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        m = self.beta * s + g
        return (g + self.beta * m if self.nesterov else m), m


class AdamState(NamedTuple):
    m: Tensor
    v: Tensor
    k: Tensor


@documented
@dataclass(frozen=True)
class Adam:
    """Follows Adam of Kingma and Ba, with bias correction as torch.optim.Adam has it."""

    beta1: float = 0.9
    """Share of the old first moment that stays, in [0, 1)."""
    beta2: float = 0.999
    """Share of the old second moment that stays, in [0, 1)."""
    eps: float = 1e-8
    """Constant added to the root of the second moment, > 0."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(0 <= self.beta1 < 1, name, "beta1 in [0, 1)", self.beta1)
        require(0 <= self.beta2 < 1, name, "beta2 in [0, 1)", self.beta2)
        require(self.eps > 0, name, "eps > 0", self.eps)

    def __str__(self) -> str:
        return f"adam:{self.beta1}:{self.beta2}:{self.eps}"

    def init(self, x: Tensor) -> AdamState:
        return AdamState(torch.zeros_like(x), torch.zeros_like(x), x.new_zeros(()))

    def __call__(self, g: Tensor, s: AdamState, y: Tensor) -> tuple[Tensor, AdamState]:
        k = s.k + 1
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        m_hat = m / (1 - self.beta1**k)
        v_hat = v / (1 - self.beta2**k)
        return m_hat / (v_hat.sqrt() + self.eps), AdamState(m, v, k)


@documented
@dataclass(frozen=True)
class AdamW(Adam):
    """Follows Adam and shrinks the model beside it, as torch.optim.AdamW does."""

    decay: float = 0.01
    """Weight decay, >= 0, in units of the learning rate; it does not pass through the moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.decay >= 0, "AdamW", "decay >= 0", self.decay)

    def __str__(self) -> str:
        return f"adamw:{self.beta1}:{self.beta2}:{self.eps}:{self.decay}"

    def __call__(self, g: Tensor, s: AdamState, y: Tensor) -> tuple[Tensor, AdamState]:
        d, s = super().__call__(g, s, y)
        return d + self.decay * y, s


RULES: dict[str, Callable[..., Rule]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "adamw": AdamW,
}
_MOST_NUMBERS = {"sgd": 0, "momentum": 1, "adam": 3, "adamw": 4}  # in the text of a rule


def stepped(rule: Rule, g: Vector, s: Any, y: Vector, lr: float) -> tuple[Vector, Any]:
    """Return y - lr d for the rule's direction d, and the rule's next state.

    A rule that takes its steps itself, as a torch optimiser does, has a method `step` for it.
    """
    if hasattr(rule, "step"):
        return rule.step(g, s, y)  # type: ignore[no-any-return]
    d, s = rule(g, s, y)
    return y.sub(d, alpha=lr), s


def local_update(x: Vector, s: Any, lr: float, rule: Rule, steps: Loop) -> tuple[Vector, Any]:
    """Return the sum u of lr d over the loop's steps, each taken at x - u, and the rule's state.

    The sum is kept apart from x, because x - y would round away what is small against x, and with
    it signs.
    """

    def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
        u, s = carry
        y = x - u
        d, s = rule(f.grad(y), s, y)
        return u + lr * d, s

    return steps(step, (x.new_zeros(()).expand_as(x), s))  # zeros that take no memory


def parse(text: str) -> Rule:
    """Return the rule that prints so: `sgd`, `momentum:0.9:nesterov`, `adamw:0.9:0.999`."""
    name, *numbers = text.strip().lower().split(":")
    require_choice("rule", "it", name, RULES)
    options = {"nesterov": True} if name == "momentum" and numbers[-1:] == ["nesterov"] else {}
    numbers = numbers[: len(numbers) - len(options)]
    fits = len(numbers) <= _MOST_NUMBERS[name] and all(map(_is_number, numbers))
    require(fits, "A rule", "a form such as momentum:0.9", text)
    return RULES[name](*map(float, numbers), **options)


def _is_number(text: str) -> bool:
    """Return whether Python reads this text as a float."""
    try:
        float(text)
    except ValueError:
        return False
    return True
