"""Parts of a model that some methods need: features before its classifier, a chain of blocks."""

from __future__ import annotations

from torch import nn


def classifier(model: nn.Module) -> nn.Module | None:
    """Return the layer that takes the features: `model.classifier`, or the last linear one."""
    named = getattr(model, "classifier", None)
    if isinstance(named, nn.Module):
        return named
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def block_names(model: nn.Module) -> list[str]:
    """Return the children with parameters: those that `model.blocks` names, or else all."""
    has_parameters = {name.split(".", 1)[0] for name, _ in model.named_parameters()}
    children = [name for name, _ in model.named_children() if name in has_parameters]
    first = [name for name in getattr(model, "blocks", ()) if name in children]
    return first or children


def require_features(who: str, model: nn.Module) -> None:
    """Raise `ValueError` unless the model has parameters before its classifier."""
    head = classifier(model)
    body = 0 if head is None else sum(1 for _ in model.parameters()) - len(list(head.parameters()))
    if body <= 0:
        raise ValueError(
            f"{who} needs a model with features before its classifier, got "
            f"{type(model).__name__} without; use one with a hidden layer or a projection head."
        )


def require_blocks(who: str, model: nn.Module) -> None:
    """Raise `ValueError` unless at least two blocks of the model are trained."""
    names = block_names(model)
    trained = {name.split(".", 1)[0] for name, p in model.named_parameters() if p.requires_grad}
    levels = len(trained.intersection(names)) + bool(trained.difference(names))
    if levels < 2:
        raise ValueError(
            f"{who} needs a model of two or more trained blocks, got {type(model).__name__} with "
            f"{levels}; make it a chain of children or name them in `blocks`."
        )
