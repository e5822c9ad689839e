"""Metrics of one's own beside the library's: functions, objects of torchmetrics, names, files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from undrift.check import nearest, require
from undrift.errors import first_line
from undrift.tasks import measures
from undrift.tasks.kinds import TaskKind
from undrift.tasks.losses import Loss
from undrift.usercode.load import import_object
from undrift.usercode.names import listed

Measure = Callable[[Tensor, Tensor], Any]
FREE = ("loss", "accuracy")  # Every test has these, so they need no outputs.


class MetricFailedError(ValueError):
    """Says that a metric has raised an error, or has returned something else than a number."""


@dataclass(frozen=True, eq=False)
class Metric:
    """Measures all outputs of a test against their targets.

    function: of outputs and targets, returns one number, NaN where it is not defined; or an object
        of torchmetrics.
    name: in records and tables; by default that of the function.
    higher_is_better: whether more is better; an object of torchmetrics says so itself.
    """

    function: Measure
    name: str = ""
    higher_is_better: bool | None = None
    _stateful: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        function = self.function
        remedy = "make an object of it" if isinstance(function, type) else ""
        usable = callable(function) and not isinstance(function, type)
        require(usable, "A metric", "a function of outputs and targets", function, remedy)
        name = self.name or getattr(function, "__name__", "") or type(function).__name__
        sound = isinstance(name, str) and name.replace("_", "a").replace("@", "a").isalnum()
        remedy = "give it a name of its own: metrics={'my_name': function}"
        require(sound, "A metric", "a name of letters, digits and _", name, remedy)
        higher = self.higher_is_better
        if higher is None:
            higher = getattr(function, "higher_is_better", None) is not False
        stateful = all(hasattr(function, part) for part in ("update", "compute", "reset"))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "higher_is_better", bool(higher))
        object.__setattr__(self, "_stateful", stateful)

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the metric, NaN where it is not defined, or raise `MetricFailedError`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Libraries warn where a metric is not defined.
                value = float(self._value(outputs, targets))
        except Exception as error:  # A user's function may raise anything.
            shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
            raise MetricFailedError(
                f"The metric {self.name} needs to return one number for {shapes} of "
                f"{targets.dtype}, got {first_line(error, named=True)}; it is called as "
                "function(outputs, targets), with the model's outputs before any softmax."
            ) from error
        return value if math.isfinite(value) else math.nan

    def _value(self, outputs: Tensor, targets: Tensor) -> Any:
        if not self._stateful:
            return self.function(outputs, targets)
        metric: Any = self.function
        metric.reset()
        metric.update(outputs, targets)
        value = metric.compute()
        metric.reset()
        return value


class NamedMeasure(NamedTuple):
    """Holds a metric of the library, and the tasks that it is of."""

    function: Measure
    tasks: tuple[str, ...]
    higher_is_better: bool = True


CLASSES, LABELS = ("classification", "language-modelling"), ("multi-label",)
NUMBERS, TOKENS = ("regression",), ("language-modelling",)
METRICS: MappingProxyType[str, NamedMeasure] = MappingProxyType(
    {
        "accuracy": NamedMeasure(measures.accuracy, (*CLASSES, *LABELS)),
        "top5_accuracy": NamedMeasure(measures.top5_accuracy, CLASSES),
        "balanced_accuracy": NamedMeasure(measures.balanced_accuracy, CLASSES),
        "f1_macro": NamedMeasure(measures.f1_macro, (*CLASSES, *LABELS)),
        "f1_micro": NamedMeasure(measures.f1_micro, LABELS),
        "exact_match": NamedMeasure(measures.exact_match, LABELS),
        "auroc": NamedMeasure(measures.auroc, ("classification", *LABELS)),
        "rmse": NamedMeasure(measures.rmse, NUMBERS, higher_is_better=False),
        "mse": NamedMeasure(measures.mse, NUMBERS, higher_is_better=False),
        "mae": NamedMeasure(measures.mae, NUMBERS, higher_is_better=False),
        "r2": NamedMeasure(measures.r2, NUMBERS),
        "perplexity": NamedMeasure(measures.perplexity, TOKENS, higher_is_better=False),
    }
)


def named_metric(name: str, task: str | None = None) -> Metric:
    """Return the metric of a name, or the function that `file.py:function` names.

    A task that the metric is not of is refused.
    """
    if ":" in name:
        own = import_object(name, "A metric")
        return own if isinstance(own, Metric) else Metric(own)
    if name not in METRICS:
        raise ValueError(
            f"A metric needs a function of outputs and targets, file.py:function or one of "
            f"{', '.join(METRICS)}, got {name!r}{nearest(name, METRICS)}."
        )
    known = METRICS[name]
    if task is not None and task not in known.tasks:
        theirs = [other for other, each in METRICS.items() if task in each.tasks]
        raise ValueError(
            f"The metric {name} needs the task {' or '.join(known.tasks)}, got {task}; its metrics "
            f"are {', '.join(theirs)}."
        )
    return Metric(known.function, name, known.higher_is_better)


def as_metrics(metrics: Any, task: str | None = None) -> tuple[Metric, ...]:
    """Return the metrics that a user has given: one or several, as objects or by names."""
    found = [_as_metric(value, name, task) for name, value in _named(metrics)]
    for i, metric in enumerate(found):
        earlier = [each.name for each in found[:i]]
        remedy = "give them names: metrics={'a': f, 'b': g}"
        fits = metric.name not in earlier
        require(fits, "metrics", "a name of its own for each", metric.name, remedy)
        library = METRICS.get(metric.name)
        own = metric.name in FREE and (library is None or metric.function is not library.function)
        require(not own, "A metric", "another name than loss and accuracy", metric.name, remedy)
    return tuple(found)


def _named(metrics: Any) -> Iterable[tuple[str, Any]]:
    """Yield each metric behind the name that it was given, "" where it has its own."""
    if isinstance(metrics, str):
        metrics = listed(metrics)
    if isinstance(metrics, Mapping) or (hasattr(metrics, "items") and hasattr(metrics, "keys")):
        yield from metrics.items()
    elif isinstance(metrics, Metric) or callable(metrics):
        yield "", metrics
    elif isinstance(metrics, Iterable):
        yield from (("", each) for each in metrics)
    else:
        expected = "functions of outputs and targets, objects of torchmetrics, or names"
        require(False, "metrics", expected, metrics)


def _as_metric(value: Any, name: str, task: str | None) -> Metric:
    if isinstance(value, str):
        value = named_metric(value, task)
    if isinstance(value, Metric):
        return Metric(value.function, name or value.name, value.higher_is_better)
    return Metric(value, name)


@dataclass(frozen=True, eq=False)
class MetricSet:
    """Holds the metrics of a run, and its task where that is known."""

    metrics: tuple[Metric, ...] = ()
    kind: TaskKind | None = None
    units: tuple[float, float] | None = None  # mean and deviation that numbers were scaled by

    @classmethod
    def of(
        cls, metrics: Any, kind: TaskKind | None, units: tuple[float, float] | None = None
    ) -> MetricSet:
        """Return the metrics that a user has given, or those of the task where that is None.

        With `units` they measure numbers as they were before they were scaled for training.
        """
        task = None if kind is None else kind.name
        asked = as_metrics(() if kind is None else kind.metrics, task)
        if metrics is not None:
            asked = as_metrics(metrics, task)
        # Every test counts how often a class was met.
        counted = METRICS["accuracy"].function if task not in LABELS else None
        return cls(tuple(each for each in asked if each.function is not counted), kind, units)

    @property
    def names(self) -> list[str]:
        """Return the names of the metrics in their order."""
        return [metric.name for metric in self.metrics]

    @property
    def lower(self) -> list[str]:
        """Return the names of those of which less is better."""
        return [metric.name for metric in self.metrics if not metric.higher_is_better]

    def of_loss(self, loss: Loss) -> bool:
        """Return whether all metrics follow from the mean of this loss, without any outputs."""
        perplexities = (metric.function is measures.perplexity for metric in self.metrics)
        return not self.metrics or (loss is F.cross_entropy and all(perplexities))

    def from_loss(self, value: float) -> dict[str, float]:
        """Return the metrics that follow from a mean loss."""
        return dict.fromkeys(self.names, math.exp(value) if value < 700 else math.inf)

    def try_out(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise `MetricFailedError` if a metric cannot be computed."""
        for metric in self.metrics:
            metric(*self._form(outputs, targets))

    def __call__(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return each metric by name; one that fails or is not defined is NaN."""
        outputs, targets = self._form(outputs, targets)
        return {metric.name: _or_nan(metric, outputs, targets) for metric in self.metrics}

    def _form(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind is not None:
            outputs, targets = self.kind.measured(outputs, targets)
        if self.units is None:
            return outputs, targets
        mean, scale = self.units
        return outputs * scale + mean, targets * scale + mean


def _or_nan(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    try:
        return metric(outputs, targets)
    except MetricFailedError:
        return math.nan
