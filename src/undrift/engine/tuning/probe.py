"""A look at model, loss and data before any work finds errors that a run would meet later."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from undrift.data.clients import Clients
from undrift.errors import first_line
from undrift.gradients.dropout import KeyedDropout
from undrift.gradients.task import per_sample
from undrift.tasks import LOSSES, Loss, MetricSet, fitted_classes, torch_loss


@dataclass(frozen=True)
class Facts:
    """Holds what the engine must know about a model and its loss."""

    randomness: str  # of the forward pass: "none", "dropout" (keyed masks), "other" (torch's own)
    separable: bool  # whether the loss is the mean of the losses of the samples
    activations: int  # numbers a forward pass writes, per sample


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches a forward pass: whether it draws random numbers, and how much it writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random = False
        self.written = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; a True would make torch import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        result = func(*args, **(kwargs or {}))
        view = any(returned.alias_info for returned in func._schema.returns)
        if isinstance(result, Tensor) and not view:
            self.written += result.numel()
        return result


def inspect(
    model: nn.Module, loss: Loss, clients: Clients, metrics: MetricSet = MetricSet()
) -> tuple[Facts, Clients]:
    """Return the facts, and the clients with their targets in the form that the loss takes.

    Raise a `ValueError` if model, loss, metrics and data do not fit each other.
    """
    kind = metrics.kind
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    few = _representative_samples(clients)
    inputs, targets = clients.inputs[few].to(device), clients.targets[few].to(device)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    stored = inputs.dtype
    if clients.prepare is not None:
        inputs = clients.prepare(inputs, dtype)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    watch, drops = _Watch(), KeyedDropout(torch.zeros((), dtype=torch.int64, device=device))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with warnings.catch_warnings(record=True) as told, watch, drops:
                outputs = functional_call(model, {}, (inputs,))
        except Exception as error:
            if isinstance(error, ValueError) and " needs " in str(error):
                raise  # the sentence is ours, or as good
            raw = clients.prepare is None and stored == torch.uint8
            remedy = _remedy(error, clients, inputs, raw=raw)
            if not raw and not inputs.is_floating_point() and _accepts(model, inputs.to(dtype)):
                remedy = "it takes floats, so give inputs.float(), of arrays .astype('float32')"
            raise ValueError(
                f"The model needs to accept inputs of shape {tuple(inputs.shape)} of "
                f"{inputs.dtype}, got {first_line(error, named=True)}; {remedy}."
            ) from error
        for each in told:  # Those of a call that fails would only hide the error.
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        _refuse_changed_buffers(model, before)
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"The model needs to return one tensor, got {type(outputs).__name__}; wrap it in a "
                "module whose forward returns the outputs alone."
            )
        shape, fit = tuple(outputs.shape), fitted_classes if kind is None else kind.fit_targets
        clients = clients.with_targets(lambda own: fit(own, shape))
        targets = fit(targets, shape)
        if kind is not None:
            kind.check(outputs, targets)
        targets = targets.to(dtype) if targets.is_floating_point() else targets
        _check_labels(outputs, clients)
        _check_loss(loss, outputs, targets)
        metrics.try_out(outputs.cpu(), targets.cpu())
        _tell_of_softmax(loss, outputs)
        separable = _equals(loss, outputs, targets, torch.mean)
        if not separable and _equals(loss, outputs, targets, torch.sum):
            warnings.warn(
                "The loss needs to be a mean over the samples of a minibatch, got a sum, whose "
                'gradients grow with the minibatch; use reduction="mean", or a smaller lr.',
                stacklevel=2,
            )
        if _broadcasts(loss, outputs, targets):
            warnings.warn(
                f"The loss needs outputs and targets of one shape, got {tuple(outputs.shape)} and "
                f'{tuple(targets.shape)}, which torch may broadcast; say task="regression", or '
                "squeeze the model's outputs.",
                stacklevel=2,
            )
    # Our own mask arithmetic draws no random numbers, so what is still random is not ours.
    sequential = clients.prepare is not None and clients.prepare.random
    sequential = sequential and getattr(clients.prepare, "sequential", False)
    randomness = "other" if watch.random or sequential else "dropout" if drops.calls else "none"
    return Facts(randomness, separable, watch.written // len(targets)), clients


def _accepts(model: nn.Module, inputs: Tensor) -> bool:
    """Return whether a forward pass takes these inputs."""
    try:
        functional_call(model, {}, (inputs,))
    except Exception:  # a user's model may raise anything
        return False
    return True


def _remedy(error: Exception, clients: Clients, inputs: Tensor, *, raw: bool) -> str:
    """Return what to do about a forward pass that has failed; `raw` inputs are stored bytes."""
    if raw:
        return "turn bytes into floats with Clients(..., prepare=undrift.data.Images())"
    if clients.fields and isinstance(error, TypeError) and "argument" in str(error):
        names = ", ".join(field.name for field in clients.fields)
        return f"the inputs of a sample arrive by name, so write forward(self, {names})"
    if isinstance(error, IndexError) and "too many indices" in str(error):
        return (
            "check its first layer against the data; where samples are dictionaries of one input, "
            "that arrives as a tensor, so write forward(self, inputs)"
        )
    if isinstance(error, IndexError) and not inputs.is_floating_point():
        return f"it needs a vocabulary of more than the largest id, {int(inputs.max())}"
    return "check its first layer against the data"


def _representative_samples(clients: Clients) -> Tensor:
    """Return indices of a few samples from everywhere and of one of each label."""
    held = torch.from_numpy(clients.index)
    spread = held[:: max(1, len(held) // 8)][:8]
    if clients.targets.ndim != 1 or clients.targets.is_floating_point():
        return spread
    labels = clients.targets[held].cpu()
    firsts = [int((labels == label).nonzero()[0, 0]) for label in torch.unique(labels)[:16]]
    return torch.cat([spread, held[firsts]])


def _check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    try:
        with warnings.catch_warnings():
            # torch only warns when outputs and targets are broadcast against each other.
            warnings.filterwarnings("error", message="Using a target size")
            value = loss(outputs, targets)
    except Exception as error:
        remedy = "change the last layer, the loss or the targets"
        if targets.is_floating_point() and "Long" in str(error):  # torch's losses of classes
            remedy = "use loss='mse' for numbers, or give classes as whole numbers: targets.long()"
        elif outputs.shape == (*targets.shape, 1):
            remedy = 'say task="regression", which takes rows of one number as numbers'
        elif isinstance(error, Warning) and outputs.shape == targets.shape:
            # The loss has changed the shape of one of them.
            raise ValueError(
                f"The loss needs to take outputs and targets of one shape, here "
                f"{tuple(outputs.shape)} of both, got a loss that changes one of them alone; "
                "squeeze both, or neither."
            ) from error
        reason = "" if isinstance(error, Warning) else f" ({first_line(error, named=True)})"
        raise ValueError(
            f"The model's output needs to fit the loss, got output {tuple(outputs.shape)} "
            f"{outputs.dtype} and targets {tuple(targets.shape)} {targets.dtype}{reason}; {remedy}."
        ) from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"The loss needs to return a scalar tensor, got {shape}; reduce it with a mean."
        )


def _equals(
    loss: Loss, outputs: Tensor, targets: Tensor, reduce: Callable[[Tensor], Tensor]
) -> bool:
    """Return whether the loss is the mean, or the sum, of the samples', on all and on a part."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    outputs = outputs.double() + noise.to(outputs.device)
    targets = targets.double() if targets.is_floating_point() else targets
    half = (len(targets) + 1) // 2
    try:
        return all(
            torch.allclose(
                reduce(per_sample(loss, outputs[part], targets[part])).double(),
                loss(outputs[part], targets[part]).double(),
                rtol=1e-6,
                atol=1e-9,
                equal_nan=True,  # a loss that diverges is a matter of training
            )
            for part in (slice(None), slice(half), slice(half, None))
            if len(targets[part])
        )
    except Exception:  # whatever a foreign loss raises under vmap or in float64, it is not masked
        return False


