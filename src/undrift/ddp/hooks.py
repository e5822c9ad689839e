"""The four hooks and their states."""

# Annotations are not postponed here: DDP compares those of a hook with its own types.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from undrift.check import is_whole, require, require_choice, require_positive
from undrift.comm.merges import Code, Largest, Mean, OneBit, SignSum, euclidean, require_code
from undrift.core import Vector
from undrift.ddp.state import HookState
from undrift.errors import WorkerError


@dataclass(kw_only=True, eq=False)
class MarsitState(HookState):
    """`server_lr` is the size of every entry of the gradient that a one-bit step makes.

    `period=None` has no step in full precision, not even the first.
    """

    name = "marsit"
    server_lr: float = 1e-3
    period: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("MarsitState", server_lr=self.server_lr)
        whole = self.period is None or (is_whole(self.period) and self.period >= 1)
        remedy = "leave it out for one-bit steps only"
        require(whole, "MarsitState", "period >= 1, a whole number or None", self.period, remedy)
        require(is_whole(self.seed), "MarsitState", "a whole seed", self.seed)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        u = [own + self._buffer(n, own) for n, own in zip(numbers, g, strict=True)]
        if self.period is not None and self.step % self.period == 0:
            mean = self._mean(u, self._label(numbers))
            self._keep(numbers, [torch.zeros_like(own) for own in u])
            return mean
        signs = self._reduce(u, OneBit(), self._label(numbers), numbers, self.seed)
        d = [_as_held(self.server_lr * b, dtype) for b in signs]
        self._keep(numbers, [own - each for own, each in zip(u, d, strict=True)])
        return d

    def _mean(self, u: list[Vector], label: str) -> list[Vector]:
        # Who is there, and finite, which the backend would not say.
        finite = all(bool(own.isfinite().all()) for own in u)
        self._reduce([torch.tensor([0.0 if finite else torch.nan])], Largest(), f"{label}, check")
        transport = self._connect()
        try:
            # One for each parameter: in a joint one, the order of adding depends on the place.
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
    """`server_lr` is the size of every entry of the common gradient, `code` as in `SignSGD`."""

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
    """`code` is how sums of signs travel, as in `EFSignSGD`."""

    name = "error-feedback sign"
    code: Code = "fixed"

    def __post_init__(self) -> None:
        require_code("EFSignState", self.code)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        p = [own + self._buffer(n, own) for n, own in zip(numbers, g, strict=True)]
        label = self._label(numbers)
        scales = self._reduce([own.abs().mean().view(1) for own in p], Mean(), f"{label}, scales")
        signs = self._reduce(p, SignSum(self.code), label)
        exact = [a * s for a, s in zip(scales, signs, strict=True)]
        d = [_as_held(each, dtype) for each in exact]
        kept = [
            # What rounding d to half precision loses is lost by all, and comes back with all.
            own - a * torch.where(own >= 0, 1.0, -1.0).to(own.dtype) + (each - held)
            for own, a, each, held in zip(p, scales, exact, d, strict=True)
        ]
        self._keep(numbers, kept)
        return d


@dataclass(kw_only=True, eq=False)
class SSDMState(HookState):
    """`beta`, `norm` and `code` as in `SSDM`; `seed` is of the random signs."""

    name = "ssdm"
    beta: float = 0.9
    norm: Literal["none", "max"] = "none"
    code: Code = "fixed"
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "SSDMState", "beta in [0, 1)", self.beta)
        require_choice("SSDMState", "norm", self.norm, ("none", "max"))
        require_code("SSDMState", self.code)
        require(is_whole(self.seed), "SSDMState", "a whole seed", self.seed)
        super().__post_init__()

    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        m = [
            self.beta * self._buffer(n, own) + (1 - self.beta) * own
            for n, own in zip(numbers, g, strict=True)
        ]
        label = self._label(numbers)
        norms = [euclidean(own).view(1) for own in m]
        # In either case, because no sign can be drawn from a NaN: all ranks must know before.
        largest = self._reduce(norms, Largest(), f"{label}, norms")
        n = largest if self.norm == "max" else norms
        v = [
            torch.where(of > 0, (own / of).clamp(-1, 1), torch.zeros_like(own))  # but for rounding
            for own, of in zip(m, n, strict=True)
        ]
        how = SignSum(self.code, stochastic=True)
        s = self._reduce(v, how, label, numbers, self.seed)
        self._keep(numbers, m)
        if self.norm == "none":
            return s
        return [of * each for of, each in zip(n, s, strict=True)]


