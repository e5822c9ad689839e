"""Samples of a torch `Dataset` or `DataLoader`, one by one or all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)

from undrift.check import require
from undrift.errors import first_line

Collate = Callable[[list[Any]], Any]
TEXT_REMEDY = "make numbers of the inputs, such as a tokenizer's input_ids"
CLASSES_REMEDY = "number classes with numpy.unique(labels, return_inverse=True)"
TARGETS = ("labels", "label", "target", "targets", "y")


@dataclass(frozen=True)
class Source:
    """Holds a data set of torch, which of its samples count, and how they become a batch."""

    dataset: Any
    indices: Sequence[int]
    collate: Collate = default_collate
    batch_size: int | None = None  # of the loader that it came in

    @classmethod
    def of(cls, data: Any, who: str) -> Source:
        """Return the source of a `Dataset` or a `DataLoader`, or raise `ValueError`."""
        dataset, collate, size = data, default_collate, None
        if isinstance(data, DataLoader):
            batches = data.batch_sampler is not None
            remedy = "let its Dataset return single samples and give it a batch_size"
            require(batches, who, "a DataLoader of samples", "batch_size=None", remedy)
            dataset, collate, size = (
                data.dataset,
                data.collate_fn or default_collate,
                data.batch_size,
            )
        iterable = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__")
        remedy = "use a map-style Dataset, whose samples can be asked for by number"
        require(not iterable, who, "a Dataset with a length", type(dataset).__name__, remedy)
        require(len(dataset) > 0, who, "at least one sample", 0, "drop it")
        return cls(dataset, _chosen(data, dataset, who), collate, size)

    def samples(self, indices: Sequence[int], who: str = "A Dataset") -> list[Any]:
        """Return samples by their positions in this source."""
        try:
            return [self.dataset[self.indices[int(i)]] for i in indices]
        except Exception as error:  # a user's data set may raise anything
            raise ValueError(
                f"{who} needs to return every sample, got {first_line(error, named=True)}."
            ) from error

    def batch(self, indices: Sequence[int], who: str = "A Dataset") -> Any:
        """Return a batch of samples as the source's collate function makes it."""
        samples = self.samples(indices, who)
        try:
            return self.collate(samples)
        except Exception as error:
            image = next(filter(_is_image, map(first_part, samples)), None)
            remedy = "add transform=torchvision.transforms.ToTensor() to the Dataset"
            require(image is None, who, "tensors of numbers", "images of Pillow", remedy)
            shapes = sorted({str(shape_of(sample)) for sample in samples})
            got = f"shapes {' and '.join(shapes[:2])}" if len(shapes) > 1 else first_line(error)
            remedy = "bring them to one shape, or pad them in a collate_fn of a DataLoader"
            raise ValueError(f"{who} needs samples of one shape, got {got}; {remedy}.") from error


def is_source(data: Any) -> bool:
    """Return whether an object is a `Dataset` or a `DataLoader` of torch, or read already."""
    return isinstance(data, Dataset | DataLoader | Source)


def shape_of(sample: Any) -> Any:
    """Return the shape of a sample's input."""
    if isinstance(sample, Mapping):
        return {name: tuple(np.shape(value)) for name, value in sample.items()}
    return tuple(np.shape(first_part(sample)))


def first_part(sample: Any) -> Any:
    """Return the first part of a sample, its input."""
    if isinstance(sample, Mapping):
        return next(iter(sample.values()), None)
    return sample[0] if isinstance(sample, tuple | list) and len(sample) else sample


def _is_image(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "PIL"


def _chosen(data: Any, dataset: Any, who: str) -> Sequence[int]:
    """Return which samples a loader draws; one that shuffles draws all."""
    sampler = data.sampler if isinstance(data, DataLoader) else None
    weighted = isinstance(sampler, WeightedRandomSampler)
    remedy = "leave the sampler out; undrift draws minibatches itself"
    require(not weighted, who, "a loader that draws every sample once", "weights", remedy)
    if sampler is None or isinstance(sampler, SequentialSampler | RandomSampler):
        return range(len(dataset))
    return sorted(int(i) for i in sampler)


def pair_of(
    batch: Any, who: str, target: str | None, client: str | None
) -> tuple[Any, Tensor, Any]:
    """Return inputs, targets and clients of a batch: a pair, or a dictionary with a target.

    The inputs are a tensor, or a dictionary of tensors where there are several.
    """
    if isinstance(batch, Mapping):
        name = target or next((each for each in TARGETS if each in batch), None)
        known, remedy = name in batch, 'say target="name"'
        expected = f"a target among its fields {', '.join(map(str, batch))}"
        require(known, who, expected, target, remedy)
        owner = None if client is None else batch.get(client)
        found = client is None or owner is not None
        require(found, who, f"the field {client!r} of its clients", ", ".join(map(str, batch)))
        fields = {str(k): v for k, v in batch.items() if k not in (name, client)}
        tensors = {k: as_tensor(v, who) for k, v in fields.items() if not _is_text(v)}
        require(bool(tensors), who, "a field of numbers besides the target", list(fields))
        single = len(tensors) == 1
        return (
            next(iter(tensors.values())) if single else tensors,
            as_tensor(batch[name], who, CLASSES_REMEDY),
            owner,
        )
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
    remedy = "return (input, target), or a dictionary with a target, from the Dataset"
    require(pair, who, "samples of an input and a target", got, remedy)
    return as_tensor(batch[0], who), as_tensor(batch[1], who, CLASSES_REMEDY), None


def _is_text(values: Any) -> bool:
    return isinstance(values, list | tuple) and any(isinstance(value, str) for value in values)


def whole_as_int64(targets: Tensor) -> Tensor:
    """Return whole numbers and truth values as int64, as losses take classes."""
    numbers = targets.is_floating_point() or targets.is_complex()
    return targets if numbers else targets.long()


def as_tensor(values: Any, who: str, text_remedy: str = TEXT_REMEDY) -> Tensor:
    """Return an array, a list of numbers or a tensor as a tensor; float64 becomes float32."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{who} needs numbers of one shape, got rows of different lengths; bring all samples "
            "to one shape."
        ) from error
    if array.dtype.kind not in "biuf":
        text = array.dtype.kind in "US" or any(isinstance(each, str) for each in array.flat)
        got, remedy = f"NumPy's type {array.dtype}", "give an array of one type of number"
        if text:
            got, remedy = "text", text_remedy
        raise ValueError(f"{who} needs numbers, got {got}; {remedy}.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.as_tensor(array.astype(np.float32) if array.dtype == np.float64 else array)
