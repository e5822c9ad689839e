"""The base of all hooks' states: numbered parameters, their buffers, other ranks, the step."""

from __future__ import annotations

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from undrift import keyed
from undrift.check import require
from undrift.comm.merges import Largest
from undrift.comm.routes import Route, SegmentedRing
from undrift.comm.routes import parse as parse_route
from undrift.core import Merge, Vector
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.processes.transport import LostError, Transport
from undrift.errors import DivergenceError, UndriftError, WorkerError

PATIENCE = 3.0  # seconds that ranks whose wait has failed give each other to say for whom it was


@dataclass(kw_only=True, eq=False)
class HookState(ABC):
    """A state holds a hook's route, step counter and buffer for each parameter.

    Register a state of its own with each model, before the first backward pass. Parameters are
    numbered from the model's last one on, as the first step brings them: after every start DDP
    begins with buckets cut from the model's list of parameters, the last ones first, whatever
    `bucket_cap_mb` and `find_unused_parameters` are (for parameters of one dtype).
    """

    allreduce: str | Route = "ring"
    process_group: dist.ProcessGroup | None = None

    name: ClassVar[str]
    optimizer: ClassVar[torch.optim.Optimizer | None] = None  # a field of states with a residual

    step: int = field(default=0, init=False)
    _transport: Transport | None = field(default=None, init=False, repr=False)
    _numbers: dict[Tensor, int] = field(default_factory=dict, init=False, repr=False)
    _shapes: list[list[int]] = field(default_factory=list, init=False, repr=False)
    _buffers: dict[int, Vector] = field(default_factory=dict, init=False, repr=False)
    _agreed: bool = field(default=False, init=False, repr=False)  # with the other ranks
    _complete: bool = field(default=False, init=False, repr=False)  # all parameters are numbered
    _loaded: int | None = field(default=None, init=False, repr=False)  # parameters it was saved for

    def __post_init__(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self._connect()  # refuses before training what does not fit

    @property
    def bytes_sent(self) -> int:
        """Return the bytes that this rank sent with headers, without the backend's all-reduces."""
        return 0 if self._transport is None else self._transport.sent

    @abstractmethod
    def _combine(self, numbers: Sequence[int], g: list[Vector], dtype: torch.dtype) -> list[Vector]:
        """Return the common gradients of these parameters, as `dtype` can hold them.

        `g` are this rank's own gradients.
        """

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank; each saves its own, beside the model and the optimiser."""
        transport = self._connect()
        return {
            "hook": self.name,
            "world_size": transport.size,
            "rank": transport.rank,
            "step": self.step,
            "units": self._units,
            "shapes": [list(shape) for shape in self._shapes],
            "buffers": {number: buffer.clone() for number, buffer in self._buffers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the `state_dict` of the same rank, before the first step of a new process."""
        transport, who = self._connect(), f"{type(self).__name__}.load_state_dict"
        known = isinstance(state, Mapping)
        got = sorted(map(str, state)) if known else type(state).__name__
        proper = known and self.state_dict().keys() <= state.keys()
        require(proper, who, "what state_dict() returned", got)
        require(state["hook"] == self.name, who, f"the state of hook {self.name!r}", state["hook"])
        remedy = "pass optimizer= as when it was saved, or leave it out as then"
        require(state["units"] == self._units, who, self._units, state["units"], remedy)
        size, remedy = state["world_size"], "begin with a new state from the saved model"
        require(
            size == transport.size, who, f"a state of world size {transport.size}", size, remedy
        )
        own = state["rank"] == transport.rank or not state["buffers"]
        remedy = "save and load one file for each rank"
        require(own, who, f"the state of rank {transport.rank}", state["rank"], remedy)
        shapes = [list(shape) for shape in state["shapes"]]
        if self._complete and shapes != self._shapes:
            raise self._mismatch(f"shapes {self._shapes}", shapes)
        if not self._complete and shapes:  # a state saved before its first step has no shapes
            self._shapes, self._loaded = shapes, len(shapes)
        self.step, self._agreed = int(state["step"]), False
        self._buffers = {int(n): buffer.clone() for n, buffer in state["buffers"].items()}

    # Parameters

    def _number(self, parameter: Tensor) -> int:
        if parameter in self._numbers:
            return self._numbers[parameter]
        number, shape = len(self._numbers), list(parameter.shape)
        if self._complete:
            raise UndriftError(
                f"{type(self).__name__} needs to belong to one model, got a parameter of shape "
                f"{shape} that its first step did not have; make a state for each model."
            )
        if self._loaded is None:
            self._shapes.append(shape)
        elif number >= self._loaded or self._shapes[number] != shape:
            held = self._shapes[number] if number < self._loaded else f"{self._loaded} parameters"
            raise self._mismatch(f"shape {shape} for parameter {number} from its end", held)
        self._numbers[parameter] = number
        return number

    def _mismatch(self, expected: str, got: object) -> ValueError:
        return ValueError(
            f"{type(self).__name__} needs a state of this model, {expected}, got {got}; load it "
            "beside the model it was saved with."
        )

    def _end_step(self) -> None:
        if self._loaded is not None and len(self._numbers) != self._loaded:
            raise self._mismatch(f"{len(self._numbers)} parameters", self._loaded)
        self._complete = True
        self.step += 1

    @property
    def _units(self) -> str:
        """Return what the buffers are measured in."""
        return "buffers of gradients" if self.optimizer is None else "buffers of updates"

    def _residual(self, number: int, like: Vector) -> Vector:
        """Return what is left of earlier steps, in units of this step's gradient.

        With an optimiser it is kept as an update, lr times a gradient, so that nothing is lost or
        gained when a schedule changes lr. A step with lr 0 moves nothing and leaves it alone.
        """
        lr, kept = self._lr(number), self._buffer(number, like)
        return kept / lr if lr > 0 else torch.zeros_like(like)

    def _keep_residuals(self, numbers: Sequence[int], left: Sequence[Vector]) -> None:
        """Keep what is left of this step's gradients."""
        rates = [self._lr(number) for number in numbers]
        kept = [(n, lr * each) for n, lr, each in zip(numbers, rates, left, strict=True) if lr > 0]
        self._buffers.update(kept)

    def _lr(self, number: int) -> float:
        """Return the learning rate of a parameter in this step; 1 without an optimiser."""
        if self.optimizer is None:
            return 1.0
        parameter = next(p for p, each in self._numbers.items() if each == number)
        for group in self.optimizer.param_groups:
            if any(p is parameter for p in group["params"]):
                return float(group["lr"])
        raise UndriftError(
            f"{type(self).__name__} needs an optimizer of all the model's parameters, got one "
            f"without a parameter of shape {list(parameter.shape)}; pass model.parameters() to it."
        )

    def _buffer(self, number: int, like: Vector) -> Vector:
        return self._buffers[number].to(like) if number in self._buffers else torch.zeros_like(like)

    def _keep(self, numbers: Sequence[int], buffers: Sequence[Vector]) -> None:
        self._buffers.update(zip(numbers, buffers, strict=True))

    # The other ranks

    def _connect(self) -> Transport:
        if self._transport is None:
            transport, who = Transport(self.process_group), type(self).__name__
            backend = dist.get_backend(transport.group)
            remedy = "pass process_group=torch.distributed.new_group(backend='gloo')"
            require(backend != "nccl", who, "a backend that sends from the CPU", backend, remedy)
            route = parse_route(self.allreduce, transport.size)
            remedy = "take ring, torus, tree or server"
            unsegmented = not isinstance(route, SegmentedRing)  # segments depend on a vector's size
            require(unsegmented, who, "a route without segments", self.allreduce, remedy)
            self._transport = transport
        return self._transport

    def _reduce(
        self,
        vectors: list[Vector],
        merge: Merge,
        label: str,
        numbers: Sequence[int] = (),
        seed: int = 0,
    ) -> list[Vector]:
        """Reduce over all ranks, vector by vector; one that is not finite stops every rank."""
        transport = self._connect()
        route = parse_route(self.allreduce, transport.size)
        draws = [partial(self._draw, seed, number) for number in numbers]
        try:
            reduced = all_reduce(
                transport,
                {transport.rank: vectors},
                merge,
                route,
                draws,
                label=f"{self.name}, {label}",
            )
        except LostError as error:
            raise self._absent(transport, error) from error
        if reduced.not_finite:
            rank = transport.peer(reduced.not_finite[0])
            raise DivergenceError(
                f"Training needs finite gradients, got NaN or Inf from rank {rank} in step "
                f"{self.step + 1}; lower lr and go on from the last checkpoint.",
                round=self.step + 1,
                clients=[rank],
            )
        return reduced.vectors

    def _label(self, numbers: Sequence[int]) -> str:
        """Return a label that both ends of a message must agree on."""
        return f"step {self.step}, parameters {list(numbers)}"

    def _draw(self, seed: int, number: int, purpose: str, *place: int) -> np.random.Generator:
        # The simulator has the same keys, so that a model of one parameter ends with the same bits.
        return keyed.generator(seed, f"allreduce/{purpose}", self.step, number, *place)

    def _agree(self) -> None:
        """Raise unless all ranks have the same settings and the same step."""
        transport = self._connect()
        own = [(f.name, str(getattr(self, f.name))) for f in fields(self) if f.init]
        own.append(("units", self._units))
        text = str([each for each in own if each[0] not in ("process_group", "optimizer")]).encode()
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")
        # Both numbers are below 2**53, which float64 holds exactly.
        table = torch.zeros(transport.size, 2, dtype=torch.float64)
        table[transport.rank] = torch.tensor([digest, self.step], dtype=torch.float64)
        (combined,) = self._reduce([table.view(-1)], Largest(), "settings")
        table = combined.view(-1, 2)
        for rank, (settings, step) in enumerate(table.tolist()):
            pairs = ("step", step, table[0, 1]), ("settings", settings, table[0, 0])
            for what, value, first in pairs:
                if value != float(first):
                    raise UndriftError(
                        f"All ranks need to begin with the same {what}, got another on rank "
                        f"{transport.peer(rank)} than on rank {transport.peer(0)}; run the same "
                        "program everywhere, from checkpoints of one step."
                    )
        self._agreed = True

    def _absent(self, transport: Transport, error: LostError) -> WorkerError:
        lost = error.ranks[0]
        # Without a store, if its host is gone or torch is too old, the awaited rank is named.
        with suppress(RuntimeError, AttributeError):
            lost = _end_of_waits(transport, f"undrift/{self.name}/{self.step}", error)
        rank = transport.peer(lost)
        return WorkerError(
            f"Rank {rank} took no part in step {self.step + 1} ({error}); see what it says "
            "itself, and give every rank as many batches: DistributedSampler with drop_last=True.",
            ranks=[rank],
        )


def _end_of_waits(transport: Transport, prefix: str, error: LostError) -> int:
    """Return the missing rank; the awaited rank may itself have waited in vain for another.

    Every rank writes down for whom it waited; the chain ends with a rank that wrote nothing.
    """
    # A store may outlive the processes of an attempt.
    prefix += f"/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/waited-for"
    store = transport.group.get_group_store()
    store.set(f"{prefix}/{transport.rank}", str(error.ranks[0]))
    until = time.monotonic() + PATIENCE
    while True:
        at, seen = error.ranks[0], {transport.rank}
        while at not in seen and store.check([f"{prefix}/{at}"]):
            seen.add(at)
            at = int(store.get(f"{prefix}/{at}"))
        if at in seen:  # all ranks are there, so a link has failed
            return error.ranks[0]
        if time.monotonic() >= until:
            return at
        time.sleep(0.05)
