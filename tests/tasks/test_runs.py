"""Runs of every task: its loss, its metrics and the targets that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import undrift as ud
from undrift.results import metrics as figures

INPUTS = torch.randn(240, 5, generator=torch.Generator().manual_seed(0))
NUMBERS = INPUTS @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]) + 1
MARKS = (INPUTS[:, :3] > 0).long()


def clients(targets: Tensor, inputs: Tensor = INPUTS) -> ud.Clients:
    pairs = [(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, 160, 40)]
    return ud.Clients(pairs, test=(inputs[160:], targets[160:]))


def run(targets: Tensor, outputs: int, **options: Any) -> ud.Run:
    torch.manual_seed(0)
    chosen = {"work": ud.Steps(8), "rounds": 3, "batch_size": 16, **options}
    model = chosen.pop("model", nn.Linear(5, outputs))
    return ud.simulate(ud.FedAvg(lr=0.1), model, clients(targets), **chosen)


def finished(*arguments: Any, **options: Any) -> tuple[ud.Run, ud.Record]:
    started = run(*arguments, **options)
    return started, list(started)[-1]


def test_regression_takes_one_output_for_one_number() -> None:
    started, last = finished(NUMBERS, 1, evaluation=ud.EvaluationOptions(batch_size=7))
    with torch.no_grad():
        errors = started.model(INPUTS[160:]).squeeze(1) - NUMBERS[160:]
    assert last.accuracy is None
    assert last.metrics is not None
    assert last.loss == pytest.approx(float(errors.square().mean()), rel=1e-5)
    assert last.metrics["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert last.metrics["mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-5)
    assert last.lower == ["rmse", "mae"]
    assert 0 < (last.metrics["r2"] or 0) < 1


def test_the_clock_of_a_fleet_takes_numbers_as_the_loss_does() -> None:
    _, last = finished(NUMBERS, 1, fleet="phone", rounds=1)  # A warning would fail the test.
    assert last.simulated_seconds


def test_the_task_equals_its_loss_written_out_bit_for_bit() -> None:
    one, _ = finished(NUMBERS, 1)
    rows = NUMBERS[:, None]
    two, _ = finished(rows, 1, loss=F.mse_loss)
    three, _ = finished(MARKS, 3, task="multi-label")
    four, _ = finished(MARKS.float(), 3, loss=F.binary_cross_entropy_with_logits)
    assert one.model_sha256 == two.model_sha256
    assert three.model_sha256 == four.model_sha256


@pytest.mark.parametrize("name", ["huber", "l1", "smooth_l1", "MSELoss"])
def test_a_loss_of_numbers_by_name_goes_with_the_task_of_numbers(name: str) -> None:
    one, last = finished(NUMBERS, 1, loss=name)
    two, _ = finished(NUMBERS, 1, loss=name, task="regression")
    assert one.model_sha256 == two.model_sha256
    assert list(last.metrics or ()) == ["rmse", "mae", "r2"]


def test_multi_label_takes_rows_of_zeros_and_ones() -> None:
    _, last = finished(MARKS, 3, task="multi-label", metrics=["accuracy", "f1_macro"])
    assert list(last.metrics or ()) == ["accuracy", "f1_macro"]
    _, last = finished(MARKS[:, 0], 1, task="multi-label")
    assert (last.metrics or {})["auroc"] == pytest.approx(1, abs=0.2)


class Tokens(nn.Module):
    """Reads (B, 6) tokens and returns (B, 9, 6) logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens)).transpose(1, 2)


def test_language_modelling_has_perplexity_of_all_tokens() -> None:
    tokens = (torch.arange(7)[None] + torch.arange(240)[:, None]) % 9
    data = clients(tokens[:, 1:], tokens[:, :-1])
    started = ud.simulate(
        ud.FedAvg(lr=1.0), Tokens(), data, work=ud.Steps(8), rounds=3, batch_size=8
    )
    last = list(started)[-1]
    assert last.loss is not None
    assert last.accuracy is not None
    assert (last.metrics or {})["perplexity"] == pytest.approx(torch.tensor(last.loss).exp().item())


