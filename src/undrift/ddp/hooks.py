"""The four hooks, which are for lockstep SGD, and their states."""

# Annotations are not postponed here: DDP compares those of a hook with its own types.
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from undrift.check import is_whole, require, require_choice, require_positive
from undrift.comm.merges import (
    Code,
    Largest,
    Mean,
    Norm,
    OneBit,
    SignSum,
    norm_of,
    require_code,
    require_norm,
)
from undrift.core import Vector
from undrift.ddp.state import HookState
from undrift.errors import WorkerError


@dataclass(kw_only=True, eq=False)
class MarsitState(HookState):
    """Holds the options and buffers of `marsit_hook`.

    Every entry of the gradient that a one-bit step makes has the size `server_lr`. With
    `period=None` no step has full precision, not even the first. `optimizer`, the one that steps
    after the hook, lets it keep what was lost as an update, so that a schedule of lr neither loses
    nor multiplies it.
    """

    name = "marsit"
    server_lr: float = 1e-3
    period: int | None = None
    seed: int = 0
    optimizer: torch.optim.Optimizer | None = field(default=None, repr=False)  # type: ignore[misc]

    def __post_init__(self) -> None:
        require_positive("MarsitState", server_lr=self.server_lr)
        valid = self.period is None or (is_whole(self.period) and self.period >= 1)
        remedy = "leave it out for one-bit steps only"
        require(valid, "MarsitState", "period >= 1, a whole number or None", self.period, remedy)
        require(is_whole(self.seed), "MarsitState", "a whole seed", self.seed)
        _require_optimizer("MarsitState", self.optimizer)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        u = [own + self._residual(n, own) for n, own in zip(numbers, g, strict=True)]
        if self.period is not None and self.step % self.period == 0:
            mean = self._mean(u, self._label(numbers))
            self._keep_residuals(numbers, [torch.zeros_like(own) for own in u])
            return mean
        signs = self._reduce(u, OneBit(), self._label(numbers), numbers, self.seed)
        d = [_as_held(self.server_lr * b, dtype) for b in signs]
        self._keep_residuals(numbers, [own - each for own, each in zip(u, d, strict=True)])
        return d

    def _mean(self, u: list[Vector], label: str) -> list[Vector]:
        # The backend would not say which rank is missing or has gradients that are not finite, so
        # a small all-reduce of our own finds out first.
        finite = all(bool(own.isfinite().all()) for own in u)
        self._reduce([torch.tensor([0.0 if finite else torch.nan])], Largest(), f"{label}, check")
        transport = self._connect()
        try:
            # Each parameter has its own all-reduce, because in a joint one the order in which
            # floats are added depends on their place.
            works = [dist.all_reduce(own, group=transport.group, async_op=True) for own in u]
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise WorkerError(
                f"A rank left in the middle of step {self.step + 1} ({error}); see what the "
                "others say.",
                ranks=[],
            ) from error
        return [own / transport.size for own in u]


@dataclass(kw_only=True, eq=False)
class SignState(HookState):
    """Holds the options and buffers of `sign_majority_hook`.

    Every entry of the common gradient has the size `server_lr`; `code` is as in `SignSGD`.
    """

    name = "sign majority"
    server_lr: float = 1.0
    code: Code = "fixed"

    def __post_init__(self) -> None:
        require_positive("SignState", server_lr=self.server_lr)
        require_code("SignState", self.code)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        votes = self._reduce(g, SignSum(self.code, vote=True), self._label(numbers))
        return [self.server_lr * vote for vote in votes]


@dataclass(kw_only=True, eq=False)
class EFSignState(HookState):
    """Holds the options and buffers of `ef_sign_hook`.

    `code` says how sums of signs travel, as in `EFSignSGD`; `optimizer` is as in `MarsitState`.
    """

    name = "error-feedback sign"
    code: Code = "fixed"
    optimizer: torch.optim.Optimizer | None = field(default=None, repr=False)  # type: ignore[misc]

    def __post_init__(self) -> None:
        require_code("EFSignState", self.code)
        _require_optimizer("EFSignState", self.optimizer)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        p = [own + self._residual(n, own) for n, own in zip(numbers, g, strict=True)]
        label = self._label(numbers)
        scales = self._reduce([own.abs().mean().view(1) for own in p], Mean(), f"{label}, scales")
        signs = self._reduce(p, SignSum(self.code), label)
        exact = [a * s for a, s in zip(scales, signs, strict=True)]
        d = [_as_held(each, dtype) for each in exact]
        buffers = [
            # Rounding d to half precision loses the same on all ranks, and all add it again.
            own - a * torch.where(own >= 0, 1.0, -1.0).to(own.dtype) + (each - held)
            for own, a, each, held in zip(p, scales, exact, d, strict=True)
        ]
        self._keep_residuals(numbers, buffers)
        return d


