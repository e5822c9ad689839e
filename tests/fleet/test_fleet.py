"""Devices, links, slowdowns, failures and presence, against seconds worked out by hand."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.system import ROOT
from undrift.errors import DataError
from undrift.fleet import (
    EFFICIENCY,
    MIXES,
    PRESETS,
    Device,
    Fleet,
    Jitter,
    Stragglers,
    Trace,
    apportion,
    parse,
    preset,
    spread,
)

SLOW = Device("slow", speed=1e9, up=1e6, down=8e6, latency=0.05)
FAST = Device("fast", speed=4e9, up=1e9, down=1e9, latency=0.0)
DAY = 86400.0


def names(text: str, clients: int, **options: Any) -> list[str]:
    return [device.name for device in parse(text, clients, **options)]


def within(count: int, n: int, p: float) -> bool:
    """Five standard deviations of a binomial: by chance outside once in two million."""
    return abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


# Seconds of a round


def test_seconds_by_hand() -> None:
    fleet = Fleet((SLOW, FAST))
    assert fleet.compute_seconds(0, t=0, flops=3e9) == 3.0
    assert fleet.compute_seconds(1, t=0, flops=3e9) == 0.75
    # 250 kB up at 1 Mbit/s are 2 s, 2 MB down at 8 Mbit/s are 2 s, and two trips of 50 ms.
    assert fleet.exchange_seconds(0, up=250e3, down=2e6) == pytest.approx(4.1, rel=1e-15)
    assert fleet.exchange_seconds(0, up=250e3, down=0, messages=1) == pytest.approx(2.05, rel=1e-15)
    assert fleet.exchange_seconds(0, up=0, down=2e6, messages=0) == 2.0
    assert fleet.exchange_seconds(1, up=125e6, down=250e6, messages=10) == 3.0
    assert fleet.compute_seconds(0, t=0, flops=0) == 0.0


def test_slowdown_stretches_computing_and_not_the_link() -> None:
    calm, slow = Fleet((SLOW,)), Fleet((SLOW,), Stragglers(p=1, factor=3))
    assert slow.compute_seconds(0, 7, 2e9) == 3 * calm.compute_seconds(0, 7, 2e9)
    assert slow.exchange_seconds(0, 1e6, 1e6) == calm.exchange_seconds(0, 1e6, 1e6)


def test_steps_by_hand() -> None:
    fleet = Fleet((SLOW, FAST))
    # 10 s, less 2 s of exchange and 1 s of fixed work, leave 7 s for steps of half a second.
    work = {"exchange": 2.0, "fixed_flops": 1e9, "step_flops": 5e8}
    assert fleet.steps_within(0, 0, 10.0, **work) == 14
    assert fleet.steps_within(0, 0, 9.99, **work) == 13
    assert fleet.steps_within(1, 0, 10.0, **work) == 62  # (8 s * 4 GFLOP/s - 1 GFLOP) / 0.5 GFLOP
    assert fleet.steps_within(0, 0, 3.0, **work) == 0  # the fixed work alone just fits
    assert fleet.steps_within(0, 0, 1.0, **work) == 0  # not even the exchange does
    late = Fleet((SLOW,), Stragglers(p=1, factor=2))
    assert late.steps_within(0, 0, 10.0, **work) == 6  # 8 s = 2 (1 + K / 2)


@pytest.mark.parametrize("n", [3, 7, 10, 49, 1000])
def test_exact_deadlines_do_not_lose_a_step_to_rounding(n: int) -> None:
    fleet = Fleet((Device("tenth", speed=10.0, up=1, down=1, latency=0),))
    deadline = fleet.compute_seconds(0, 0, n * 0.1)
    for_n = fleet.steps_within(0, 0, deadline, exchange=0.0, fixed_flops=0.0, step_flops=0.1)
    assert for_n == n


SPEEDS = st.floats(1e3, 1e15)
WORKS = st.fixed_dictionaries(
    {
        "exchange": st.floats(0, 1e4),
        "fixed_flops": st.floats(0, 1e15),
        "step_flops": st.floats(1e-3, 1e15),
    }
)
SLOWDOWNS = st.one_of(
    st.none(),
    st.builds(Stragglers, st.floats(0, 1), st.floats(1, 100)),
    st.builds(Jitter, st.floats(0, 2)),
)


@settings(deadline=None, max_examples=300)
@given(SPEEDS, st.floats(1e-3, 1e6), WORKS, SLOWDOWNS, st.integers(0, 5))
def test_the_steps_fit_and_one_more_does_not(
    speed: float, deadline: float, work: dict[str, float], slowdown: Any, t: int
) -> None:
    fleet = Fleet((Device("any", speed, 1, 1, 0),), slowdown)
    k = fleet.steps_within(0, t, deadline, **work)

    def ends(steps: int) -> float:
        flops = work["fixed_flops"] + steps * work["step_flops"]
        return work["exchange"] + fleet.compute_seconds(0, t, flops)

    assert isinstance(k, int)
    assert k >= 0
    assert k == 0 or ends(k) <= deadline
    assert k >= 2**53 - 1 or ends(k + 1) > deadline


@settings(deadline=None, max_examples=200)
@given(SPEEDS, st.floats(1, 100), st.floats(1e-3, 1e6), st.floats(0, 1e6), WORKS)
def test_more_time_or_speed_never_gives_fewer_steps(
    speed: float, faster: float, deadline: float, more: float, work: dict[str, float]
) -> None:
    fleet = Fleet((Device("a", speed, 1, 1, 0), Device("b", speed * faster, 1, 1, 0)))
    k = fleet.steps_within(0, 0, deadline, **work)
    assert fleet.steps_within(0, 0, deadline + more, **work) >= k
    assert fleet.steps_within(1, 0, deadline, **work) >= k


# Random slowdowns and failures


def test_stragglers_are_as_frequent_as_promised() -> None:
    law, n = Stragglers(p=0.3, factor=5), 4000
    factors = [law.factor_of(1, t, client) for t in range(n // 40) for client in range(40)]
    assert set(factors) == {1.0, 5.0}
    assert within(factors.count(5.0), n, 0.3)
    assert {Stragglers(0, 5).factor_of(1, t, 0) for t in range(50)} == {1.0}


def test_jitter_is_lognormal_with_median_one() -> None:
    n = 4000
    logs = np.log([Jitter(0.5).factor_of(3, t, 2) for t in range(n)])
    assert abs(logs.mean()) < 5 * 0.5 / math.sqrt(n)
    assert logs.std() == pytest.approx(0.5, rel=5 / math.sqrt(2 * n))
    assert within(int((logs > 0).sum()), n, 0.5)
    assert Jitter(0.0).factor_of(3, 0, 0) == 1.0


def test_dropouts_are_as_frequent_as_promised_and_not_those_who_are_slow() -> None:
    n = 4000
    fleet = Fleet((SLOW,) * 40, Stragglers(0.5, 2), dropout=0.2, seed=5)
    pairs = [(t, client) for t in range(n // 40) for client in range(40)]
    drops = [fleet.drops(t, client) for t, client in pairs]
    assert within(sum(drops), n, 0.2)
    slow = [fleet.compute_seconds(client, t, 1e9) == 2.0 for t, client in pairs]
    both = sum(a and b for a, b in zip(drops, slow, strict=True))
    assert within(both, n, 0.1)
    assert not any(Fleet((SLOW,)).drops(t, 0) for t in range(100))
    assert all(Fleet((SLOW,), dropout=1).drops(t, 0) for t in range(100))


def test_draws_depend_on_seed_round_and_client_and_on_nothing_else() -> None:
    def draws(fleet: Fleet, order: Callable[..., Any]) -> dict[tuple[int, int], Any]:
        pairs = order([(t, client) for t in range(20) for client in range(10)])
        return {(t, i): (fleet.compute_seconds(i, t, 1e9), fleet.drops(t, i)) for t, i in pairs}

    def fleet(seed: int, clients: int = 10) -> Fleet:
        return Fleet((SLOW,) * clients, Jitter(1.0), dropout=0.5, seed=seed)

    first = draws(fleet(0), list)
    assert draws(fleet(0), lambda pairs: list(reversed(pairs))) == first
    assert draws(fleet(0, clients=30), list) == first
    assert draws(fleet(1), list) != first
    seconds = {seconds for seconds, _ in first.values()}
    assert len(seconds) == len(first)  # neither rounds nor clients share a draw
    pairs = list(first)
    dropped = [[fleet(seed).drops(*pair) for pair in pairs] for seed in (0, 1)]
    assert dropped[0] != dropped[1]
    slow = Stragglers(0.5, 2)
    by_client = [tuple(slow.factor_of(0, t, i) for t in range(40)) for i in range(10)]
    by_round = [tuple(slow.factor_of(0, t, i) for i in range(40)) for t in range(10)]
    assert len(set(by_client)) == len(set(by_round)) == 10


# Traces


def test_start_is_included_and_end_is_not() -> None:
    trace = Trace({0: [(10, 20)], 2: [(0, 15), (30, 40)]})
    expected = {0: [2], 9.999: [2], 10: [0, 2], 15: [0], 19.999: [0], 20: [], 30: [2], 40: []}
    for seconds, ids in expected.items():
        there = trace.present(seconds, 3)
        assert there.dtype == np.int64
        assert there.tolist() == ids, seconds


def test_spans_repeat_with_the_period() -> None:
    trace = Trace({0: [(0, 6)], 1: [(6, 24)]}, period=24)
    for day in (0, 1, 1000):
        assert trace.present(24 * day, 2).tolist() == [0]
        assert trace.present(24 * day + 5.5, 2).tolist() == [0]
        assert trace.present(24 * day + 6, 2).tolist() == [1]
        assert trace.present(24 * day + 23.5, 2).tolist() == [1]


def test_a_span_over_the_end_of_the_period_goes_on_at_its_beginning() -> None:
    night = Trace({0: [(22, 30)], 1: [(5, 29)]}, period=24)
    assert night == Trace({0: [(0, 6), (22, 24)], 1: [(0, 24)]}, period=24)
    assert [len(night.present(hour, 2)) for hour in (0, 5.9, 6, 21.9, 22, 24, 29.9, 30)] == [
        2, 2, 1, 1, 2, 2, 2, 1,
    ]  # fmt: skip


def test_overlapping_and_touching_spans_are_merged() -> None:
    trace = Trace({3: [(4, 6), (0, 2), (2, 3), (5, 9), (5, 7)]})
    assert trace.spans == ((3, ((0.0, 3.0), (4.0, 9.0))),)
    assert trace.present(5.5, 4).tolist() == [3]


spans = st.lists(st.tuples(st.integers(0, 23), st.integers(1, 24)), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 5), spans, min_size=1), st.integers(0, 100))
def test_presence_as_by_looking_at_every_span(
    given_spans: dict[int, list[tuple[int, int]]], half_hours: int
) -> None:
    seconds = half_hours / 2
    lengths = {i: [(start, start + length) for start, length in s] for i, s in given_spans.items()}
    trace = Trace(lengths, period=24)
    looped = sorted(
        i
        for i, each in lengths.items()
        if any(start <= seconds % 24 + lap < end for start, end in each for lap in (0, 24))
    )
    assert trace.present(seconds, 6).tolist() == looped
    once = Trace(lengths)
    plain = sorted(i for i, each in lengths.items() if any(s <= seconds < e for s, e in each))
    assert once.present(seconds, 6).tolist() == plain


def test_when_somebody_comes_back() -> None:
    once = Trace({0: [(10, 20)], 1: [(30, 40)]})
    assert [once.next_present(now) for now in (0, 10, 19.5, 20, 35)] == [10, 10, 19.5, 30, 35]
    assert once.next_present(40) == math.inf
    daily = Trace({0: [(6, 8)]}, period=24)
    assert [daily.next_present(now) for now in (0, 7, 8, 24 * 9 + 20)] == [6, 7, 30, 24 * 10 + 6]


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(0, 0.9), st.floats(0.01, 0.1), st.floats(0, 1e6))
def test_somebody_is_there_at_the_time_of_coming_back(
    period: float, start: float, length: float, now: float
) -> None:
    trace = Trace({0: [(start * period, (start + length) * period)]}, period=period)
    coming = trace.next_present(now)
    assert now <= coming <= now + period * (1 + 1e-9) + 1e-9
    assert trace.present(coming, 1).tolist() == [0]


def test_the_clients_of_a_trace_come_in_order() -> None:
    trace = Trace({3: [(0, 5)], 1: [(0, 5)], 4: [(0, 5)]})
    present = trace.present(0, 4)
    assert present.dtype == np.int64
    assert present.tolist() == [1, 3]
    assert trace.present(5, 4).tolist() == []


def test_a_trace_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\ufeffClient, start ,end\n1,0,10\n\n0,5,inf\n1,8,12.5\n", encoding="utf-8")
    trace = Trace.read(path)
    assert trace == Trace({0: [(5, math.inf)], 1: [(0, 12.5)]})
    assert trace.present(1e12, 2).tolist() == [0]
    path.write_text("end,client,start\n30,0,22\n")
    assert Trace.read(path, period=24) == Trace({0: [(22, 30)]}, period=24)


BAD_TRACES = {
    "negative": ("0,1,2\n0,-3,5\n", "line 3 needs start >= 0 seconds, got -3;"),
    "backwards": ("0,5,5\n", "line 2 needs an end after its start 5, got 5;"),
    "not-a-number": ("0,soon,5\n", "line 2 needs a number as start, got 'soon';"),
    "nan": ("0,1,nan\n", "line 2 needs a number as end, got 'nan';"),
    "endless-start": ("0,inf,inf\n", "line 2 needs start >= 0 seconds, got inf;"),
    "fraction-of-a-client": ("0.5,1,2\n", "line 2 needs a client id 0, 1, ..., got 0.5;"),
    "negative-client": ("-1,1,2\n", "line 2 needs a client id 0, 1, ..., got -1;"),
    "infinite-client": ("inf,1,2\n", "line 2 needs a client id 0, 1, ..., got inf;"),
    "few-values": ("0,1,2\n\n0,1\n", "line 4 needs 3 cells as in the header, got 2;"),
    "many-values": ("0,1,2,3\n", "line 2 needs 3 cells as in the header, got 4;"),
    "nobody": ("", "needs rows below its header, at least 1, got 0;"),
    "quotes": ('0,"1,2\n', "needs a CSV row, got"),
}


@pytest.mark.parametrize("case", BAD_TRACES)
def test_bad_traces_are_refused_with_file_and_line(case: str, tmp_path: Path) -> None:
    body, message = BAD_TRACES[case]
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n" + body)
    with pytest.raises(DataError) as caught:
        Trace.read(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_HEADERS = {
    "missing": ("client,start\n0,1\n", "line 1 needs a column end, got the header client,start;"),
    "unknown": ("client,start,finish\n0,1,2\n", "got 'finish'; rename or remove it"),
    "near": ("client,start,ends\n0,1,2\n", "the nearest is 'end'"),
    "twice": (
        "client,start,start,end\n0,1,2,3\n",
        "needs a header of different names, got 'start' twice;",
    ),
    "empty": ("", "needs a name for every column in line 1, got an empty file;"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_bad_headers_are_refused(case: str, tmp_path: Path) -> None:
    text, message = BAD_HEADERS[case]
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        Trace.read(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"none\.csv needs a CSV file, got No such file or directory;"
    ):
        Trace.read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="needs a CSV file, got"):
        Trace.read(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(b"client,start,end\n\xff\xfe,1,2\n")
    with pytest.raises(
        DataError, match=r"bytes\.csv needs UTF-8 text, got .*; save the table as UTF-8"
    ):
        Trace.read(tmp_path / "bytes.csv")


def test_clients_of_a_trace_must_exist(tmp_path: Path) -> None:
    trace = Trace({4: [(0, 1)], 1: [(0, 1)]})
    trace.check(5)
    with pytest.raises(ValueError, match=r"^Trace needs clients among 0\.\.\.3, got 4; raise"):
        trace.check(4)
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n1,0,1\n4,0,1\n2,0,1\n")
    Trace.read(path).check(5)
    with pytest.raises(DataError, match=r"trace\.csv, line 3 needs clients among 0\.\.\.3, got 4"):
        Fleet((SLOW,) * 4, trace=Trace.read(path)).check(4)


# Devices by name


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_device_with_a_source(name: str) -> None:
    known, device = PRESETS[name], preset(name)
    assert known.name == device.name == name
    assert device.speed == EFFICIENCY * known.peak
    assert (device.up, device.down, device.latency) == (
        known.link.up,
        known.link.down,
        known.link.latency,
    )
    assert min(device.speed, device.up, device.down, device.latency) > 0
    assert len(known.device_source) > 40
    assert len(known.link.source) > 40
    assert known.device_source in known.source
    assert known.link.source in known.source
    assert preset(name, efficiency=1.0).speed == known.peak


def test_peak_rates_are_the_published_ones() -> None:
    published = {
        "phone": 0.153e12,
        "phone-fast": 0.69e12,
        "laptop": 2.6e12,
        "raspberry-pi": 0.048e12,
        "jetson": 0.472e12 / 2,  # half the published FP16 rate
        "gtx-1080-ti": 11.3e12,
        "rtx-2080-ti": 13.4e12,
        "rtx-3080-ti": 34.1e12,
        "a100": 19.5e12,
        "gpu-node": 156e12,
    }
    assert published.keys() == PRESETS.keys()
    for name, peak in published.items():
        assert PRESETS[name].peak == pytest.approx(peak, rel=0.01), name


def test_the_page_gives_every_preset_as_the_code_has_it() -> None:
    page = (ROOT / "docs" / "fleet.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    table = {
        row[1].strip(" `"): [cell.strip() for cell in row[2:]] for row in rows if len(row) == 9
    }
    assert table.keys() == PRESETS.keys()
    for name, known in PRESETS.items():
        peak, up, down, latency = (float(cell.replace(",", "")) for cell in table[name][1:5])
        assert known.peak / 1e9 == pytest.approx(peak, rel=1e-3), name
        assert known.link.up / 1e6 == pytest.approx(up, rel=1e-3), name
        assert known.link.down / 1e6 == pytest.approx(down, rel=1e-3), name
        assert known.link.latency * 1e3 == pytest.approx(latency, rel=1e-3), name
    assert all(f"`{name}`" in page for name in MIXES)
    assert f"{EFFICIENCY}" in page


@pytest.mark.parametrize("name", MIXES)
def test_a_tenth_of_a_mix_is_fast_and_comes_first(name: str) -> None:
    slow = name.removeprefix("thesis-")
    assert names(name, 10) == ["rtx-3080-ti"] + [slow] * 9
    assert names(name, 1) == ["rtx-3080-ti"]
    assert names(name, 3) == ["rtx-3080-ti"] + [slow] * 2
    assert names(name, 59) == ["rtx-3080-ti"] * 5 + [slow] * 54
    assert preset("rtx-3080-ti").speed > preset(slow).speed


def test_words_and_proportions() -> None:
    assert parse("phone", 3) == (preset("phone"),) * 3
    assert names("phone:9,gpu-node:1", 10) == ["phone"] * 9 + ["gpu-node"]
    assert names(" gpu-node:1 , phone:9 ", 20) == ["gpu-node"] * 2 + ["phone"] * 18
    assert names("phone,laptop", 3) == ["phone", "phone", "laptop"]  # the earlier on a tie
    assert names("phone:0.1,laptop:0.2", 3) == ["phone", "laptop", "laptop"]
    assert names("phone:9,gpu-node:1", 3) == ["phone"] * 3  # 0.3 of a client is none


def test_apportionment_by_hand() -> None:
    assert apportion([9, 1], 10) == [9, 1]
    assert apportion([1, 1, 1], 10) == [4, 3, 3]
    # Quotas 4.7, 1.6, 1.58, 1.2, 0.61, 0.31 of ten: the textbook example of largest remainders.
    assert apportion([47, 16, 15.8, 12, 6.1, 3.1], 10) == [5, 2, 1, 1, 1, 0]
    assert apportion([5], 0) == [0]
    assert apportion([0.3, 0.1], 2) == [2, 0]  # a tie, though not between the nearest floats


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8), st.integers(0, 500))
def test_apportionment_is_complete_and_within_one_of_the_quota(
    weights: list[float], n: int
) -> None:
    shares = apportion(weights, n)
    exact = [Fraction(str(weight)) for weight in weights]
    assert sum(shares) == n
    for share, weight in zip(shares, exact, strict=True):
        assert abs(share - n * weight / sum(exact)) < 1


def test_devices_of_a_kind_may_differ() -> None:
    some = spread(SLOW, 2000, 0.5, seed=1)
    assert {device.name for device in some} == {"slow"}
    assert {device.latency for device in some} == {SLOW.latency}
    logs = np.log([(d.speed / SLOW.speed, d.up / SLOW.up, d.down / SLOW.down) for d in some])
    assert np.abs(logs.mean(axis=0)).max() < 5 * 0.5 / math.sqrt(2000)
    assert np.abs(logs.std(axis=0) / 0.5 - 1).max() < 5 / math.sqrt(4000)
    assert np.abs(np.corrcoef(logs.T) - np.eye(3)).max() < 5 / math.sqrt(2000)
    assert spread(SLOW, 5, 0.5, seed=1) == some[:5]
    assert spread(SLOW, 5, 0.5, seed=2) != some[:5]
    assert spread(SLOW, 3, 0.0, seed=1) == (SLOW,) * 3
    phones = parse("phone~0.5:4,laptop:1", 5, seed=7)
    assert phones == (*spread(preset("phone"), 4, 0.5, seed=7), preset("laptop"))
    assert parse("phone~0.5", 5, seed=8) != parse("phone~0.5", 5, seed=7)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,speed,up,down,latency\na,1e9,1e6,8e6,0.05\nb,4e9,1e9,1e9,0\n")
    assert parse(str(path), 2) == (
        Device("a", 1e9, 1e6, 8e6, 0.05),
        Device("b", 4e9, 1e9, 1e9, 0.0),
    )
    path.write_text(
        "latency_ms,name,weight,speed_gflops,up_mbps,down_mbps\n50,a,3,1,1,8\n0,b,1,4,1000,1000\n"
    )
    a, b = Device("a", 1e9, 1e6, 8e6, 0.05), Device("b", 4e9, 1e9, 1e9, 0.0)
    assert parse(str(path), 8) == (a,) * 6 + (b,) * 2
    plain = tmp_path / "mine"  # a file under another name
    plain.write_text("name,speed,up,down,latency\na,1e9,1e6,8e6,0.05\n")
    assert parse(str(plain), 1) == (a,)


BAD_TABLES = {
    "no-speed": ("name,up,down,latency\na,1,1,0\n", "line 1 needs a column speed or speed_gflops"),
    "two-units": (
        "name,speed,speed_gflops,up,down,latency\na,1,1,1,1,0\n",
        "line 1 needs a column speed or speed_gflops, got both speed and speed_gflops; keep one",
    ),
    "wrong-unit": (
        "name,speed_tflops,up,down,latency\na,1,1,1,0\n",
        "got 'speed_tflops'; rename or remove it; the nearest is 'speed_gflops'",
    ),
    "zero-speed": (
        "name,speed,up,down,latency\na,1,1,1,0\nb,0,1,1,0\n",
        "line 3 needs speed > 0, a finite number, got 0;",
    ),
    "negative-latency": (
        "name,speed,up,down,latency_ms\na,1,1,1,-2\n",
        "line 2 needs latency_ms >= 0, a finite number, got -2;",
    ),
    "infinite": (
        "name,speed,up,down,latency\na,1,inf,1,0\n",
        "line 2 needs up > 0, a finite number, got inf;",
    ),
    "text": ("name,speed,up,down,latency\na,1,1,quick,0\n", "line 2 needs a number as down"),
    "nameless": ("name,speed,up,down,latency\n,1,1,1,0\n", "line 2 needs a name"),
    "weightless": (
        "name,speed,up,down,latency,weight\na,1,1,1,0,0\n",
        "line 2 needs weight > 0, a finite number, got 0;",
    ),
    "too-few": (
        "name,speed,up,down,latency\na,1,1,1,0\n",
        "needs one line for each of 3 clients, got 1; add or remove lines, or add a column weight",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused_with_file_and_line(case: str, tmp_path: Path) -> None:
    text, message = BAD_TABLES[case]
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        parse(str(path), 3)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def device(**changes: Any) -> Device:
    return Device(**{"name": "d", "speed": 1, "up": 1, "down": 1, "latency": 0, **changes})


BAD_ARGUMENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "speed": (lambda: device(speed=0), r"Device d needs speed > 0, a finite number, got 0"),
    "up": (lambda: device(up=math.inf), r"Device d needs up > 0, a finite number, got inf"),
    "down": (lambda: device(down=math.nan), r"Device d needs down > 0, a finite number, got nan"),
    "latency": (lambda: device(latency=-1), r"Device d needs latency >= 0"),
    "name": (lambda: device(name=""), r"Device needs a name, got ''"),
    "p": (lambda: Stragglers(1.5, 2), r"Stragglers needs a probability p in \[0, 1\], got 1.5"),
    "factor": (lambda: Stragglers(0.5, 0.5), r"Stragglers needs factor >= 1, got 0.5"),
    "sigma": (lambda: Jitter(-1), r"Jitter needs sigma >= 0"),
    "no-devices": (lambda: Fleet(()), r"Fleet needs at least one device"),
    "no-list": (lambda: Fleet("phone"), r"Fleet needs a list of devices"),  # type: ignore[arg-type]
    "strings": (lambda: Fleet(("phone",)), r"Fleet needs devices, got 'phone'"),  # type: ignore[arg-type]
    "dropout": (lambda: Fleet((SLOW,), dropout=2), r"Fleet needs dropout in \[0, 1\], got 2"),
    "slowdown": (lambda: Fleet((SLOW,), 0.5), r"Fleet needs slowdown to be"),  # type: ignore[arg-type]
    "trace": (lambda: Fleet((SLOW,), trace="t.csv"), r"see Trace.read"),  # type: ignore[arg-type]
    "seed": (lambda: Fleet((SLOW,), seed=0.5), r"Fleet needs a whole seed"),  # type: ignore[arg-type]
    "population": (
        lambda: Fleet((SLOW,) * 3).check(4),
        r"Fleet needs one device for each of 4 clients, got 3",
    ),
    "client": (lambda: Fleet((SLOW,)).compute_seconds(-1, 0, 1), r"a client among 0...0, got -1"),
    "flops": (lambda: Fleet((SLOW,)).compute_seconds(0, 0, -1), r"needs flops >= 0"),
    "bytes": (lambda: Fleet((SLOW,)).exchange_seconds(0, -1, 0), r"needs up >= 0"),
    "deadline": (
        lambda: Fleet((SLOW,)).steps_within(0, 0, 0, exchange=0, fixed_flops=0, step_flops=1),
        r"needs deadline > 0",
    ),
    "step": (
        lambda: Fleet((SLOW,)).steps_within(0, 0, 1, exchange=0, fixed_flops=0, step_flops=0),
        r"needs step_flops > 0",
    ),
    "span": (lambda: Trace({1: [(3, 2)]}), r"needs an end after its start 3, got 2 for client 1"),
    "pair": (lambda: Trace({1: [(3,)]}), r"needs pairs \(start, end\) of seconds, got \(3,\)"),  # type: ignore[list-item]
    "no-span": (lambda: Trace({1: []}), r"Trace needs at least one span"),
    "id": (lambda: Trace({-1: [(0, 1)]}), r"Trace needs client ids 0, 1, ..., got -1"),
    "period": (lambda: Trace({0: [(0, 1)]}, period=0), r"Trace needs period > 0"),
    "outside": (lambda: Trace({0: [(9, 10)]}, period=5), r"start < period = 5, got 9"),
    "long": (
        lambda: Trace({0: [(1, 10)]}, period=5),
        r"no longer than the period 5, got 9 seconds",
    ),
    "time": (lambda: Trace({0: [(0, 1)]}).present(-1, 1), r"a time >= 0, in finite seconds"),
    "efficiency": (lambda: preset("phone", efficiency=1.5), r"needs efficiency <= 1"),
    "preset": (lambda: preset("fone"), r"one of phone, .*got 'fone'; the nearest is 'phone'"),
    "word": (lambda: parse("jetsn", 3), r"a CSV file, got 'jetsn'; the nearest is 'jetson'"),
    "mix": (lambda: parse("thesis-gtx-1080ti", 3), r"the nearest is 'thesis-gtx-1080-ti'"),
    "kind": (lambda: parse("phone:9,gpu:1", 3), r"got 'gpu'"),
    "weight": (lambda: parse("phone:x", 3), r"finite numbers >= 0 after : and ~ .*got 'phone:x'"),
    "no-weight": (lambda: parse("phone:0,laptop:1", 3), r"needs weights > 0"),
    "spread": (lambda: parse("phone~-1", 3), r"finite numbers >= 0 after : and ~"),
    "clients": (lambda: parse("phone", 0), r"parse needs at least one client, got 0"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_one_sentence(case: str) -> None:
    call, message = BAD_ARGUMENTS[case]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_fleets_are_values() -> None:
    def fleet(**changes: Any) -> Fleet:
        parts = {"slowdown": Stragglers(0.1, 2), "trace": Trace({0: [(0, 1)]}), "seed": 3}
        return Fleet([SLOW, FAST], **{**parts, **changes})  # type: ignore[arg-type]

    one = fleet()
    assert one == fleet()
    assert hash(one) == hash(fleet())
    assert one.digest() == fleet().digest() == pickle.loads(pickle.dumps(one)).digest()
    others = [
        fleet(slowdown=Jitter(0.1)),
        fleet(dropout=0.5),
        fleet(trace=Trace({0: [(0, 2)]})),
        fleet(trace=Trace({0: [(0, 1)]}, period=DAY)),
        fleet(trace=None),
        fleet(seed=4),
    ]
    assert len({each.digest() for each in [one, *others]}) == 1 + len(others)
    ints = Fleet((Device("slow", 10**9, 10**6, 8 * 10**6, 0.05),))
    assert ints.digest() == Fleet((SLOW,)).digest()


def test_a_share_of_the_speed() -> None:
    whole, part = parse("gpu-node", 1)[0], parse("gpu-node@0.25", 1)[0]
    assert part.speed == whole.speed / 4
    assert (part.up, part.down, part.latency) == (whole.up, whole.down, whole.latency)
    mixed = parse("phone:3,gpu-node@0.5:1", 4)
    assert [device.speed for device in mixed] == [parse("phone", 1)[0].speed] * 3 + [
        whole.speed / 2
    ]
    fast, *slow = parse("thesis-jetson@0.25", 10)
    usual, *rest = parse("thesis-jetson", 10)
    assert fast.speed == usual.speed / 4
    assert slow == rest


@pytest.mark.parametrize("text", ["phone@0", "phone@2", "phone@x", "thesis-jetson@-1"])
def test_a_share_of_the_speed_is_a_share(text: str) -> None:
    with pytest.raises(ValueError, match=r"^fleet needs"):
        parse(text, 2)
