"""The page of a comparison and its figures: numbers by hand, hostile texts, odd runs."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import undrift.report
from tests.report.trials import HOSTILE, QUOTES, records, tenths, trial
from undrift.errors import UndriftError
from undrift.report import Comparison, figures, page, style, write
from undrift.report.curves import METRICS, curves, for_script
from undrift.report.partition_map import partition_map
from undrift.results.record import PeerRecord, Record

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'undrift[report]'")


class Page(HTMLParser):
    """Tables as rows of texts by caption, scripts by their order, headings, every start tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._rows: list[list[str]] = []
        self._caption: str | None = None
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag == "table":
            self.tables[self._caption or ""] = self._rows

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
            return
        if "style" not in self._open:
            self.text += data
        if "caption" in self._open and self._caption is not None:
            self._caption += data
        elif {"td", "th"} & set(self._open):
            cell = f"{self._rows[-1][-1]} {' '.join(data.split(' '))}"
            self._rows[-1][-1] = re.sub(r"\s+", " ", cell).strip()

    def column(self, caption: str, head: str) -> list[str]:
        heads, *rows = next(rows for name, rows in self.tables.items() if caption in plain(name))
        return [row[heads.index(head)] for row in rows]

    def data(self, name: str) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        (text,) = [text for attrs, text in self.scripts if attrs.get("id") == name]
        return json.loads(text, parse_constant=refuse)


def plain(text: str) -> str:
    return re.sub(r"\s", " ", text)


def read(comparison: Comparison) -> Page:
    return Page(page(comparison))


NONE = "\u2013"
RESULTS = "What each method reached"


@pytest.fixture(scope="module")
def two() -> Comparison:
    """A gains 0.1 a round and B 0.2 until 0.8, each with seeds 0.01 below and above."""
    fast = [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8]
    trials = []
    for seed, off in enumerate((-0.01, 0.01)):
        slow = [a + off for a in tenths(8)]
        quick = [a + off for a in fast]
        trials.append(trial("A", seed, records(slow), settings={"lr": "0.1 * 0.99^t", "mu": 1}))
        trials.append(trial("B", seed, records(quick, mb=6, gradients=15)))
    return Comparison(
        "Two <methods>",
        trials,
        (0.59, 0.99),
        command='undrift compare "runs/a b/experiment.toml"',
        experiment='title = "é"\n',
        environment={"torch": "2.13", "git": {"commit": "1f2e"}, "gpu": None},
        notes={"A": "Author, 2020."},
        partition=np.array([[3, 0], [1, 2], [0, 9]]),
        labels=["cat", "dog"],
        warnings=["1 damaged line was left out."],
    )


def test_what_is_given_is_shown(two: Comparison) -> None:
    shown = read(two).text
    for text in (
        "Two <methods>",
        two.command,
        two.experiment,
        "git.commit",
        "1f2e",
        "Author, 2020.",
        "lr = 0.1 * 0.99^t",
        "mu = 1",
        "1 damaged line was left out.",
        "This page is complete in itself",
    ):
        assert text in shown


def test_accuracies_by_hand(two: Comparison) -> None:
    shown = read(two)
    # Seeds at -0.01 and +0.01: sqrt(0.0002) = 1.41 percentage points.
    assert shown.column(RESULTS, "method") == ["A", "B"]
    assert shown.column(RESULTS, "accuracy at 4, %") == ["40.00 ± 1.41", "80.00 ± 1.41"]
    assert shown.column(RESULTS, "at 8, %") == ["80.00 ± 1.41", "80.00 ± 1.41"]
    # Fewer than ten evaluations: the mean of all eight.
    assert shown.column(RESULTS, "last 10, %") == ["45.00 ± 1.41", "65.00 ± 1.41"]
    assert shown.column(RESULTS, "MB") == ["16.0", "48.0"]
    assert shown.column(RESULTS, "gradients") == ["80", "120"]
    assert shown.column(RESULTS, "seconds") == ["4.00", "4.00"]
    assert shown.column(RESULTS, "ended") == ["finished", "finished"]


