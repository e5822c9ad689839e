"""Scores of models: by torch and by a kernel, on some samples, and of all nodes at once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from undrift.engine import evaluate
from undrift.engine.evaluate import ALL_AT_ONCE, Evaluator, batch_for
from undrift.gradients.kernels import build_forward, read
from undrift.gradients.task import Task
from undrift.models.layout import Layout

COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
NODES, WIDE, CLASSES = 6, 5, 4


def evaluator(batch: int = 16, *, test: bool = True, **fields: Any) -> Evaluator:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDE, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, CLASSES))
    sizes = [3, 20, 1, 40, 7, 11]
    pairs = [(torch.randn(n, WIDE), torch.randint(CLASSES, (n,))) for n in sizes]
    held = (torch.randn(101, WIDE), torch.randint(CLASSES, (101,))) if test else None
    population = np.array([0.3, 0.1, 0.0, 0.2, 0.25, 0.15])
    task = Task(model, Layout.of(model), F.cross_entropy, randomness="dropout")
    clients = ud.Clients(pairs, test=held)
    return Evaluator(task, clients, population, batch, elements=30, **fields)


def kernel_of(scores: Evaluator) -> Any:
    if not COMPILER:
        pytest.skip("no C++ compiler")
    return build_forward(read(scores.task, (WIDE,), ()))


def vector(scores: Evaluator) -> torch.Tensor:
    return scores.task.layout.gather(scores.task.model)


def expected(scores: Evaluator, x: torch.Tensor, pairs: Any) -> tuple[float, float]:
    """Weighted loss and accuracy, in one pass for each pair."""
    loss = accuracy = 0.0
    scores.task.model.eval()
    with torch.no_grad():
        for weight, (inputs, targets) in pairs:
            outputs = scores.task.forward(x, inputs)
            loss += weight * float(F.cross_entropy(outputs, targets))
            accuracy += weight * float((outputs.argmax(1) == targets).double().mean())
    scores.task.model.train()
    return loss, accuracy


def objective(scores: Evaluator) -> Any:
    clients, weights = scores.clients, scores.population
    return [(weights[i], clients[i]) for i in range(len(clients)) if weights[i]]


@pytest.mark.parametrize("by_kernel", [False, True], ids=["torch", "kernel"])
@pytest.mark.parametrize("batch", [1, 7, 16, 1000, ALL_AT_ONCE])
@pytest.mark.parametrize("threads", [1, 3])
def test_scores_are_those_of_single_passes(batch: int, threads: int, by_kernel: bool) -> None:
    tested, trained = (evaluator(batch, test=test, threads=threads) for test in (True, False))
    if by_kernel:
        tested, trained = (replace(each, kernel=kernel_of(each)) for each in (tested, trained))
    x = vector(tested)
    whole = expected(tested, x, [(1.0, tested.clients.test)])
    weighed = expected(tested, x, objective(trained))
    assert tested.score(x) == pytest.approx(whole, rel=1e-5)
    assert tested.score(x, on_training_data=True) == pytest.approx(weighed, rel=1e-5)
    assert trained.score(x) == pytest.approx(weighed, rel=1e-5)


def test_threads_change_no_bit() -> None:
    one, three = (evaluator(8, threads=threads) for threads in (1, 3))
    x = vector(one)
    assert one.score(x) == three.score(x)
    assert one.score(x, on_training_data=True) == three.score(x, on_training_data=True)


def test_some_samples_are_spread_evenly() -> None:
    scores = evaluator(8)
    x, (inputs, targets) = vector(scores), scores.clients.test
    rows = [i * 101 // 25 for i in range(25)]
    found = scores.score(x, most=25)
    assert found == pytest.approx(expected(scores, x, [(1.0, (inputs[rows], targets[rows]))]))
    assert scores.score(x, most=500) == scores.score(x)


def test_some_training_samples_weigh_as_the_objective_does() -> None:
    scores = evaluator(8, test=False)
    x, clients = vector(scores), scores.clients
    sizes = clients.sizes
    owners = np.repeat(np.arange(NODES), sizes)
    held = np.flatnonzero(scores.population[owners] > 0)
    some = held[np.arange(30) * len(held) // 30]
    weights = (scores.population / sizes)[owners[some]]
    rows = torch.from_numpy(clients.index[some])
    scores.task.model.eval()
    with torch.no_grad():
        outputs = scores.task.forward(x, clients.inputs[rows])
    losses = F.cross_entropy(outputs, clients.targets[rows], reduction="none")
    mean = float((losses.double() * torch.from_numpy(weights / weights.sum())).sum())
    assert scores.score(x, most=30).loss == pytest.approx(mean)


@pytest.mark.parametrize("by_kernel", [False, True], ids=["torch", "kernel"])
@pytest.mark.parametrize("samples", [None, 1, 16, 17, 60, 500])
def test_nodes_have_samples_of_their_own(samples: int | None, by_kernel: bool) -> None:
    scores = evaluator(8, threads=2)
    if by_kernel:
        scores = replace(scores, kernel=kernel_of(scores))
    noise = torch.Generator().manual_seed(1)
    models = vector(scores) + torch.randn(NODES, len(vector(scores)), generator=noise)
    inputs, targets = scores.clients.test
    count = min(101, samples or 101)
    seen: list[int] = []
    for ids in (range(NODES), range(2, 5)):
        own = models[ids.start : ids.stop]
        found = scores.accuracies(own, ids, samples)
        for i, x, accuracy in zip(ids, own, found, strict=True):
            rows = [(j * NODES + i) * 101 // (count * NODES) for j in range(count)]
            assert len(set(rows)) == count
            seen += rows
            right = expected(scores, x, [(1.0, (inputs[rows], targets[rows]))])[1]
            assert accuracy == pytest.approx(right)
    if count == 16:  # 6 nodes of 16 samples are 96 of the 101: no two have the same
        assert len(set(seen)) == 96


def test_losses_that_are_not_finite_are_torchs() -> None:
    scores = evaluator(8)
    by_kernel = replace(scores, kernel=kernel_of(scores))
    x = vector(scores).clone()
    x[-1] = torch.nan
    assert str(by_kernel.score(x)) == str(scores.score(x))
    assert "nan" in str(by_kernel.score(x))
    models = x.expand(NODES, -1)
    assert by_kernel.accuracies(models, range(NODES), 9) == scores.accuracies(
        models, range(NODES), 9
    )


def test_batches_fit_the_cache() -> None:
    assert batch_for(6_490, 26_298) == 159  # NET-FLEET's CNN
    assert batch_for(7_850, 794) == 1000
    assert batch_for(7_212_874, 83_467) == 172  # AlexNet, which is read anew for each batch
    assert batch_for(11_173_962, 1_420_810) == 50  # ResNet-18


def test_big_batches_are_not_put_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = evaluator(8, threads=3)
    monkeypatch.setattr(evaluate, "THREADED_ELEMENTS", 8 * 30 - 1)
    monkeypatch.setattr(evaluate, "ordered_thread_map", None)
    assert scores.score(vector(scores)).accuracy is not None