def test_metrics_see_all_outputs_and_not_batches() -> None:
    seen: list[tuple[int, ...]] = []

    def spy(outputs: Tensor, targets: Tensor) -> float:
        seen.append((*outputs.shape, *targets.shape))
        return 1.0

    finished(NUMBERS, 1, metrics=spy, evaluation=ud.EvaluationOptions(batch_size=7, every=1))
    assert seen[1:] == [(80, 80)] * 3  # The first call tries the metric on a few samples.


def test_peers_and_validation_samples_have_metrics_too() -> None:
    data = clients(NUMBERS)
    both = ud.Clients([data[i] for i in range(4)], test=data.test, validation=data.test)
    links = ud.topology.ring(4)
    server = ud.simulate(ud.FedAvg(lr=0.05), nn.Linear(5, 1), both, work=ud.Steps(1), rounds=1)
    assert "rmse" in (next(server).validation_metrics or {})
    started = ud.simulate(
        ud.DSGD(lr=0.05), nn.Linear(5, 1), both, work=ud.Steps(1), rounds=3, topology=links
    )
    last = list(started)[-1]
    assert last.metrics == last.validation_metrics
    assert figures.curve(started.records, "validation_rmse").values
    assert not figures.rises("validation_rmse", started.records)
    assert figures.best(started.records, "rmse") == min(
        (r.metrics or {})["rmse"] or 0 for r in started.records
    )


def test_rounds_without_a_test_have_the_metric_without_a_value() -> None:
    records = list(run(NUMBERS, 1, evaluation=ud.EvaluationOptions(every=2)))
    assert [r.metrics and r.metrics["rmse"] is None for r in records] == [True, False, False]