def test_costs_to_the_target_by_hand(two: Comparison) -> None:
    shown = read(two)
    # 0.59: A with 0.59 and 0.61 in round 6, B in round 3.
    assert shown.column("How soon 59 %", "rounds") == ["6", "3"]
    assert shown.column("How soon 59 %", "MB") == ["12.0", "18.0"]
    assert shown.column("How soon 59 %", "MB, ratio") == ["1.00", "1.50"]
    assert shown.column("How soon 59 %", "gradients") == ["60", "45"]
    assert shown.column("How soon 59 %", "gradients, ratio") == ["1.00", "0.75"]
    assert shown.column("How soon 99 %", "rounds") == ["8+", "8+"]
    assert shown.column("How soon 99 %", "gradients, ratio") == [NONE, NONE]


@pytest.fixture(scope="module")
def smoothed() -> Comparison:
    """EMA 0.9 of A: 0.2, 0.9 x 0.2 + 0.1 x 0.4 = 0.22, 0.258, 0.3122; of B: 0.3 throughout."""
    rising = records([0.2, 0.4, 0.6, 0.8], simulated_seconds=4.0)
    flat = records([0.3] * 4, mb=3, gradients=5, simulated_seconds=1.0)
    return Comparison("", [trial("A", 0, rising), trial("B", 0, flat)], 0.25, smoothing="ema")


def test_smoothed_accuracies_by_hand(smoothed: Comparison) -> None:
    shown = read(smoothed)
    assert shown.column(RESULTS, "accuracy at 2, EMA 0.9, %") == ["22.00", "30.00"]
    assert shown.column(RESULTS, "at 4, EMA 0.9, %") == ["31.22", "30.00"]
    assert shown.column(RESULTS, "last 10, %") == ["50.00", "30.00"]
    assert shown.column(RESULTS, "best, %") == ["80.00", "30.00"]
    assert "Columns named “EMA 0.9” are smoothed" in shown.text
    assert (
        "A ended with the highest accuracy (EMA 0.9), 31.22 %; B reached 25 % first, after 1 round."
        in plain(shown.text)
    )


def test_smoothed_costs_by_hand(smoothed: Comparison) -> None:
    """The EMA of A is 0.258 in round 3, while its accuracy is 0.4 in round 2."""
    shown, caption = read(smoothed), "How soon 25 % was reached, costs by EMA 0.9"
    assert shown.column(caption, "rounds") == ["2", "1"]
    assert shown.column(caption, "rounds, EMA 0.9") == ["3", "1"]
    assert shown.column(caption, "MB") == ["6.00", "3.00"]
    assert shown.column(caption, "gradients") == ["30", "5"]
    assert shown.column(caption, "gradients, ratio") == ["1.00", "0.17"]
    assert shown.column(caption, "simulated s") == ["12.0", "1.00"]


def test_the_best_so_far_by_hand() -> None:
    """A target is reached by the best so far when it is reached at all."""
    falling = trial("A", 0, records([0.5, 0.9, 0.4, 0.3]))
    shown = read(Comparison("", [falling], 0.8, smoothing="best"))
    assert shown.column(RESULTS, "at 4, best so far, %") == ["90.00"]
    assert shown.column("How soon 80 % was reached, costs by best so far", "MB") == ["4.00"]
    assert "an accuracy (best so far) of 90.00 %, and reached" in plain(shown.text)


def test_nothing_is_said_of_a_smoothing_that_is_none(two: Comparison) -> None:
    shown = read(two)
    assert "Columns named" not in shown.text
    assert not any("costs by" in caption for caption in shown.tables)


def test_the_best_are_bold(two: Comparison) -> None:
    bold = re.findall(r"<strong>(.*?)</strong>", page(two))
    assert [plain(text) for text in bold[:1]] == ["80.00 ± 1.41"]  # B at 4
    assert "0.75" in bold
    assert "1.50" not in bold


