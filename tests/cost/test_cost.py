"""Predicted rounds against the schedules they are closed forms of, and against limits.

The brute force walks through every send of a route with the engine's own merges, which pack real
messages; it shares no formula with `cost`.
"""

from __future__ import annotations

import json
import math
import runpy
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.system import ROOT
from undrift import cost, keyed, topology
from undrift.comm.merges import Mean, OneBit, SignSum
from undrift.comm.routes import Piece, Ring, Route, SegmentedRing, Server, Torus, Tree
from undrift.core import Merge
from undrift.cost import CodecTimes, EqualSteps, GossipRoute, Machine, NetworkLink, Point, Round
from undrift.engine.collectives.inprocess import InProcessExchange
from undrift.engine.collectives.traffic import Traffic

MERGES: dict[Any, Merge] = {
    "mean": Mean(),
    "one-bit": OneBit(),
    "sign-sum": SignSum(),
    "sign-vote": SignSum(vote=True),
}
merges = pytest.mark.parametrize("merge", MERGES)
SIZES = [1, 2, 3, 7, 8, 9, 16, 65, 100, 131]
NODE = Machine(
    NetworkLink(5e-5, 1e10),
    computation=0.3,
    mean=CodecTimes(merge=8e-10),
    one_bit=CodecTimes(pack=4e-10, draw=1e-9, merge=3e-11, unpack=3e-10),
    signs=CodecTimes(pack=4e-10, merge=2e-9, unpack=1e-9),
)


def tori(workers: int) -> list[Torus]:
    return [Torus(x, workers // x) for x in range(1, workers + 1) if workers % x == 0]


def all_routes(workers: int) -> list[Route]:
    rings = [Ring(), SegmentedRing(3), SegmentedRing(13), SegmentedRing(50)]
    return [*rings, *tori(workers), Tree(), Server()]


@cache
def length(merge: str, size: int, count: int, closing: bool) -> int:
    """Bytes of a real message for so many workers."""
    rng, how = keyed.generator(0, "test-cost"), MERGES[merge]
    share = how.start(torch.ones(size), rng)
    return len((how.encode_result if closing else how.send)(share, count, rng))


def walk(route: Route, merge: str, workers: int, size: int) -> list[tuple[int, int]]:
    """(bytes, merged coordinates) of the busiest machine, step by step."""
    counts: dict[tuple[int, Piece], int] = {}
    steps = []
    for step in route.steps(workers, size):
        sent, received, merged = Counter[int](), Counter[int](), Counter[int]()
        before = dict(counts)
        for sender, receiver, piece in step.sends:
            n = piece.stop - piece.start
            if n == 0:
                continue
            count = before.get((sender, piece), 1)
            nbytes = length(merge, n, count if step.merging else workers, not step.merging)
            sent[sender] += nbytes
            received[receiver] += nbytes
            if step.merging:
                fresh = receiver == workers and (receiver, piece) not in counts
                own = 0 if fresh else counts.get((receiver, piece), 1)
                counts[receiver, piece] = own + count
                merged[receiver] += 0 if fresh else n
        busiest = max([*sent.values(), *received.values()], default=0)
        steps.append((busiest, max(merged.values(), default=0)))
    return steps


def spread(runs: list[EqualSteps]) -> list[tuple[int, int]]:
    return [
        (max(run.worker.nbytes, run.server.nbytes), max(run.worker.merged, run.server.merged))
        for run in runs
        for _ in range(run.steps)
    ]


def of(route: Any, merge: Any, workers: int, size: int, machine: Machine, **options: Any) -> Round:
    return cost.predict(route, merge, workers, size, machine, **options)


# Against the schedules


@merges
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 8, 9, 12, 17])
def test_every_step_is_the_routes(merge, workers):
    for route, size in product(all_routes(workers), SIZES):
        found = spread(cost.schedule(route, merge, workers, size))
        expected = walk(route, merge, workers, size)
        if isinstance(route, SegmentedRing):  # whose equal segments are taken together
            found, expected = sorted(found), sorted(expected)
        assert found == expected, (route, size)


