"""Samples that are read when they are drawn, for data larger than memory and random transforms."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.data.sources.fields import Field, pack
from undrift.data.sources.samples import Source, pair_of

Form = tuple[int, ...] | tuple[Field, ...]  # the shape of a sample, or its several inputs
_FEW = 4  # samples by which size, time and randomness are found


@dataclass(frozen=True, eq=False)
class LazySamples:
    """Reads the samples of a minibatch from their data sets by number.

    The engine stores the numbers of samples. Random transforms draw from torch's, numpy's and
    Python's generators, which are seeded by the key of the step, so that a run can be repeated.
    """

    sources: tuple[Source, ...]
    names: tuple[str, ...]  # whose each source is, for messages
    starts: tuple[int, ...]  # number of the first sample of each source
    form: Form  # of every sample
    target: str | None
    client: str | None
    random: bool
    seconds: float  # that reading a sample takes

    sequential = True  # clients run one after the other where transforms are random

    def __repr__(self) -> str:
        kinds = sorted({type(source.dataset).__name__ for source in self.sources})
        return f"LazySamples({', '.join(kinds)}, {self.starts}, random={self.random})"

    def __call__(self, inputs: Tensor, dtype: torch.dtype, key: Tensor | None = None) -> Tensor:
        numbers = inputs.reshape(-1).tolist()
        with seeded_everywhere(0 if key is None else int(key)):
            parts = [self._read(numbers[i : i + 1]) for i in range(len(numbers))]
        values = torch.cat(parts).to(inputs.device)
        values = values.to(dtype) if values.is_floating_point() else values
        return values.reshape(*inputs.shape, *values.shape[1:])

    def _read(self, numbers: Sequence[int]) -> Tensor:
        at = int(np.searchsorted(self.starts, numbers[0], side="right")) - 1
        places = [number - self.starts[at] for number in numbers]
        who = f"Clients, {self.names[at]},"
        batch = self.sources[at].batch(places, who)
        values, form = packed(batch, who, self.target, self.client)
        if form != self.form:
            raise ValueError(
                f"{who} needs samples of one shape, {_shown(self.form)}, got {_shown(form)} for "
                f"sample {self.sources[at].indices[places[0]]} of its Dataset; bring them to one "
                "shape there, since samples that are read when drawn are not checked before."
            )
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise ValueError(
                f"{who} needs finite data, got NaN or Inf in sample "
                f"{self.sources[at].indices[places[0]]} of its Dataset; clean or drop it."
            )
        return values


def _shown(form: Form) -> str:
    names = [f"{each.name} {each.shape}" for each in form if isinstance(each, Field)]
    return ", ".join(names) or str(form)


def packed(batch: Any, who: str, target: str | None, client: str | None) -> tuple[Tensor, Form]:
    """Return the inputs of a batch as one tensor, and the form of a sample."""
    inputs, _, _ = pair_of(batch, who, target, client)
    return pack(inputs) if isinstance(inputs, dict) else (inputs, tuple(inputs.shape[1:]))


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed torch's, numpy's and Python's generators for a while, and put them back."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


@dataclass(frozen=True)
class Look:
    """Says what a few samples of a source tell about all."""

    bytes: int  # of a sample
    seconds: float  # to read one
    random: bool  # whether reading draws random numbers, or gives another sample again

    @classmethod
    def at(cls, source: Source, target: str | None, client: str | None, who: str) -> Look:
        """Return what a few samples tell."""
        few = range(min(_FEW, len(source.indices)))
        reads, states = [], []
        start = time.perf_counter()
        for seed in (1, 2):
            with seeded_everywhere(seed):
                before = _generator_states()
                reads.append(packed(source.batch(few, who), who, target, client)[0])
                states.append((before, _generator_states()))
        seconds = (time.perf_counter() - start) / (2 * len(few))
        same = reads[0].shape == reads[1].shape and torch.equal(reads[0], reads[1])
        return cls(reads[0].nbytes // len(few), seconds, not same or _drew(*states))


def _generator_states() -> tuple[Any, ...]:
    """Return the states of torch's, numpy's and Python's generators."""
    numpy_state: Any = np.random.get_state()
    kept = (numpy_state[1].tobytes(), *numpy_state[2:])
    return torch.get_rng_state().numpy().tobytes(), kept, random.getstate()


def _drew(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Return whether reading under two seeds has drawn from a generator.

    Where it ends in one state under both, the data set has seeded the generator itself.
    """
    reads = zip(*first, *second, strict=True)
    return any(old != new and new != other for old, new, _, other in reads)
