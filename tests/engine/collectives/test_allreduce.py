"""Routes, merges and meters of the all-reduces.

A route is checked by itself (who holds what after every step), then each merge on every route,
against NumPy or against exact probabilities. Where chance is sampled, frequencies are held to five
standard deviations, which a right generator misses once in 1.7 million; the keys are fixed, so a
test that passes passes always.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from undrift import DivergenceError, UndriftError, keyed
from undrift.comm import bits, routes
from undrift.comm.merges import Cascade, Largest, Mean, Norm, OneBit, OwnNorm, SignSum
from undrift.comm.routes import Piece, Ring, Route, SegmentedRing, Server, Torus, Tree
from undrift.core import Merge
from undrift.engine.collectives import reduction, schedule
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.collectives.inprocess import InProcessExchange, Loopback
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.world import RankBlocks

SIZES = [1, 2, 3, 5, 8, 17, 36]
CODES = ["fixed", "gamma", "delta", "omega"]
SIGMAS = 5.0


def sides(workers: int) -> list[tuple[int, int]]:
    return [(x, workers // x) for x in range(1, workers + 1) if workers % x == 0]


def all_routes(workers: int) -> list[Route]:
    tori = [Torus(x, y) for x, y in sides(workers)]
    return [Ring(), SegmentedRing(3), SegmentedRing(9), *tori, Tree(), Server()]


ROUTES = [(route, workers) for workers in range(1, 10) for route in all_routes(workers)]
FEW = [(route, workers) for route, workers in ROUTES if workers in (2, 3, 6)]


def name_of(value: Any) -> str | None:
    if isinstance(value, Torus):
        return f"torus{value.x}x{value.y}"
    if isinstance(value, SegmentedRing):
        return f"segments{value.segment}"
    return type(value).__name__.lower() if isinstance(value, Route) else None


everywhere = pytest.mark.parametrize(("route", "workers"), ROUTES, ids=name_of)
often = pytest.mark.parametrize(("route", "workers"), FEW, ids=name_of)


def one_prime_or_composite(parameters: Mapping[str, Any]) -> bool:
    """Return whether a worker is alone, or workers fit no true torus, or several of them."""
    return parameters["workers"] in (1, 6, 7)


def vectors(
    workers: int, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    rng = keyed.generator(seed, "test-allreduce", workers, size)
    return torch.tensor(rng.normal(size=(workers, size)), dtype=dtype)


def reduced(
    rows: Tensor, how: Merge, route: Route, *, t: int = 0, seed: int = 0
) -> tuple[Tensor, Traffic]:
    exchange = exchange_of(len(rows), route, t, seed)
    return exchange.reduce([rows], how), exchange.traffic


def exchange_of(workers: int, route: Route | None, t: int = 0, seed: int = 0) -> InProcessExchange:
    return InProcessExchange(
        size=workers, topology=None, route=route, t=t, seed=seed, traffic=Traffic(workers)
    )


def in_memory(rows: Sequence[Tensor], how: Merge, route: Route, draws: Any) -> Tensor:
    """The result of an all-reduce whose draws are the caller's."""
    vectors = {worker: [row] for worker, row in enumerate(rows)}
    return all_reduce(
        Loopback(), vectors, how, route, [draws], blocks=RankBlocks(len(rows), 1)
    ).vectors[0]


# Routes


def pieces_of(size: int, parts: int) -> list[Piece]:
    cut = np.array_split(np.arange(size), parts)
    return [Piece(int(c[0]), int(c[-1]) + 1) if len(c) else Piece(0, 0) for c in cut]


def carrying(step: routes.Step) -> list[tuple[int, int, Piece]]:
    return sorted(tuple(send) for send in step.sends if send.piece.stop > send.piece.start)


@pytest.mark.parametrize("workers", range(1, 10))
def test_the_ring_is_the_textbooks_send_by_send(workers):
    for size in SIZES:
        M, chunk = workers, pieces_of(size, workers)
        expected = []
        for s in range(M - 1):  # reduce: worker m sends chunk m - s, merges chunk m - s - 1
            sends = [(m, (m + 1) % M, chunk[(m - s) % M]) for m in range(M)]
            for m in range(M):
                assert ((m - 1) % M, m, chunk[(m - s - 1) % M]) in sends
            expected.append((True, sends))
        for s in range(M - 1):  # gather: worker m sends chunk m + 1 - s, overwrites chunk m - s
            sends = [(m, (m + 1) % M, chunk[(m + 1 - s) % M]) for m in range(M)]
            for m in range(M):
                assert ((m - 1) % M, m, chunk[(m - s) % M]) in sends
            expected.append((False, sends))
        made = list(Ring().steps(M, size))
        assert [step.merging for step in made] == [merging for merging, _ in expected]
        for step, (_, sends) in zip(made, expected, strict=True):
            assert carrying(step) == sorted(s for s in sends if s[2].stop > s[2].start)


@everywhere
def test_every_contribution_is_merged_once_and_reaches_everybody(route, workers):
    """Worker by worker and coordinate by coordinate, whose vectors its share is made of."""
    for size in SIZES:
        M = workers
        held = np.zeros((M + 1, size, M), int)  # the last row is a server's, which has no vector
        held[:M] = np.eye(M, dtype=int)[:, None]
        finished = np.zeros((M + 1, size), bool)
        copying = False
        for step in route.steps(M, size):
            before, complete = held.copy(), finished.copy()
            assert step.merging or not copying or not finished.all()
            copying = copying or not step.merging
            assert not (copying and step.merging), "a merge after the first copy"
            arrived: Counter[tuple[int, int]] = Counter()
            for sender, receiver, piece in step.sends:
                assert sender != receiver
                part = slice(*piece)
                if step.merging:
                    held[receiver, part] += before[sender, part]
                    held[sender, part] -= before[sender, part]  # handed over
                else:
                    whole = (before[sender, part] == 1).all(1) | complete[sender, part]
                    assert whole.all(), "copied before it was finished"
                    held[receiver, part] = before[sender, part]
                    finished[receiver, part] = finished[sender, part] = True
                if not isinstance(route, Server):
                    arrived.update((receiver, j) for j in range(*piece))
            assert max(arrived.values(), default=1) == 1, "two messages for one place in one step"
        assert (held[:M] == 1).all()


