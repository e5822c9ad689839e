"""Tasks: what a model is trained for, with its loss, its metrics and the targets that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from undrift.check import nearest, require
from undrift.tasks.losses import LOSSES, NUMBER_LOSSES, Loss, torch_loss


class OutputShapeError(ValueError):
    """Says that a model returns another shape than the task's targets have."""


@dataclass(frozen=True)
class TaskKind:
    """Says what a task trains with and is measured by."""

    name: str
    loss: Loss
    metrics: tuple[str, ...]  # by default; the first stands for the task in tables
    floating: bool  # whether its loss takes targets as floats

    def fit_targets(self, targets: Tensor, outputs: tuple[int, ...]) -> Tensor:
        """Return targets in the form that the loss takes for a model with outputs of this shape.

        Whole numbers become floats where the loss needs them, and one number a sample becomes a row
        of one where the model returns such rows; a row of one class becomes that class.
        """
        if not self.floating:
            return fitted_classes(targets, outputs)
        targets = targets if targets.is_floating_point() else targets.float()
        rows = len(outputs) == targets.ndim + 1 and outputs[-1] == 1
        return targets.unsqueeze(-1) if rows else targets

    def measured(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets as metrics take them: rows of one number as numbers."""
        if outputs.shape == targets.shape and outputs.shape[1:] == (1,):
            outputs, targets = outputs.squeeze(1), targets.squeeze(1)
        return outputs, targets.long() if self is MULTI_LABEL else targets

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise a `ValueError` if outputs and targets do not fit the task."""
        got, asked = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
        who = f"The task {self.name}"
        if self.floating:
            fits = got == asked
            expected = f"outputs of the targets' shape {asked} for each sample"
            if not fits:
                remedy = _output_remedy(self, asked, targets)
                raise OutputShapeError(f"{who} needs {expected}, got {got}; {remedy}.")
        else:
            _check_classes(self, got, asked, targets)
        if self is MULTI_LABEL:
            known = bool(((targets == 0) | (targets == 1)).all())
            seen = targets[(targets != 0) & (targets != 1)][:1].tolist()
            require(known, who, "targets that are 0 or 1", seen[0] if seen else None)


def fitted_classes(targets: Tensor, outputs: tuple[int, ...]) -> Tensor:
    """Return whole numbers in rows of one, as columns of tables are, as one class for each sample.

    They stay as they are for a model whose outputs of this shape are not one row for each sample.
    """
    rows = not targets.is_floating_point() and targets.ndim == 2 and targets.shape[1] == 1
    return targets.squeeze(1) if rows and len(outputs) == 2 and outputs[1] > 1 else targets


def _output_remedy(kind: TaskKind, asked: tuple[int, ...], targets: Tensor) -> str:
    """Return what to do about a model whose outputs have another shape than the targets."""
    wanted = asked[0] if asked else 1
    remedy = f"let the last layer have {wanted} {'output' if wanted == 1 else 'outputs'}"
    if kind is MULTI_LABEL and not asked:
        return f'{remedy}, or say loss="cross_entropy" for an output for each class'
    whole = asked in ((), (1,)) and bool((targets == targets.round()).all())
    return f"{remedy}; if they are classes, give whole numbers: targets.long()" if whole else remedy


def _check_classes(
    kind: TaskKind, got: tuple[int, ...], asked: tuple[int, ...], targets: Tensor
) -> None:
    who = f"The task {kind.name}"
    whole = not targets.is_floating_point()
    remedy = 'say task="regression", or give the classes as whole numbers from 0'
    require(whole, who, "whole numbers as targets", str(targets.dtype), remedy)
    if kind is CLASSIFICATION:
        remedy = 'say task="multi-label" for rows of 0 and 1, or "language-modelling" for tokens'
        require(asked == (), who, "one class for each sample", f"targets {asked}", remedy)
    remedy = 'for one output and targets 0 and 1 say task="multi-label"'
    several = len(got) >= 1 and got[0] >= 2
    require(several, who, "an output for each class, at least two", got, remedy)
    fits = got[1:] == asked
    remedy = "transpose the outputs: classes come second" if got[:-1] == asked and asked else ""
    expected = f"outputs of shape (classes{''.join(f', {side}' for side in asked)}) for each sample"
    require(fits, who, expected, got, remedy)


CLASSIFICATION = TaskKind("classification", F.cross_entropy, ("accuracy",), floating=False)
MULTI_LABEL = TaskKind(
    "multi-label",
    F.binary_cross_entropy_with_logits,
    ("f1_micro", "auroc", "exact_match"),
    floating=True,
)
REGRESSION = TaskKind("regression", F.mse_loss, ("rmse", "mae", "r2"), floating=True)
LANGUAGE_MODELLING = TaskKind(
    "language-modelling", F.cross_entropy, ("accuracy", "perplexity"), floating=False
)
TASKS = MappingProxyType(
    {kind.name: kind for kind in (CLASSIFICATION, MULTI_LABEL, REGRESSION, LANGUAGE_MODELLING)}
)


def task_kind(name: str) -> TaskKind:
    """Return the task of a name; "language modeling" and "multilabel" are known, too."""
    text = isinstance(name, str)
    require(text, "task", f"one of {', '.join(TASKS)}", name)
    plain = name.lower().replace(" ", "-").replace("_", "-").replace("modeling", "modelling")
    plain = "multi-label" if plain == "multilabel" else plain
    if plain not in TASKS:
        raise ValueError(
            f"task needs one of {', '.join(TASKS)}, got {name!r}{nearest(plain, TASKS)}."
        )
    return TASKS[plain]


def deduced_task(targets: Tensor) -> TaskKind:
    """Return the task that targets are of: whole numbers are classes, floats are numbers.

    Rows of 0 and 1 may be labels or numbers, so they are refused.
    """
    if not targets.is_floating_point() and (targets.ndim == 1 or targets.shape[1:] == (1,)):
        return CLASSIFICATION
    marks = targets.ndim == 2 and bool(((targets == 0) | (targets == 1)).all())
    remedy = 'say task="multi-label"' + (' or "regression"' if targets.is_floating_point() else "")
    require(not marks, "Targets of 0 and 1 in rows", "a task", tuple(targets.shape), remedy)
    return REGRESSION if targets.is_floating_point() else LANGUAGE_MODELLING


def task_of_loss(loss: Any, targets: Tensor, table: str | None) -> TaskKind | None:
    """Return the task that goes with a loss where none was named, None where nothing is assumed.

    It is regression for numbers with a loss of numbers, and for any loss on a `table` whose task is
    regression; it is multi-label for marks of 0 and 1 with the binary cross entropy of logits.
    """
    known = torch_loss(loss)
    floats = targets.is_floating_point()
    if table == REGRESSION.name or (known in NUMBER_LOSSES and floats):
        return REGRESSION
    marks = not floats or bool(((targets == 0) | (targets == 1)).all())
    return MULTI_LABEL if known is LOSSES["bce"] and marks else None


def implies_task(loss: Any) -> bool:
    """Return whether a loss fits the outputs of one task alone."""
    known = torch_loss(loss)
    return known in NUMBER_LOSSES or known is LOSSES["bce"]


def output_count(kind: TaskKind, targets: Tensor, classes: int) -> int:
    """Return how many outputs a model has for a task with these targets and so many classes."""
    if not kind.floating:
        return classes
    return int(targets.shape[1]) if targets.ndim > 1 else 1
