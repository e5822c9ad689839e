"""Frames, plots and tables of records, runs and trials."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.support.records import peer_record
from undrift.errors import UndriftError
from undrift.report.notebook import frame, html_table, plot, rich_table
from undrift.results.record import Record, Totals
from undrift.results.trial import Trial


def record(round: int, **changes: Any) -> Record:
    made = Record(round, 2, 1 / round, round / 10, 1_000_000 * round, 500_000, 5, 50, 0.5)
    return replace(made, **{"evaluation_seconds": 0.25, **changes})


RECORDS = [record(1), record(2, loss=None, accuracy=None), record(3)]


@dataclass
class Method:
    lr: str = "0.1"


@dataclass
class FakeRun:
    """The attributes of a run that are used, and nothing that goes on when it is looked at."""

    records: list[Record] = field(default_factory=lambda: list(RECORDS))
    algorithm: Any = field(default_factory=Method)
    mode: str = "stacked"
    why: str = "the model is small"
    round: int = 3
    planned_rounds: int = 9
    stopped_early: str = ""
    record: Record | None = None
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        for each in self.records:
            self.totals.add(each)

    def __iter__(self) -> Any:
        raise AssertionError("a look at a run must not run it")


def trial(label: str, seed: int, records: list[Record]) -> Trial:
    return Trial(label, "FedAvg", {"lr": 0.1}, seed, 9, records)


# Frames


def test_a_frame_has_a_row_for_every_round_and_nan_for_none() -> None:
    pytest.importorskip("pandas")
    table = frame(RECORDS)
    assert list(table.columns) == list(RECORDS[0].flat())
    assert table["round"].tolist() == [1, 2, 3]
    assert table["round"].dtype.kind == "i"
    assert table["loss"].isna().tolist() == [False, True, False]
    assert table["simulated_seconds"].dtype.kind == "f"
    assert table["accuracy"].mean() == pytest.approx(0.2)


def test_a_run_is_its_records() -> None:
    pandas = pytest.importorskip("pandas")
    pandas.testing.assert_frame_equal(frame(FakeRun()), frame(RECORDS))


def test_trials_have_label_method_and_seed() -> None:
    pytest.importorskip("pandas")
    table = frame([trial("A", 0, RECORDS), trial("B", 1, [record(1)])])
    assert list(table.columns)[:4] == ["label", "method", "seed", "round"]
    assert table[["label", "seed", "round"]].values.tolist() == [
        ["A", 0, 1],
        ["A", 0, 2],
        ["A", 0, 3],
        ["B", 1, 1],
    ]
    assert set(table["method"]) == {"FedAvg"}


def test_records_of_both_families_share_a_frame() -> None:
    pytest.importorskip("pandas")
    table = frame([trial("A", 0, [record(1)]), trial("B", 0, [peer_record(1, consensus=0.25)])])
    assert table["consensus"].isna().tolist() == [True, False]
    assert table["consensus"][1] == 0.25


def test_a_frame_of_nothing_has_columns() -> None:
    pytest.importorskip("pandas")
    assert "accuracy" in frame([]).columns
    assert len(frame([])) == 0


@pytest.mark.parametrize("source", [3, [3], "records"], ids=["number", "list", "text"])
def test_a_frame_of_something_else(source: Any) -> None:
    pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="A frame or plot needs a run, a trial, or a list of rec"):
        frame(source)


# Plots


def curve(axis: Any, number: int = 0) -> list[tuple[float, float]]:
    return [tuple(point) for point in axis.lines[number].get_xydata().tolist()]


@pytest.mark.parametrize(
    ("against", "places", "label"),
    [
        ("round", (1, 3), "round"),
        ("bytes", (1.5, 7.5), "megabytes sent"),
        ("gradients", (5, 15), "gradients"),
        ("samples", (50, 150), "training samples"),
        ("seconds", (0.5, 1.5), "seconds of training"),
        ("all_seconds", (0.75, 2.25), "seconds"),
    ],
    ids=["round", "bytes", "gradients", "samples", "seconds", "all seconds"],
)
def test_a_plot_adds_up_what_rounds_without_the_metric_cost(
    against: str, places: tuple[float, float], label: str
) -> None:
    pytest.importorskip("matplotlib")
    axis = plot(RECORDS, "accuracy", against)
    assert curve(axis) == [(places[0], 0.1), (places[1], 0.3)]
    assert axis.get_xlabel() == label
    assert axis.get_ylabel() == "accuracy"
    assert axis.get_legend() is None


def test_a_plot_against_the_simulated_clock() -> None:
    pytest.importorskip("matplotlib")
    timed = [record(n, simulated_seconds=10.0 * n) for n in (1, 2, 3)]
    assert [x for x, _ in curve(plot(timed, "loss", "simulated_seconds"))] == [10, 30, 60]


def test_a_run_that_went_on_starts_at_what_was_spent_before() -> None:
    pytest.importorskip("matplotlib")
    run = FakeRun(records=[record(3)], totals=Totals(bytes_up=2_000_000, gradients=10))
    assert curve(plot(run, against="bytes")) == [(2 + 3.5, 0.3)]
    assert curve(plot(run, against="gradients")) == [(15, 0.3)]
    assert curve(plot(run, against="samples")) == [(50, 0.3)]


def test_trials_of_one_label_have_one_colour_and_one_line_in_the_legend() -> None:
    pytest.importorskip("matplotlib")
    axis = plot([trial("A", 0, RECORDS), trial("A", 1, RECORDS), trial("B", 0, RECORDS)])
    first, second, third = (line.get_color() for line in axis.lines)
    assert first == second != third
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["A", "B"]


def test_runs_share_an_axis() -> None:
    pytest.importorskip("matplotlib")
    axis = plot(FakeRun())
    assert plot(FakeRun(records=[record(2)]), ax=axis) is axis
    assert [curve(axis, n) for n in (0, 1)] == [[(1, 0.1), (3, 0.3)], [(2, 0.2)]]
    assert len(plot([FakeRun(), FakeRun()]).lines) == 2


def test_a_plot_leaves_pyplot_alone_and_can_be_saved(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    plot(RECORDS).figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert pyplot.get_fignums() == before


def test_a_notebook_shows_a_plot_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    before = pyplot.get_fignums()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    axis = plot(RECORDS)
    assert len(pyplot.get_fignums()) == len(before) + 1
    pyplot.close(axis.figure)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metric": "acuracy"}, "plot needs metric to be one of .*; the nearest is 'accuracy'"),
        ({"metric": "consensus"}, "plot needs metric to be one of clients, loss"),
        ({"against": "byte"}, "plot needs against to be one of round, .*; the nearest is 'bytes'"),
        (
            {"against": "simulated_seconds"},
            "plot needs rounds with accuracy and simulated_seconds, got none; it has clients, loss",
        ),
    ],
    ids=["metric", "other-family", "against", "no-clock"],
)
def test_what_cannot_be_plotted(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plot(RECORDS, **options)


def test_nothing_can_be_plotted_before_a_round() -> None:
    with pytest.raises(ValueError, match="with accuracy and round, got none; run a round first"):
        plot(FakeRun(records=[], round=0))


@pytest.mark.parametrize(
    ("do", "package", "extra"),
    [(frame, "pandas", "notebook"), (plot, "matplotlib", "report")],
    ids=["pandas", "matplotlib"],
)
def test_a_missing_package_is_one_sentence(
    do: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, "matplotlib.ticker"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UndriftError, match=f"needs the package {package}, .*undrift.{extra}.'"):
        do(RECORDS)


# Tables


def terminal(source: Any) -> str:
    console = Console(width=160, file=io.StringIO())
    console.print(rich_table(source))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


class Cells(HTMLParser):
    """The text of every cell, and every tag opened."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.tags[-1] in ("td", "th") and data.strip():
            self.rows[-1].append(data)