def test_a_reference_that_never_arrives_bounds_the_ratio() -> None:
    slow, fast = records([0.1] * 10), records(tenths(10), mb=1)
    shown = read(Comparison("", [trial("slow", 0, slow), trial("fast", 0, fast)], 0.5))
    # The reference spent 20 MB and 100 gradients in vain; the other 5 MB and 50.
    assert shown.column("How soon", "MB, ratio") == [NONE, "< 0.25"]
    assert shown.column("How soon", "gradients, ratio") == [NONE, "< 0.50"]
    broken = replace(trial("slow", 0, slow[:4]), rounds=10, status="stopped")
    shown = read(Comparison("", [broken, trial("fast", 0, fast)], 0.5))
    assert shown.column("How soon", "MB, ratio") == [NONE, NONE]
    assert shown.column("How soon", "rounds") == ["4+", "5"]


def test_seeds_that_did_not_arrive_are_counted_and_flatter_nobody() -> None:
    trials = [trial("A", s, records(tenths(4))) for s in range(2)]
    trials += [trial("B", 0, records(tenths(4, 0.2))), trial("B", 1, records([0.1] * 4))]
    shown = read(Comparison("", trials, 0.35))
    assert shown.column("How soon", "rounds") == ["4", "2 1 of 2 seeds"]
    assert shown.column("How soon", "gradients, ratio") == ["1.00", NONE]


def test_runs_that_broke_off_say_so() -> None:
    good = trial("A", 0, records(tenths(8)))
    bad = replace(
        trial("A", 1, records(tenths(3))), rounds=8, status="diverged", reason="NaN from client 3."
    )
    stopped = replace(trial("B", 0, records(tenths(2))), rounds=8, status="stopped")
    shown = read(Comparison("", [good, bad, stopped]))
    assert shown.column(RESULTS, "ended") == ["1 of 2 diverged", "stopped"]
    assert "A, seed 1, diverged after 3 of 8 rounds: NaN from client 3." in shown.text
    assert "B, seed 0, stopped after 2 of 8 rounds." in shown.text
    # The last value before the end is no value at the end.
    assert shown.column(RESULTS, "at 8, %") == ["80.00 1 of 2 seeds", NONE]
    curve = shown.data("curves-data")["methods"][0]["curves"]["accuracy"]
    assert curve["diverged"][0]["at"] == 2
    assert curve["diverged"][0]["y"]["raw"] == pytest.approx(0.3)
    assert curve["seeds"] == [2] * 3 + [1] * 5


@pytest.mark.parametrize(
    ("accuracies", "target", "expected"),
    [
        ({"A": [0.5, 0.7], "B": [0.2, 0.9]}, 0.4, "; A reached 40 % first, after 1 round."),
        ({"A": [0.5, 0.7], "B": [0.7, 0.9]}, 0.6, ", and reached 60 % first, after 1 round."),
        ({"A": [0.5, 0.7], "B": [0.5, 0.9]}, 0.6, "; A and B reached 60 % first, after 2 rounds."),
        ({"A": [0.5, 0.7], "B": [0.2, 0.9]}, 1.0, "; no method reached 100 % with every seed."),
        ({"A": [0.5, 0.7], "B": [0.2, 0.9]}, None, "."),
    ],
    ids=["another", "the-same", "both", "nobody", "no-target"],
)
def test_summary(accuracies: dict[str, list[float]], target: float | None, expected: str) -> None:
    trials = [trial(label, 0, records(each)) for label, each in accuracies.items()]
    start = "2 methods, 2 runs: B ended with the highest accuracy, 90.00 %"
    assert f"{start}{expected}\n" in read(Comparison("", trials, target)).text.replace("\xa0", " ")


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        (
            [0.5, 0.7],
            "1 method, 1 run: A ended with an accuracy of 70.00 %, and reached 60 % after",
        ),
        ([0.5, 0.5], "an accuracy of 50.00 %; it never reached 60 % with every seed."),
        ([None, None], "1 method, 1 run; none of them has a value at its last round."),
    ],
    ids=["arrived", "not-arrived", "not-evaluated"],
)
def test_summary_of_one_method(accuracies: list[float | None], expected: str) -> None:
    got = read(Comparison("", [trial("A", 0, records(accuracies))], 0.6))
    assert expected in plain(got.text)