def _tell_of_softmax(loss: Loss, outputs: Tensor) -> None:
    """Raise a warning where the model ends with a softmax that the loss has, too, or lacks."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if outputs.ndim < 2 or outputs.shape[1] < 2 or outputs.shape[1:] == (0,):
        return
    ones = torch.ones((), dtype=outputs.dtype, device=outputs.device)
    summed = outputs.sum(1)
    shares = bool((outputs >= 0).all()) and torch.allclose(
        summed, ones.expand_as(summed), atol=1e-3
    )
    if shares and torch_loss(loss) is LOSSES["cross_entropy"]:
        warnings.warn(
            "The loss cross_entropy needs logits, got outputs that sum to 1, as of a softmax; "
            "leave the softmax out of the model, since the loss has its own.",
            stacklevel=3,
        )
    total = outputs.logsumexp(1)
    logarithms = torch.allclose(total, torch.zeros_like(total), atol=1e-3)
    if name in ("nll_loss", "NLLLoss") and not logarithms:
        warnings.warn(
            f"The loss {name} needs logarithms of probabilities, got other outputs; use "
            "nn.CrossEntropyLoss() for logits, or end the model with nn.LogSoftmax(1).",
            stacklevel=3,
        )


def _broadcasts(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Return whether the loss compares rows of one output with the targets of all samples."""
    if outputs.shape != (*targets.shape, 1) or not targets.is_floating_point():
        return False
    drawn = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0))
    drawn = drawn.to(outputs.device, outputs.dtype)
    try:
        rows, numbers = loss(drawn, targets), loss(drawn.squeeze(-1), targets)
    except Exception:  # a loss of one's own may need rows
        return False
    return not torch.allclose(rows, numbers, equal_nan=True)


def _check_labels(outputs: Tensor, clients: Clients) -> None:
    if clients.targets.is_floating_point() or outputs.ndim < 2:
        return
    classes = int(outputs.shape[1])
    if classes == 1 and outputs.ndim == clients.targets.ndim + 1:
        raise ValueError(
            "The model needs an output for each class, at least two, got 1 output and whole "
            'numbers as targets; for labels 0 and 1 say loss="bce", for numbers task="regression", '
            "for a loss of your own give targets.float(), for classes widen the last layer."
        )
    held = (("test set", clients.test), ("validation set", clients.validation))
    labels = {who: pair[1] for who, pair in held if pair is not None}
    for who, targets in {"clients": clients.targets, **labels}.items():
        if outputs.ndim != targets.ndim + 1:
            continue
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"Labels need to lie in 0...{classes - 1} for a model with {classes} outputs, got "
                f"{low if low < 0 else high} in the {who}; widen the last layer or fix the labels."
            )


def _refuse_changed_buffers(model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ValueError(
                f"The model needs a forward pass without side effects, got a change of its buffer "
                f"{name!r}; state that is not a parameter would be lost between clients."
            )