def marsit_hook(state: MarsitState, bucket: GradBucket) -> Future[Tensor]:
    """Marsit: one bit a coordinate and hop, unbiased, with compensation of what was lost.

    u = g + c; every `period` steps d = mean of u in full precision and c = 0, otherwise
    d = server_lr b with b = +1 or -1 by the one-bit all-reduce of sign(u), and c = u - d. With
    torch.optim.SGD(lr) this is `undrift.Marsit(lr, server_lr=lr * state.server_lr)`.
    """
    return _run(state, MarsitState, bucket)


def sign_majority_hook(state: SignState, bucket: GradBucket) -> Future[Tensor]:
    """SignSGD: server_lr times the sign that most ranks' gradients have; ties and zeros are +1.

    With torch.optim.SGD(lr) this is `undrift.SignSGD(lr, server_lr=lr * state.server_lr)`.
    """
    return _run(state, SignState, bucket)


def ef_sign_hook(state: EFSignState, bucket: GradBucket) -> Future[Tensor]:
    """EFSignSGD: the mean of the ranks' signs, scaled; what is lost is added to the next gradient.

    The scale is each parameter's own mean magnitude, and not one of the whole model, as in
    `undrift.EFSignSGD`, which this is, with torch.optim.SGD(lr), for a model of one parameter. The
    scales of a bucket take one small all-reduce.
    """
    return _run(state, EFSignState, bucket)


def ssdm_hook(state: SSDMState, bucket: GradBucket) -> Future[Tensor]:
    """SSDM: momentum as random signs, +1 with probability 1/2 + m_j / (2 ||m||).

    The norm is each parameter's own, and not one of the whole model, as in `undrift.SSDM`, which
    this is, with torch.optim.SGD(lr), for a model of one parameter. The norms of a bucket take one
    small all-reduce.
    """
    return _run(state, SSDMState, bucket)


@torch.no_grad()
def _run(state: HookState, kind: type[HookState], bucket: GradBucket) -> Future[Tensor]:
    require(isinstance(state, kind), "The hook", f"a {kind.__name__}", type(state).__name__)
    whole = bucket.buffer()
    dense = whole.is_floating_point() and whole.layout == torch.strided
    require(dense, "The hook", "dense, real gradients", f"{whole.dtype}, {whole.layout}")
    if not state._agreed:
        state._agree()
    pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    # The first step lists a bucket's parameters in the model's order, and buckets from the last on.
    numbered = [(state._number(parameter), g) for parameter, g in reversed(pairs)]
    numbered = [(number, g) for number, g in numbered if g.numel()]
    if numbered:
        precise = torch.promote_types(whole.dtype, torch.float32)
        numbers = [number for number, _ in numbered]
        own = [g.reshape(-1).to(precise) for _, g in numbered]
        common = state._combine(numbers, own, whole.dtype)
        for (_, g), d in zip(numbered, common, strict=True):
            g.copy_(d.view(g.shape))  # a view of the bucket
    if bucket.is_last():
        state._end_step()
    future: Future[Tensor] = Future()
    future.set_result(whole)
    return future


def _as_held(d: Vector, dtype: torch.dtype) -> Vector:
    """d as gradients of this dtype can hold it."""
    return d if d.dtype == dtype else d.to(dtype).to(d.dtype)
