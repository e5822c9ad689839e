"""Any `nn.Module` as one flat vector, and parameters as views of such a vector."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core import Vector
from undrift.models import block_names

_BATCH_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LazyBatchNorm1d,
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
)


@dataclass(frozen=True)
class Layout:
    """Says where each trainable parameter of a model lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]  # index of the block each parameter belongs to
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Return the layout of a model without its frozen parameters, or raise `ValueError`."""
        refuse_batch_norm(model)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(
                "The model needs at least one trainable parameter, got none; "
                "set requires_grad=True on what should be trained."
            )
        for name, p in named:
            if nn.parameter.is_lazy(p):
                raise ValueError(
                    f"The model needs initialised parameters, got lazy {name!r}; "
                    "call the model once on a sample before simulate()."
                )
            if not p.is_floating_point() or p.dtype != named[0][1].dtype:
                raise ValueError(
                    f"The model needs one floating-point dtype for all parameters, got {p.dtype} "
                    f"for {name!r} and {named[0][1].dtype} for {named[0][0]!r}; "
                    "convert it with model.float() or model.double()."
                )
        first = named[0][1]
        return cls(
            tuple(name for name, _ in named),
            tuple(p.shape for _, p in named),
            tuple(p.numel() for _, p in named),
            _levels(model, [name for name, _ in named]),
            first.dtype,
            first.device,
        )

    @property
    def size(self) -> int:
        """Return the length of the vector."""
        return sum(self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the index at which each parameter begins."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def views(self, x: Vector) -> dict[str, Tensor]:
        """Return the model's parameters as views of x, differentiable in x.

        One `split` is fast, because its backward pass is one concatenation; the backward pass of a
        slice per parameter would write the vector once for each parameter.
        """
        parts = torch.split(x, list(self.sizes))
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in named}

    def gather(self, model: nn.Module) -> Vector:
        """Return a copy of the model's trainable parameters as one vector."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def unite(self, model: nn.Module) -> Vector:
        """Return the model's parameters as one vector, of which they become views."""
        x = self.gather(model)
        parameters = dict(model.named_parameters())
        for name, view in self.views(x).items():
            parameters[name].data = view
        return x

    def bind(self, model: nn.Module, x: Vector) -> nn.Module:
        """Return a copy of the model whose parameters are views of x, so that it follows x."""
        bound = copy.deepcopy(model)
        parameters = dict(bound.named_parameters())
        for name, view in self.views(x.detach()).items():
            parameters[name].data = view
        return bound

    @cached_property
    def level(self) -> Tensor:
        """Return for each coordinate (D,) the index of the block it belongs to.

        It is made on demand, because it takes twice the memory of the vector, and by NumPy, because
        a tensor that torch makes inside a transform does not outlive the transform.
        """
        return torch.from_numpy(np.repeat(self.levels, self.sizes)).to(self.device)


def _levels(model: nn.Module, names: list[str]) -> tuple[int, ...]:
    """Return the index of each parameter's block; what is in no block comes after the last."""
    blocks = {name: level for level, name in enumerate(block_names(model))}
    return tuple(blocks.get(name.split(".", 1)[0], len(blocks)) for name in names)


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise `ValueError` for layers with running statistics."""
    for name, module in model.named_modules():
        running = isinstance(module, nn.modules.instancenorm._InstanceNorm) and (
            module.track_running_stats
        )
        if isinstance(module, _BATCH_NORMS) or running:
            raise ValueError(
                f"The model needs layers without running statistics, got {type(module).__name__} "
                f"at {name or 'the top'!r}, which can neither be averaged over clients nor "
                "stacked; convert it with undrift.group_norm(model)."
            )


def group_norm(model: nn.Module, groups: int = 2) -> nn.Module:
    """Return a copy of the model with GroupNorm of the same weights for every BatchNorm.

    `groups` is lowered per layer to the largest divisor of its channels; the papers use 2.
    """
    if groups < 1:
        raise ValueError(f"group_norm needs groups >= 1, got {groups}.")
    converted = copy.deepcopy(model)
    return _convert(converted, groups)


def _convert(module: nn.Module, groups: int) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        channels = module.num_features
        fitting = max(g for g in range(1, min(groups, channels) + 1) if channels % g == 0)
        norm = nn.GroupNorm(fitting, channels, eps=module.eps, affine=module.affine)
        if module.affine:
            norm.weight = module.weight
            norm.bias = module.bias
        return norm.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _convert(child, groups))
    return module


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode for a block, and give every module its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def sha256(x: Vector) -> str:
    """Return a hash of a vector's dtype and exact bits."""
    return hashlib.sha256(str(x.dtype).encode() + raw_bytes(x)).hexdigest()


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the exact bits of a tensor; the way over bytes serves dtypes that NumPy lacks."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy())
