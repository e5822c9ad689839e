"""The states of a run's clients, the recent ones in memory and all that were saved on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undrift import tree
from undrift.states import SegmentStore

LIMIT = 512 * 2**20  # bytes of states in memory, from which all of them are written to disk


class StoredStates(MutableMapping[int, Any]):
    """Maps clients to states; `commit` writes those that are new since the last time.

    States without tensors stay in memory alone.
    """

    def __init__(
        self,
        store: SegmentStore,
        template: Callable[[], Any],
        device: torch.device = torch.device("cpu"),
    ) -> None:
        """Stand for what the store has; `template()` is a state of the form of all states."""
        self._store, self._template, self._device = store, template, device
        self._memory: dict[int, Any] = {}
        self._new: set[int] = set()  # of those in memory, the ones that the store does not have
        self._bytes = 0  # of the largest state that was seen

    @property
    def folder(self) -> Path:
        """Return the folder of the store."""
        return self._store.folder

    @property
    def largest(self) -> int:
        """Return the bytes of the largest state that was seen."""
        return self._bytes

    @property
    def new(self) -> int:
        """Return how many states the next commit writes."""
        return len(self._new)

    @property
    def bytes_to_commit(self) -> int:
        """Return about how many bytes the next commit writes."""
        return self._bytes * len(self._new) + self._store.bytes_to_copy

    def some_new(self, count: int) -> list[dict[str, Tensor]]:
        """Return some of the states that the next commit writes, as it writes them."""
        return [_named(self._memory[client]) for client in islice(self._new, count)]

    @classmethod
    def of(cls, folder: Path, states: Mapping[int, Any]) -> StoredStates:
        """Return the same states, all of them to be written into a folder."""
        stored = cls(SegmentStore(folder), lambda: next(iter(states.values())))
        stored.update(states)
        return stored

    def __getitem__(self, client: int) -> Any:
        if client in self._memory:
            return self._memory[client]
        leaves = [leaf.to(self._device) for leaf in self._store.get(client).values()]
        return tree.with_leaves(self._template(), leaves)

    def __setitem__(self, client: int, state: Any) -> None:
        self.update({client: state})

    def update(self, states: Any = (), /, **_: Any) -> None:
        """Set the states of several clients."""
        pairs = dict(states)
        if not pairs:
            return
        first = next(iter(pairs.values()))
        self._memory.update(pairs)
        if tree.leaves(first):
            self._new.update(pairs)
            self._bytes = max(self._bytes, tree.nbytes(first))
        if self._bytes * len(self._memory) > LIMIT:
            self._write_new()
            self._memory.clear()

    def __delitem__(self, client: int) -> None:
        raise TypeError("A client that has taken part keeps its state.")

    def __iter__(self) -> Iterator[int]:
        yield from self._store
        yield from (client for client in self._memory if client not in self._store)

    def __len__(self) -> int:
        return len(self._store) + sum(client not in self._store for client in self._memory)

    def __contains__(self, client: object) -> bool:
        return client in self._memory or client in self._store

    def commit(self) -> int | None:
        """Write what is new as the store's next version and return that; None without states."""
        self._write_new()
        if not len(self._store):
            return None
        version = max(self._store.versions, default=0) + 1
        self._store.commit(version)
        return version

    def forget(self, keep: Collection[int]) -> None:
        """Remove the versions that nothing needs any more."""
        self._store.forget(keep)

    def close(self) -> None:
        """Close the files of the store."""
        self._store.close()

    def _write_new(self) -> None:
        for client in sorted(self._new):
            self._store.put(client, _named(self._memory[client]))
        self._new.clear()


def _named(state: Any) -> dict[str, Tensor]:
    """Return the leaves of a state by name; the short way for one tensor saves most of the time."""
    return {"": state} if isinstance(state, Tensor) else tree.named_leaves(state)
