"""Trees of tensors: tensors, tuples and NamedTuples, nested; `()` is the tree without leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def nbytes(tree: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


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
