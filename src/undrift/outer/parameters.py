"""A model's trainable parameters as one vector that a method moves and nobody else may change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from undrift.core import Vector
from undrift.engine.execution.memory import retain_freed_memory_for
from undrift.models.layout import Layout

_OWNERS: weakref.WeakSet[Parameters] = weakref.WeakSet()  # of those that are in use


class Parameters:
    """Holds a model's trainable parameters, which become views of one vector."""

    def __init__(self, model: nn.Module) -> None:
        _refuse_wrappers(model)
        named = dict(model.named_parameters())
        _refuse_foreign_kinds(named)
        self.layout = Layout.of(model)
        self.tensors = [named[name] for name in self.layout.names]
        own = {id(tensor) for tensor in self.tensors}
        for other in _OWNERS:
            if own & {id(tensor) for tensor in other.tensors}:
                raise ValueError(
                    "Outer needs parameters that no other Outer moves, got a model that has one "
                    "already; make one optimiser for each model."
                )
        self._model = model
        self.unite()
        _OWNERS.add(self)
        retain_freed_memory_for(self, self._x.nbytes)  # A round makes several such vectors.

    def refuse_averaging(self) -> None:
        """Raise in the model's forward pass if DistributedDataParallel has been put around it."""
        handle = self._model.register_forward_pre_hook(_refuse_averaging)
        weakref.finalize(self, handle.remove)

    def unite(self) -> None:
        """Make the parameters views of one vector and remember them as they are."""
        self._x = self.layout.unite(self._model)
        self._places = [tensor.data_ptr() for tensor in self.tensors]
        self._point: Vector | Callable[[], Vector] = self._x.clone()
        self._note_versions()

    @property
    def point(self) -> Vector:
        """Return where the model is; not to be changed."""
        return self._point() if callable(self._point) else self._point

    def is_of(self, model: nn.Module) -> bool:
        """Return whether these are the parameters of this model, and not of a copy."""
        return self._model is model

    @property
    def vector(self) -> Vector:
        """Return the memory of all parameters, for one who calls `settle` after a change."""
        return self._x

    def move(self, x: Vector) -> None:
        """Put the model at x, which must not be changed afterwards."""
        if x is self._point:
            return
        self._x.copy_(x)
        self._point = x

    def settle(self, place: Callable[[], Vector]) -> None:
        """Take note that `vector` was written: `place` returns a copy of what it holds."""
        self._point = place
        self._note_versions()

    def is_at(self, place: Callable[[], Vector]) -> bool:
        """Return whether the model is where `settle` was told, and has not been moved since."""
        return callable(self._point) and self._point == place

    def adopt(self) -> Vector:
        """Return where the model is after its own inner optimiser has moved it."""
        point = self._point = self._x.clone()
        self._note_versions()
        return point

    def require_untouched(self) -> None:
        """Raise unless the parameters are those that were given, where `move` has put them."""
        self._require_same_kinds()
        places = [tensor.data_ptr() for tensor in self.tensors]
        versions = [tensor._version for tensor in self.tensors]
        if places == self._places and versions == self._versions:
            return
        if torch.equal(self.layout.gather(self._model), self.point):
            if places != self._places:  # as after model.to(), which makes new tensors
                self.unite()
            self._note_versions()
            return
        self.restore()
        raise ValueError(
            "Outer needs to be the only one that changes the model's parameters, got parameters "
            "that another optimiser or the script has changed since the last step; remove the "
            "other optimiser, or call load_state_dict to go on from another state. The model is "
            "back where Outer had put it."
        )

    def _require_same_kinds(self) -> None:
        trained = [p for p in self._model.parameters() if p.requires_grad]
        if list(map(id, trained)) != list(map(id, self.tensors)):
            raise ValueError(
                "Outer needs the trainable parameters that the model had when it was made, "
                f"{len(self.tensors)} tensors, got {len(trained)} that are not the same; freeze, "
                "unfreeze and replace parameters before, or make a new Outer of a new model."
            )
        wanted = self.layout.dtype, self.layout.device
        for name, tensor in zip(self.layout.names, self.tensors, strict=True):
            if (tensor.dtype, tensor.device) != wanted:
                raise ValueError(
                    f"Outer needs the model's parameters as {wanted[0]} on {wanted[1]}, as they "
                    f"were when it was made, got {tensor.dtype} on {tensor.device} for {name!r}; "
                    "convert or move the model before Outer is made."
                )

    def restore(self) -> None:
        """Restore the parameters as the last move has left them."""
        views = self.layout.views(self.point).values()
        with torch.no_grad():
            for tensor, view in zip(self.tensors, views, strict=True):
                tensor.copy_(view)
        self.unite()

    def _note_versions(self) -> None:
        # A write to the vector leaves the counters of its views alone, so only others raise them.
        self._versions = [tensor._version for tensor in self.tensors]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for tensor in self.tensors:
            tensor.grad = None

    def set_gradient(self, g: Vector) -> None:
        """Make the parameters' gradients views of g."""
        for tensor, view in zip(self.tensors, self.layout.views(g).values(), strict=True):
            tensor.grad = view

    def gradients(self) -> list[Tensor]:
        """Return the gradients as a vector for each parameter; raise if no parameter has one."""
        grads = [tensor.grad for tensor in self.tensors]
        if all(grad is None for grad in grads):
            raise ValueError(
                "Outer.step needs gradients, got none on any parameter; call loss.backward() in "
                "the closure, or before step() without one."
            )
        return [_flat(g, p) for g, p in zip(grads, self.tensors, strict=True)]


def _flat(grad: Tensor | None, parameter: Tensor) -> Tensor:
    """Return a gradient as a vector, zeros for a parameter that took no part."""
    if grad is None:
        return torch.zeros_like(parameter).reshape(-1)
    return (grad.to_dense() if grad.is_sparse else grad).detach().reshape(-1)


def _refuse_wrappers(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"Outer needs an nn.Module as model, got {type(model).__name__}.")
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(
                "Outer needs a model whose ranks step on their own gradients, got "
                "DistributedDataParallel, which averages them at every step; pass the module "
                "inside."
            )
        if name in ("FullyShardedDataParallel", "FSDPModule"):
            raise ValueError(_sharded(name))


def _refuse_averaging(model: nn.Module, inputs: Any) -> None:
    """Raise inside the forward pass of DistributedDataParallel, unless the model is a copy."""
    around = nn.parallel.DistributedDataParallel._active_ddp_module
    if around is not None and any(each.is_of(model) for each in _OWNERS):
        raise ValueError(
            "Outer needs a model whose ranks step on their own gradients, got one that was put "
            "into DistributedDataParallel later, which averages them at every step; use the plain "
            "model: with accelerate, call accelerator.prepare(outer, loader) without it."
        )


def _refuse_foreign_kinds(named: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if tensor.is_meta:
            raise ValueError(
                f"Outer needs parameters with values, got {name!r} on the meta device; make the "
                "model on a real one, or call model.to_empty(device=...) and initialise it."
            )
        if type(tensor) is not nn.Parameter or type(tensor.data) is not Tensor:
            raise ValueError(_sharded(f"{type(tensor).__name__} at {name!r}"))


def _sharded(got: str) -> str:
    return (
        "Outer needs plain parameters that are whole on every rank, as one vector of them travels, "
        f"got {got}; use a model without FSDP, DTensor or other tensor subclasses."
    )
