"""Tasks, losses and metrics: what a model is trained for and measured by."""

from undrift.tasks.kinds import (
    TASKS,
    OutputShapeError,
    TaskKind,
    deduced_task,
    fitted_classes,
    implies_task,
    output_count,
    task_kind,
    task_of_loss,
)
from undrift.tasks.losses import (
    LOSSES,
    MODULES,
    NUMBER_LOSSES,
    Loss,
    as_loss,
    named_loss,
    torch_loss,
)
from undrift.tasks.metrics import (
    METRICS,
    Metric,
    MetricFailedError,
    MetricSet,
    as_metrics,
    named_metric,
)

__all__ = [
    "LOSSES",
    "METRICS",
    "MODULES",
    "NUMBER_LOSSES",
    "TASKS",
    "Loss",
    "Metric",
    "MetricFailedError",
    "MetricSet",
    "OutputShapeError",
    "TaskKind",
    "as_loss",
    "as_metrics",
    "deduced_task",
    "fitted_classes",
    "implies_task",
    "named_loss",
    "named_metric",
    "output_count",
    "task_kind",
    "task_of_loss",
    "torch_loss",
]
