"""Local models in the tap, drift of a round against brute force, CKA, and the loss surface."""

from __future__ import annotations

import copy
import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import undrift as ud
from tests.support.problems import bed
from tests.support.runs import distance, on_quadratics
from undrift import testing
from undrift.analysis import drift
from undrift.analysis.drift import Drift, cka
from undrift.analysis.loss_surface import Surface, loss_of, surface
from undrift.report.plots import plot_surface

MODES = ("loop", "stacked")
METHODS = [
    *(cls(lr=0.1) for cls in ud.ALGORITHMS if issubclass(cls, ud.Federated)),
    ud.FedAvg(lr=0.1, rule=ud.Momentum(0.9)),
    ud.FedProx(lr=0.01, rule=ud.Adam()),
    ud.FedNova(lr=0.1, rho=0.9),
    ud.FedPD(lr=0.1, p=0.5, coin=1),
    ud.FedPD(lr=0.1, start="server"),
    ud.FedSpeed(lr=0.1, average="participants"),
    ud.Scaffold(lr=0.1, option="I"),
    ud.Accelerated(ud.FedProx(lr=0.1)),
    ud.Compressed(ud.FedACG(lr=0.1), ud.ScaledSign(), error_feedback=True),
]
EVERY = pytest.mark.parametrize("method", METHODS, ids=repr)
LOOKS_INTO_THE_MODEL = (ud.MOON, ud.FedMLB)


def tapped(method: Any, mode: str, **options: Any) -> list[ud.Upload]:
    """On the small net with ragged minibatches, dropout and unequal work."""
    seen: list[ud.Upload] = []
    testing.finish(testing.start(method, mode=mode, tap=seen.append, **options))
    return sorted(seen, key=lambda up: (up.round, up.client))


@pytest.mark.parametrize("mode", MODES)
def test_a_tap_sees_the_local_models_of_fedavg(mode: str) -> None:
    seen: list[ud.Upload] = []
    run = testing.start(
        ud.FedAvg(lr=0.1), mode=mode, execution=ud.ExecutionOptions(chunk_size=2), tap=seen.append
    )
    x = run.x
    for record in run:
        uploads = [up for up in seen if up.round == record.round]
        assert len(uploads) == 3
        for up in uploads:
            assert up.y is not None
            assert up.start is not None
            assert torch.equal(up.x, x)
            assert torch.equal(up.start, x)
            assert distance(up.y - up.x, up.upload) < 1e-14
            assert distance(up.y, up.x) > 1e-3
        x = run.x


@EVERY
def test_every_method_shows_its_local_models_alike_in_both_modes(method: Any) -> None:
    loop, stacked = (
        tapped(method, mode, rounds=1, execution=ud.ExecutionOptions(chunk_size=2))
        for mode in MODES
    )
    assert len(loop) == len(stacked) == 3
    for one, other in zip(loop, stacked, strict=True):
        assert (one.round, one.client) == (other.round, other.client)
        for a, b in ((one.y, other.y), (one.start, other.start), (one.x, other.x)):
            assert a is not None
            assert b is not None
            assert a.shape == one.x.shape == (83,)
            assert bool(a.isfinite().all())
            assert distance(a, b) < 1e-12


@pytest.mark.parametrize(
    "method",
    [each for each in METHODS if not isinstance(each, LOOKS_INTO_THE_MODEL)],
    ids=repr,
)
def test_local_models_of_quadratic_clients_agree_in_both_modes(method: Any) -> None:
    problem = bed()
    models: dict[str, dict[tuple[int, int], Tensor]] = {}
    for mode in MODES:
        found = models[mode] = {}
        on_quadratics(
            method,
            problem,
            rounds=2,
            work=[1, 2, 3, 4, 5],
            mode=mode,
            batch_size=None,
            tap=lambda up, found=found: found.update({(up.round, up.client): up.y}),  # type: ignore[misc]
        )
    assert len(models["loop"]) == 10
    for key, y in models["loop"].items():
        assert y.shape == (3,)
        assert bool(y.isfinite().all())
        assert distance(y, models["stacked"][key]) < 1e-12


