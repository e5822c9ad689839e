"""States as plain lists of tensors, which torch.load reads with weights_only=True, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from undrift import tree


def leaves_of(values: Any) -> list[Tensor]:
    """Return copies of the tensors of a tree."""
    return [leaf.detach().clone() for leaf in tree.leaves(values)]


def tree_of(what: str, form: Any, leaves: Sequence[Tensor]) -> Any:
    """Return a tree of the given form with these tensors; raise if they do not fit."""
    expected = tree.leaves(form)
    shapes = [tuple(leaf.shape) for leaf in expected]
    got = [tuple(leaf.shape) for leaf in leaves]
    if shapes != got:
        raise ValueError(
            f"Outer.load_state_dict needs the {what}'s state of this method and model, {shapes}, "
            f"got {got}; load it into an Outer made as the saved one was."
        )
    pairs = zip(leaves, expected, strict=True)
    return tree.with_leaves(form, [leaf.to(like).clone() for leaf, like in pairs])