def test_loss_stands_in_where_nothing_is_classified() -> None:
    runs = [replace(each, accuracy=None) for each in records(tenths(4))]
    shown = read(Comparison("", [trial("A", 0, runs), trial("B", 0, runs[:2] * 2)], 0.5))
    assert shown.column(RESULTS, "loss at 2")[0] == "0.800"
    assert "lowest loss" in shown.text
    assert [each["key"] for each in shown.data("curves-data")["metrics"]] == ["loss"]
    assert not any("How soon" in caption for caption in shown.tables)


# --- curves ---------------------------------------------------------------------------------------


def test_mean_and_band_are_of_the_seeds_that_went_so_far() -> None:
    seeds = [[0.1, 0.2, 0.6], [0.3, 0.4], [0.5, 0.3, 0.8]]
    got = curves([trial("A", k, records(each)) for k, each in enumerate(seeds)])["accuracy"]
    line = got.lines["raw"]
    np.testing.assert_allclose(line.mean, [0.3, 0.3, 0.7])
    np.testing.assert_allclose(line.low, [0.1, 0.2, 0.6])
    np.testing.assert_allclose(line.high, [0.5, 0.4, 0.8])
    assert got.seeds.tolist() == [3, 3, 2]


def test_smoothing_happens_before_seeds_are_taken_together() -> None:
    got = curves([trial("A", 0, records([0.0, 1.0, 1.0])), trial("A", 1, records([1.0, 0.0, 0.0]))])
    # 0, 0.1, 0.19 and 1, 0.9, 0.81; windows 0, 1/2, 2/3 and 1, 1/2, 1/3.
    np.testing.assert_allclose(got["accuracy"].lines["ema"].high, [1, 0.9, 0.81])
    np.testing.assert_allclose(got["accuracy"].lines["ema"].low, [0, 0.1, 0.19])
    np.testing.assert_allclose(got["accuracy"].lines["window"].high, [1, 1 / 2, 2 / 3])


def test_costs_never_fall_where_a_dear_seed_ends() -> None:
    dear, cheap = records([0.1, 0.2], mb=10), records(tenths(4), mb=2)
    x = curves([trial("A", 0, dear), trial("A", 1, cheap)])["accuracy"].x
    # 6 MB a round on average, then 2 of the seed that went on.
    np.testing.assert_allclose(x["bytes"], [6e6, 12e6, 14e6, 16e6])
    np.testing.assert_allclose(x["gradients"], [10, 20, 30, 40])
    assert "simulated_seconds" not in x


def test_costs_of_rounds_without_evaluation_count() -> None:
    x = curves([trial("A", 0, records([None, 0.1, None, 0.2]))])["accuracy"].x
    assert x["rounds"].tolist() == [2, 4]
    assert x["samples"].tolist() == [200, 400]


def test_axes_and_metrics_are_those_measured() -> None:
    timed = records(tenths(3), simulated_seconds=4.0, validation_accuracy=0.3)
    peers = [
        PeerRecord(k, 4, 1.0, 0.5, 9, 0, 1, 1, 0.1, 0.4, 0.2, None, 3, 3, 1, 32.0, None)
        for k in (1, 2)
    ]
    data = for_script(Comparison("", [trial("A", 0, timed), trial("B", 0, peers)]))
    assert [each["key"] for each in data["axes"]] == [
        "rounds",
        "bytes",
        "gradients",
        "samples",
        "seconds",
        "simulated_seconds",
    ]
    assert [each["key"] for each in data["metrics"]] == [each.key for each in METRICS]
    assert data["methods"][0]["curves"]["loss"]["x"]["simulated_seconds"] == [4, 8, 12]
    assert "simulated_seconds" not in data["methods"][1]["curves"]["loss"]["x"]
    silent = [replace(each, bytes_up=0, bytes_down=0, seconds=0.0) for each in timed]
    data = for_script(Comparison("", [trial("A", 0, silent)]))
    assert "bytes" not in [each["key"] for each in data["axes"]]
    assert "seconds" not in [each["key"] for each in data["axes"]]