@merges
@pytest.mark.parametrize(
    "route", [Ring(), Torus(8, 9), Torus(72, 1), Tree()], ids=["ring", "8x9", "72x1", "tree"]
)
def test_every_step_is_the_routes_where_sums_of_signs_grow_wide(merge, route):
    for size in (1, 71, 72, 73, 1000):
        assert spread(cost.schedule(route, merge, 72, size)) == walk(route, merge, 72, size)


@merges
def test_hops_and_bytes_are_what_the_simulator_counts(merge):
    """Where the pieces are equal every worker is the busiest, and the totals must agree."""
    for workers in (2, 3, 6, 8):
        size = 8 * workers * 5
        rows = torch.ones(workers, size)
        for route in (Ring(), *tori(workers), Server()):
            traffic = Traffic(workers)
            exchange = InProcessExchange(
                size=workers, topology=None, route=route, t=0, seed=0, traffic=traffic
            )
            exchange.reduce([rows], MERGES[merge])
            path = cost.critical_path(route, merge, workers, size)
            busiest = traffic.up + traffic.down if route == Server() else traffic.per_worker
            assert path == (traffic.hops, busiest), route


@pytest.mark.parametrize(
    "graph",
    [topology.ring(2), topology.ring(7), topology.star(6), topology.torus(4, 4)],
    ids=["pair", "ring", "star", "torus"],
)
def test_gossip_is_what_the_simulator_counts(graph):
    traffic = Traffic(graph.size)
    exchange = InProcessExchange(
        size=graph.size, topology=graph, route=None, t=0, seed=0, traffic=traffic
    )
    exchange.mix([[torch.zeros(graph.size, 37)]])
    route = GossipRoute(int(graph.degrees.max()))
    assert cost.critical_path(route, "mean", graph.size, 37) == (1, traffic.per_worker)
    assert cost.critical_path(route, "one-bit", graph.size, 37) == (1, 5 * route.degree)


@merges
def test_seconds_are_those_of_the_steps_one_after_the_other(merge):
    link, codec = NetworkLink(0.25, 64.0), CodecTimes(pack=3.0, draw=2.0, merge=0.5, unpack=5.0)
    machine = Machine(link, 7.0, codec, codec, codec)
    for workers, size in product((1, 2, 3, 6, 8), (1, 9, 50)):
        for route in all_routes(workers):
            steps = walk(route, merge, workers, size)
            wires = [0.25 + nbytes / 8 for nbytes, _ in steps]
            merged = sum(0.5 * n for _, n in steps)
            alone = of(route, merge, workers, size, machine, overlap=False)
            drawn = sum(2.0 * n for _, n in steps)
            ends = 8.0 * size
            assert alone == pytest.approx((7.0, ends + merged + drawn, sum(wires)), rel=1e-12)
            waited = sum(max(0, 2.0 * n - w) for w, (_, n) in zip(wires, steps, strict=True))
            beside = of(route, merge, workers, size, machine)
            assert beside == pytest.approx((7.0, ends + merged + waited, sum(wires)), rel=1e-12)
            assert beside.total == pytest.approx(sum(beside))


def test_examples_by_hand():
    free = Machine(NetworkLink(1e-3, 8e6))  # a millisecond, a megabyte a second
    assert of("ring", "mean", 4, 10**6, free).communication == pytest.approx(6 * (1e-3 + 1))
    assert of("ring", "one-bit", 4, 10**6, free).communication == pytest.approx(6 * 0.03225)
    assert of("torus:2x2", "mean", 4, 10**6, free).communication == pytest.approx(6 + 4e-3)
    assert of("tree", "mean", 5, 10**6, free).communication == pytest.approx(6 * 4.001)
    assert of("server", "one-bit", 10, 8 * 10**6, free).communication == pytest.approx(20.002)
    assert of("gossip:3", "mean", 10, 10**6, free).communication == pytest.approx(12.001)
    # Sums of 1, 2 and 3 signs take 1, 2 and 2 bits; of all 4, three; a vote, one.
    assert cost.critical_path("ring", "sign-sum", 4, 32) == (6, 1 + 2 + 2 + 3 * 3)
    assert cost.critical_path("ring", "sign-vote", 4, 32) == (6, 1 + 2 + 2 + 3 * 1)