@pytest.mark.parametrize(
    ("targets", "outputs", "options", "message"),
    [
        (
            NUMBERS,
            3,
            {},
            r"The task regression needs outputs of the targets' shape \(\).*1 output\.",
        ),
        (NUMBERS, 2, {"task": "classification"}, 'whole numbers as targets.*task="regression"'),
        (MARKS, 3, {}, 'say task="multi-label"'),
        (MARKS, 3, {"task": "classification"}, "one class for each sample"),
        (MARKS[:, 0], 1, {}, "an output for each class, at least two.*multi-label"),
        (MARKS * 2, 3, {"task": "multi-label"}, "targets that are 0 or 1, got 2"),
        (NUMBERS, 1, {"loss": lambda o, t: F.mse_loss(o, t)}, 'say task="regression"'),
        (MARKS[:, 0], 1, {"loss": "mse"}, 'at least two, got 1 output.*numbers task="regression"'),
        (MARKS[:, 0], 2, {"loss": "bce"}, r"got \(2,\); let .*1 output, or say loss=.cross_entr"),
        (MARKS.sum(1), 1, {"loss": "bce"}, "multi-label needs targets that are 0 or 1, got [23]"),
        (MARKS[:, 0].float(), 2, {}, r"1 output; if they are classes, .*: targets.long\(\)"),
        (MARKS[:, 0].float(), 2, {"loss": F.cross_entropy}, r"targets.long\(\)"),
        (NUMBERS, 1, {"metrics": lambda outputs, targets: 1}, "a name of letters"),
        (NUMBERS, 1, {"metrics": {"broken": lambda o: 1}}, "The metric broken needs.*TypeError"),
        (NUMBERS, 1, {"metrics": {"seconds": lambda o, t: 1}}, "a name of its own, got 'seconds'"),
        (NUMBERS, 1, {"task": "regresion"}, "the nearest is 'regression'"),
        (NUMBERS, 1, {"loss": "mean"}, "loss needs"),
        (NUMBERS, 1, {"loss": nn.MSELoss}, r"make an object of it: MSELoss\(\)"),
    ],
)
def test_what_does_not_fit_gets_a_sentence_before_training(
    targets: Tensor, outputs: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(targets, outputs, **options)


MARKED = MARKS[:, 0]
SAME = {  # a habit of torch, numpy or pandas -> what it stands for: targets, outputs, options
    "MSELoss()": ((NUMBERS, 1, {"loss": nn.MSELoss()}), (NUMBERS, 1, {"task": "regression"})),
    "F.mse_loss": ((NUMBERS, 1, {"loss": F.mse_loss}), (NUMBERS, 1, {"task": "regression"})),
    "L1Loss()": ((NUMBERS, 1, {"loss": nn.L1Loss()}), (NUMBERS, 1, {"loss": "mae"})),
    "BCEWithLogitsLoss()": (
        (MARKED, 1, {"loss": nn.BCEWithLogitsLoss()}),
        (MARKED, 1, {"task": "multi-label"}),
    ),
    "bce": ((MARKED, 1, {"loss": "bce"}), (MARKED, 1, {"task": "multi-label"})),
    "bce of floats": (
        (MARKED[:, None].float(), 1, {"loss": "bce"}),
        (MARKED, 1, {"task": "multi-label"}),
    ),
    "int32": ((MARKED.int(), 2, {}), (MARKED, 2, {})),
    "bool": ((MARKED.bool(), 2, {}), (MARKED, 2, {})),
    "uint8": ((MARKED.byte(), 2, {"loss": nn.CrossEntropyLoss()}), (MARKED, 2, {})),
    "a column": ((MARKED[:, None], 2, {}), (MARKED, 2, {})),
    "a column with a loss": ((MARKED[:, None], 2, {"loss": F.cross_entropy}), (MARKED, 2, {})),
    "a column of bool": ((MARKED[:, None].bool(), 2, {}), (MARKED, 2, {})),
}


@pytest.mark.parametrize("habit", SAME)
def test_habits_of_other_libraries_mean_the_same_bit_for_bit(habit: str) -> None:
    given, meant = SAME[habit]
    one, last = finished(*given[:2], **given[2])
    two, wanted = finished(*meant[:2], **meant[2])
    assert one.model_sha256 == two.model_sha256
    assert (last.loss, last.accuracy) == (wanted.loss, wanted.accuracy)
    if given[2].get("loss") is not F.cross_entropy:
        assert last.metrics == wanted.metrics


def test_a_loss_that_broadcasts_one_output_against_all_targets_is_told() -> None:
    with pytest.warns(UserWarning, match='got .8, 1. and .8,., which torch may broadcast.*"regr'):
        run(NUMBERS, 1, loss=F.poisson_nll_loss)


def test_numpy_s_types_of_targets_are_classes() -> None:
    for kind in (np.int32, np.bool_, np.uint16, np.int8):
        arrays = [(INPUTS[:40].numpy(), MARKED[:40].numpy().astype(kind))] * 2
        data = ud.Clients(arrays, test=arrays[0])
        assert data.targets.dtype == torch.int64
        assert data.test is not None
        assert data.test[1].dtype == torch.int64
        parts = [np.arange(20), np.arange(20, 40)]
        pair = torch.from_numpy(arrays[0][0]), torch.from_numpy(arrays[0][1].astype(np.uint8))
        assert ud.Clients.split(*pair, parts, test=pair).targets.dtype == torch.int64


def test_whole_numbers_stay_so_for_an_embedding_and_are_told_to_a_linear_layer() -> None:
    tokens = torch.randint(9, (240, 6), generator=torch.Generator().manual_seed(0))
    data = clients(MARKED, tokens)
    options = {"work": "steps:1", "rounds": 1}
    message = r"inputs of shape .* of torch.int64, got .*; it takes floats, so give inputs.float"
    with pytest.raises(ValueError, match=message):
        ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(6, 2), data, **options)
    embedding = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 2))
    assert next(ud.simulate(ud.FedAvg(lr=0.1), embedding, data, **options)).loss