@dataclass(kw_only=True, eq=False)
class SSDMState(HookState):
    """Holds the options and buffers of `ssdm_hook`.

    `beta`, `norm` and `code` are as in `SSDM`, `scale` is "none" or "max" of it; `seed` is that of
    the random signs.
    """

    name = "ssdm"
    beta: float = 0.9
    norm: Norm = "l2"
    scale: Literal["none", "max"] = "none"
    code: Code = "fixed"
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "SSDMState", "beta in [0, 1)", self.beta)
        require_norm("SSDMState", self.norm)
        require_choice("SSDMState", "scale", self.scale, ("none", "max"))
        require_code("SSDMState", self.code)
        require(is_whole(self.seed), "SSDMState", "a whole seed", self.seed)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        m = [
            self.beta * self._buffer(n, own) + (1 - self.beta) * own
            for n, own in zip(numbers, g, strict=True)
        ]
        label = self._label(numbers)
        norms = [norm_of(own, self.norm).view(1) for own in m]
        # This all-reduce runs for either `scale`, because no sign can be drawn from a NaN and all
        # ranks must know of one before they draw.
        largest = self._reduce(norms, Largest(), f"{label}, norms")
        n = largest if self.scale == "max" else norms
        v = [
            # Rounding alone can take a quotient out of [-1, 1].
            torch.where(norm > 0, (own / norm).clamp(-1, 1), torch.zeros_like(own))
            for own, norm in zip(m, n, strict=True)
        ]
        merge = SignSum(self.code, stochastic=True)
        s = self._reduce(v, merge, label, numbers, self.seed)
        self._keep(numbers, m)
        if self.scale == "none":
            return s
        return [norm * each for norm, each in zip(n, s, strict=True)]


def marsit_hook(state: MarsitState, bucket: GradBucket) -> Future[Tensor]:
    """Run Marsit in lockstep SGD: one unbiased bit a coordinate and hop, what is lost compensated.

    u = g + c; every `period` steps d = mean of u in full precision and c = 0, otherwise
    d = server_lr b with b = +1 or -1 by the one-bit all-reduce of sign(u), and c = u - d. With
    torch.optim.SGD(lr) this is `undrift.Marsit(lr, server_lr=lr * state.server_lr)`.
    """
    return _run(state, MarsitState, bucket)


def sign_majority_hook(state: SignState, bucket: GradBucket) -> Future[Tensor]:
    """Run SignSGD: server_lr times the sign of most ranks' gradients; ties and zeros are +1.

    With torch.optim.SGD(lr) this is `undrift.SignSGD(lr, server_lr=lr * state.server_lr)`.
    """
    return _run(state, SignState, bucket)


def ef_sign_hook(state: EFSignState, bucket: GradBucket) -> Future[Tensor]:
    """Run EFSignSGD: the mean of the ranks' signs, scaled; the next gradient gets what is lost.

    The scale is each parameter's own mean magnitude, and not one of the whole model, as in
    `undrift.EFSignSGD`, which this is, with torch.optim.SGD(lr), for a model of one parameter. The
    scales of a bucket take one small all-reduce.
    """
    return _run(state, EFSignState, bucket)


def ssdm_hook(state: SSDMState, bucket: GradBucket) -> Future[Tensor]:
    """Run SSDM: momentum as random signs, +1 with probability 1/2 + m_j / (2 ||m||).

    The norm is each parameter's own, and not one of the whole model, as in `undrift.SSDM`, which
    this is, with torch.optim.SGD(lr), for a model of one parameter. The norms of a bucket take one
    small all-reduce.
    """
    return _run(state, SSDMState, bucket)


@torch.no_grad()
def _run(state: HookState, kind: type[HookState], bucket: GradBucket) -> Future[Tensor]:
    require(isinstance(state, kind), "The hook", f"a {kind.__name__}", type(state).__name__)
    buffer = bucket.buffer()
    dense = buffer.is_floating_point() and buffer.layout == torch.strided
    require(dense, "The hook", "dense, real gradients", f"{buffer.dtype}, {buffer.layout}")
    if not state._agreed:
        state._agree()
    pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    # The first step lists a bucket's parameters in the model's order, and buckets from the last on.
    numbered = [(state._number(parameter), g) for parameter, g in reversed(pairs)]
    numbered = [(number, g) for number, g in numbered if g.numel()]
    if numbered:
        precise = torch.promote_types(buffer.dtype, torch.float32)
        numbers = [number for number, _ in numbered]
        own = [g.reshape(-1).to(precise) for _, g in numbered]
        common = state._combine(numbers, own, buffer.dtype)
        for (_, g), d in zip(numbered, common, strict=True):
            g.copy_(d.view(g.shape))  # a view of the bucket
    if bucket.is_last():
        state._end_step()
    future: Future[Tensor] = Future()
    future.set_result(buffer)
    return future


def _require_optimizer(who: str, optimizer: object) -> None:
    known = optimizer is None or isinstance(optimizer, torch.optim.Optimizer)
    require(known, who, "a torch optimiser as optimizer", optimizer)


def _as_held(d: Vector, dtype: torch.dtype) -> Vector:
    """Return d rounded to what gradients of this dtype can hold."""
    return d if d.dtype == dtype else d.to(dtype).to(d.dtype)