def test_gossip_packs_once_and_unpacks_every_neighbour_without_draws():
    codec = CodecTimes(pack=2.0, draw=1000.0, merge=3.0, unpack=5.0)
    found = of(GossipRoute(4), "one-bit", 9, 10, Machine(one_bit=codec))
    assert found == Round(0.0, 10 * (2 + 4 * (3 + 5)), 0.0)


@merges
def test_numpy_integers_count_as_whole_numbers(merge):
    pairs: list[tuple[Any, Any]] = [
        (Torus(np.int64(4), np.int64(3)), Torus(4, 3)),
        (SegmentedRing(np.int32(5)), SegmentedRing(5)),
        (GossipRoute(np.int8(100)), GossipRoute(100)),
        ("torus", "torus"),
    ]
    for odd, plain in pairs:
        workers, size = (12, 10**10) if plain != GossipRoute(100) else (200, 10**10)
        found = cost.schedule(odd, merge, np.int64(workers), np.int64(size))
        assert found == cost.schedule(plain, merge, workers, size)


# Limits


@merges
@pytest.mark.parametrize("route", ["ring", "segmented-ring:9", "torus", "tree", "gossip:0"])
def test_one_worker_sends_nothing(route, merge):
    assert cost.critical_path(route, merge, 1, 100) == (0, 0)
    alone = of(route, merge, 1, 100, NODE)
    assert alone.computation == 0.3
    assert alone.communication == 0


ROUTES = ["ring", "segmented-ring:1000", "torus", "tree", "server", "gossip:4"]
everywhere = pytest.mark.parametrize("route", ROUTES)


@everywhere
def test_without_limits_nothing_takes_time(route):
    assert of(route, "mean", 36, 10**6, Machine()) == (0, 0, 0)


@everywhere
@merges
def test_latency_alone_counts_hops_and_bandwidth_alone_counts_bytes(route, merge):
    hops, nbytes = cost.critical_path(route, merge, 36, 12_345)
    late = of(route, merge, 36, 12_345, Machine(NetworkLink(0.5)))
    assert late.communication == 0.5 * hops
    slow = of(route, merge, 36, 12_345, Machine(NetworkLink(0, 1e3)))
    assert slow.communication == pytest.approx(8e-3 * nbytes)


@everywhere
@merges
def test_more_of_anything_but_bandwidth_takes_longer(route, merge):
    def total(workers: int = 36, size: int = 10**6, machine: Machine = NODE) -> float:
        return of(route, merge, workers, size, machine).total

    base, link = total(), NODE.link
    assert total(size=2 * 10**6) > base
    assert total(machine=replace(NODE, link=replace(link, latency=1e-3))) > base
    assert total(machine=replace(NODE, link=replace(link, bandwidth=1e9))) > base
    assert total(machine=replace(NODE, computation=1.0)) == pytest.approx(base + 0.7)
    times = [total(workers=n * n) for n in range(3, 40)]  # squares, so that tori stay square
    if route == "gossip:4":
        assert len(set(times)) == 1
    else:
        assert all(a <= b if route == "tree" else a < b for a, b in pairwise(times))
        assert times[0] < times[-1]


@everywhere
def test_one_bit_is_a_thirty_second_up_to_the_padding(route):
    for workers, size in product((5, 36, 100), (1, 77, 1000, 10**6 + 1)):
        full = cost.critical_path(route, "mean", workers, size)
        bits = cost.critical_path(route, "one-bit", workers, size)
        assert bits.hops == full.hops
        assert full.nbytes <= 32 * bits.nbytes
    size = 8 * 36 * 1000
    whole = replace_segment(route)
    full, bits = (cost.critical_path(whole, how, 36, size) for how in ("mean", "one-bit"))
    assert full.nbytes == 32 * bits.nbytes


