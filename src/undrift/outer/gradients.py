"""The gradients of one step, computed by the script's closure or before the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.outer.parameters import Parameters

Closure = Callable[[], Any]


def require_closure(closure: Any, method: Any, reason: str) -> None:
    """Raise unless a step got a closure, or nothing where there is no reason for one."""
    if closure is not None and not callable(closure):
        raise ValueError(
            "Outer.step needs a closure that computes the loss, or nothing after "
            f"loss.backward(), got {type(closure).__name__}."
        )
    if closure is None and reason:
        raise ValueError(
            f"Outer.step needs a closure for {type(method).__name__}, which {reason}; pass one "
            "that computes the loss, calls backward and returns the loss."
        )


class StepGradients:
    """Answers a step's questions for gradients, by calling the closure or from what is there."""

    def __init__(self, parameters: Parameters, closure: Closure | None) -> None:
        self._parameters, self._closure = parameters, closure
        self._randomness = _StepRandomness(parameters.layout.device)
        self.loss: Any = None
        self.asked = 0

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient at x as one vector."""
        if self._closure is not None:
            self._parameters.move(x)
        return torch.cat(self.pieces())

    def pieces(self) -> list[Tensor]:
        """Return the gradient where the model is, a vector for each parameter."""
        self.asked += 1
        if self._closure is not None:
            self._call(self._closure)
        return self._parameters.gradients()

    def _call(self, closure: Closure) -> None:
        self._parameters.zero_grad()
        self._randomness.begin_gradient()
        with torch.enable_grad():
            loss = closure()
        if not isinstance(loss, Tensor | float | int) or isinstance(loss, bool):
            raise ValueError(
                "Outer.step needs a closure that returns its loss, got "
                f"{type(loss).__name__}; end it with `return loss`."
            )
        if self.asked == 1:
            self.loss = loss


class _StepRandomness:
    """Gives every gradient of one step the state of torch's generators that the first one had."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu: torch.Tensor | None = None
        self._accelerator: torch.Tensor | None = None

    def begin_gradient(self) -> None:
        """Keep the state of the first gradient, and return to it at the others."""
        cuda = self._device.type == "cuda"
        if self._cpu is None:
            self._cpu = torch.get_rng_state()
            self._accelerator = torch.cuda.get_rng_state(self._device) if cuda else None
            return
        torch.set_rng_state(self._cpu)
        if self._accelerator is not None:
            torch.cuda.set_rng_state(self._accelerator, self._device)
