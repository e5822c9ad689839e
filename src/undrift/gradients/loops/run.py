"""Compiles the loops of a run and calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from undrift.builder import library
from undrift.core import Objective
from undrift.gradients.kernels import Kernels, UnsupportedError
from undrift.gradients.loops.emit import emit_loop
from undrift.gradients.loops.trace import Program, Structure, trace_program
from undrift.gradients.loops.traced import UntraceableError
from undrift.gradients.task import Task

FLAGS = ("-ffp-contract=off",)  # torch rounds a product before it is added
SHARED_PRODUCTS = 1e6  # from here on a call is worth a second core
CALL_PRODUCTS = 2e10  # that a call makes at most, about a second, because it cannot be interrupted
NO_MEMORY = 2  # the status of a client whose loop could not allocate

_POINTERS = (
    *("gradient", "carries", "tensors", "strides", "numbers", "inputs", "targets"),
    *("index", "counts", "keys", "lengths", "status"),
)
_SIZES = "clients", "steps", "batch", "size", "features", "start", "threads"


class _Call(ctypes.Structure):
    """Holds the arguments of the C++, in the order of its struct."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
    ]


@dataclass(frozen=True, eq=False)
class StepSamples:
    """Holds the minibatches of some steps of many clients as indices of a pool of samples."""

    inputs: Tensor  # of the pool, as the model sees them
    targets: Tensor
    index: Tensor  # (clients, steps, B)
    counts: Tensor  # (clients, steps) how many of them are in front of the padding
    keys: Tensor | None  # (clients, steps)
    lengths: Tensor  # (clients,) steps that each client runs
    start: int  # k of the first of these steps


@dataclass(frozen=True, eq=False)
class LoopArguments:
    """Holds what the steps of many clients use besides samples."""

    carries: list[Tensor]  # each (clients, D) or (clients,), changed in place
    tensors: list[Tensor]  # each (clients, D) or (clients,), or with one row for all
    numbers: Sequence[float]


@dataclass
class CompiledLoops:
    """Traces steps, compiles their loops and keeps them; the threads of a run share it."""

    outcome: str = ""  # what became of the last pass, for a reader
    compiled: bool = False  # whether the last pass could be compiled
    _functions: dict[tuple[Structure, ...], Callable[..., None]] = field(default_factory=dict)

    def program(
        self, step: Callable[[Any, Objective], Any], init: Any, task: Task, t: int
    ) -> Program | None:
        """Return the program of a step, whose loop is compiled, or None if that is impossible."""
        try:
            program = trace_program(step, init, task, t)
            if program.structure not in self._functions:
                self._functions[program.structure] = _build(program.structure)
        except (UntraceableError, UnsupportedError) as error:
            self.refuse(str(error))
            return None
        self.compiled = True
        self.outcome = "local steps" if program.first else "local steps but the first of a round"
        return program

    def refuse(self, reason: str) -> None:
        """Keep the reason why steps are not compiled."""
        self.compiled, self.outcome = False, reason

    @property
    def variants(self) -> int:
        """Return how many different loops were compiled."""
        return len(self._functions)

    def run(
        self, program: Program, kernels: Kernels, arguments: LoopArguments, samples: StepSamples
    ) -> Tensor:
        """Run the steps in place; return (clients,) 0 for each client whose gradients are finite.

        What another client is left with means nothing.
        """
        clients, steps, batch = samples.index.shape
        products = clients * steps * batch * kernels.chain.products
        status = torch.zeros(clients, dtype=torch.int32)
        tensors = [_by_rows(tensor) for tensor in arguments.tensors]
        strides = torch.tensor([0 if len(t) == 1 else t.stride(0) for t in tensors] or [0])
        numbers = torch.tensor(arguments.numbers or [0.0], dtype=torch.float32)
        index, counts = samples.index.contiguous(), samples.counts.contiguous()
        keys = None if samples.keys is None else samples.keys.contiguous()
        lengths = samples.lengths.contiguous()
        call = _Call(
            gradient=kernels.address,
            carries=ctypes.addressof(carries := _pointers(arguments.carries)),
            tensors=ctypes.addressof(others := _pointers(tensors)),
            strides=strides.data_ptr(),
            numbers=numbers.data_ptr(),
            inputs=samples.inputs.data_ptr(),
            targets=samples.targets.data_ptr(),
            index=index.data_ptr(),
            counts=counts.data_ptr(),
            keys=None if keys is None else keys.data_ptr(),
            lengths=lengths.data_ptr(),
            status=status.data_ptr(),
            clients=clients,
            steps=steps,
            batch=batch,
            size=kernels.chain.parameters,
            features=samples.inputs[0].numel(),
            start=samples.start,
            threads=kernels.threads if products >= SHARED_PRODUCTS else 1,
        )
        self._functions[program.structure](ctypes.byref(call))
        del carries, others
        kernels.calls += 1
        if bool((status == NO_MEMORY).any()):
            raise MemoryError("A compiled loop needs memory for a minibatch, got none.")
        return status


def most_steps(kernels: Kernels, clients: int, batch: int) -> int:
    """Return how many steps of so many clients a call should have at most."""
    return max(1, int(CALL_PRODUCTS / (clients * batch * kernels.chain.products)))


def _build(structures: tuple[Structure, ...]) -> Callable[..., None]:
    function = library(emit_loop(structures), *FLAGS).undrift_loop
    function.argtypes, function.restype = [ctypes.c_void_p], None
    return function


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(tensor.data_ptr() for tensor in tensors))


def _by_rows(tensor: Tensor) -> Tensor:
    """Return a tensor whose rows are contiguous."""
    return tensor if tensor.ndim == 1 or tensor.stride(1) == 1 else tensor.contiguous()
