"""Compressed uploads around any method with a server: `Compressed(FedACG(lr=0.1), QSGD(bits=8))`
is "FedACG + FedPAQ". The downlink is unchanged.

    client:  U <- inner's upload;  with error feedback  p = U + e, else p = U
             send encode(p);  with error feedback  e <- p - decode(encode(p))
    server:  the inner method on the weighted mean of decode(encode(p))

Every leaf of the upload that is as long as the model is coded by itself, with draws of its own; the
others (scalars) travel as they are. Error feedback (Karimireddy et al., ICML 2019) needs a codec
whose error is below the vector's own, or e grows without bound; others are refused.

A client keeps its duals exactly while the server adds up what was decoded. So for SCAFFOLD c is not
sum_i w_i c_i but that plus the codec's errors; with error feedback c = sum_i w_i (c_i - e_i)
(`test_scaffold_server_dual_is_the_mean_less_the_residuals`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from undrift import tree
from undrift.check import require
from undrift.comm.codecs import Codec, Wire
from undrift.core import Cohort, Federated, Loop, Prelude, Vector
from undrift.dry import ZeroLoop
from undrift.field_help import documented


class CompressedClient(NamedTuple):
    inner: Any
    residual: Tensor  # e: (coded leaves, D) in the upload's order; (0, D) without error feedback


@documented
@dataclass(frozen=True)
class Compressed(Federated[Any, Any, CompressedClient, Any]):
    """Sends the uploads of any method through a codec; the server's state is the method's own."""

    inner: Federated[Any, Any, Any, Any]
    """Method with a server and one exchange a round, whose uploads are compressed."""
    codec: Codec
    """Codec of every upload that is as long as the model, such as QSGD(bits=8)."""
    error_feedback: bool = field(default=False, kw_only=True)
    """Add what the codec lost to the next upload of the client; it needs a codec with error < 1."""

    def __post_init__(self) -> None:
        inner: Any = self.inner
        name = type(inner).__name__
        method = isinstance(inner, Federated)
        require(method, "Compressed", "a method with a server such as FedAvg(lr=0.1)", inner)
        coder = isinstance(self.codec, Codec) and not isinstance(self.codec, type)
        require(coder, "Compressed", "a codec such as QSGD(bits=8)", self.codec)
        if isinstance(inner, Prelude) and inner.asks != "nobody":
            raise ValueError(
                f"Compressed needs a method with one exchange a round, got {name} with two; the "
                f"first would be lost. Run {name} without compression."
            )
        nested = inner
        while isinstance(nested, Federated) and not isinstance(nested, Compressed):
            nested = getattr(nested, "inner", None)  # other wrappers have a field of this name, too
        if isinstance(nested, Compressed):
            raise ValueError(
                f"Compressed needs a method that is not compressed already, got {inner!r}; "
                "choose one codec."
            )

    @property
    def starts_at_broadcast(self) -> bool:
        return self.inner.starts_at_broadcast

    @property
    def stall_cause(self) -> str:
        return self.inner.stall_cause

    def check(self, model: nn.Module) -> None:
        self.inner.check(model)

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return self.inner.needs_mean

    def init(self, x0: Vector) -> Any:
        self._refuse_unfit_codec(x0.shape[0])  # here, because init comes before any work
        return self.inner.init(x0)

    def init_client(self, x0: Vector, down: Any) -> CompressedClient:
        client, coded = self.inner.init_client(x0, down), 0
        if self.error_feedback:
            # Only an upload shows how many vectors it has, and all states must have one shape.
            loop = ZeroLoop(x0)
            up, _ = self.inner.pack(*self.inner.local(down, client, loop), loop)
            coded = sum(_is_vector(leaf, x0.shape[0]) for leaf in tree.leaves(up))
        return CompressedClient(client, x0.new_zeros((coded, x0.shape[0])))

    def broadcast(self, server: Any) -> Any:
        return self.inner.broadcast(server)

    def local(
        self, down: Any, client: CompressedClient, steps: Loop
    ) -> tuple[Any, CompressedClient]:
        up, inner = self.inner.local(down, client.inner, steps)
        return up, client._replace(inner=inner)

    def pack(self, up: Any, client: CompressedClient, steps: Loop) -> tuple[Any, CompressedClient]:
        up, inner = self.inner.pack(up, client.inner, steps)
        size = client.residual.shape[1]
        self._refuse_unfit_codec(size)  # once more, because levels may be a schedule
        sent: list[Any] = []
        residual: list[Vector] = []
        for path, leaf in tree.named_leaves(up).items():
            if not _is_vector(leaf, size):
                sent.append(leaf)
                continue
            p = leaf + client.residual[len(residual)] if self.error_feedback else leaf
            wire = self.codec.encode(p, _draws(steps, path), steps.sizes)
            sent.append(wire)
            if self.error_feedback:
                residual.append(p - self.codec.decode(wire))
        e = torch.stack(residual) if residual else client.residual
        return tree.with_leaves(up, sent), CompressedClient(inner, e)

    def unpack(self, wire: Any) -> Any:
        def decode(part: Any) -> Any:
            return self.codec.decode(part) if _is_wire(part) else part

        return self.inner.unpack(pytree.tree_map(decode, wire, is_leaf=_is_wire))

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return self.inner.update(server, mean, cohort)

    def enrol(self, server: Any, share: float) -> Any:
        return self.inner.enrol(server, share)

    def _refuse_unfit_codec(self, size: int) -> None:
        """Raise a ValueError if the codec's error is too large for error feedback."""
        error = self.codec.error(size)  # this call refuses a k above the model's size
        if self.error_feedback and error >= 1:
            raise ValueError(
                f"Compressed needs a codec with error < 1 for error_feedback, got {self.codec!r} "
                f"with {error:.3g} on {size} parameters: what is left would grow from round to "
                "round; leave error_feedback out (an unbiased codec needs none), take more levels, "
                "ScaledSign or TopK."
            )


def _is_vector(leaf: Tensor, size: int) -> bool:
    """Return whether a leaf of an upload is as long as the model."""
    return leaf.shape == (size,) and leaf.is_floating_point()


def _is_wire(part: Any) -> bool:
    """Return whether a part of a message was encoded."""
    return isinstance(part, Wire)


def _draws(steps: Loop, path: str) -> Callable[[str, Tensor], Tensor]:
    """Return the draws of this leaf, which no other leaf shares."""
    return lambda purpose, like: steps.draw(f"codec/{path}/{purpose}", like)
