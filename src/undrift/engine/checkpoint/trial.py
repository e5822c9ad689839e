"""A trial of a checkpoint: what a small part of it costs tells how long all of it will take."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from undrift.engine.checkpoint.client_states import StoredStates
from undrift.files import part_of
from undrift.states import SegmentStore

BYTES, STATES = 32 * 2**20, 10_000  # that a trial writes at most, and below which none is needed

Sample = Sequence[Mapping[str, Tensor]]


def needed(nbytes: int, states: int) -> bool:
    """Return whether a checkpoint of so many bytes and states is more than a trial."""
    return nbytes > BYTES or states > STATES


def sample(x: Tensor, states: StoredStates) -> Sample:
    """Return states of clients that are to be saved, or where there are none, a part of a model."""
    count = min(STATES, BYTES // max(1, states.largest))
    return states.some_new(count) or [{"": x.reshape(-1)[: BYTES // x.itemsize]}]


def nbytes(states: Sample) -> int:
    """Return the bytes of a sample."""
    return sum(leaf.nbytes for state in states for leaf in state.values())


def write(folder: Path, states: Sample) -> None:
    """Write a sample to a folder as a checkpoint does, and remove it."""
    part = part_of(folder / "trial")
    try:
        store = SegmentStore(part)
        for client, state in enumerate(states):
            store.put(client, state)
        store.commit(1)
        store.close()
    finally:
        shutil.rmtree(part, ignore_errors=True)