@everywhere
def test_hops(route, workers):
    M, expected = workers, 0
    size = 36
    if isinstance(route, Ring):
        expected = 2 * (M - 1)
    elif isinstance(route, SegmentedRing):
        expected = (math.ceil(size / route.segment) + 1) * (M - 1)
    elif isinstance(route, Torus):
        expected = 2 * (route.x - 1) + 2 * (route.y - 1)
    elif isinstance(route, Tree):
        expected = 2 * math.ceil(math.log2(M))
    else:
        expected = 2
    assert reduced(vectors(M, size), Mean(), route)[1].hops == expected


@everywhere
@pytest.mark.wide(daily=one_prime_or_composite)
def test_bytes_in_full_precision(route, workers):
    for size, dtype in product(SIZES, (torch.float32, torch.float64)):
        M, V = workers, size * dtype.itemsize
        _, traffic = reduced(vectors(M, size, dtype=dtype), Mean(), route)
        if isinstance(route, Server):
            assert (traffic.up, traffic.down) == (M * V, M * V)
        else:
            assert (traffic.up, traffic.down) == (2 * (M - 1) * V, 0)
        sent = traffic.links[:M].sum(1)
        assert traffic.per_worker == sent.max()
        assert traffic.per_link == traffic.links.max()
        if traffic.coordinates:
            assert traffic.bits == 8 * dtype.itemsize
            assert traffic.coordinates * dtype.itemsize == traffic.up + traffic.down
        if isinstance(route, Ring | Torus) and size % M == 0:
            assert (sent == 2 * (M - 1) * V // M).all()


def test_bytes_per_link():
    traffic = reduced(vectors(4, 8), Mean(), Ring())[1]
    expected = np.zeros((5, 5), int)
    for m in range(4):
        expected[m, (m + 1) % 4] = 2 * 3 * 2 * 8  # 2(M - 1) chunks of 2 coordinates
    assert (traffic.links == expected).all()
    traffic = reduced(vectors(6, 12), Mean(), Torus(3, 2))[1]
    right, down = 2 * 2 * 4 * 8, 2 * 2 * 8  # 2(X - 1) chunks of D / X; 2(Y - 1) of D / (X Y)
    assert traffic.links[0, 1] == traffic.links[5, 3] == right
    assert traffic.links[0, 3] == traffic.links[3, 0] == down
    assert traffic.links.sum() == 6 * (right + down)


@pytest.mark.parametrize("segment", [1, 4, 5, 7, 40])
def test_segments_bound_what_a_ring_merges(segment):
    steps = list(SegmentedRing(segment).steps(4, 21))
    longest = max(p.stop - p.start for step in steps if step.merging for _, _, p in step.sends)
    assert longest == math.ceil(min(segment, 21) / 4)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize(
    "how", [Mean(), SignSum("gamma"), Cascade(), OneBit()], ids=lambda h: type(h).__name__
)
def test_a_torus_of_one_row_or_column_is_the_ring_bit_for_bit(workers, how):
    for size in (1, 7, 40):
        rows = vectors(workers, size)
        ring, carried = reduced(rows, how, Ring())
        for torus in (Torus(1, workers), Torus(workers, 1)):
            made, traffic = reduced(rows, how, torus)
            assert torch.equal(made, ring)
            assert (traffic.links == carried.links).all()


@pytest.mark.parametrize(
    ("text", "workers", "expected"),
    [
        ("ring", 5, Ring()),
        (" Ring ", 5, Ring()),
        ("segmented-ring", 5, SegmentedRing()),
        ("segmented-ring:65536", 5, SegmentedRing(65536)),
        ("torus:2x4", 8, Torus(2, 4)),
        ("tree", 7, Tree()),
        ("server", 7, Server()),
        (Torus(3, 2), 6, Torus(3, 2)),
    ],
    ids=str,
)
def test_routes_by_name(text, workers, expected):
    assert routes.parse(text, workers) == expected


@pytest.mark.parametrize(("workers", "shape"), [(12, {3, 4}), (16, {4}), (7, {1, 7}), (1, {1})])
def test_a_torus_without_sides_is_the_most_square(workers, shape):
    torus = routes.parse("torus", workers)
    assert {torus.x, torus.y} == shape


REFUSED = {
    "torus:2x3": "The torus needs sides whose product is the number of workers, 4, got '2x3'.",
    "torus:2": "allreduce needs sides, such as torus:2x4, got 'torus:2'.",
    "torus:2x2x1": "allreduce needs sides, such as torus:2x4, got 'torus:2x2x1'.",
    "torus:0x4": r"Torus needs whole sides >= 1, got (0, 4).",
    "torus:axb": "allreduce needs sides, such as torus:2x4, got 'torus:axb'.",
    "segmented-ring:0": "SegmentedRing needs segment >= 1, a whole number, got 0.",
    "segmented-ring:": "allreduce needs a segment, such as segmented-ring:65536, "
    "got 'segmented-ring:'.",
    "ring:3": "allreduce needs ring without a number, got 'ring:3'.",
    "rign": "allreduce needs it to be one of ring, segmented-ring, torus, tree, server, "
    "got 'rign'; the nearest is 'ring'.",
}


@pytest.mark.parametrize("text", REFUSED)
def test_bad_routes_are_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=f"^{re.escape(REFUSED[text])}$"):
        routes.parse(text, 4)


