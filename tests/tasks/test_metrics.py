"""Metrics are those of scikit-learn and torchmetrics, on all outputs and not by batches."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from undrift import tasks
from undrift.tasks import measures

skmetrics = pytest.importorskip("sklearn.metrics")
torchmetrics = pytest.importorskip("torchmetrics")


def logits(*shape: int, ties: bool = False) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return drawn.mul(2).round() if ties else drawn


def labels(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_of_classes(classes: int, ties: bool) -> None:
    outputs, targets = logits(60, classes, ties=ties), labels(classes, 60)
    predicted = outputs.argmax(1)
    assert measures.accuracy(outputs, targets) == pytest.approx(
        skmetrics.accuracy_score(targets, predicted)
    )
    assert measures.balanced_accuracy(outputs, targets) == pytest.approx(
        skmetrics.balanced_accuracy_score(targets, predicted)
    )
    assert measures.f1_macro(outputs, targets) == pytest.approx(
        skmetrics.f1_score(targets, predicted, average="macro")
    )
    scores = outputs[:, 1] - outputs[:, 0] if classes == 2 else outputs.log_softmax(1)
    single = (
        [skmetrics.roc_auc_score(targets == k, scores[:, k]) for k in range(classes)]
        if (classes > 2)
        else [skmetrics.roc_auc_score(targets, scores)]
    )
    assert measures.auroc(outputs, targets) == pytest.approx(sum(single) / len(single))


def test_metrics_of_labels() -> None:
    outputs, targets = logits(60, 4), labels(2, 60, 4)
    predicted = (outputs > 0).long()
    for average, measure in (("macro", measures.f1_macro), ("micro", measures.f1_micro)):
        expected = skmetrics.f1_score(targets, predicted, average=average)
        assert measure(outputs, targets) == pytest.approx(expected)
    assert measures.exact_match(outputs, targets) == pytest.approx(
        skmetrics.accuracy_score(targets, predicted)
    )
    assert measures.auroc(outputs, targets) == pytest.approx(
        skmetrics.roc_auc_score(targets, outputs, average="macro")
    )


def test_metrics_of_numbers() -> None:
    for shape in ((50,), (50, 3)):
        outputs, targets = logits(*shape), 3 * logits(*shape) + 1
        assert measures.r2(outputs, targets) == pytest.approx(skmetrics.r2_score(targets, outputs))
        assert measures.mae(outputs, targets) == pytest.approx(
            skmetrics.mean_absolute_error(targets, outputs)
        )
        assert measures.rmse(outputs, targets) == pytest.approx(
            math.sqrt(skmetrics.mean_squared_error(targets, outputs))
        )


def test_tokens() -> None:
    outputs, targets = logits(6, 9, 5), labels(9, 6, 5)
    known = torchmetrics.text.Perplexity()(outputs.transpose(1, 2), targets)
    assert measures.perplexity(outputs, targets) == pytest.approx(float(known))
    assert measures.accuracy(outputs, targets) == (outputs.argmax(1) == targets).double().mean()


@pytest.mark.parametrize(
    ("measure", "outputs", "targets"),
    [
        (measures.auroc, logits(8, 2), torch.ones(8, dtype=torch.int64)),
        (measures.r2, logits(8), torch.full((8,), 0.1)),
        (measures.r2, logits(1), torch.ones(1)),
        (measures.f1_micro, torch.full((8, 2), -1.0), torch.zeros(8, 2, dtype=torch.int64)),
    ],
)
def test_a_metric_that_is_not_defined_is_nan(measure, outputs, targets) -> None:
    assert math.isnan(measure(outputs, targets))
    assert math.isnan(tasks.Metric(measure)(outputs, targets))


def test_objects_of_torchmetrics_begin_anew_each_time() -> None:
    metric = tasks.as_metrics(torchmetrics.classification.MulticlassAUROC(5))[0]
    assert metric.name == "MulticlassAUROC"
    assert metric.higher_is_better
    outputs, targets = logits(60, 5), labels(5, 60)
    first = metric(outputs, targets)
    assert metric(-outputs, targets) != first
    assert metric(outputs, targets) == first
    error = tasks.as_metrics({"error": torchmetrics.MeanSquaredError()})[0]
    assert (error.name, error.higher_is_better) == ("error", False)


def test_a_collection_of_torchmetrics_is_several_metrics() -> None:
    parts = {"a": torchmetrics.MeanSquaredError(), "b": torchmetrics.MeanAbsoluteError()}
    found = tasks.as_metrics(torchmetrics.MetricCollection(parts))
    assert [each.name for each in found] == ["a", "b"]


def test_names_and_functions_in_every_form(tmp_path) -> None:
    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().max()

    assert [each.name for each in tasks.as_metrics("rmse, mae")] == ["rmse", "mae"]
    assert tasks.as_metrics([largest, "r2"])[0].name == "largest"
    assert tasks.as_metrics({"worst": largest})[0].name == "worst"
    falling = tasks.Metric(largest, higher_is_better=False)
    assert tasks.MetricSet(tasks.as_metrics([falling, "r2"])).lower == ["largest"]
    (tmp_path / "own.py").write_text("def gap(outputs, targets):\n    return 7\n")
    (own,) = tasks.as_metrics(f"{tmp_path / 'own.py'}:gap")
    assert (own.name, own(logits(3), logits(3))) == ("gap", 7.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tasks.as_metrics("rms"), "the nearest is 'rmse'"),
        (lambda: tasks.as_metrics("accuracy", "regression"), "its metrics are rmse, mse, mae, r2"),
        (lambda: tasks.as_metrics(lambda o, t: 0), "a name of letters.*metrics={'my_name'"),
        (lambda: tasks.as_metrics(torchmetrics.MeanSquaredError), "make an object of it"),
        (lambda: tasks.as_metrics(7), "functions of outputs and targets.*got 7"),
        (lambda: tasks.as_metrics(["mae", "mae"]), "a name of its own for each, got 'mae'"),
        (lambda: tasks.as_metrics({"accuracy": max}), "another name than loss and accuracy"),
        (lambda: tasks.task_kind("regresion"), "the nearest is 'regression'"),
        (lambda: tasks.task_kind(3), "task needs one of"),
        (lambda: tasks.named_loss("crossentropi"), "the nearest is 'cross_entropy'"),
        (lambda: tasks.as_loss(torch.nn.MSELoss), r"make an object of it: MSELoss\(\)"),
        (lambda: tasks.as_loss(3), "loss needs a function"),
        (lambda: tasks.deduced_task(torch.ones(4, 2)), 'say task="multi-label" or "regression"'),
    ],
)
def test_bad_names_and_objects_get_a_sentence(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["mse", "mse_loss", "MSELoss", "nn.MSELoss"])
def test_losses_have_the_names_that_people_know(name: str) -> None:
    assert tasks.named_loss(name) is torch.nn.functional.mse_loss
    assert tasks.named_loss("CrossEntropyLoss") is torch.nn.functional.cross_entropy
    assert tasks.named_loss("BCEWithLogitsLoss") is tasks.LOSSES["bce"]


def test_a_metric_that_fails_is_nan_in_a_run_and_an_error_before_it() -> None:
    metrics = tasks.MetricSet(tasks.as_metrics(partial(measures.r2, nothing=1)))
    assert math.isnan(metrics(logits(3), logits(3))["partial"])
    with pytest.raises(ValueError, match=r"The metric partial needs to return one number.*TypeErr"):
        metrics.try_out(logits(3), logits(3))
    pair = tasks.Metric(lambda o, t: (1, 2), "pair")
    with pytest.raises(tasks.MetricFailedError, match="one number"):
        pair(logits(3), logits(3))


def test_numbers_are_measured_in_the_units_that_they_had() -> None:
    outputs, targets = torch.tensor([[0.5], [1.0]]), torch.tensor([[0.0], [1.0]])
    kind, seen = tasks.task_kind("regression"), list[float]()
    measured = tasks.MetricSet.of("mae", kind, units=(100.0, 10.0))
    assert measured(outputs, targets) == {"mae": pytest.approx(2.5)}
    own = {"own": lambda outputs, targets: seen.extend(targets.tolist()) or 0.0}
    tasks.MetricSet.of(own, kind, units=(100.0, 10.0))(outputs, targets)
    assert seen == [100.0, 110.0]
