"""A data set in memory: small as stored, ready to be dealt to clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import is_whole, require
from undrift.data import partition as partitions
from undrift.data.availability import Availability
from undrift.data.clients import Clients, Indices, Pair
from undrift.data.prepare import Images, Prepare
from undrift.data.stored import Samples, Stored


@dataclass(frozen=True)
class Dataset:
    """`train` and `test` are pairs of tensors; `split` deals the training data to clients.

    What is stored may be smaller: images as bytes, characters as small integers. `train` and
    `test` show images as floats in [0, 1] and tokens as int64, made when first asked for; `split`
    keeps what is stored and has each minibatch prepared (normalised, augmented) when it is drawn.
    """

    stored_train: Pair
    stored_test: Pair
    classes: int
    name: str = "data"
    prepare: Prepare | None = None
    client_ids: NDArray[np.int64] | None = None  # natural client of each training sample
    test_client_ids: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()  # of the natural clients: an id is a number into it
    labels: tuple[str, ...] = ()  # of the classes
    vocabulary: tuple[str, ...] = ()  # of tokens

    @classmethod
    def of(cls, stored: Stored, *, name: str = "data", prepare: Prepare | None = None) -> Dataset:
        """From what a reader returned, e.g. `undrift.data.read_table("my.csv", target="label")`."""
        for what, part in (("train", stored.train), ("test", stored.test)):
            same = len(part.inputs) == len(part.targets)
            lengths = f"as many targets as inputs in its {what} part"
            require(same, name, lengths, (len(part.inputs), len(part.targets)))
        return cls(
            _pair(stored.train),
            _pair(stored.test),
            stored.classes,
            name,
            prepare,
            stored.train.owners,
            stored.test.owners,
            stored.names,
            stored.labels,
            stored.vocabulary,
        )

    @cached_property
    def train(self) -> Pair:
        return self._plain(self.stored_train)

    @cached_property
    def test(self) -> Pair:
        return self._plain(self.stored_test)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, without the batch axis."""
        return tuple(self.stored_train[0].shape[1:])

    def _plain(self, stored: Pair) -> Pair:
        inputs, targets = stored
        if isinstance(self.prepare, Images):
            plain = inputs.to(torch.float32)
            return (plain.div_(255) if inputs.dtype == torch.uint8 else plain), targets
        return (inputs if self.prepare is None else self.prepare(inputs, torch.float32)), targets

    def split(
        self,
        partition: str | Sequence[Sequence[int] | Indices],
        clients: int | None = None,
        *,
        seed: int = 0,
        augment: bool = True,
        test_samples: int | None = None,
        availability: Availability | None = None,
    ) -> Clients:
        """Clients with their parts: a form such as "dirichlet:0.3" with a number, or index lists.

        Batches are normalised by the data set's constants and, unless `augment` is False, images
        cropped and flipped where their documents do so. Tested is on the data set's test part; of
        "natural" clients on theirs, where it has something of them; and in either case on
        `test_samples` of it, drawn once, if given.
        """
        told = isinstance(partition, str | Sequence)
        require(told, "split", "a form such as 'dirichlet:0.3' or index lists", partition)
        targets = self.stored_train[1]
        if isinstance(partition, str):
            parts: Sequence[Sequence[int] | Indices] = partitions.parse(
                partition, targets, clients, owners=self.client_ids, seed=seed
            )
        else:
            parts = partition
            fits = clients in (None, len(parts))
            require(fits, "split", f"clients = {len(parts)}, as many as parts", clients)
        prepare = self.prepare
        if isinstance(prepare, Images) and not augment:
            prepare = prepare.plain()
        return Clients.split(
            *self.stored_train,
            parts,
            test=self._tested(parts if partition == "natural" else None, test_samples, seed),
            availability=availability,
            prepare=prepare,
        )

    def _tested(
        self, natural: Sequence[Sequence[int] | Indices] | None, samples: int | None, seed: int
    ) -> Pair:
        """The test samples of these clients' owners, or all, or a part of that."""
        inputs, targets = self.stored_test
        rows = np.arange(len(targets))
        if natural is not None and self.client_ids is not None and self.test_client_ids is not None:
            chosen = [self.client_ids[np.asarray(part)[:1]] for part in natural]
            theirs = np.isin(self.test_client_ids, np.concatenate(chosen))
            rows = rows[theirs] if theirs.any() else rows  # MNIST's test writers are others
        if samples is not None:
            fits = is_whole(samples) and 1 <= samples <= len(rows)
            require(fits, "split", f"test_samples in 1...{len(rows)}", samples)
            rows = np.sort(keyed.generator(seed, "test").permutation(rows)[:samples])
        if len(rows) == len(targets):
            return self.stored_test
        index = torch.from_numpy(rows)
        return inputs[index], targets[index]

    def __repr__(self) -> str:
        natural = (
            f", {len(np.unique(self.client_ids))} natural clients"
            if self.client_ids is not None
            else ""
        )
        return (
            f"Dataset({self.name}: {len(self.stored_train[1])} training and "
            f"{len(self.stored_test[1])} test samples of shape {self.shape}, "
            f"{self.classes} classes{natural})"
        )


def _pair(part: Samples) -> Pair:
    return torch.as_tensor(part.inputs), torch.as_tensor(part.targets)