def replace_segment(route: str) -> str:
    return "segmented-ring:28800" if route.startswith("segmented") else route


@merges
def test_a_ring_is_a_torus_of_one_row_or_column_and_of_one_segment(merge):
    for workers, size in product((1, 2, 7, 60), (1, 59, 10**5)):
        ring = of("ring", merge, workers, size, NODE)
        for same in (Torus(workers, 1), Torus(1, workers), SegmentedRing(10**6)):
            assert of(same, merge, workers, size, NODE) == pytest.approx(ring, rel=1e-12)


def test_the_torus_wins_by_its_latency_and_only_by_that():
    late, slow = Machine(NetworkLink(1e-3, 1e12)), Machine(NetworkLink(0, 1e6))
    for merge in ("mean", "one-bit"):
        ring, torus = (of(route, merge, 64, 64_000, late).total for route in ("ring", "torus"))
        assert ring / torus == pytest.approx(126 / 28, rel=1e-3)
        ring, torus = (of(route, merge, 64, 64_000, slow).total for route in ("ring", "torus"))
        assert ring == pytest.approx(torus)


def test_the_ring_needs_bytes_of_two_vectors_and_a_server_of_two_for_each_worker():
    for workers in (10, 1000, 10**5):
        size = 10**11 // workers * workers
        ring = cost.critical_path("ring", "mean", workers, size)
        assert ring == (2 * (workers - 1), 2 * (workers - 1) * size // workers * 4)
        assert cost.critical_path("server", "mean", workers, size) == (2, 2 * workers * size * 4)


def test_a_server_of_its_own_has_its_own_link_and_merges():
    codec = CodecTimes(merge=1.0, draw=1.0)
    server = Machine(NetworkLink(0.5, 8e9), one_bit=replace(codec, merge=0.25))
    phone = Machine(NetworkLink(0.1, 8e6), one_bit=codec)
    found = of("server", "one-bit", 100, 8 * 10**6, phone, server=server, overlap=False)
    assert found.communication == pytest.approx(2 * 1.1)  # the phone's megabyte takes longer
    assert found.compression == pytest.approx(1.25 * 99 * 8 * 10**6)
    many = of("server", "one-bit", 10**5, 8 * 10**6, phone, server=server)
    assert many.communication == pytest.approx(2 * (0.5 + 100))
    assert of("ring", "mean", 9, 99, phone, server=server) == of("ring", "mean", 9, 99, phone)


def test_overlap_hides_draws_behind_slow_links_only():
    def compression(bandwidth: float, overlap: bool) -> float:
        machine = replace(NODE, link=NetworkLink(0, bandwidth))
        return of("ring", "one-bit", 8, 8 * 10**6, machine, overlap=overlap).compression

    ends, merged = 7e-10 * 8e6, 3e-11 * 7e6
    assert compression(1e8, True) == pytest.approx(ends + merged)
    assert compression(math.inf, True) == pytest.approx(ends + merged + 1e-9 * 7e6)
    assert compression(1e8, False) == compression(math.inf, True)


@merges
@pytest.mark.parametrize("route", [*ROUTES, "torus:250x400"])
def test_the_largest_settings_take_no_time_and_no_memory(route, merge):
    workers, size = 100_000, 10**11
    of(route, merge, workers, size, NODE)
    tracemalloc.start()
    assert math.isfinite(of(route, merge, workers, size, NODE).total)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert len(cost.schedule(route, merge, workers, size)) <= 60
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        of(route, merge, workers, size, NODE)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.002  # walking through 200,000 steps would take far longer


# Where one bit stops paying


def test_break_even_is_where_the_totals_meet():
    node = replace(NODE, mean=CodecTimes(merge=1e-11))
    for route, overlap in product(ROUTES, (True, False)):
        bandwidth = cost.break_even(route, 36, 10**7, node, overlap=overlap)
        assert 0 < bandwidth < math.inf

        def totals(times: float, bandwidth=bandwidth, route=route, overlap=overlap):
            machine = replace(node, link=replace(node.link, bandwidth=times * bandwidth))
            return [
                of(route, merge, 36, 10**7, machine, overlap=overlap).total
                for merge in ("mean", "one-bit")
            ]

        full, bits = totals(1)
        assert full == pytest.approx(bits, rel=1e-9)
        full, bits = totals(0.8)
        assert full > bits
        full, bits = totals(1.25)
        assert full < bits


def test_break_even_in_closed_form():
    machine = Machine(NetworkLink(1e-4), one_bit=CodecTimes(pack=3e-10, merge=1e-10, unpack=2e-10))
    workers, size = 8, 8 * 8 * 10**5
    costs = size * 5e-10 + 7 / 8 * size * 1e-10
    spared = 2 * 7 / 8 * size * (32 - 1)
    found = cost.break_even("ring", workers, size, machine)
    assert found == pytest.approx(spared / costs, rel=1e-9)


def test_break_even_is_never_or_always():
    assert cost.break_even("ring", 8, 10, Machine(NetworkLink(1e-3))) == math.inf
    assert cost.break_even("ring", 8, 10**6, replace(NODE, one_bit=CodecTimes())) == math.inf
    assert cost.break_even("ring", 1, 10**6, NODE) == 0
    slow = replace(NODE, one_bit=CodecTimes(pack=1e3))
    assert cost.break_even("ring", 8, 10**6, slow) == 0
    # Behind a slow server fast phones gain by one bit whatever their links.
    phone = replace(NODE, mean=CodecTimes())
    server = replace(phone, link=NetworkLink(0, 1e6))
    assert cost.break_even("server", 8, 10**6, phone) < math.inf
    assert cost.break_even("server", 8, 10**6, phone, server=server) == math.inf
    assert cost.break_even("ring", 8, 10**6, NODE, merge="sign-sum") < cost.break_even(
        "ring", 8, 10**6, NODE
    )


# Calibration


def test_fit_finds_the_link_that_made_the_points():
    for link in (NetworkLink(2e-4, 9.4e8), NetworkLink(1.5, 1e3), NetworkLink(0.0, 1e11)):
        machine, points = Machine(link), []
        for route, merge, size in product(("ring", "torus"), ("mean", "one-bit"), (10**4, 10**7)):
            path = cost.critical_path(route, merge, 6, size)
            points.append(Point(*path, of(route, merge, 6, size, machine).communication))
        for some in (points, points[:2], points[1:3]):
            found = cost.fit(some)
            assert found.latency == pytest.approx(link.latency, rel=1e-6, abs=1e-12)
            assert found.bandwidth == pytest.approx(link.bandwidth, rel=1e-6)


def test_fit_is_the_least_of_the_relative_squares():
    rng = keyed.generator(0, "test-cost-fit")
    points = [
        Point(6, n, (6e-3 + 8 * n / 1e8) * float(rng.normal(1, 0.05)))
        for n in (10**3, 10**4, 10**5, 10**6, 10**7)
    ]

    def error(link: NetworkLink) -> float:
        return sum((1 - (p.hops * link.latency + 8 * p.nbytes / link.bandwidth) / p.seconds) ** 2
                   for p in points)  # fmt: skip

    best = cost.fit(points)
    assert best.latency == pytest.approx(1e-3, rel=0.1)
    assert best.bandwidth == pytest.approx(1e8, rel=0.1)
    for a, b in product((0.99, 1, 1.01), repeat=2):
        if (a, b) != (1, 1):
            assert error(NetworkLink(a * best.latency, b * best.bandwidth)) > error(best)


def test_fit_never_leaves_what_is_possible():
    grows = [Point(1, 10.0, 1.0), Point(1, 100.0, 20.0)]  # twentyfold seconds for ten times more
    found = cost.fit(grows)
    assert found.latency == 0
    slope = np.array([10.0 * 8 / 1.0, 100.0 * 8 / 20.0])
    assert 1 / found.bandwidth == pytest.approx(slope.sum() / (slope @ slope))
    falls = [Point(1, 10.0, 2.0), Point(1, 100.0, 1.0)]
    found = cost.fit(falls)
    assert found.bandwidth == math.inf
    assert found.latency == pytest.approx((0.5 + 1) / (0.25 + 1))


def test_links_in_series():
    found = cost.in_series(NetworkLink(1e-3, 3e9), NetworkLink(2e-3, 6e9), NetworkLink())
    assert found.latency == pytest.approx(3e-3)
    assert found.seconds(10**6) == pytest.approx(3e-3 + 8e6 / 3e9 + 8e6 / 6e9)
    assert cost.in_series(NetworkLink(1.0), NetworkLink(2.0)) == NetworkLink(3.0)


# The table and the comparison with measurements


SCRIPT = ROOT / "benchmarks" / "scale.py"
script = pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks/ is not in this copy")


def run_script(*arguments: str) -> None:
    runpy.run_path(str(SCRIPT))["main"](arguments)


def measured(route: str, merge: Any, bandwidth: float | None) -> dict[str, Any]:
    """A round of a machine that moves 4 Gbit/s, on links of that bandwidth."""
    pace = 1 / 4e9 + (1 / bandwidth if bandwidth else 0)
    hops, nbytes = cost.critical_path(route, merge, 4, 10**6)
    communication = 1e-3 * hops + 8 * nbytes * pace
    row = {"route": route, "merge": merge, "workers": 4, "coordinates": 10**6}
    seconds = {"seconds": communication + 0.75, "computation": 0.5, "compression": 0.25}
    return {**row, **seconds, "bandwidth": bandwidth, "communication": communication}


@script
def test_the_script_predicts_limited_links_from_free_ones(tmp_path, capsys):
    cases = product(("ring", "torus:2x2", "server"), ("mean", "one-bit"), (None, 1e8, 1e9))
    rows = [measured(*case) for case in cases]
    for row in rows:
        row["calibrate"] = row["route"] == "ring" and row["bandwidth"] is None
    rows[-1]["seconds"] /= 2
    file = tmp_path / "rounds.json"
    file.write_text(json.dumps(rows))
    run_script("--measured", str(file))
    told = capsys.readouterr().out
    assert "Calibrated on 2 of 18 measured rounds: latency 1 ms, machine 4 Gbit/s" in told
    errors = [line.split("|")[-3].strip() for line in told.splitlines() if line.count("|") == 10]
    assert [error.lstrip("+-") for error in errors[-18:]] == ["0%"] * 17 + ["100%"]
    assert "Largest error of the 16 other rounds: 100%" in told


@script
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--measured needs a JSON file, got .*rounds.json: .*"),
        ("[]", "--measured needs a list of two rounds or more, got another .*rounds.json."),
        ('[{"route": "ring"}, {}]', "Row 0 of .*rounds.json is not a measured round: .*merge.*"),
    ],
    ids=["syntax", "empty", "fields"],
)
def test_the_script_says_what_is_wrong_with_a_file(tmp_path, text, message):
    file = tmp_path / "rounds.json"
    file.write_text(text)
    with pytest.raises(SystemExit, match=message):
        run_script("--measured", str(file))