class Watched(nn.Sequential):
    """Remembers every parameter vector that it is asked at."""

    points: ClassVar[list[Tensor]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        Watched.points.append(torch.cat([p.detach().reshape(-1) for p in self.parameters()]))
        return super().forward(inputs)  # type: ignore[no-any-return]


@EVERY
def test_the_local_model_is_where_the_next_gradient_would_be_taken(method: Any) -> None:
    """With one step more, and nothing else changed, the client asks for a gradient at y."""
    options: dict[str, Any] = {"rounds": 1, "batch_size": None, "participation": 1.0}
    model = Watched(*testing.small_net(dropout=0.0))
    if getattr(method, "p", 0.0):
        method = replace(method, p=0.0)  # a second pass would go on from elsewhere
    short = tapped(method, "loop", model=model, work=ud.Steps(3), **options)
    if isinstance(method, ud.FedLin):
        method = replace(method, lr=method.lr * 4 / 3)  # whose steps are of length lr / K
    Watched.points.clear()
    tapped(method, "loop", model=model, work=ud.Steps(4), **options)
    asked = torch.stack(Watched.points)
    for up in short:
        assert up.y is not None
        assert float((asked - up.y).abs().amax(1).min()) < 1e-13
        assert distance(up.y, up.x) > 1e-3


def test_a_method_of_several_passes_shows_the_last_and_starts_at_the_first() -> None:
    problem, lr, eta, seen = bed(clients=1), 0.1, 10.0, []
    method = ud.FedPD(lr=lr, eta=eta, p=0.6, coin=3)
    assert method.passes(0) > 1
    on_quadratics(method, problem, rounds=1, work=2, tap=seen.append, batch_size=None)
    (A,), (b,), x0 = problem.A, problem.b, torch.zeros(3, dtype=torch.float64)
    x = lam = x0
    for _ in range(method.passes(0)):
        for _ in range(2):
            x = x - lr * (A @ (x - b) + lam + (x - x0) / eta)
        lam = lam + (x - x0) / eta
        x0 = x + eta * lam
    assert distance(seen[0].y, x) < 1e-13
    assert float(seen[0].start.abs().max()) == 0.0


def test_clients_of_a_look_ahead_start_elsewhere() -> None:
    first, second = (
        [up for up in tapped(ud.FedACG(lr=0.1), "stacked", rounds=2) if up.round == t]
        for t in (1, 2)
    )
    assert all(distance(up.start, up.x) == 0.0 for up in first)
    m = second[0].x - first[0].x
    for up in second:
        assert distance(up.start, up.x + 0.85 * m) < 1e-14
        assert distance(up.y - up.start, up.upload) < 1e-14


@dataclass(frozen=True)
class Still(ud.FedAvg):
    """Takes no local steps; or counts them in a plain number, in front of the model."""

    counts: bool = False

    def local(self, down: Tensor, client: Any, steps: Any) -> Any:
        if self.counts:
            _, y = steps(lambda c, f: (c[0] + 1, c[1] - self.lr * f.grad(c[1])), (0, down))
            return y - down, client
        return -self.lr * steps.full.grad(down), client


@pytest.mark.parametrize("mode", MODES)
def test_without_local_steps_there_is_no_local_model(mode: str) -> None:
    assert all(up.y is None and up.start is None for up in tapped(Still(lr=0.1), mode))
    message = "Drift needs clients that move a model by local steps, got client"
    with pytest.raises(ud.UndriftError, match=message):
        testing.finish(testing.start(Still(lr=0.1), mode=mode, tap=Drift()))


def test_numbers_that_a_step_passes_on_are_no_models() -> None:
    for up in tapped(Still(lr=0.1, counts=True), "loop"):
        assert distance(up.y - up.x, up.upload) < 1e-14


@pytest.mark.parametrize("mode", MODES)
def test_a_tap_changes_nothing(mode: str) -> None:
    for method in (ud.FedAvg(lr=0.1, rule=ud.Momentum(0.9)), ud.MOON(lr=0.1)):
        ends = [testing.start(method, mode=mode, tap=tap) for tap in (None, Drift())]
        assert torch.equal(*map(testing.finish, ends))
        untimed = {"seconds": 0, "evaluation_seconds": 0}
        assert replace(ends[0].totals, **untimed) == replace(ends[1].totals, **untimed)


def uploads_of(
    x: Tensor, models: Tensor, weights: Any, round: int = 1, start: Tensor | None = None
) -> list[ud.Upload]:
    begun = x if start is None else start
    pairs = enumerate(zip(models, weights, strict=True))
    return [ud.Upload(round, i, float(w), None, x, begun, y) for i, (y, w) in pairs]


def measured(uploads: list[ud.Upload], **options: Any) -> drift.RoundDrift:
    drift = Drift(**options)
    for upload in uploads:
        drift(upload)
    (result,) = drift.rounds
    return result


def brute_force(u: Any, weights: Any) -> tuple[float, float, float, float]:
    """Divergence, distance, cosine, alignment, by their definitions."""
    w = np.asarray(weights) / np.sum(weights)
    mean = w @ u
    apart = float(w @ ((u - mean) ** 2).sum(1))

    def cos(a: Any, b: Any) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    pairs = [cos(u[i], u[j]) for i, j in itertools.combinations(range(len(u)), 2)]
    aligned = [cos(row, mean) for row in u]
    return apart / float(mean @ mean), apart, float(np.mean(pairs)), float(np.mean(aligned))


def test_drift_by_hand() -> None:
    x = torch.tensor([1.0, 1.0])
    models = x + torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    found = measured(uploads_of(x, models, [0.5, 0.5]))
    # Mean update (1.5, 2): squared 6.25; each model is (1.5, -2) or its opposite away from it.
    assert (found.round, found.clients) == (1, 2)
    assert found.distance == pytest.approx(6.25)
    assert found.divergence == pytest.approx(1.0)
    assert found.cosine == pytest.approx(0.0, abs=1e-15)
    assert found.alignment == pytest.approx((0.6 + 0.8) / 2)
    assert found.cka is None


@settings(max_examples=40)
@given(
    st.integers(2, 12),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 1e3]),
)
def test_drift_equals_its_definition(clients: int, dim: int, seed: int, far: float) -> None:
    rng = np.random.default_rng(seed)
    x, u = rng.normal(size=dim) * far, rng.normal(size=(clients, dim))
    weights = rng.uniform(0.1, 1.0, clients)
    found = measured(uploads_of(torch.tensor(x), torch.tensor(x + u), weights))
    got = (found.divergence, found.distance, found.cosine, found.alignment)
    assert got == pytest.approx(brute_force((x + u) - x, weights), rel=1e-7, abs=1e-7)
    order = rng.permutation(clients)
    turned = uploads_of(torch.tensor(x), torch.tensor(x + u), weights)
    again = measured([turned[i] for i in order])
    assert (again.divergence, again.cosine) == pytest.approx(got[::2], rel=1e-7, abs=1e-9)