def test_thirty_methods_look_different() -> None:
    trials = [trial(f"M{k}", 0, records(tenths(3))) for k in range(30)]
    data = for_script(Comparison("", trials, 0.2))
    assert len({(each["colour"], each["dash"]) for each in data["methods"]}) == 30


def test_long_runs_are_thinned_and_the_page_says_so() -> None:
    accuracies = np.linspace(0.1, 0.9, 4000).tolist()
    broken = replace(trial("A", 1, records(accuracies[:1234])), rounds=4000, status="diverged")
    comparison = Comparison("", [trial("A", 0, records(accuracies)), broken], 0.5)
    shown = read(comparison)
    data = shown.data("curves-data")
    curve = data["methods"][0]["curves"]["accuracy"]
    rounds = curve["x"]["rounds"]
    assert len(rounds) <= data["points"] + 1 < 4000
    assert rounds[0] == 1
    assert rounds[-1] == 4000
    assert rounds[curve["diverged"][0]["at"]] == 1234
    assert max(np.diff(rounds)) <= 2 * 4000 / len(rounds)
    assert "Curves were thinned" in shown.text
    assert shown.column(RESULTS, "at 4000, %") == ["90.00 1 of 2 seeds"]
    short = read(Comparison("", [trial("A", 0, records(tenths(8)))]))
    assert "thinned" not in short.text


@pytest.mark.long
def test_ten_thousand_rounds_of_thirty_methods_stay_small() -> None:
    noise = np.random.default_rng(0).random(10_000)
    trials = [
        trial(f"M{k}", seed, records(np.roll(noise, 7 * k + seed).tolist(), simulated_seconds=1.5))
        for k in range(30)
        for seed in range(2)
    ]
    trials += [trial("M0", seed, records(noise.tolist())) for seed in range(2, 5)]
    assert len(page(Comparison("", trials, 0.5))) < 3e6


@pytest.mark.parametrize(
    "runs",
    [
        [],
        records([None, None]),
        records([0.5]),
        records([float("nan"), 0.2, float("inf")]),
        [replace(each, loss=float("inf")) for each in records([0.1, 0.2])],
        [replace(each, loss=1e300) for each in records([0.1, None, 0.2])],
    ],
    ids=["no-records", "not-evaluated", "one-round", "nan", "inf-loss", "huge-loss"],
)
def test_odd_runs_make_a_page(runs: list[Record]) -> None:
    trials = [trial("odd", 0, runs, rounds=5, status="diverged")]
    for others in ([], [trial("sound", 0, records(tenths(5)))]):
        shown = read(Comparison("", trials + others, [0.3, 0.9]))
        assert "odd, seed 0, diverged" in shown.text
        if others:
            assert shown.data("curves-data")["methods"][1]["label"] == "sound"
        elif not any(r.accuracy is not None for r in runs):
            assert "No round was evaluated" in shown.text


def test_a_reference_without_rounds_is_no_reference() -> None:
    trials = [trial("none", 0, []), trial("A", 0, records(tenths(5)))]
    shown = read(Comparison("", trials, 0.3))
    assert shown.column("How soon", "rounds") == ["0+", "3"]
    assert shown.column("How soon", "MB, ratio") == [NONE, NONE]


# --- safety ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile() -> Comparison:
    trials = [
        trial(HOSTILE, 0, records(tenths(5)), settings={HOSTILE: QUOTES}),
        replace(trial(QUOTES, 0, records(tenths(5))), status="diverged", reason=HOSTILE),
    ]
    return Comparison(
        f"</title>{HOSTILE}",
        trials,
        0.3,
        command=f"</code>{HOSTILE}",
        experiment=f"</pre>{HOSTILE}",
        environment={HOSTILE: {QUOTES: HOSTILE}},
        notes={HOSTILE: HOSTILE, QUOTES: QUOTES},
        partition=np.array([[1, 2], [3, 4]]),
        labels=[HOSTILE, QUOTES],
        warnings=[HOSTILE],
    )


