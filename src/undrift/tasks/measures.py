"""Metrics by name: functions of all outputs of a test and their targets.

Outputs are those of the model, so logits where it classifies. A metric that is not defined for its
samples, such as the area under a curve where all targets are the same, is NaN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of targets that are met: classes, or single labels of several."""
    return (_predicted(outputs, targets) == targets).double().mean()


def top5_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose class is among the five largest outputs."""
    best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return (best == targets.unsqueeze(1)).any(1).double().mean()


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the classes that occur of the share of each that is found."""
    hits = (outputs.argmax(1) == targets).flatten().double()
    labels = targets.flatten()
    counts = torch.bincount(labels).double()
    return (torch.bincount(labels, hits)[counts > 0] / counts[counts > 0]).mean()


def f1_macro(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the F1 scores of the classes or labels that occur or are predicted."""
    truth, found = _marks(outputs, targets)
    both, either = (truth & found).sum(0), truth.sum(0) + found.sum(0)
    return (2 * both[either > 0].double() / either[either > 0]).mean()


def f1_micro(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the F1 score of all labels together."""
    truth, found = _marks(outputs, targets)
    return 2 * (truth & found).sum().double() / (truth.sum() + found.sum())


def exact_match(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples all of whose labels are right."""
    right = _predicted(outputs, targets) == targets
    return (right.flatten(1).all(1) if right.ndim > 1 else right).double().mean()


def auroc(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the area under the ROC curve, the mean of those of each class against the rest.

    Classes or labels that all samples have, or none, have no curve and are left out.
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] == 2:  # one curve, not twice the same
        outputs = outputs[:, 1] - outputs[:, 0]
    if outputs.ndim == targets.ndim + 1:
        truth = F.one_hot(targets, outputs.shape[1]).bool()
        scores = outputs.log_softmax(1)
    else:
        truth, scores = targets.bool().reshape(len(targets), -1), outputs.reshape(len(targets), -1)
    return torch.stack([_area(*column) for column in zip(scores.T, truth.T, strict=True)]).nanmean()


def _area(scores: Tensor, truth: Tensor) -> Tensor:
    """Return the share of pairs that are in order; a tie is half in order."""
    scores = scores.contiguous()
    ordered = scores.sort().values
    low = torch.searchsorted(ordered, scores, side="left")
    high = torch.searchsorted(ordered, scores, side="right")
    ranks = (low + high + 1).double() / 2
    positive = truth.sum().double()
    pairs = positive * (len(truth) - positive)
    return (ranks[truth].sum() - positive * (positive + 1) / 2) / pairs


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error."""
    return (outputs.double() - targets).square().mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the root of the mean squared error."""
    return mse(outputs, targets).sqrt()


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error."""
    return (outputs.double() - targets).abs().mean()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of the targets' variance that is explained, the mean over outputs."""
    targets = targets.double()
    left = (outputs - targets).square().sum(0)
    whole = (targets - targets.mean(0)).square().sum(0)
    varies = targets.amax(0) > targets.amin(0)  # Rounding may leave a sum above 0 of equal targets.
    return (1 - left / whole.where(varies, torch.nan)).mean()


def perplexity(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return e to the mean cross-entropy of the tokens."""
    return F.cross_entropy(outputs, targets).double().exp()


def _predicted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the class with the largest output, or for each label whether its output is above 0."""
    return outputs.argmax(1) if outputs.ndim == targets.ndim + 1 else (outputs > 0).to(targets)


def _marks(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (samples, labels) which samples have which labels, in truth and as predicted."""
    found = _predicted(outputs, targets)
    if outputs.ndim == targets.ndim + 1:
        classes = outputs.shape[1]
        return (
            F.one_hot(targets.flatten(), classes).bool(),
            F.one_hot(found.flatten(), classes).bool(),
        )
    return targets.bool().reshape(len(targets), -1), found.bool().reshape(len(targets), -1)