def test_what_is_no_route_is_refused():
    with pytest.raises(ValueError, match=r"^allreduce needs one of ring, .*, got 3\.$"):
        routes.parse(3, 4)
    with pytest.raises(ValueError, match=r"^The torus needs sides .* workers, 4, got '5x1'\.$"):
        routes.parse(Torus(5, 1), 4)
    exchange = exchange_of(2, None)
    with pytest.raises(UndriftError, match="needs a route"):
        exchange.reduce([torch.zeros(2, 3)], Mean())


# An all-reduce in which every worker is on its own


def alone(rows: Tensor, how: Merge, route: Route, *, t: int = 0, seed: int = 0) -> list[Tensor]:
    """What each worker ends with; workers share nothing but the buffers they send."""
    M, size = rows.shape
    shares: list[dict[Piece, tuple[Any, int]]] = [{} for _ in range(M + 1)]
    done: list[dict[Piece, Tensor]] = [{} for _ in range(M + 1)]

    def rng(purpose: str, *place: int) -> np.random.Generator:
        return keyed.generator(seed, f"allreduce/{purpose}", t, 0, *place)

    def held(m: int, piece: Piece) -> tuple[Any, int]:
        if piece not in shares[m]:
            share = how.start(rows[m, slice(*piece)].clone(), rng("start", m, piece.start))
            shares[m][piece] = share, 1
        return shares[m][piece]

    def finished(m: int, piece: Piece) -> Tensor:
        if piece not in done[m]:
            share, count = held(m, piece)
            assert count == M, "closed before every worker was in"
            done[m][piece] = how.encode_result(share, count, rng("close", m, piece.start))
        return done[m][piece]

    for step in route.steps(M, size):
        post = []
        for sender, receiver, piece in step.sends:
            if piece.stop == piece.start:
                continue
            if step.merging:
                share, count = held(sender, piece)
                draws = rng("send", sender, piece.start, count)
                post.append((receiver, piece, how.send(share, count, draws).clone(), count))
            else:
                post.append((receiver, piece, finished(sender, piece).clone(), M))
        for receiver, piece, data, count in post:
            if not step.merging:
                done[receiver][piece] = data
                continue
            came = how.receive(data, count, rows[0, slice(*piece)])
            if receiver == M and piece not in shares[M]:
                shares[M][piece] = came, count
                continue
            share, before = held(receiver, piece)
            draws = rng("merge", receiver, piece.start, count, before)
            prepared = how.prepare(count, share, before, draws)
            shares[receiver][piece] = (
                how.merge(came, count, share, before, prepared),
                count + before,
            )
    results = []
    for m in range(M):
        if M == 1 and not done[0]:
            finished(0, Piece(0, size))
        made = torch.full((size,), math.nan, dtype=rows.dtype)
        for piece, data in done[m].items():
            made[slice(*piece)] = how.decode_result(data, M, rows[m, slice(*piece)])
        assert not made.isnan().any(), "a piece never came"
        results.append(made)
    return results


MERGES = [
    Mean(),
    Largest(),
    SignSum(),
    SignSum("omega"),
    SignSum(vote=True),
    SignSum("delta", stochastic=True),
    Cascade(),
    Cascade("inf"),
    OwnNorm(),
    OwnNorm("inf"),
    OneBit(),
]


@pytest.mark.parametrize("how", MERGES, ids=str)
def test_all_workers_end_with_the_same_bits_and_the_engine_with_theirs(how):
    for route, workers in FEW:
        for size in (1, 17):
            rows = vectors(workers, size)
            rows = rows / rows.abs().max()  # for the stochastic signs
            made, _ = reduced(rows, how, route, t=3, seed=7)
            for own in alone(rows, how, route, t=3, seed=7):
                assert torch.equal(own, made)


# Merges


@everywhere
def test_mean_and_largest(route, workers):
    for size in SIZES:
        rows = vectors(workers, size)
        kept = rows.clone()
        mean = reduced(rows, Mean(), route)[0]
        scale = rows.abs().mean(0)
        assert ((mean - rows.mean(0)).abs() <= 1e-15 * workers * scale).all()
        assert torch.equal(reduced(rows, Largest(), route)[0], rows.max(0).values)
        assert torch.equal(rows, kept), "the vectors were changed"


CODED = [(*case, "fixed") for case in ROUTES] + [(*case, c) for case in FEW for c in CODES[1:]]


@pytest.mark.parametrize(("route", "workers", "code"), CODED, ids=name_of)
@pytest.mark.wide(daily=one_prime_or_composite)
def test_sums_of_signs_are_exact(route, workers, code):
    for size in SIZES if code == "fixed" else [workers + 2]:
        rows = vectors(workers, size)
        rows[:, 0] = 0.0  # sign(0) = +1
        rows[0, -1] = -0.0
        signs = np.where(rows.numpy() >= 0, 1, -1)
        mean = reduced(rows, SignSum(code), route)[0]
        assert np.array_equal(mean.numpy(), signs.sum(0) / workers)
        if code == "fixed":
            vote = reduced(rows, SignSum(vote=True), route)[0]
            assert np.array_equal(vote.numpy(), np.where(signs.sum(0) >= 0, 1.0, -1.0))


