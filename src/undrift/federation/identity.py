"""Digests of what models, losses and methods compute, the same in every process.

They cover the structure of a model with all attributes, what of it is frozen, and the source of
classes and functions of one's own. Trained parameters are left out, since they come from the
centre, and so is what functions of one's own call elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from undrift.models.layout import raw_bytes
from undrift.optim.schedules import Schedule
from undrift.usercode.functions import is_own, members_of, source_of

_MODULE = frozenset(vars(nn.Module()))  # attributes that every module has


def digest_of(value: Any) -> str:
    """Return a hash of what a model, a loss, a method or work computes."""
    text = _Description().of(value)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def frozen_modes(model: nn.Module) -> list[str]:
    """Return the parts that are not in training mode; a whole model is always switched to it."""
    return [name for name, part in model.named_modules() if model.training and not part.training]


def without_addresses(text: str) -> str:
    """Return a text without memory addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


class _Description:
    """Describes objects; one that comes again is named by its number."""

    def __init__(self) -> None:
        # Objects are held, because the number of one that is gone may be given to another.
        self._seen: dict[int, tuple[str, Any]] = {}

    def of(self, value: Any) -> str:
        """Return the description of any object."""
        if isinstance(value, Schedule):
            return f"{value!r} {self.of(value.at) if value.anonymous else ''}"
        if isinstance(value, tuple):
            return self._listed(map(self.of, value))
        if id(value) in self._seen:
            return self._seen[id(value)][0]
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, np.ndarray):
            return f"{value.shape} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}"
        if not isinstance(value, int | float | str | bytes | None):
            self._seen[id(value)] = f"object {len(self._seen)}", value
        if isinstance(value, list):
            return self._listed(map(self.of, value))
        if isinstance(value, dict):
            return self._listed(sorted(f"{k!r}: {self.of(value[k])}" for k in value))
        if isinstance(value, set | frozenset):
            return self._listed(sorted(map(repr, value)))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self._listed(map(self.of, (value.__func__, value.__self__)))
        if isinstance(value, functools.partial):
            return self._listed(map(self.of, (value.func, value.args, value.keywords)))
        return self._object(value)

    def _object(self, value: Any) -> str:
        if isinstance(value, nn.Module):
            return self._module(value)
        if is_dataclass(value):
            named = {field.name: getattr(value, field.name) for field in fields(value)}
        elif is_own(type(value)) and hasattr(value, "__dict__"):
            # Objects that are called are of one's own making. Others, such as the configurations
            # of Hugging Face, keep in private attributes where their files are.
            named = {k: v for k, v in vars(value).items() if callable(value) or k[0] != "_"}
        else:
            return without_addresses(repr(value))
        return self._listed([self.of(type(value)), self.of(named)])

    def _module(self, module: nn.Module) -> str:
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        attributes = {k: v for k, v in vars(module).items() if k not in _MODULE}
        hooks = [
            each
            for name, value in sorted(vars(module).items())
            if name in _MODULE and name.endswith("_hooks") and isinstance(value, dict)
            for each in value.values()
        ]
        parts = [
            self.of(type(module)),
            *(f"{name}: {_tensor(tensor)}" for name, tensor in tensors),
            self.of(attributes),
            *map(self.of, hooks),
            *(f"{name}: {self.of(part)}" for name, part in module.named_children()),
        ]
        return self._listed(parts)

    def _class(self, cls: type) -> str:
        if not is_own(cls):
            return f"{cls.__module__}.{cls.__qualname__}"
        bases = [self.of(base) for base in cls.__bases__]
        members = members_of(cls)
        written = [f"{name}: {self.of(members[name])}" for name in sorted(members)]
        return self._listed([cls.__qualname__, *bases, *written])

    def _function(self, function: FunctionType) -> str:
        if not is_own(function):
            return f"{function.__module__}.{function.__qualname__}"
        cells = [_content(cell) for cell in function.__closure__ or ()]
        defaults = function.__defaults__, function.__kwdefaults__
        parts = [source_of(function), *map(self.of, (*defaults, *cells))]
        return self._listed([function.__name__, *parts])

    def _listed(self, parts: Iterable[str]) -> str:
        return f"[{', '.join(parts)}]"


def _tensor(tensor: Tensor) -> str:
    """Return the form of a tensor, and its bits unless it is trained."""
    bits = "trained" if tensor.requires_grad else hashlib.sha256(raw_bytes(tensor)).hexdigest()
    return f"{tuple(tensor.shape)} {tensor.dtype} {bits}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return None
