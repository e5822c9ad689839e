"""Compressed: contract, counted bytes, error feedback, keyed draws, limits, refusals."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.problems import bed
from tests.support.runs import distance, on_net, on_quadratics
from undrift import testing, tree
from undrift.algorithms.compressed import Compressed, CompressedClient
from undrift.comm.codecs import QSGD, ScaledSign, TopK, Wire
from undrift.core import Prelude

LR = 0.1
D = 83  # of the small net
MODES = ["loop", "stacked"]
CHECKED = [
    Compressed(ud.FedAvg(lr=LR), QSGD()),
    Compressed(ud.FedACG(lr=LR), QSGD(bits=8)),
    Compressed(ud.Scaffold(lr=LR), ScaledSign(), error_feedback=True),
    Compressed(ud.FedAvg(lr=LR), TopK(0.25), error_feedback=True),
    Compressed(ud.Scaffold(lr=LR), QSGD(bits=6, bucket="tensor")),
    Compressed(ud.FedAvg(lr=LR), QSGD(bits=6, bucket=10), error_feedback=True),
]
INNERS = [
    *(cls(lr=LR) for cls in (ud.FedAvg, ud.FedProx, ud.Scaffold, ud.FedSpeed, ud.FedACG)),
    ud.FedaGrac(lr=LR),
    ud.Scaffold(lr=LR, option="I"),
]


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("algorithm", CHECKED, ids=repr)
def test_contract(algorithm: Any, check: Any) -> None:
    check(algorithm)


@pytest.mark.parametrize("inner", INNERS, ids=repr)
@pytest.mark.parametrize(
    ("codec", "feedback"), [(QSGD(levels=100), True), (QSGD(levels=3), False)], ids=repr
)
@pytest.mark.wide(daily=lambda case: case["feedback"])
def test_stacked_equals_loop(inner: Any, codec: Any, feedback: bool) -> None:
    algorithm = Compressed(inner, codec, error_feedback=feedback)
    one, other = (on_net(algorithm, mode=mode, participation=3) for mode in MODES)
    held = [(run.state, [run.client_states[i] for i in range(4)]) for run in (one, other)]
    for a, b in zip(tree.leaves(held[0]), tree.leaves(held[1]), strict=True):
        assert a.shape == b.shape
        assert not a.numel() or distance(a, b) < 1e-12
    assert one.totals.bytes_up == other.totals.bytes_up


# --- bytes

SENT: list[bytes] = []


@dataclass(frozen=True)
class Transported(Compressed):
    """Every buffer that `pack` hands over goes through a transport that counts what it gets."""

    def pack(self, up: Any, client: Any, steps: Any) -> Any:
        wire, client = super().pack(up, client, steps)
        SENT.extend(leaf.numpy().tobytes() for leaf in tree.leaves(wire))
        return wire, client


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("inner", "codec", "per_vector"),
    [
        (ud.FedAvg(lr=LR), QSGD(), lambda item: D + item),
        (ud.FedACG(lr=LR), QSGD(levels=3), lambda item: 32 + item),  # 249 bits
        (ud.Scaffold(lr=LR), QSGD(bucket=10), lambda item: D + 9 * item),
        (ud.FedACG(lr=LR), QSGD(bucket="tensor"), lambda item: D + 4 * item),
        (ud.Scaffold(lr=LR), ScaledSign(), lambda item: 11 + item),
        (ud.FedAvg(lr=LR), TopK(0.25), lambda item: 21 * (4 + item)),
        (ud.FedaGrac(lr=LR), TopK(k=5), lambda item: 5 * (4 + item)),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_bytes_are_the_lengths_of_the_buffers_sent(
    inner: Any, codec: Any, per_vector: Any, dtype: torch.dtype
) -> None:
    vectors = 2 if isinstance(inner, ud.Scaffold | ud.FedaGrac) else 1
    run = testing.start(Transported(inner, codec), dtype=dtype, rounds=2)
    stacked = testing.start(Compressed(inner, codec), dtype=dtype, rounds=2, mode="stacked")
    plain = testing.start(inner, dtype=dtype, rounds=2)
    SENT.clear()
    for record, other, uncompressed in zip(run, stacked, plain, strict=True):
        assert record.bytes_up == sum(map(len, SENT))
        assert record.bytes_up == 3 * vectors * per_vector(dtype.itemsize)
        assert other.bytes_up == record.bytes_up
        assert record.bytes_down == other.bytes_down == uncompressed.bytes_down
        SENT.clear()


def test_eight_bits_are_a_quarter_up_and_five_eighths_in_all() -> None:
    options: dict[str, Any] = {"dtype": torch.float32, "rounds": 1}
    record = next(testing.start(Compressed(ud.FedACG(lr=LR), QSGD(bits=8)), **options))
    plain = next(testing.start(ud.FedACG(lr=LR), **options))
    scalar = 3 * 4  # one norm from each of three clients
    assert record.bytes_up - scalar == 0.25 * plain.bytes_up
    total = record.bytes_up + record.bytes_down - scalar
    assert total == 0.625 * (plain.bytes_up + plain.bytes_down)


class Mixed(NamedTuple):
    x: Tensor
    again: Tensor
    number: Tensor
    few: Tensor


@dataclass(frozen=True)
class Several(ud.FedAvg):
    """Two vectors, a scalar and a short vector in one upload."""

    def local(self, down: Any, client: Any, steps: Any) -> Any:
        d, client = super().local(down, client, steps)
        return Mixed(d, d.clone(), d.sum(), d[:3]), client

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        return super().update(server, (mean.x + mean.again) / 2 + 0 * mean.number, cohort)


@pytest.mark.parametrize("mode", MODES)
def test_only_vectors_are_coded_each_with_draws_of_its_own(mode: str) -> None:
    taps: list[ud.Upload] = []
    exact: list[ud.Upload] = []
    run = testing.start(Compressed(Several(lr=LR), QSGD()), tap=taps.append, rounds=1, mode=mode)
    record = next(run)
    next(testing.start(Several(lr=LR), tap=exact.append, rounds=1, mode=mode))
    assert record.bytes_up == 3 * (2 * (D + 8) + 8 + 3 * 8)
    for coded, plain in zip(taps, exact, strict=True):
        assert torch.equal(coded.upload.number, plain.upload.number)
        assert torch.equal(coded.upload.few, plain.upload.few)
        step = plain.upload.x.norm() / 127
        assert distance(coded.upload.x, plain.upload.x) <= step
        differ = (coded.upload.x != coded.upload.again).double().mean()
        assert 0.1 < differ < 0.6, "equal vectors of one upload must round independently"


@pytest.mark.parametrize("mode", MODES)
def test_draws_are_keyed_by_seed_round_and_client(mode: str) -> None:
    """Equal clients at a model that stays: only the draws can make two uploads differ."""

    def uploads(seed: int) -> dict[tuple[int, int], Tensor]:
        seen: dict[tuple[int, int], Tensor] = {}
        clients = testing.small_clients((8, 8))
        pair = ud.Clients([(clients.inputs[:8], clients.targets[:8])] * 2)
        on_net(
            Compressed(ud.FedAvg(lr=LR, server_lr=0.0), QSGD()),
            mode=mode,
            rounds=2,
            work=ud.Steps(1),
            clients=pair,
            batch_size=None,
            model=testing.small_net(dropout=0.0),
            seed=seed,
            tap=lambda up: seen.__setitem__((up.round, up.client), up.upload),
        )
        return seen

    one = uploads(0)
    assert all(torch.equal(one[key], other) for key, other in uploads(0).items())
    different = [one[1, 0], one[1, 1], one[2, 0], one[2, 1], uploads(1)[1, 0]]
    for i, a in enumerate(different):
        assert (a.abs() > 0).any()
        for b in different[:i]:
            assert not torch.equal(a, b)


# --- what compression does to training


def test_many_levels_follow_the_uncompressed_run() -> None:
    for inner in (ud.FedACG(lr=LR), ud.Scaffold(lr=LR)):
        plain = on_net(inner, mode="loop").x
        gaps = [
            distance(on_net(Compressed(inner, QSGD(levels=s)), mode="loop").x, plain)
            for s in (10, 1000, 2**24)
        ]
        assert gaps[0] > 30 * gaps[1] > 0
        assert 0 < gaps[2] < 1e-6
    assert distance(on_net(Compressed(inner, TopK(1.0)), mode="loop").x, plain) == 0


def test_quantised_uploads_are_unbiased() -> None:
    """Five hundred equal clients: the mean upload is the uncompressed one, within 5 errors."""
    problem, sent = bed(clients=1, dim=6), list[Tensor]()
    same = ud.Clients([(problem.clients.inputs, problem.clients.targets)] * 500)
    many = dataclasses.replace(problem, clients=same)
    exact = on_quadratics(ud.FedAvg(lr=LR), problem, rounds=1).x
    algorithm = Compressed(ud.FedAvg(lr=LR), QSGD(levels=2))
    on_quadratics(algorithm, many, rounds=1, tap=lambda up: sent.append(up.upload))
    uploads = torch.stack(sent)
    assert ((uploads.mean(0) - exact).abs() <= 5 * uploads.std(0) / 500**0.5).all()
    assert (uploads.std(0) > 0.1 * exact.norm() / 2).any()


@pytest.mark.parametrize("codec", [ScaledSign(), TopK(0.34), QSGD(levels=4)], ids=repr)
@pytest.mark.parametrize("mode", MODES)
def test_error_feedback_telescopes(codec: Any, mode: str) -> None:
    """x_t + mean e_t = x_0 + sum_s mean D(x_s): nothing is lost, only late. Unequal weights."""
    problem = bed(clients=5, dim=7)
    weights = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05], dtype=torch.float64)
    algorithm = Compressed(ud.FedAvg(lr=0.3), codec, error_feedback=True)
    run = ud.simulate(
        algorithm,
        problem.model(),
        problem.clients,
        loss=problem.loss,
        work=ud.Steps(1),
        weighting=weights.tolist(),
        rounds=12,
        mode=mode,  # type: ignore[arg-type]
    )
    total = run.x.clone()
    for _ in range(12):
        x = run.x
        gradients = torch.einsum("ijk,ik->ij", problem.A, x - problem.b)
        total = total - 0.3 * weights @ gradients
        next(run)
        left = torch.stack([run.client_states[i].residual[0] for i in range(5)])
        assert distance(run.x + weights @ left, total) < 1e-13
        assert left.norm() > 0.01


@pytest.mark.parametrize("mode", MODES)
def test_scaffold_server_dual_is_the_mean_less_the_residuals(mode: str) -> None:
    """c = sum_i w_i (c_i - e_i) at every round, absent clients included."""
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    algorithm = Compressed(ud.Scaffold(lr=LR), ScaledSign(), error_feedback=True)
    run = testing.start(algorithm, weighting=weights.tolist(), participation=2, rounds=6, mode=mode)
    for _ in run:
        mean = exact = torch.zeros(D).double()
        for i, state in run.client_states.items():
            mean = mean + weights[i] * (state.inner - state.residual[1])
            exact = exact + weights[i] * state.inner
        assert distance(run.state.c, mean) < 1e-13
        assert distance(run.state.c, exact) > 1e-3
    assert len(run.client_states) == 4


def test_top_k_needs_error_feedback() -> None:
    """Without it the run stops where the largest entries cancel; with it SCAFFOLD is exact."""
    problem = bed(clients=3, dim=4, condition=3.0)
    ends = [
        on_quadratics(
            Compressed(ud.Scaffold(lr=0.3), TopK(k=1), error_feedback=feedback),
            problem,
            rounds=150,
            work=1,
            mode="stacked",
        ).x
        for feedback in (False, True)
    ]
    gaps = [distance(x, problem.optimum()) for x in ends]
    assert gaps[1] < 1e-10
    assert gaps[0] > 0.3


def test_a_residual_waits_for_its_client() -> None:
    algorithm = Compressed(ud.FedAvg(lr=LR), TopK(k=3), error_feedback=True)
    run = testing.start(algorithm, participation=[[0, 1], [1, 2], [0, 2]], rounds=3)
    next(run)
    first = run.client_states[0].residual
    assert first.shape == (1, D)
    assert first.norm() > 0
    next(run)
    assert torch.equal(run.client_states[0].residual, first)
    next(run)
    assert not torch.equal(run.client_states[0].residual, first)


@pytest.mark.parametrize("mode", MODES)
def test_resume_with_residuals_is_bit_identical(mode: str, tmp_path: Path) -> None:
    algorithm = Compressed(ud.Scaffold(lr=LR), QSGD(levels=20), error_feedback=True)
    options: dict[str, Any] = {"mode": mode, "participation": 2, "rounds": 6}
    whole = testing.start(algorithm, **options)
    testing.finish(whole)
    testing.finish(testing.start(algorithm, **(options | {"rounds": 3}), checkpoint=tmp_path))
    rest = testing.start(algorithm, **options, resume=tmp_path)
    assert all(state.residual.shape == (2, D) for state in rest.client_states.values())
    testing.finish(rest)
    held = [(run.state, [run.client_states[i] for i in sorted(run.client_states)])
            for run in (whole, rest)]  # fmt: skip
    for a, b in zip(tree.leaves(held[0]), tree.leaves(held[1]), strict=True):
        assert torch.equal(a, b)


def test_a_resume_with_another_codec_is_refused(tmp_path: Path) -> None:
    testing.finish(testing.start(CHECKED[0], rounds=1, checkpoint=tmp_path))
    with pytest.raises(ud.CheckpointError, match="algorithm"):
        testing.start(Compressed(ud.FedAvg(lr=LR), QSGD(bits=4)), resume=tmp_path)


def test_schedules_reach_inner_and_codec() -> None:
    plain = on_net(Compressed(ud.FedAvg(lr=0.2), QSGD(bits=4)), mode="loop", rounds=1)
    changing = Compressed(
        ud.FedAvg(lr=ud.piecewise(0.2, {1: 0.1})), QSGD(bits=ud.piecewise(4, {1: 8}))
    )
    run = on_net(changing, mode="loop", rounds=1)
    assert torch.equal(run.x, plain.x)
    longer = on_net(changing, mode="loop", rounds=2)
    assert longer.totals.bytes_up == 4 * (42 + 8) + 4 * (83 + 8)


# --- composition and refusals


@dataclass(frozen=True)
class Halved(ud.FedAvg):
    """A method with a wire format of its own: it sends halves and an integer vector."""

    def pack(self, up: Any, client: Any, steps: Any) -> Any:
        return (up / 2, torch.ones_like(up, dtype=torch.int32)), client

    def unpack(self, wire: Any) -> Any:
        return 2 * wire[0]


def test_the_inner_wire_format_is_kept() -> None:
    plain = on_net(Halved(lr=LR), mode="loop").x
    for feedback in (False, True):
        algorithm = Compressed(Halved(lr=LR), QSGD(levels=2**24), error_feedback=feedback)
        run = on_net(algorithm, mode="stacked")
        assert distance(run.x, plain) < 1e-6
        assert run.record is not None
        assert run.record.bytes_up == 4 * (-(-D * 26 // 8) + 8 + 4 * D)


WITH_SERVER = [cls for cls in ud.ALGORITHMS if issubclass(cls, ud.Federated)]


@pytest.mark.parametrize("cls", WITH_SERVER, ids=lambda cls: cls.__name__)
def test_every_method_is_wrapped_or_refused(cls: Any) -> None:
    """The residuals of a client that has not sent anything yet have their final shape."""
    inner = cls(lr=LR)
    if isinstance(inner, Prelude) and inner.asks != "nobody":
        with pytest.raises(ValueError, match="one exchange a round"):
            Compressed(inner, QSGD())
        return
    x0 = torch.arange(7.0)
    down = inner.broadcast(inner.init(x0))
    state = Compressed(inner, ScaledSign(), error_feedback=True).init_client(x0, down)
    sent = 2 if cls in (ud.Scaffold, ud.FedaGrac) else 1
    assert state.residual.shape[0] >= sent
    assert not state.residual.any()


@dataclass(frozen=True)
class Asking(ud.FedAvg):
    """A method that makes demands of the model and holds a mean over the population."""

    def check(self, model: Any) -> None:
        raise ValueError(f"Asking needs another model, got {model}")

    def enrol(self, server: Any, share: float) -> Any:
        return share * server


def test_everything_else_is_the_inner_method() -> None:
    missing = [
        name
        for name, member in vars(ud.Federated).items()
        if callable(member) and not name.startswith("_") and name not in vars(Compressed)
    ]
    assert not missing, "a part of the contract that the wrapper would swallow"
    algorithm = Compressed(Asking(lr=LR), QSGD())
    with pytest.raises(ValueError, match="another model, got 3"):
        algorithm.check(3)  # type: ignore[arg-type]
    assert algorithm.enrol(4.0, 0.5) == 2.0


class TwoExchanges(Prelude[Any, Any, Any, Any]):
    init = init_client = broadcast = local = update = ask = answer = hear = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Around(ud.FedAvg):
    inner: Any = None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Compressed(TwoExchanges(), QSGD()), "one exchange a round, got TwoExchanges"),
        (lambda: Compressed(CHECKED[0], QSGD()), "not compressed already"),
        (lambda: Compressed(Around(LR, inner=CHECKED[0]), QSGD()), "not compressed already"),
        (lambda: Compressed("FedAvg", QSGD()), "a method with a server"),  # type: ignore[arg-type]
        (lambda: Compressed(ud.FedAvg(lr=LR), 8), "a codec such as"),  # type: ignore[arg-type]
        (lambda: Compressed(ud.FedAvg(lr=LR), QSGD), "a codec such as"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("mode", [*MODES, "auto"])
@pytest.mark.parametrize(
    ("codec", "feedback", "message"),
    [
        (TopK(k=84), False, "k <= 83, the model's size, got 84; lower k"),
        (QSGD(levels=9), True, r"error < 1 for error_feedback, got QSGD\(.*with 1.01 on 83"),
    ],
)
def test_an_unfit_codec_is_refused_before_any_work(
    codec: Any, feedback: bool, message: str, mode: str
) -> None:
    algorithm = Compressed(ud.FedAvg(lr=LR), codec, error_feedback=feedback)
    with pytest.raises((ValueError, ud.UndriftError), match=message):
        testing.start(algorithm, mode=mode)


@pytest.mark.parametrize(
    ("codec", "feedback", "message"),
    [
        (TopK(k=ud.piecewise(5, {1: 500})), False, "k <= 83"),
        (QSGD(levels=ud.piecewise(100, {1: 3})), True, "error < 1 for error_feedback"),
    ],
)
def test_a_scheduled_codec_that_becomes_unfit_stops_the_run(
    codec: Any, feedback: bool, message: str
) -> None:
    run = testing.start(Compressed(ud.FedAvg(lr=LR), codec, error_feedback=feedback))
    next(run)
    with pytest.raises(ValueError, match=message):
        next(run)
    assert run.round == 1


def test_feedback_with_too_few_levels_would_grow() -> None:
    """Why it is refused: with error above one the residual grows from round to round."""

    @dataclass(frozen=True)
    class Blind(QSGD):
        def error(self, size: int) -> float:
            return 0.0

    sizes = []
    for levels in (1, 40):
        algorithm = Compressed(ud.FedAvg(lr=LR), Blind(levels=levels), error_feedback=True)
        run = testing.start(algorithm, rounds=12, participation=1.0)
        norms = [max(float(s.residual.norm()) for s in run.client_states.values()) for _ in run]
        sizes.append(norms[-1] / norms[1])
    assert sizes[0] > 20
    assert sizes[1] < 3


def test_state_is_a_value_and_holds_no_bytes_without_feedback() -> None:
    run = testing.start(CHECKED[1])
    testing.finish(run)
    for state in run.client_states.values():
        assert isinstance(state, CompressedClient)
        assert tree.nbytes(state) == 0
        assert state.residual.shape == (0, D)
    wire = QSGD().encode(torch.ones(5), lambda purpose, like: like * 0)
    assert isinstance(wire, Wire)
    assert dataclasses.replace(CHECKED[1], codec=QSGD()) == CHECKED[1]