def test_hostile_texts_stay_texts(hostile: Comparison) -> None:
    shown, tame = read(hostile), read(replace(hostile, title="a", warnings=["b"]))
    assert [tag for tag, _ in shown.tags] == [tag for tag, _ in tame.tags]
    assert [tag for tag, _ in shown.tags].count("script") == 6
    assert not [attrs for _, attrs in shown.tags if any(name.startswith("on") for name in attrs)]
    assert shown.text.count(HOSTILE) >= 10
    assert [m["label"] for m in shown.data("curves-data")["methods"]] == [HOSTILE, QUOTES]
    assert shown.data("heat-data")["labels"] == [HOSTILE, QUOTES]


def test_only_the_pages_own_scripts_may_run(hostile: Comparison) -> None:
    shown = read(hostile)
    (policy,) = [
        attrs["content"]
        for tag, attrs in shown.tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    run = [text for attrs, text in shown.scripts if "type" not in attrs]
    allowed = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in run
    }
    assert len(run) == 4
    assert set(re.search(r"script-src ([^;]*)", policy)[1].split()) == allowed  # type: ignore[index]


def test_nothing_is_fetched(two: Comparison) -> None:
    shown = read(two)
    addresses = [
        attrs[name]
        for _, attrs in shown.tags
        for name in ("src", "href", "action", "data", "srcset", "poster")
        if name in attrs
    ]
    assert sorted(set(addresses), key=str) == ["#results", "data:,"]
    assert set(re.findall(r"https?://[^\"'\s<]+", page(two))) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)", page(two))