@pytest.mark.parametrize("workers", [2, 4, 6])
def test_a_tie_is_plus_one(workers):
    rows = vectors(workers, 16).abs()
    rows[: workers // 2] *= -1
    for route in all_routes(workers):
        assert torch.equal(reduced(rows, SignSum(vote=True), route)[0], torch.ones(16).double())
        assert torch.equal(reduced(rows, SignSum(), route)[0], torch.zeros(16).double())


class Sent(NamedTuple):
    share: Any
    count: int
    nbytes: int


@dataclass(frozen=True)
class Watched(Merge):
    """Another merge, with a note of everything it was asked."""

    inner: Merge
    sends: list[Sent] = field(default_factory=list)
    closes: list[Sent] = field(default_factory=list)
    merges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lossy(self):
        return self.inner.lossy

    @property
    def draws(self):
        return self.inner.draws

    def start(self, v, rng):
        return self.inner.start(v, rng)

    def send(self, share, count, rng):
        data = self.inner.send(share, count, rng)
        self.sends.append(Sent(share, count, data.numel() * data.element_size()))
        return data

    def receive(self, data, count, like):
        return self.inner.receive(data, count, like)

    def prepare(self, a, n, b, rng):
        return self.inner.prepare(a, n, b, rng)

    def merge(self, m, a, n, b, prepared):
        self.merges.append((a, b))
        return self.inner.merge(m, a, n, b, prepared)

    def encode_result(self, share, count, rng):
        data = self.inner.encode_result(share, count, rng)
        self.closes.append(Sent(share, count, data.numel() * data.element_size()))
        return data

    def decode_result(self, data, count, like):
        return self.inner.decode_result(data, count, like)


def watched(how: Merge, route: Route, workers: int, size: int) -> tuple[Watched, Traffic]:
    rows = vectors(workers, size)
    how = Watched(how)
    _, traffic = reduced(rows / rows.abs().max(), how, route)
    return how, traffic


@pytest.mark.parametrize("how", MERGES, ids=str)
def test_the_meter_counts_the_buffers_that_were_handed_over(how):
    for route, workers in FEW:
        for size in (1, 5, 36):
            seen, traffic = watched(how, route, workers, size)
            copies = workers if isinstance(route, Server) else workers - 1
            up = sum(sent.nbytes for sent in seen.sends)
            closed = sum(sent.nbytes for sent in seen.closes)
            assert traffic.up + traffic.down == traffic.links.sum() == up + copies * closed
            if isinstance(route, Server):
                assert traffic.up == up
            assert all(sent.count == workers for sent in seen.closes)
            merged = workers * size if isinstance(route, Server) else (workers - 1) * size
            assert traffic.coordinates == merged + copies * size


def omega(n: int) -> int:
    length = 1
    while n > 1:
        length, n = length + n.bit_length(), n.bit_length() - 1
    return length


def code_length(ones: int, count: int, code: str) -> int:
    """Bits of a partial sum of `count` signs."""
    if code == "fixed":
        return math.ceil(math.log2(count + 1))
    q = int(ones) - count // 2
    n = 2 * q if q > 0 else 1 - 2 * q
    log = int(math.log2(n))
    if code == "gamma":
        return 2 * log + 1
    return log + 2 * int(math.log2(log + 1)) + 1 if code == "delta" else omega(n)


@often
@pytest.mark.parametrize("code", CODES)
@pytest.mark.wide(daily=lambda case: case["workers"] == 6)
def test_partial_sums_take_the_bits_of_their_code(route, workers, code):
    for size in (1, 11):
        seen, _ = watched(SignSum(code), route, workers, size)
        for share, count, nbytes in seen.sends + seen.closes:
            length = sum(code_length(ones, count, code) for ones in share)
            assert nbytes == math.ceil(length / 8)
        voted, _ = watched(SignSum(code, vote=True), route, workers, size)
        assert [s.nbytes for s in voted.sends] == [s.nbytes for s in seen.sends]
        assert all(s.nbytes == math.ceil(len(s.share) / 8) for s in voted.closes)


@often
@pytest.mark.parametrize("code", CODES)
@pytest.mark.wide(daily=lambda case: case["workers"] == 6)
def test_shares_that_are_not_sent_count_the_bytes_of_sending(route, workers, code):
    """`Watched` has no `sent_bytes`, so that it sends and receives every share."""
    rows = vectors(workers, 37)
    for vote in (False, True):
        made, counted = reduced(rows, SignSum(code, vote=vote), route)
        by_bytes, sent = reduced(rows, Watched(SignSum(code, vote=vote)), route)
        assert torch.equal(made, by_bytes)
        assert (counted.links == sent.links).all()
        assert (counted.hops, counted.coordinates) == (sent.hops, sent.coordinates)


def test_two_workers_need_two_bits():
    seen, _ = watched(SignSum(), Ring(), 2, 80)
    assert [(s.count, s.nbytes) for s in seen.sends] == [(1, 5), (1, 5)]
    assert [(s.count, s.nbytes) for s in seen.closes] == [(2, 10), (2, 10)]
    seen, _ = watched(SignSum(), Ring(), 8, 64)
    widths = Counter((s.count, s.nbytes) for s in seen.sends)
    assert widths == dict.fromkeys(zip(range(1, 8), (1, 2, 2, 3, 3, 3, 3), strict=True), 8)
    assert {s.nbytes for s in seen.closes} == {4}


def test_an_unknown_code_is_refused():
    with pytest.raises(ValueError, match="needs code to be one of fixed, gamma, delta, omega"):
        SignSum("gama")


@pytest.mark.parametrize(
    ("route", "workers"), [(Ring(), 3), (Torus(2, 3), 6), (Server(), 4)], ids=name_of
)
def test_stochastic_signs_have_the_mean_of_the_vectors(route, workers):
    v = torch.linspace(-1, 1, 9, dtype=torch.float64).repeat_interleave(4000)
    rows = v * torch.linspace(0.5, 1, workers, dtype=torch.float64)[:, None]
    made = reduced(rows, SignSum(stochastic=True), route)[0].view(9, -1)
    expected = rows.mean(0).view(9, -1)[:, 0]
    spread = (1 - rows.view(workers, 9, -1)[:, :, 0] ** 2).sum(0).sqrt() / workers
    z = (made.mean(1) - expected).abs() * math.sqrt(4000)
    assert (z <= SIGMAS * spread + 1e-9).all()


# Cascade


class Fixed(NamedTuple):
    """In place of a generator: uniforms that decide every sign."""

    uniforms: np.ndarray[Any, np.dtype[np.float64]]

    def random(self, *, dtype: Any, out: Any) -> None:
        assert dtype == np.float64
        out[:] = self.uniforms


norms = pytest.mark.parametrize("norm", ["l2", "inf"])


def Q(v: Tensor, uniforms: Sequence[float], norm: Norm = "l2") -> Tensor:
    """Through the merge itself: what a worker sends and another reads."""
    sent = Cascade(norm).send(v, 1, Fixed(np.array(uniforms)))
    assert len(sent) == 8 + math.ceil(len(v) / 8)
    once = OwnNorm(norm).start(v, Fixed(np.array(uniforms)))
    own = OwnNorm(norm).send(once, 1, Fixed(np.array(uniforms)))
    assert torch.equal(own, sent), "compressed once or at every hop, the first message is the same"
    return Cascade(norm).receive(sent, 1, v)


def length(v: Tensor, norm: Norm) -> float:
    n = v.numpy()
    return math.sqrt((n * n).sum()) if norm == "l2" else float(abs(n).max())


def plus_probability(v: Tensor, norm: Norm = "l2") -> np.ndarray[Any, np.dtype[np.float64]]:
    return 0.5 + v.numpy() / (2 * length(v, norm))


@norms
def test_the_probability_of_plus_is_one_half_and_half_the_share_of_the_norm(norm):
    v = vectors(1, 12)[0]
    p, sent = plus_probability(v, norm), length(v, norm)
    assert Q(v, p - 1e-12, norm).tolist() == pytest.approx([sent] * 12, rel=1e-14)
    low = Q(v, np.minimum(p + 1e-12, 1 - 2**-53), norm).numpy()
    assert ((low < 0) == (p < 1)).all(), "only what is certain stays"
    one = torch.tensor([0.0, -3.0, 0.0]).double()  # the whole norm in one entry: sure
    assert Q(one, [0.4999, 0.0, 0.4999], norm).tolist() == [3.0, -3.0, 3.0]
    assert Q(one, [0.5, 1 - 2**-53, 0.5], norm).tolist() == [-3.0, -3.0, -3.0]


def outcomes(v: Tensor, norm: Norm = "l2") -> list[tuple[float, Tensor]]:
    """Everything that Q(v) can be, with its probability."""
    p = plus_probability(v, norm)
    made = []
    for signs in product((True, False), repeat=len(v)):
        weight = float(np.prod(np.where(signs, p, 1 - p)))
        if weight > 0:  # an entry of the maximum norm has but one sign
            made.append((weight, Q(v, np.where(signs, 0.0, 1 - 2**-53), norm)))
    return made


@norms
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_moments_of_the_compressor(dim, norm):
    v = vectors(1, dim, seed=4)[0]
    laws = outcomes(v, norm)
    square, sent = float(v @ v), length(v, norm) ** 2
    assert sum(w for w, _ in laws) == pytest.approx(1, abs=1e-14)
    assert torch.allclose(sum(w * q for w, q in laws), v, rtol=0, atol=1e-14)
    assert all(float(q @ q) == pytest.approx(dim * sent, rel=1e-14) for _, q in laws)
    error = sum(w * float((q - v) @ (q - v)) for w, q in laws)
    assert error == pytest.approx(dim * sent - square, rel=1e-13)


def test_moments_of_the_cascade_by_all_its_outcomes():
    """E C_m = v_1 + ... + v_m and E|C_m|^2 = D (E|C_(m-1)|^2 + 2 <sum v_j, v_m> + |v_m|^2)."""
    D, M = 2, 5
    v = vectors(M, D, seed=2)
    law = [(1.0, torch.zeros(D).double())]
    square, total = 0.0, torch.zeros(D).double()
    for m in range(M):
        merged = [(w, Cascade().merge(c, m, v[m], 1, None) if m else v[0]) for w, c in law]
        law = [(w * p, q) for w, share in merged for p, q in outcomes(share)]
        square = D * (square + 2 * float(total @ v[m]) + float(v[m] @ v[m]))
        total = total + v[m]
        assert torch.allclose(sum(w * c for w, c in law), total, rtol=0, atol=1e-13)
        assert sum(w * float(c @ c) for w, c in law) == pytest.approx(square, rel=1e-13)
    assert len(law) == 4**M
    assert square > 2**M * float(v[0] @ v[0])


@norms
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_own_norms_stay_below_d_g_squared_where_the_cascade_grows(workers, norm):
    """Appendix A of the thesis, exactly: E|s_2 - s_1|^2 <= D G^2 and E|s_3 - s_1|^2 by D^M.

    Both are unbiased for the mean s_1, and G is the largest 2-norm of a worker's vector.
    """
    D = 3
    v = vectors(workers, D, seed=8)
    mean, G = v.mean(0), float(v.norm(dim=1).max())
    own = [(1.0, torch.zeros(D).double())]
    cascade = own
    for m in range(workers):
        own = [(w * p, c + q) for w, c in own for p, q in outcomes(v[m], norm)]
        cascade = [(w * p, q) for w, c in cascade for p, q in outcomes(c + v[m], norm)]
    deviation = []
    for law in (own, cascade):
        made = [(w, c / workers) for w, c in law]
        assert torch.allclose(sum(w * c for w, c in made), mean, rtol=0, atol=1e-13)
        deviation.append(sum(w * float((c - mean) @ (c - mean)) for w, c in made))
    exact = sum(D * length(each, norm) ** 2 - float(each @ each) for each in v) / workers**2
    assert deviation[0] == pytest.approx(exact, rel=1e-12)
    assert deviation[0] <= D * G**2
    assert deviation[1] <= (2 * D) ** workers * G**2 / workers
    if workers == 1:
        assert deviation[1] == pytest.approx(deviation[0], rel=1e-12)
    elif norm == "l2":  # the maximum norm need not grow from one hop to the next
        assert deviation[1] > 1.5 * deviation[0]


def norm_of_its_route(parameters: Mapping[str, Any]) -> bool:
    """Return whether the norm is that with which a route is tried daily; merges meet both."""
    ringlike = isinstance(parameters["route"], Ring | Torus)
    return (parameters["norm"] == "l2") == (ringlike == (parameters["merge"] is Cascade))


@norms
@pytest.mark.parametrize("route", [Ring(), Torus(2, 2), Tree(), Server()], ids=name_of)
@pytest.mark.parametrize("merge", [Cascade, OwnNorm], ids=lambda m: m.__name__)
@pytest.mark.wide(daily=norm_of_its_route)
def test_compression_by_the_norm_is_unbiased_on_every_route(merge, route, norm):
    rows, n = vectors(4, 16), 300
    made = torch.stack([reduced(rows, merge(norm), route, t=t)[0] for t in range(n)])
    error = (made.mean(0) - rows.mean(0)).abs()
    assert (error < SIGMAS * made.std(0) / math.sqrt(n) + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f4", "f8"])
def test_own_norms_travel_as_bits_for_one_worker_and_in_full_for_several(dtype):
    for route in all_routes(4):
        seen = Watched(OwnNorm())
        made, _ = reduced(vectors(4, 23, dtype=dtype), seen, route)
        assert made.dtype == dtype
        for share, count, nbytes in seen.sends:
            bits = dtype.itemsize + math.ceil(len(share) / 8)
            assert nbytes == (bits if count == 1 else dtype.itemsize * len(share))
        assert all(nbytes == dtype.itemsize * len(share) for share, _, nbytes in seen.closes)


@often
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f4", "f8"])
def test_a_message_of_the_cascade_is_a_norm_and_a_bit_a_coordinate(route, workers, dtype):
    rows = vectors(workers, 23, dtype=dtype)
    seen = Watched(Cascade())
    made, _ = reduced(rows, seen, route)
    assert made.dtype == dtype
    for share, _, nbytes in seen.sends + seen.closes:
        assert nbytes == dtype.itemsize + math.ceil(len(share) / 8)


def test_the_cascade_of_zeros_is_zero():
    for route in all_routes(4):
        assert torch.equal(reduced(torch.zeros(4, 9), Cascade(), route)[0], torch.zeros(9))


@pytest.mark.parametrize("size", [1e-46, 1e-42, 1e-38, 1e-30, 1e-23, 1e-22, 1e-21])
def test_the_cascade_of_small_numbers_whose_squares_vanish_is_small(size):
    rows = size * vectors(3, 9, dtype=torch.float32)
    made = reduced(rows, Cascade(), Ring())[0]
    assert made.isfinite().all()
    assert made.abs().max() <= 100 * size


# One bit


class Place(NamedTuple):
    """In place of a generator: where it would have been used."""

    purpose: str
    worker: int
    start: int
    counts: tuple[int, ...]


def place(purpose: str, worker: int, start: int, *counts: int) -> Place:
    return Place(purpose, worker, start, counts)


def probabilities(
    how: Merge, route: Route, workers: int, patch: pytest.MonkeyPatch
) -> list[tuple[int, int, Fraction]]:
    """Of every coordinate: the workers' bits, its piece, and the exact probability to end as 1.

    Coordinate j has the bits of j mod 2^M, so that all patterns occur. Each piece is merged M - 1
    times; all 2^(M-1) ways in which those draws can fall are played through the real engine, and
    each way weighs what the odds given to `bernoulli` make of it. The pieces may share their ways,
    because a coordinate's probability depends on its own draws alone.
    """
    M = workers
    size = M * 2**M
    patterns = np.arange(size) % 2**M
    rows = [torch.tensor(np.where(patterns >> m & 1, 1.0, -1.0)) for m in range(M)]
    starts = sorted({send.piece.start for step in route.steps(M, size) for send in step.sends})
    piece = np.searchsorted(starts, np.arange(size), "right") - 1
    total = [Fraction(0)] * size
    for way in product((True, False), repeat=M - 1):
        odds: dict[int, list[Fraction]] = {start: [] for start in starts}

        def bernoulli(a: int, b: int, nbytes: int, at: Place, way=way, odds=odds) -> Tensor:
            received = way[len(odds[at.start])]
            odds[at.start].append(Fraction(a if received else b, a + b))
            return torch.full((nbytes,), 255 * received, dtype=torch.uint8)

        patch.setattr(bits, "bernoulli", bernoulli)
        made = in_memory(rows, how, route, place)
        assert {len(drawn) for drawn in odds.values()} == {M - 1}
        weights = [math.prod(drawn) for drawn in odds.values()]
        for j in (made > 0).nonzero()[:, 0].tolist():
            total[j] += weights[piece[j]]
    return list(zip(patterns.tolist(), piece.tolist(), total, strict=True))


def require_fair(made: list[tuple[int, int, Fraction]], workers: int) -> None:
    for pattern, _, probability in made:
        assert probability == Fraction(pattern.bit_count(), workers)


EXACT = [(r, m) for m in range(2, 7) for r in (*all_routes(m)[:1], *all_routes(m)[3:])]
EXACT += [(SegmentedRing(m * 2 ** (m - 1)), m) for m in (3, 4)]
EXACT += [(Ring(), 7), (Tree(), 7)]


@pytest.mark.parametrize(("route", "workers"), EXACT, ids=name_of)
@pytest.mark.wide(daily=lambda case: case["workers"] in (3, 4))
def test_a_bit_is_one_exactly_as_often_as_the_workers_bits_are(route, workers, monkeypatch):
    require_fair(probabilities(OneBit(), route, workers, monkeypatch), workers)


@dataclass(frozen=True)
class ByNumber(OneBit):
    """The thesis's operator read with the worker's number in place of the hop's position."""

    def prepare(self, a, n, b, rng):
        return super().prepare(rng.worker, n, 1, rng)


@pytest.mark.parametrize("workers", [3, 4, 5])
def test_the_workers_number_in_place_of_the_position_fails_the_same_test(workers, monkeypatch):
    made = probabilities(ByNumber(), Ring(), workers, monkeypatch)
    with pytest.raises(AssertionError):
        require_fair(made, workers)
    if workers == 4:  # only the first worker has bit 1
        found = {piece: p for pattern, piece, p in made if pattern == 1}
        assert found == {0: Fraction(1, 4), 1: Fraction(1), 2: Fraction(1, 2), 3: Fraction(1, 3)}


def test_the_operator_is_the_thesiss():
    """(v AND w) OR ((v XOR w) AND t), t ~ Bernoulli((m-1)/m if w = 0 else 1/m), for all bits."""
    for m in range(2, 6):
        for v, w in product((0, 1), repeat=2):
            p = Fraction(m - 1, m) if w == 0 else Fraction(1, m)
            theirs = Fraction(v & w) if v == w else p
            ours = Fraction(v) if v == w else Fraction(v * (m - 1) + w, m)
            assert theirs == ours


def test_merge_takes_the_received_bit_with_odds_a_to_b(monkeypatch):
    asked = []

    def bernoulli(a, b, nbytes, rng):
        asked.append((a, b, nbytes, rng))
        return torch.tensor([0b00001111, 0b10101010], dtype=torch.uint8)

    monkeypatch.setattr(bits, "bernoulli", bernoulli)
    received = torch.tensor([0b00110011, 0b11111111], dtype=torch.uint8)
    own = torch.tensor([0b01010101, 0b00000000], dtype=torch.uint8)
    made = OneBit().merge(received, 3, own, 2, OneBit().prepare(3, own, 2, "rng"))
    assert asked == [(3, 2, 2, "rng")]
    assert made.tolist() == [0b01010011, 0b10101010]


@often
def test_a_share_stands_for_the_workers_it_was_merged_from(route, workers):
    seen, _ = watched(OneBit(), route, workers, 36)
    if isinstance(route, Ring | SegmentedRing):
        assert set(seen.merges) == {(s + 1, 1) for s in range(workers - 1)}
    if isinstance(route, Server):
        assert seen.merges == [(1, before) for before in range(1, workers)]
    if isinstance(route, Tree):
        assert max(a + b for a, b in seen.merges) == workers
    if isinstance(route, Torus):
        rows = {(s + 1, 1) for s in range(route.x - 1)}
        columns = {((s + 1) * route.x, route.x) for s in range(route.y - 1)}
        assert set(seen.merges) == rows | columns
        for s, (a, b) in enumerate(sorted(columns)):
            assert Fraction(a, a + b) == Fraction(s + 1, s + 2)


LARGE = [(Ring(), 8), (Ring(), 13), (SegmentedRing(9000), 8), (Torus(4, 2), 8), (Torus(2, 4), 8)]
LARGE += [(Torus(3, 4), 12), (Tree(), 8), (Tree(), 11), (Server(), 8), (Server(), 11)]
EACH = 4096  # coordinates for each number of ones


def patterns(workers: int) -> Tensor:
    """(M + 1, EACH) coordinates, k of the workers at +1 in row k, which ones at random."""
    rng = keyed.generator(1, "test-patterns", workers)
    ones = rng.random((workers, workers + 1, EACH)).argsort(0) < np.arange(workers + 1)[:, None]
    return torch.tensor(np.where(ones, 1.0, -1.0)).view(workers, -1)


@pytest.mark.parametrize(("route", "workers"), LARGE, ids=name_of)
def test_frequencies_variances_and_independence(route, workers):
    made = reduced(patterns(workers), OneBit(), route)[0].view(workers + 1, EACH)
    assert (made[0] == -1).all()  # unanimous: no chance in it
    assert (made[-1] == 1).all()
    for k in range(1, workers):
        mean = 2 * k / workers - 1
        variance = 1 - mean**2
        centred = made[k] - mean
        assert abs(centred.mean()) < SIGMAS * math.sqrt(variance / EACH)
        # The fourth moment of a sign around its mean, for the spread of the measured variance.
        fourth = (1 - mean**2) * (1 + 3 * mean**2)
        spread = math.sqrt((fourth - variance**2) / EACH)
        assert abs(centred.square().mean() - variance) < SIGMAS * spread + 1e-12
        for lag in (1, 2, 8, 64, 512):
            products = centred[lag:] * centred[:-lag]
            assert abs(products.mean()) < SIGMAS * variance / math.sqrt(EACH - lag)


@pytest.mark.parametrize(("route", "workers"), LARGE, ids=name_of)
def test_merges_of_one_reduction_draw_independently(route, workers, monkeypatch):
    """No two masks alike: fresh per worker, piece and hop."""
    masks = []
    real = bits.bernoulli

    def bernoulli(a, b, nbytes, rng):
        masks.append(real(1, 1, 64, rng))  # fair and long, whatever was asked
        return real(a, b, nbytes, rng)

    monkeypatch.setattr(bits, "bernoulli", bernoulli)
    reduced(vectors(workers, 200), OneBit(), route)
    pieces = {s.piece for step in route.steps(workers, 200) for s in step.sends}
    assert len(masks) == (workers - 1) * len(pieces)
    signs = np.unpackbits(torch.stack(masks).numpy(), axis=1).astype(float) * 2 - 1
    correlation = (signs @ signs.T / 512) - np.eye(len(masks))
    assert np.abs(correlation).max() < 6 / math.sqrt(512)  # over up to 4560 pairs


@pytest.mark.parametrize("how", [how for how in MERGES if how.draws], ids=str)
def test_no_key_is_used_twice(how):
    for route, workers in FEW:
        used: Counter[tuple[Any, ...]] = Counter()

        def rng(purpose: str, *where: int, used=used) -> np.random.Generator:
            used[purpose, *where] += 1
            return keyed.generator(0, purpose, *where)

        rows = vectors(workers, 36)
        in_memory(list(rows / rows.abs().max()), how, route, rng)
        assert used
        assert set(used.values()) == {1}


@pytest.mark.parametrize("how", [OneBit(), Cascade(), SignSum(stochastic=True)], ids=str)
def test_draws_depend_on_the_seed_the_round_and_the_number_of_the_reduction(how):
    rows = vectors(4, 4000)
    rows = rows / rows.abs().max()

    def both(t: int, seed: int) -> list[Tensor]:
        exchange = exchange_of(4, Ring(), t, seed)
        return [exchange.reduce([rows], how), exchange.reduce([rows[:3], rows[3:]], how)]

    first, second = both(0, 0)
    again = both(0, 0)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    others = [second, *both(1, 0), *both(0, 1)]
    for one, other in pairwise([first, *others]):
        assert (one.sign() != other.sign()).double().mean() > 0.05
    assert not torch.equal(first, others[1])


def test_sign_matching_is_of_lossy_reductions_alone():
    rows = torch.tensor([[3.0, -1.0, 1.0, -1.0], [-1.0, -1.0, 1.0, -1.0], [-1.0, 5.0, 1.0, -1.0]])
    assert reduced(rows, Mean(), Ring())[1].matching == []
    assert reduced(rows, Largest(), Ring())[1].matching == []
    # Signs of the sum + + + -, of the vote - - + -.
    assert reduced(rows, SignSum(vote=True), Ring())[1].matching == [0.5]


def test_one_bit_messages():
    for route, workers in FEW:
        if isinstance(route, SegmentedRing):
            continue
        seen, traffic = watched(OneBit(), route, workers, 72 * workers)
        for share, _, nbytes in seen.sends + seen.closes:
            assert nbytes == len(share)
        assert traffic.bits == 1


@pytest.mark.parametrize("how", MERGES, ids=str)
def test_strided_vectors_with_pieces_of_one_coordinate(how):
    """A single coordinate counts as contiguous whatever its stride."""
    rows = vectors(7, 8).float().t()  # (8, 7): eight workers, pieces of one coordinate or none
    rows = rows / rows.abs().max()
    assert rows.stride(1) != 1
    assert torch.equal(reduced(rows, how, Ring())[0], reduced(rows.contiguous(), how, Ring())[0])


@pytest.mark.parametrize("how", MERGES, ids=str)
def test_long_vectors_are_reduced_piece_by_piece_with_the_same_bits(how, monkeypatch):
    for route, workers in FEW:
        rows = vectors(workers, 36, dtype=torch.float32)
        rows = rows / rows.abs().max()
        whole, once = reduced(rows.clone(), how, route)
        with monkeypatch.context() as patch:
            patch.setattr(schedule, "LONG", 0)
            patch.setattr(reduction, "LONG", 0)
            given = rows.clone()
            pieces, apart = reduced(given, how, route)
        assert torch.equal(whole, pieces)
        assert torch.equal(given, rows)  # no worker's own vector is changed
        assert (once.links == apart.links).all()
        assert (once.hops, once.coordinates) == (apart.hops, apart.coordinates)


@pytest.mark.parametrize("long", [0, 2**17], ids=["by-piece", "at-once"])
@pytest.mark.parametrize("how", MERGES, ids=str)
def test_all_who_are_not_finite_are_named_wherever_it_is(how, long, monkeypatch):
    monkeypatch.setattr(schedule, "LONG", long)
    monkeypatch.setattr(reduction, "LONG", long)
    for route in all_routes(6):
        rows = torch.full((6, 40), 0.5)
        rows[1, 39], rows[4, 0] = math.inf, math.nan
        with pytest.raises(DivergenceError) as error:
            reduced(rows, how, route)
        assert error.value.clients == [1, 4]


class Twice(Ring):
    def steps(self, workers, size):
        for step in super().steps(workers, size):
            yield step._replace(sends=step.sends * 2)


class Cut(Ring):
    def steps(self, workers, size):
        return iter(list(super().steps(workers, size))[:-1])


class Early(Ring):
    def steps(self, workers, size):
        return (step for step in super().steps(workers, size) if not step.merging)


@pytest.mark.parametrize(
    ("route", "message"),
    [(Twice(), "send a share once"), (Cut(), "bring all 12"), (Early(), "merge all 3 workers")],
    ids=["twice", "cut", "early"],
)
def test_a_route_that_is_wrong_is_told_so(route, message):
    with pytest.raises(UndriftError, match=message):
        reduced(vectors(3, 12), Mean(), route)
