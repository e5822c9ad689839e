"""Traces a forward pass that is not a Sequential, and follows its chain of operations."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import fx, nn

from undrift.errors import first_line
from undrift.gradients.kernels.layers import UnsupportedError

_lock = threading.Lock()  # Tracers change torch while they run, so one runs at a time.


def traced_chain(model: nn.Module) -> Iterator[fx.Node]:
    """Yield the operations from the input to the output, or raise if they are not a chain."""
    current: fx.Node | None = None
    chain: set[fx.Node] = set()
    for node in _graph(model).nodes:
        if node.op == "placeholder" and current is None:
            current = node
        elif node.op == "output":
            if node.args[0] is not current:
                raise UnsupportedError("an output that is not the last layer's")
        elif _is_measure(node, chain):
            continue  # A view may need x.size(0) or x.shape, which change no value.
        elif current is not None and node.args and node.args[0] is current:
            _require_one_path(node, current)
            yield node
            current = node
        else:
            raise UnsupportedError(f"`{node.name}`, which is not a step of a chain")
        if current is not None:
            chain.add(current)


def is_batch_size(node: fx.Node) -> bool:
    """Return whether a node is x.size(0) or x.shape[0]."""
    return len(node.args) == 2 and bool(node.args[1] == 0)


class _Tracer(fx.Tracer):
    """Ignores modules that other threads call meanwhile, as a tracer sees the calls of all."""

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Trace a call whose arguments are traced, and let others run."""
        if not any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values())):
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)


def _graph(model: nn.Module) -> fx.Graph:
    try:
        with _lock:
            return _Tracer().trace(model)
    except Exception as error:  # A user's model may raise anything when it is traced.
        raise UnsupportedError(
            f"a forward pass that cannot be traced ({first_line(error)})"
        ) from error


def _require_one_path(node: fx.Node, current: fx.Node) -> None:
    """Raise if another operation uses the same value, as there would be two paths."""
    others = [
        user for user in current.users if user is not node and not _is_measure(user, {current})
    ]
    if others:
        raise UnsupportedError(f"`{others[0].name}`, a second path")


def _is_measure(node: fx.Node, chain: Collection[Any]) -> bool:
    """Return whether a node is the shape of a value of the chain, or a number of such a shape."""
    if not node.args:
        return False
    value = node.args[0]
    if node.op == "call_method" and node.target == "size":
        return value in chain
    if node.op == "call_function" and node.target is getattr:
        return value in chain and node.args[1] == "shape"
    if node.target is operator.getitem and isinstance(value, fx.Node):
        return _is_measure(value, chain)
    return False