def cells(source: Any) -> Cells:
    parser = Cells()
    parser.feed(html_table(source))
    return parser


def test_a_terminal_sees_method_mode_last_rounds_and_totals() -> None:
    shown = terminal(FakeRun())
    assert "Method(lr='0.1'): round 3 of 9" in shown
    assert "stacked: the model is small" in shown
    assert "6.000 MB up, 1.500 MB down, 15 gradients on 150 samples, 2.250 s" in shown
    assert "(1.500 training, 0.750 tests)." in " ".join(shown.split())
    assert "30.00" in shown
    assert "consensus" not in shown


def test_a_notebook_sees_the_same() -> None:
    parser = cells(FakeRun())
    head, *rows = parser.rows
    assert head[:4] == ["round", "clients", "loss", "accuracy %"]
    assert rows[0] == ["1", "2", "1.0000", "10.00", "1.000", "0.500", "5", "0.500", "0.250"]
    assert rows[1][:4] == ["2", "2", "-", "-"]
    assert "stacked: the model is small" in html_table(FakeRun())


def test_only_the_last_rounds_are_shown() -> None:
    rows = cells([record(n) for n in range(1, 40)]).rows[1:]
    assert [row[0] for row in rows] == ["35", "36", "37", "38", "39"]


def test_records_alone_have_totals_too() -> None:
    assert "6.000 MB up, 1.500 MB down, 15 gradients" in html_table(RECORDS)
    assert "3 rounds" in terminal(RECORDS)


def test_peers_and_devices_have_their_columns() -> None:
    head, row = cells([peer_record(1, consensus=0.25)]).rows
    shown = dict(zip(head, row, strict=True))
    assert shown["consensus"] == "0.25"
    assert "<th>nodes&#x27; own %</th>" not in html_table([peer_record(1)])  # None throughout
    own = html_table([peer_record(1, node_accuracy=0.5)])
    assert "<th>nodes&#x27; own %</th>" in own
    assert shown["signs kept %"] == "75.0"
    timed = [record(1, simulated_seconds=12.5, missed=1)]
    head, row = cells(timed).rows
    assert row[head.index("simulated s")] == "12.5"
    assert "12.5 simulated" in html_table(timed)


def test_a_run_that_has_not_begun_and_one_that_has_just_gone_on() -> None:
    assert "round 0 of 9" in terminal(FakeRun(records=[], round=0))
    gone_on = FakeRun(records=[], record=record(7), round=7)
    assert [row[0] for row in cells(gone_on).rows[1:]] == ["7"]


def test_text_of_a_method_is_neither_html_nor_markup() -> None:
    run = FakeRun(algorithm=Method("<script>alert(1)</script>[bold]&"), why="<img src=x>[/]")
    assert "script" not in cells(run).tags
    assert "img" not in cells(run).tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[bold]&amp;" in html_table(run)
    assert "<script>alert(1)</script>[bold]&" in terminal(run)
    assert "<img src=x>[/]" in terminal(run)


def test_a_run_shows_itself() -> None:
    from rich.console import Console

    from tests.support.commands import built_run

    run = built_run(
        {"name": "fedavg"}, data={"clients": 4}, training={"rounds": 2, "work": "steps:1"}
    )
    records = list(run)
    frame = run.frame()
    assert list(frame["round"]) == [1, 2]
    assert frame["accuracy"].iloc[-1] == records[-1].accuracy
    (line,) = run.plot("loss", against="bytes").lines
    assert list(line.get_ydata()) == [record.loss for record in records]
    assert "FedAvg" in run._repr_html_()
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(run)
    assert "FedAvg" in console.export_text()
