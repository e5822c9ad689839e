"""Trees of tensors: tensors, tuples and NamedTuples, nested; `()` is the tree without leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

T = TypeVar("T")


def leaves(tree: Any) -> list[Tensor]:
    return pytree.tree_leaves(tree)


def form(tree: Any) -> Any:
    """Return the structure of a tree without its leaves, to be compared with another's."""
    return pytree.tree_structure(tree)


def map(function: Callable[..., Tensor], tree: T, *others: T) -> T:
    return pytree.tree_map(function, tree, *others)  # type: ignore[no-any-return]


def named_leaves(tree: Any) -> dict[str, Tensor]:
    """Return leaves by path: {"x": ..., "c": ...} for a NamedTuple, {"": ...} for a tensor."""
    paths, _ = pytree.tree_flatten_with_path(tree)
    return {pytree.keystr(path).lstrip("."): leaf for path, leaf in paths}


def with_leaves(tree: T, values: Sequence[Tensor]) -> T:
    """Return a tree of the same structure with other leaves, in the order of `leaves`."""
    return pytree.tree_unflatten(values, pytree.tree_structure(tree))  # type: ignore[no-any-return]


def stack(trees: Sequence[T]) -> T:
    """Return one tree whose leaves have a leading axis over the trees."""
    return map(lambda *rows: torch.stack(rows), trees[0], *trees[1:])


def row(tree: T, i: int) -> T:
    """Return row i of a stacked tree, as a copy that does not keep the whole stack alive."""
    return map(lambda leaf: leaf[i].clone(), tree)


def weighted_sum(trees: Iterable[T], weights: Iterable[float]) -> T:
    """Return the weighted sum of at least one tree, in the order in which they come."""
    total: T | None = None
    for each, weight in zip(trees, weights, strict=True):
        part = map(lambda leaf, weight=float(weight): leaf * weight, each)
        total = part if total is None else map(Tensor.add_, total, part)
    assert total is not None
    return total


def nbytes(tree: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def to_bytes(tree: Any) -> Tensor:
    """Return the bytes of a tree's tensors, one after another."""
    rows = [leaf.detach().cpu().contiguous().flatten().view(torch.uint8) for leaf in leaves(tree)]
    return torch.cat(rows)


def from_bytes(data: Tensor, like: T) -> T:
    """Return the tree in the form of `like` whose bytes these are."""
    expected = leaves(like)
    parts = torch.split(data, [leaf.nbytes for leaf in expected])
    # A part may begin at an address where no float can, so it is copied.
    typed = [
        part.clone().view(leaf.dtype).view(leaf.shape).to(leaf.device)
        for part, leaf in zip(parts, expected, strict=True)
    ]
    return with_leaves(like, typed)


def is_finite(v: Tensor) -> bool:
    """Return whether all entries of one vector are finite."""
    return math.isfinite(v.sum().item()) or bool(v.isfinite().all())  # as in `finite_rows`


def finite_rows(leaf: Tensor) -> Tensor:
    """Return for each row of (m, ...) whether all its entries are finite, as booleans (m,)."""
    rows = leaf.reshape(len(leaf), -1)
    # One sum a row decides as a rule: a row with a NaN or an infinity has no finite sum. A finite
    # row whose sum overflows has none either, so that only then every entry is looked at.
    finite = rows.sum(1).isfinite()
    return finite if finite.all() else rows.isfinite().all(1)