def test_a_small_drift_under_a_large_update_is_not_rounded_away() -> None:
    x = torch.zeros(4, dtype=torch.float64)
    common, apart = torch.ones(4, dtype=torch.float64), torch.tensor([1e-9, -1e-9, 0.0, 0.0])
    found = measured(uploads_of(x, torch.stack([common + apart, common - apart]), [1.0, 1.0]))
    assert found.distance == pytest.approx(2e-18, rel=1e-6)


def test_equal_and_opposite_clients() -> None:
    x, u = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    equal = measured(uploads_of(x, torch.stack([u, u, u]), [0.2, 0.3, 0.5]))
    assert (equal.divergence, equal.distance) == (0.0, 0.0)
    assert equal.cosine == pytest.approx(1.0, abs=1e-12)
    assert equal.cosine <= 1.0
    opposite = measured(uploads_of(x, torch.stack([u, -u]), [0.5, 0.5]))
    assert (opposite.divergence, opposite.alignment) == (None, None)
    assert opposite.cosine == pytest.approx(-1.0, abs=1e-12)
    assert opposite.distance == pytest.approx(14.0)


def test_what_one_or_still_clients_leave_undefined() -> None:
    x, u = torch.zeros(2), torch.tensor([1.0, 0.0])
    alone = measured(uploads_of(x, u[None], [1.0]))
    assert (alone.clients, alone.divergence, alone.cosine, alone.alignment) == (1, 0.0, None, 1.0)
    still = measured(uploads_of(x, torch.stack([x, x]), [0.5, 0.5]))
    assert (still.distance, still.divergence, still.cosine, still.alignment) == (
        0,
        None,
        None,
        None,
    )
    one_moves = measured(uploads_of(x, torch.stack([x, u, u]), [0.5, 0.25, 0.25]))
    assert one_moves.cosine == pytest.approx(1.0)  # of the only pair with directions
    unheard = measured(uploads_of(x, torch.stack([u, 9 * u, u]), [0.5, 0.0, 0.5]))
    assert (unheard.clients, unheard.distance) == (2, 0.0)


