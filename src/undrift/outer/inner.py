"""A torch optimiser as the local rule of a method: it takes the steps, and its state stays here."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from undrift.gradients.loops.traced import Traced
from undrift.outer.parameters import Parameters

M = TypeVar("M")


def has_rule(method: Any) -> bool:
    """Return whether a method, or the method inside a wrapper, has a field `rule`."""
    if hasattr(method, "rule"):
        return True
    return hasattr(method, "inner") and has_rule(method.inner)


def with_rule(method: M, inner: InnerOptimizer) -> M:
    """Return the method with the inner optimiser as its rule."""
    if hasattr(method, "rule"):
        changes: dict[str, Any] = {"rule": _InnerRule(inner, method.lr)}  # type: ignore[attr-defined]
    else:
        changes = {"inner": with_rule(method.inner, inner)}  # type: ignore[attr-defined]
    return dataclasses.replace(method, **changes)  # type: ignore[type-var]


class InnerOptimizer:
    """Holds a torch optimiser of the model's parameters and its state at the last meeting."""

    def __init__(self, optimizer: Any, method: Any, parameters: Parameters) -> None:
        self.optimizer, self._parameters = optimizer, parameters
        self._refuse_unfit(optimizer, method)
        self._kept: dict[Any, Any] = {}

    def _refuse_unfit(self, optimizer: Any, method: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "needs_closure"):
            raise ValueError(
                "Outer needs a torch optimiser of the model's parameters as inner, such as "
                f"torch.optim.AdamW(model.parameters()), got {type(optimizer).__name__}."
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "Outer needs an inner optimiser that takes one gradient a step, got LBFGS, which "
                "asks for several; use SGD, Adam or AdamW."
            )
        if not has_rule(method):
            raise ValueError(
                "Outer needs a method whose local steps may follow any rule for inner=, such as "
                f"DiLoCo, FedAvg, FedAvgM or Marsit, got {type(method).__name__}, whose algebra "
                "needs plain steps; leave inner out."
            )
        theirs = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if {id(p) for p in theirs} != {id(p) for p in self._parameters.tensors}:
            raise ValueError(
                "Outer needs an inner optimiser of all trainable parameters of its model, "
                f"{len(self._parameters.tensors)} tensors, got {len(theirs)} that are not the "
                "same; pass model.parameters() to it."
            )

    @property
    def lr(self) -> float:
        """Return the learning rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def description(self) -> str:
        """Return the kind of the optimiser and its settings, which all ranks must share."""
        defaults = {k: v for k, v in self.optimizer.defaults.items() if k != "params"}
        return f"{type(self.optimizer).__name__}({defaults})"

    def step(self, g: Any, y: Any) -> Any:
        """Return where one step with the gradient g leads from y; both may be traced."""
        if isinstance(y, Traced):
            return y.tape.whole("moved", g, y)
        self._parameters.move(y)
        self._parameters.set_gradient(g)
        self.advance()
        return self._parameters.adopt()

    def advance(self) -> None:
        """Take one step from where the model is, with the gradients that it has."""
        with torch.enable_grad():  # as in a script; most optimisers switch it off themselves
            self.optimizer.step()

    def keep(self) -> None:
        """Keep the state, for a round that is dropped."""
        self._kept = copy.deepcopy(self.optimizer.state_dict()["state"])

    def go_back(self) -> None:
        """Return to the state that `keep` has seen; learning rates stay as they are."""
        now = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**now, "state": copy.deepcopy(self._kept)})

    def saved(self) -> dict[str, Any]:
        """Return a copy of the optimiser's state dict."""
        return copy.deepcopy(self.optimizer.state_dict())

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned."""
        self.optimizer.load_state_dict(dict(saved))
        self.keep()


class _InnerRule:
    """Is the rule of a method whose steps the inner optimiser takes.

    For a method that asks for a direction, it is the optimiser's step divided by the method's own
    learning rate, by which the method multiplies it again.
    """

    def __init__(self, inner: InnerOptimizer, lr: float) -> None:
        self._inner, self._lr = inner, lr

    def init(self, x: Tensor) -> tuple[()]:
        return ()

    def step(self, g: Tensor, s: tuple[()], y: Tensor) -> tuple[Tensor, tuple[()]]:
        return self._inner.step(g, y), s

    def __call__(self, g: Tensor, s: tuple[()], y: Tensor) -> tuple[Tensor, tuple[()]]:
        return (y - self._inner.step(g, y)) / self._lr, s
