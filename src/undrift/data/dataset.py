"""A data set in memory, as it is stored, and its partition among clients."""

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
from undrift.data.holdout import hold_out, owners_of
from undrift.data.prepare import Images, Prepare
from undrift.data.stored import Samples, Stored
from undrift.data.tables.preprocessing import Preprocessing


@dataclass(frozen=True)
class Dataset:
    """Holds training and test data, `train` and `test`, as pairs of tensors.

    Stored samples may be smaller: images are bytes, characters are small integers. `train` and
    `test` have images as floats in [0, 1] and tokens as int64, made on demand; `split` keeps the
    stored samples, and each minibatch is prepared (normalised, augmented) when it is drawn.
    """

    stored_train: Pair
    stored_test: Pair
    classes: int
    name: str = "data"
    prepare: Prepare | None = None
    client_ids: NDArray[np.int64] | None = None  # natural client of each training sample
    test_client_ids: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()  # of the natural clients; a client id is an index into them
    labels: tuple[str, ...] = ()  # of the classes
    vocabulary: tuple[str, ...] = ()  # of tokens
    preprocessing: Preprocessing | None = None  # of a table, fitted to its training rows

    @classmethod
    def of(cls, stored: Stored, *, name: str = "data", prepare: Prepare | None = None) -> Dataset:
        """Return a data set from a reader's result, such as that of `data.read_table`."""
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
            stored.preprocessing,
        )

    @cached_property
    def train(self) -> Pair:
        """Return training inputs and targets."""
        return self._plain(self.stored_train)

    @cached_property
    def test(self) -> Pair:
        """Return test inputs and targets."""
        return self._plain(self.stored_test)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample, without the batch axis."""
        return tuple(self.stored_train[0].shape[1:])

    @property
    def natural_clients(self) -> int | None:
        """Return the number of natural clients, such as writers; None if samples have no owner."""
        return None if self.client_ids is None else len(np.unique(self.client_ids))

    def _plain(self, stored: Pair) -> Pair:
        """Return inputs as the model's types, without normalisation or augmentation."""
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
        train_samples: int | None = None,
        test_samples: int | None = None,
        validation: float | None = None,
        availability: Availability | None = None,
    ) -> Clients:
        """Return clients with their parts of the training data, and a test set.

        `partition` is a form such as "dirichlet:0.3" with a number of clients, or index lists.
        Batches are normalised by the constants of the data set, and its images are cropped and
        flipped where papers do so, unless `augment` is False. The test set is that of the data set;
        for "natural" clients it has only their samples, if there are any. `test_samples` draws so
        many of these once. `train_samples` draws so many training samples before they are dealt,
        for a look at a cheaper version. `validation` is the share of each client's samples that are
        not trained on and become the validation set.
        """
        known = isinstance(partition, str | Sequence)
        require(known, "split", "a form such as 'dirichlet:0.3' or index lists", partition)
        targets = self.stored_train[1]
        if isinstance(partition, str):
            parts: Sequence[Sequence[int] | Indices] = self._dealt(
                partition, clients, train_samples, seed
            )
        else:
            parts = partition
            fits = clients in (None, len(parts))
            require(fits, "split", f"clients = {len(parts)}, as many as parts", clients)
            remedy = "leave them out of the lists"
            unset = train_samples is None
            require(unset, "split", "no train_samples beside index lists", train_samples, remedy)
        prepare = self.prepare
        if isinstance(prepare, Images) and not augment:
            prepare = prepare.plain()
        held, before = None, parts
        if validation is not None:
            parts, taken = hold_out(parts, validation, len(targets), seed=seed)
            index = torch.from_numpy(taken)
            held = self.stored_train[0][index], targets[index]
        natural = parts if partition == "natural" else None
        rows = self._tested(natural, test_samples, seed)
        whole = len(rows) == len(self.stored_test[1])
        index = torch.from_numpy(rows)
        inputs, labels = self.stored_test
        test = self.stored_test if whole else (inputs[index], labels[index])
        split = Clients.split(
            *self.stored_train,
            parts,
            validation=held,
            test=test,
            availability=availability,
            prepare=prepare,
            preprocessing=self.preprocessing,
        )
        if held is not None:
            split = split.with_owners("validation", owners_of(before, len(targets))[taken])
        if natural is not None and self.client_ids is not None and self.client_names:
            owners = (self.client_ids[np.asarray(part)[0]] for part in before)
            split.names = tuple(self.client_names[int(who)] for who in owners)
        theirs = None if natural is None else self._owners_of_tests(natural, rows)
        return split if theirs is None else split.with_owners("test", theirs)

    def _owners_of_tests(
        self, parts: Sequence[Sequence[int] | Indices], rows: Indices
    ) -> Indices | None:
        """Return which client owns each of these test samples, None where some have no owner."""
        if self.client_ids is None or self.test_client_ids is None:
            return None
        places = {int(self.client_ids[np.asarray(part)[0]]): i for i, part in enumerate(parts)}
        owners = np.array([places.get(int(who), -1) for who in self.test_client_ids[rows]])
        return None if (owners < 0).any() else owners

    def _dealt(
        self, form: str, clients: int | None, samples: int | None, seed: int
    ) -> Sequence[Indices]:
        """Return the clients' parts of the training samples, or of `samples` of them."""
        targets, owners = self.stored_train[1], self.client_ids
        if samples is None:
            return partitions.parse(form, targets, clients, owners=owners, seed=seed)
        fits = is_whole(samples) and 1 <= samples <= len(targets)
        require(fits, "split", f"train_samples in 1...{len(targets)}", samples)
        rows = np.sort(keyed.generator(seed, "train").permutation(len(targets))[:samples])
        owners = None if owners is None else owners[rows]
        drawn = targets[torch.from_numpy(rows)]
        parts = partitions.parse(form, drawn, clients, owners=owners, seed=seed)
        return [rows[part] for part in parts]

    def _tested(
        self, natural: Sequence[Sequence[int] | Indices] | None, samples: int | None, seed: int
    ) -> Indices:
        """Return the rows of the test samples of the natural clients, or all, or some of them."""
        targets = self.stored_test[1]
        rows = np.arange(len(targets))
        if natural is not None and self.client_ids is not None and self.test_client_ids is not None:
            chosen = [self.client_ids[np.asarray(part)[:1]] for part in natural]
            theirs = np.isin(self.test_client_ids, np.concatenate(chosen))
            rows = (
                rows[theirs] if theirs.any() else rows
            )  # the writers of MNIST's test digits have no training digits
        if samples is not None:
            fits = is_whole(samples) and 1 <= samples <= len(rows)
            require(fits, "split", f"test_samples in 1...{len(rows)}", samples)
            rows = np.sort(keyed.generator(seed, "test").permutation(rows)[:samples])
        return rows

    def __repr__(self) -> str:
        owners = self.natural_clients
        natural = "" if owners is None else f", {owners} natural clients"
        return (
            f"Dataset({self.name}: {len(self.stored_train[1])} training and "
            f"{len(self.stored_test[1])} test samples of shape {self.shape}, "
            f"{self.classes} classes{natural})"
        )


def _pair(part: Samples) -> Pair:
    return torch.as_tensor(part.inputs), torch.as_tensor(part.targets)