def test_a_page_is_written_as_utf8(two: Comparison, tmp_path: Path) -> None:
    write(replace(two, title="Größe 日本 \udcff"), tmp_path / "page.html")
    assert "Größe 日本 ?" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_needs_its_folder(tmp_path: Path, two: Comparison) -> None:
    with pytest.raises(ValueError, match=r"A report's page needs a folder that is there, got '.*'"):
        write(two, tmp_path / "x" / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_picture_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    class Broken:
        def savefig(self, path: Path, **_: Any) -> None:
            path.write_bytes(b"half")
            raise RuntimeError

    (tmp_path / "a.png").write_bytes(b"whole")
    with pytest.raises(RuntimeError):
        style.save(Broken(), tmp_path / "a.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


def test_the_same_comparison_makes_the_same_page(two: Comparison) -> None:
    assert page(two) == page(two)


# --- the partition --------------------------------------------------------------------------------


def cells(path: str) -> set[tuple[int, int]]:
    """(label, client) of the unit squares that a path covers."""
    found = set()
    for x, y, width, back in re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", path):
        assert width == back
        found |= {(int(y), int(x) + k) for k in range(int(width))}
    return found


@pytest.mark.parametrize("most", [0, 1, 2, 5, 7, 300])
def test_every_cell_has_the_shade_of_its_number(most: int) -> None:
    counts = np.random.default_rng(most).integers(0, most + 1, (9, 4))
    got = partition_map(Comparison("", [trial("A", 0, [])], partition=counts))
    assert got is not None
    drawn: list[tuple[int, int]] = []
    for path, text in zip(got.paths, got.ranges, strict=True):
        covered = cells(path)
        drawn += covered
        for label, client in covered:
            low, high = [int(each) for each in (text.split("-") * 2)[:2]]
            assert low <= counts[client, label] <= high
    holding = {(label, client) for client, label in zip(*np.nonzero(counts), strict=True)}
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == holding


def test_the_partition_in_words(two: Comparison) -> None:
    got = partition_map(two)
    assert got is not None
    assert got.words == (
        "3 clients hold 15 samples of 2 labels. Samples of a client: 3 to 9, median 3; "
        "labels of a client: 1 to 2, median 1."
    )
    assert got.words in read(two).text


def test_of_many_clients_some_are_drawn() -> None:
    counts = np.ones((5000, 10), np.int64)
    got = partition_map(Comparison("", [trial("A", 0, [])], partition=counts))
    assert got is not None
    assert got.clients[0] == 0
    assert got.clients[-1] == 4999
    assert len(got.clients) == 2000
    assert not got.tabled
    assert got.words.startswith("5000 clients hold 50\u202f000 samples of 10 labels. ")


# --- figures --------------------------------------------------------------------------------------


def test_a_figure_for_every_pair_that_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trials = [trial("A", s, records(tenths(4, s / 50), simulated_seconds=2.0)) for s in range(2)]
    # As mathematics, the second would be refused.
    odd = [trial(name, 0, records(tenths(4))) for name in (QUOTES, r"$\frac{$", "_b", "l" * 200)]
    odd.append(trial("nothing", 0, []))
    made = figures(Comparison("", trials + odd, 0.3), tmp_path / "a" / "b", ["svg"])
    assert [path.name for path in made] == [
        f"{metric}-{axis}.svg"
        for metric in ("accuracy", "loss")
        for axis in ("rounds", "bytes", "gradients", "simulated-seconds")
    ]
    assert all(path.read_bytes().startswith(b"<?xml") for path in made)


def test_figures_are_the_same_every_time(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    runs = [replace(each, loss=None) for each in records(tenths(4), mb=0, gradients=0)]
    comparison = Comparison("", [trial(QUOTES, 0, runs)], 0.3)
    (first,) = figures(comparison, tmp_path / "a", ["pdf"])
    # Whatever the user has set.
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "pdf.fonttype": 3}):
        (again,) = figures(comparison, tmp_path / "b", ["pdf"])
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in first.read_bytes()
    assert b"/Type3" not in first.read_bytes()
    assert b"CIDFontType2" in first.read_bytes()  # TrueType, embedded


def test_pictures_fit_a_column(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [replace(each, loss=None) for each in records([0.1], mb=0, gradients=0)]
    (path,) = figures(Comparison("", [trial("A", 0, runs)]), tmp_path, ["png"])
    data = path.read_bytes()
    width = int.from_bytes(data[16:20])  # of PNG's first chunk
    assert path.name == "accuracy-rounds.png"
    assert width / 300 == pytest.approx(3.35, abs=0.01)
    assert b"tEXt" not in data  # where matplotlib would put its version
    assert figures(Comparison("", [trial("A", 0, records([None]))]), tmp_path) == []


@pytest.mark.parametrize(
    ("module", "make", "what"),
    [
        (
            "matplotlib",
            lambda c, folder: figures(c, folder / "f"),
            "A figure needs the package matplotlib",
        ),
        (
            "jinja2",
            lambda c, folder: write(c, folder / "p.html"),
            "A report's page needs the package jinja2",
        ),
    ],
    ids=["figures", "page"],
)
def test_absent_packages_are_named_with_their_extra(
    two: Comparison,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    make: Callable[[Comparison, Path], Any],
    what: str,
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UndriftError, match=what) as caught:
        make(two, tmp_path)
    assert "pip install 'undrift[report]'" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_optional_packages_wait_until_they_are_needed() -> None:
    for path in Path(undrift.report.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & {"matplotlib", "jinja2"}


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": []}, "Comparison needs at least one trial, got 0; run an experiment first."),
        ({"target": 80}, "Comparison needs targets in (0, 1], got 80; write 80 % as 0.8."),
        ({"target": [0.5, 0.0]}, "Comparison needs targets in (0, 1], got 0.0"),
        ({"target": float("nan")}, "Comparison needs targets in (0, 1], got nan"),
        ({"smoothing": "EMA"}, "one of raw, ema, window, best, got 'EMA'; the nearest"),
        ({"target": "0.8"}, "Comparison needs targets in (0, 1], got '0.8'"),
        ({"partition": np.ones(3, np.int64)}, "(clients, labels), got 'int64 of shape (3,)'"),
        ({"partition": np.ones((3, 2))}, "got 'float64 of shape (3, 2)'"),
        ({"partition": np.array([[1, -1]])}, "whole numbers of shape (clients, labels)"),
        ({"labels": ["cat"]}, "needs 2 names of labels, one a column of the partition, got 1."),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_bad_input_is_answered(two: Comparison, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(two, **change)


def test_an_unknown_format_is_refused_before_any_work(two: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"formats to be one of png, pdf, svg, got 'pgn'.*'png'"):
        figures(two, tmp_path / "f", ["png", "pgn"])
    assert not (tmp_path / "f").exists()