def test_drift_since_the_start_leaves_the_look_ahead_out() -> None:
    x, ahead = torch.zeros(2), torch.tensor([100.0, 0.0])
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    uploads = uploads_of(x, ahead + u, [0.5, 0.5], start=ahead)
    since = {origin: measured(uploads, since=origin) for origin in ("server", "start")}
    assert since["start"].cosine == pytest.approx(0.0, abs=1e-12)
    assert since["server"].cosine == pytest.approx(101 / np.sqrt(101**2), abs=1e-3)
    assert since["start"].divergence == pytest.approx(1.0)  # 1/2 of 1/2
    assert since["server"].divergence == pytest.approx(0.5 / (100.5**2 + 0.25))
    assert since["start"].distance == since["server"].distance == pytest.approx(0.5)


@pytest.mark.parametrize("mode", MODES)
def test_drift_of_a_run_on_quadratics(mode: str) -> None:
    """One step of FedAvg: y_i = x - lr A_i (x - b_i)."""
    problem, drift = bed(clients=6), Drift()
    run = on_quadratics(
        ud.FedAvg(lr=0.1), problem, rounds=1, work=1, mode=mode, tap=drift, batch_size=None
    )
    u = np.stack([0.1 * (A @ b).numpy() for A, b in zip(problem.A, problem.b, strict=True)])
    found = drift.of(1)
    got = (found.divergence, found.distance, found.cosine, found.alignment)
    assert got == pytest.approx(brute_force(u, np.ones(6)), rel=1e-10)
    assert distance(run.x, torch.tensor(u.mean(0))) < 1e-14


def test_drift_keeps_one_round_after_the_other() -> None:
    drift = Drift()
    run = testing.start(ud.FedAvg(lr=0.1), tap=drift)
    for record in run:
        assert [each.round for each in drift.rounds] == list(range(1, record.round + 1))
        assert drift.of(record.round).clients == 3
    assert drift.rounds[1] == drift.of(2)
    assert "4 rounds" in repr(drift)
    with pytest.raises(ValueError, match=re.escape("Drift.of needs a round from 1 to 4, got 9")):
        drift.of(9)
    with pytest.raises(ValueError, match=re.escape("Drift needs a round after 4, the last it has")):
        next(testing.start(ud.FedAvg(lr=0.1), tap=drift))
    with pytest.raises(ValueError, match=re.escape("Drift.of needs a run with rounds, got 1")):
        Drift().of(1)


