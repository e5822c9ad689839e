"""Samples that are read when they are drawn, for data larger than memory and random transforms."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undrift.data.sources.fields import pack
from undrift.data.sources.samples import Source, pair_of

_FEW = 4  # samples by which size, time and randomness are found


@dataclass(frozen=True, eq=False)
class LazySamples:
    """Reads the samples of a minibatch from their data sets by number.

    The engine stores the numbers of samples. Random transforms draw from torch's, numpy's and
    Python's generators, which are seeded by the key of the step, so that a run can be repeated.
    """

    sources: tuple[Source, ...]
    starts: tuple[int, ...]  # number of the first sample of each source
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
        batch = self.sources[at].batch([number - self.starts[at] for number in numbers])
        inputs, _, _ = pair_of(batch, "A Dataset", self.target, self.client)
        return pack(inputs)[0] if isinstance(inputs, dict) else inputs


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
    random: bool  # whether a sample differs when it is read again

    @classmethod
    def at(cls, source: Source, target: str | None, client: str | None, who: str) -> Look:
        """Return what a few samples tell."""
        few = range(min(_FEW, len(source.indices)))
        reads = []
        start = time.perf_counter()
        for seed in (1, 2):
            with seeded_everywhere(seed):
                inputs, _, _ = pair_of(source.batch(few, who), who, target, client)
            reads.append(pack(inputs)[0] if isinstance(inputs, dict) else inputs)
        seconds = (time.perf_counter() - start) / (2 * len(few))
        same = reads[0].shape == reads[1].shape and torch.equal(reads[0], reads[1])
        return cls(reads[0].nbytes // len(few), seconds, not same)