@script
def test_the_script_asks_for_matplotlib_and_for_free_links(tmp_path, monkeypatch):
    file = tmp_path / "rounds.json"
    file.write_text(json.dumps([measured("ring", merge, 1e9) for merge in ("mean", "one-bit")]))
    with pytest.raises(SystemExit, match="fit needs two points or more, got 0"):
        run_script("--measured", str(file))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="--picture needs matplotlib; pip install"):
        run_script("--picture", str(tmp_path / "scale.png"))


# Bad input


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "latency": (
        lambda: NetworkLink(-1e-3),
        r"NetworkLink needs latency >= 0, a finite number, got -0.001",
    ),
    "latency-nan": (lambda: NetworkLink(math.nan), r"NetworkLink needs latency >= 0, .*, got nan"),
    "bandwidth-zero": (lambda: NetworkLink(0, 0), r"NetworkLink needs bandwidth > 0, got 0"),
    "bandwidth": (
        lambda: NetworkLink(0, -1e9),
        r"NetworkLink needs bandwidth > 0, got -1000000000.0",
    ),
    "bandwidth-nan": (
        lambda: NetworkLink(0, math.nan),
        r"NetworkLink needs bandwidth > 0, got nan",
    ),
    "codec": (lambda: CodecTimes(pack=-1), r"CodecTimes needs pack >= 0, a finite number, got -1"),
    "codec-inf": (lambda: CodecTimes(draw=math.inf), r"CodecTimes needs draw >= 0, .*, got inf"),
    "computation": (
        lambda: Machine(computation=-1),
        r"Machine needs computation >= 0, a finite number, got -1",
    ),
    "degree": (lambda: GossipRoute(-1), r"GossipRoute needs degree >= 0, a whole number, got -1"),
    "degree-whole": (
        lambda: GossipRoute(1.5),
        r"GossipRoute needs degree >= 0, a whole number, got 1.5",
    ),
    "workers": (
        lambda: of("ring", "mean", 0, 9, NODE),
        r"cost needs workers >= 1, a whole number, got 0",
    ),
    "workers-whole": (
        lambda: of(Ring(), "mean", 2.5, 9, NODE),
        r"cost needs workers >= 1, a whole number, got 2.5",
    ),
    "coordinates": (
        lambda: of("ring", "mean", 3, 0, NODE),
        r"cost needs coordinates >= 1, a whole number, got 0",
    ),
    "coordinates-whole": (
        lambda: of("ring", "mean", 3, 1e11, NODE),
        r"cost needs coordinates >= 1, a whole number, got 100000000000.0",
    ),
    "merge": (
        lambda: of("ring", "mena", 3, 9, NODE),
        r"cost needs merge to be one of mean, one-bit, .*, got 'mena'; the nearest is 'mean'",
    ),
    "route": (
        lambda: of("rign", "mean", 3, 9, NODE),
        r"cost needs route to be one of ring, .*, gossip, got 'rign'; the nearest is 'ring'",
    ),
    "route-class": (
        lambda: of(Ring, "mean", 9, 9, NODE),
        r"cost needs a route of ring, .*, gossip, got <class .*>",
    ),
    "torus-name": (
        lambda: of("torus:2x4", "mean", 9, 9, NODE),
        r"The torus needs sides whose product is the number of workers, 9, got '2x4'",
    ),
    "torus": (
        lambda: of(Torus(2, 4), "mean", 9, 9, NODE),
        r"The torus needs sides whose product is the number of workers, 9, got '2x4'",
    ),
    "gossip-name": (
        lambda: of("gossip", "mean", 9, 9, NODE),
        r"cost needs a degree, such as gossip:4, got 'gossip'",
    ),
    "gossip": (
        lambda: of("gossip:9", "mean", 9, 9, NODE),
        r"GossipRoute needs a degree below the number of workers, 9, got 9",
    ),
    "break-even": (
        lambda: cost.break_even("ring", 3, 9, NODE, merge="bit"),
        r"cost needs merge to be one of .*, got 'bit'.*",
    ),
    "one-point": (
        lambda: cost.fit([Point(1, 9, 1.0)]),
        r"fit needs two points or more, got 1",
    ),
    "no-seconds": (
        lambda: cost.fit([Point(1, 9, 1.0), Point(1, 8, 0.0)]),
        r"fit needs points of positive hops, bytes and seconds, got \(1, 8, 0.0\)",
    ),
    "one-kind": (
        lambda: cost.fit([Point(2, 10, 1.0), Point(4, 20, 2.5)]),
        r"fit needs points that differ in bytes a hop, got .*Point.*; measure vectors of .*",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}\\.$"):
        call()