def test_a_round_that_is_played_again_counts_once() -> None:
    x, u = torch.zeros(2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    drift = Drift()
    first, second = uploads_of(x, u, [0.5, 0.5])
    for upload in (first, first, second):  # it had failed after the first client
        drift(upload)
    assert (drift.of(1).clients, drift.of(1).distance) == (2, 0.5)
    drift(first._replace(client=7, x=x + 1))  # from another state, by another client
    assert drift.of(1).clients == 1


def linear_maps(W: Tensor) -> nn.Sequential:
    """Inputs -> W inputs -> tanh."""
    model = nn.Sequential(nn.Linear(*reversed(W.shape), bias=False), nn.Tanh()).double()
    with torch.no_grad():
        model[0].weight.copy_(W)
    return model


def vector(W: Tensor) -> Tensor:
    return W.reshape(-1).double()


def test_cka_of_single_features_is_their_squared_correlation() -> None:
    inputs = torch.tensor([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0]], dtype=torch.float64)  # r = 1/2
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    found = cka(linear_maps(a), vector(a), vector(b), inputs)
    assert list(found) == ["0", "1"]
    assert found["0"] == pytest.approx(0.25, abs=1e-14)


def test_cka_equals_its_definition() -> None:
    rng = np.random.default_rng(2)
    inputs, a, b = rng.normal(size=(20, 5)), rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    X, Y = (inputs @ W.T - (inputs @ W.T).mean(0) for W in (a, b))
    norms = np.linalg.norm(X.T @ X) * np.linalg.norm(Y.T @ Y)
    expected = np.linalg.norm(Y.T @ X) ** 2 / norms
    found = cka(
        linear_maps(torch.tensor(a)), *map(vector, map(torch.tensor, (a, b))), torch.tensor(inputs)
    )
    assert found["0"] == pytest.approx(expected, rel=1e-12)
    assert 0.05 < expected < 0.95


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_cka_sees_neither_rotations_nor_scale(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    W, V = (torch.tensor(rng.normal(size=(4, 6))) for _ in "ab")
    Q = torch.tensor(np.linalg.qr(rng.normal(size=(4, 4)))[0])
    inputs = torch.tensor(rng.normal(size=(15, 6)))
    model = linear_maps(W)
    turned = cka(model, vector(W), vector(scale * Q @ W), inputs)
    assert turned["0"] == pytest.approx(1.0, abs=1e-10)
    plain, both = (
        cka(model, vector(V), vector(other), inputs)["0"] for other in (W, scale * Q @ W)
    )
    assert plain == pytest.approx(both, rel=1e-9)
    # Another linear map than a rotation is seen.
    S = torch.diag(torch.tensor([10.0, 1.0, 1.0, 0.1], dtype=torch.float64))
    assert cka(model, vector(W), vector(S @ W), inputs)["0"] < 0.999


def test_cka_is_nan_where_a_layer_answers_all_alike() -> None:
    W = torch.eye(2)
    inputs = torch.tensor([[0.1, 0.2], [0.3, 0.1], [0.7, 0.4]], dtype=torch.float64)
    found = cka(linear_maps(W), vector(W), vector(0 * W), inputs)
    assert all(np.isnan(value) for value in found.values())
    # In float32 outputs of .7 that differ by one rounding error are alike too.
    x = torch.tensor([1e-8, 0.0, 0.7])
    constant = nn.Sequential(nn.Linear(2, 1))
    spaced = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 1.0], [6.0, 2.0]])
    assert len((spaced @ x[:2] + x[2]).unique()) == 2
    assert np.isnan(cka(constant, x, x, spaced)["0"])


class Twice(nn.Module):
    """Calls one layer twice, works in place, and has parts that give no rows or several things."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.drop = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.9)
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.end = nn.Linear(3, 2)
        self.flat = nn.Flatten(0)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.drop(self.act(self.first(self.act(self.first(inputs)))))
        self.flat(hidden)
        steps, _ = self.lstm(hidden[:, None])
        return self.end(steps[:, -1])  # type: ignore[no-any-return]


def test_cka_of_layers_that_are_called_again_and_of_recurrent_ones() -> None:
    torch.manual_seed(0)
    model = Twice().train()
    x = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    inputs = torch.randn(8, 4)
    found = cka(model, x, x, inputs)
    assert list(found) == ["first", "act", "first#2", "act#2", "drop", "lstm", "end"]
    assert all(value == pytest.approx(1.0, abs=1e-6) for value in found.values())
    assert model.training
    assert model.drop.training
    assert not any(module._forward_hooks for module in model.modules())
    # A layer's features are its own, not what the next one makes of them in place.
    other = x + 0.3 * torch.randn(len(x))
    apart = copy.deepcopy(model)
    apart.act = nn.ReLU()
    found = cka(model, x, other, inputs)
    assert found == pytest.approx(cka(apart, x, other, inputs), rel=1e-12)
    assert 0 < found["first"] < 1
    assert found["first"] != pytest.approx(found["act"], rel=1e-3)


def test_cka_of_the_clients_is_the_mean_over_their_pairs() -> None:
    model, inputs = testing.small_net(), testing.small_clients().inputs[:12]
    seen: list[ud.Upload] = []
    drift = Drift(cka=(model, inputs))

    def both(upload: ud.Upload) -> None:
        seen.append(upload)
        drift(upload)

    testing.finish(testing.start(ud.FedAvg(lr=0.5), tap=both, rounds=2))
    for t in (1, 2):
        models = [up.y for up in seen if up.round == t]
        pairs = [cka(model, a, b, inputs) for a, b in itertools.combinations(models, 2)]
        found = drift.of(t).cka
        assert found is not None
        assert list(found) == ["0", "1", "2", "3"]
        for layer, value in found.items():
            assert value == pytest.approx(np.mean([pair[layer] for pair in pairs]), rel=1e-10)
            assert 0.1 < value < 0.999


def valley(x: Tensor) -> float:
    """||x||^2, whose value on any plane is known."""
    return float(x.double().square().sum())


def test_surface_of_a_triangle_by_hand() -> None:
    a, b, c = torch.tensor([[1.0, 0, 0], [1.0, 4.0, 0], [1.0, 1.0, 3.0]], dtype=torch.float64)
    found = surface((a, b, c), valley, size=5, margin=0.25)
    assert found.points == pytest.approx(np.array([[0, 0], [4, 0], [1, 3]]))
    assert found.mean == pytest.approx([5 / 3, 1])
    assert found.u == pytest.approx([-1, 0.5, 2, 3.5, 5])
    assert found.v == pytest.approx([-0.75, 0.375, 1.5, 2.625, 3.75])
    u, v = np.meshgrid(found.u, found.v)
    assert found.losses == pytest.approx(1 + u**2 + v**2)
    tilted = surface((a, b, c), lambda x: float(x[1] + 10 * x[2]), size=5, margin=0.25)
    assert tilted.losses == pytest.approx(u + 10 * v)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30))
def test_surface_keeps_distances_and_passes_through_the_models(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    models = [torch.tensor(row) for row in rng.normal(size=(3, dim))]
    asked: list[Tensor] = []

    def ask(x: Tensor) -> float:
        asked.append(x)
        return float(len(asked))

    found = surface(models, ask, size=2, margin=0.0)
    for i, j in itertools.combinations(range(3), 2):
        apart = np.linalg.norm(found.points[i] - found.points[j])
        assert apart == pytest.approx(float((models[i] - models[j]).norm()))
    # The corner (0, 0), unless the third model lies further left, is the first model.
    if found.u[0] == 0:
        assert distance(asked[0], models[0]) < 1e-12
    assert distance(asked[1] - asked[0], asked[3] - asked[2]) < 1e-10  # a parallelogram
    assert float((asked[1] - asked[0]) @ (asked[2] - asked[0])) == pytest.approx(0, abs=1e-9)
    assert found.losses.tolist() == [[1, 2], [3, 4]]


def plain_loss(run: ud.Run, inputs: Tensor, targets: Tensor) -> float:
    return nn.functional.cross_entropy(run.model.eval()(inputs), targets).item()


def test_surface_of_a_run() -> None:
    seen: list[ud.Upload] = []
    run = testing.start(ud.FedAvg(lr=0.5), tap=seen.append, rounds=1)
    (record,) = run
    loss = loss_of(run)
    assert loss(run.x) == pytest.approx(record.loss, rel=1e-12)
    found = surface([up.y for up in seen], loss, size=4)
    assert np.isfinite(found.losses).all()
    inputs, targets = testing.small_clients()[1]
    expected = plain_loss(run, inputs, targets)
    assert loss_of(run, (inputs, targets))(run.x) == pytest.approx(expected, rel=1e-12)
    assert run._task.model.training  # as it was


def test_loss_on_given_data_sees_all_of_it_in_batches() -> None:
    run = testing.start(ud.FedAvg(lr=0.1), rounds=0, evaluation=ud.EvaluationOptions(batch_size=3))
    inputs, targets = testing.small_clients()[2]
    expected = plain_loss(run, inputs, targets)
    assert loss_of(run, (inputs, targets))(run.x) == pytest.approx(expected, rel=1e-12)


def test_a_loss_that_is_no_mean_sees_all_of_given_data_at_once() -> None:
    def worst(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none").amax()

    run = testing.start(
        ud.FedAvg(lr=0.1), rounds=0, evaluation=ud.EvaluationOptions(batch_size=3), loss=worst
    )
    inputs, targets = testing.small_clients()[2]
    with torch.no_grad():
        expected = float(worst(run.model.eval()(inputs), targets))
    assert loss_of(run, (inputs, targets))(run.x) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_plot_of_a_surface(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    triangle = torch.tensor([[0.0, 0], [2.0, 0], [1.0, 2.0]])
    found = surface(list(triangle), valley, size=6)
    holed = replace(found, losses=np.where(found.losses > 6, np.inf, found.losses))
    path = tmp_path / f"surface.{suffix}"
    plot_surface(holed, path, "two dimensions")
    assert path.stat().st_size > 3000
    nothing: Surface = replace(found, losses=np.full((6, 6), np.nan))
    with pytest.raises(ValueError, match="plot_surface needs finite losses"):
        plot_surface(nothing, path)


def test_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    triangle = torch.tensor([[0.0, 0], [2.0, 0], [1.0, 2.0]])
    found = surface(list(triangle), valley, size=2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ud.UndriftError, match=re.escape("pip install 'undrift[report]'")):
        plot_surface(found, "never.png")


LINE = [torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([3.0, 3.0])]
SPAN = [torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([3.0, 0.0])]
NET, ROWS = testing.small_net(), testing.small_clients().inputs
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "line": (lambda: surface(LINE, valley), "models that span a plane"),
    "twice": (
        lambda: surface([SPAN[0], SPAN[0], SPAN[1]], valley),
        "three on a line have no plane",
    ),
    "third-is-first": (lambda: surface([SPAN[0], SPAN[1], SPAN[0]], valley), "span a plane"),
    "two": (lambda: surface(SPAN[:2], valley), "three vectors of one length, got [(2,), (2,)]"),
    "lengths": (
        lambda: surface([*SPAN[:2], torch.zeros(3)], valley),
        "three vectors of one length",
    ),
    "nan": (lambda: surface([*SPAN[:2], torch.full((2,), torch.nan)], valley), "finite models"),
    "size": (lambda: surface(SPAN, valley, size=1), "size >= 2, a whole number, got 1"),
    "margin": (lambda: surface(SPAN, valley, margin=-1), "margin >= 0"),
    "since": (lambda: Drift(since="serve"), "got 'serve'; the nearest is 'server'"),  # type: ignore[arg-type]
    "pair": (lambda: Drift(cka=NET), "Drift needs cka as (model, inputs)"),  # type: ignore[arg-type]
    "inputs": (lambda: Drift(cka=(NET, ROWS[:2])), "at least three inputs, got (2, 6)"),
    "no-model": (lambda: Drift(cka=(ROWS, ROWS)), "an nn.Module as model"),  # type: ignore[arg-type]
    "parameters": (
        lambda: cka(NET, torch.zeros(83).double(), torch.zeros(7).double(), ROWS),
        "vectors of the model's 83 parameters, got (7,)",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=list(BAD))
def test_bad_input_is_answered(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
