"""The comparison with peers: its logic, not its timings."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.speed import __main__ as runner
from benchmarks.speed import (
    contest,
    methods,
    nets,
    peers,
    protocol,
    results,
    roster,
    show,
    table,
    usage,
    workloads,
)
from benchmarks.speed.contestants.undrift import execution_of, simulation
from benchmarks.speed.usage import Process, Reading, Span
from benchmarks.speed.workloads import WORKLOADS, Amount

import undrift as ud
from undrift.cli.names import SUMMARIES
from undrift.data import datasets
from undrift.errors import DivergenceError

FAKE = """
import time
from benchmarks.speed.protocol import Line
line = Line()
print("a framework's own words")
rounds = 0
while line.next(lambda: 0.25 * rounds):
    rounds += 1
    line.worked(*COUNTS, {'mode': 'loop'})
"""


def fake(tmp_path: Path, body: str, counts: str = "(60, 3000)") -> contest.Player:
    script = tmp_path / "fake.py"
    script.write_text(body.replace("COUNTS", counts))
    env = os.environ | {"PYTHONPATH": str(roster.ROOT)}
    return contest.Player([sys.executable, str(script)], tmp_path / "log" / "fake.log", env)


# Workloads


def test_every_federated_workload_has_the_published_amount_of_work() -> None:
    assert {name: WORKLOADS[name].amount() for name in roster.FEDERATED} == {
        "W1": Amount(10 * 60, 10 * 60 * 50),
        "W1b10": Amount(10 * 100, 10 * 100 * 20),
        "W1b100": Amount(100 * 100, 100 * 100 * 20),
        "W2": Amount(10 * 2, 10 * 2 * 50),
        "W3": Amount(10 * 2, 10 * 2 * 50),
    }


def test_a_whole_run_counts_all_of_its_rounds() -> None:
    assert WORKLOADS["W1run"].amount() == Amount(8 * 100 * 20, 8 * 100 * 20 * 20)


def test_gossip_takes_one_gradient_more_before_its_first_round() -> None:
    assert WORKLOADS["G1"].amount() == Amount(50 * 10, 50 * 10 * 32)
    assert WORKLOADS["G1"].amount(first=True) == Amount(50 * 11, 50 * 11 * 32)
    assert WORKLOADS["W1"].amount(first=True) == WORKLOADS["W1"].amount()


@pytest.mark.parametrize(("name", "epochs"), [("W1", 5), ("W1b10", None), ("W2", 1)])
def test_epochs_are_whole_passes_or_none(name: str, epochs: int | None) -> None:
    assert WORKLOADS[name].epochs == epochs


def published(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Stands in for Fashion-MNIST; a sample's number is written into its first two pixels."""
    count = 60_000
    labels = torch.arange(count) % 10
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)  # small, to be quick
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(count) // 256, torch.arange(count) % 256
    part = ud.data.Samples(images.numpy(), labels.numpy())
    test = ud.data.Samples(images[:50].numpy(), labels[:50].numpy())
    dataset = ud.Dataset.of(ud.data.Stored(part, test, classes=10), prepare=ud.data.Images())
    monkeypatch.setattr(datasets, "find", lambda name: Path())
    monkeypatch.setattr(ud.data, "load", lambda name: dataset)
    return labels


def test_the_split_is_a_hundred_times_600_different_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = published(monkeypatch)
    path, about = workloads.write("W1", tmp_path)
    data = workloads.read(path)
    assert data.inputs.shape == (100, 600, 1, 2, 2)
    assert data.inputs.dtype == np.float32
    pixels = np.rint(255 * data.inputs[:, :, 0, 0, :2]).astype(int)
    numbers = 256 * pixels[..., 0] + pixels[..., 1]
    assert sorted(numbers.ravel()) == list(range(60_000))  # nobody shares a sample
    assert np.array_equal(data.targets, labels.numpy()[numbers])
    largest = np.array([np.bincount(own, minlength=10).max() for own in data.targets])
    assert largest.mean() > 200  # Dirichlet 0.3: far from the 60 of a uniform split
    assert "100 x 600" in about
    assert workloads.write("W1b10", tmp_path)[0] == path  # all contestants get the same file
    assert len(data.test_targets) == 50


def test_data_that_is_not_here_is_replaced_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "find", lambda name: None)
    small = workloads.Workload("small", "cnn2", "fashion-mnist", (1, 28, 28), 4, 30, 2, 10, 3, 0.1)
    monkeypatch.setitem(WORKLOADS, "W1", small)
    path, about = workloads.write("W1", tmp_path)
    assert about == "random samples of shape (1, 28, 28) as fashion-mnist is not here"
    assert workloads.read(path).inputs.shape == (4, 30, 1, 28, 28)
    assert len(workloads.read(path).test_targets) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [("W1", {"dropout": 0.0}), ("W1b10", {}), ("W2", {"stem": 3}), ("W3", {"stem": 7})],
    ids=["W1", "W1b10", "W2", "W3"],
)
def test_peers_train_the_net_that_undrift_trains(name: str, options: dict[str, Any]) -> None:
    workload = WORKLOADS[name]
    theirs = nets.build(workload)
    ours = ud.models.build(workload.net, shape=workload.shape, classes=10, **options)
    with torch.no_grad():
        # Modules differ in their names only: in order of registration they are the same.
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert mine.shape == other.shape
            other.copy_(mine)
        inputs = torch.randn(2, *workload.shape)
        torch.testing.assert_close(theirs(inputs), ours(inputs))


def test_batches_reshuffle_and_never_repeat_within_an_epoch() -> None:
    targets = torch.arange(6)
    drawn = nets.batches(targets[:, None].float(), targets, 2, 7)
    assert [len(each) for _, each in drawn] == [2] * 7
    for epoch in (drawn[:3], drawn[3:6]):
        assert sorted(torch.cat([each for _, each in epoch]).tolist()) == list(range(6))
    assert all(inputs[:, 0].tolist() == each.tolist() for inputs, each in drawn)


# Processes and disturbance


def test_a_stat_line_is_read_whatever_the_name_of_the_process() -> None:
    line = "42 (a) b (c)) S 7 40 41 0 -1 4194304 5 6 7 8 100 20 30 4 20 0 1 0 99 1000 50"
    assert usage.parse(line) == (42, Process(7, 41, 120, 34))


def test_a_tree_has_descendants_and_the_session_but_no_strangers() -> None:
    found = {
        1: Process(0, 1, 5, 0),
        10: Process(1, 10, 100, 7),
        11: Process(10, 10, 10, 0),
        12: Process(11, 12, 1, 0),  # in a session of its own
        13: Process(1, 10, 2, 0),  # whose parent has ended
        20: Process(1, 20, 50, 0),
    }
    assert usage.tree(found, 10) == {10, 11, 12, 13}
    assert usage.seconds_of(found, {10, 11}) == pytest.approx(117 / usage.TICKS)
    assert usage.tree(found, 99) == set()


def test_busy_time_leaves_out_idleness_and_waiting() -> None:
    stat = "cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert usage.busy_seconds(stat) == pytest.approx((100 + 20 + 30 + 6 + 7 + 8) / usage.TICKS)


@pytest.mark.parametrize(("others", "disturbed"), [(0.99, False), (1.01, True)])
def test_a_tenth_of_a_core_taken_by_others_disturbs(others: float, disturbed: bool) -> None:
    before = Reading(100.0, 500.0, (10.0, 20.0, 1.0))
    # Ten seconds: the second plays on 1.5 cores, the first waits, and so does the runner.
    spent = (0.3, 15.0, 0.1)
    after = Reading(
        110.0,
        500.0 + sum(spent) + others,
        tuple(a + b for a, b in zip(before.groups, spent, strict=True)),
    )
    span = Span.between(before, after, playing=1)
    assert span.others == pytest.approx(others)
    assert span.idle == pytest.approx(0.3)
    assert span.disturbed is disturbed


def test_spans_add_up_and_one_unknown_makes_all_unknown() -> None:
    quiet, loud = Span(9.0, 0.0, 0.5), Span(1.0, 0.9, 0.1)
    assert loud.disturbed
    assert not (quiet + loud).disturbed
    assert quiet + loud == Span(10.0, 0.9, 0.6)
    unknown = Span.between(Reading(0.0, None, ()), Reading(2.0, None, ()), playing=0)
    assert (quiet + unknown).disturbed is None
    assert show.state(unknown.disturbed) == "unknown"


def test_ticks_counted_twice_are_nobody_elses() -> None:
    before, after = Reading(0.0, 10.0, (1.0, 0.0)), Reading(1.0, 10.99, (2.0, 0.0))
    assert Span.between(before, after, playing=0).others == 0.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_this_process_is_seen_with_its_memory() -> None:
    found = usage.processes()
    assert found is not None
    assert os.getpid() in usage.tree(found, os.getpid())
    assert usage.own_peak_bytes() > 10e6  # type: ignore[operator]


# Protocol


def test_rounds_are_answered_one_by_one_and_prints_do_not_disturb(tmp_path: Path) -> None:
    player = fake(tmp_path, FAKE)
    try:
        assert player.ready()["setup_seconds"] >= 0
        first = player.ask("round")
        assert (first["steps"], first["samples"]) == (60, 3000)
        assert first["seconds"] >= 0
        player.ask("round")
        assert player.ask("accuracy") == {"accuracy": 0.5}
        with pytest.raises(contest.Failed, match="no command"):
            player.ask("dance")
    finally:
        player.stop()
    assert player.process.returncode == 0
    assert "a framework's own words" in player.log.read_text()


def test_a_contestant_that_dies_says_its_last_word(tmp_path: Path) -> None:
    player = fake(tmp_path, FAKE.replace("rounds += 1", "raise MemoryError('too big')"))
    try:
        player.ready()
        with pytest.raises(contest.Failed, match="MemoryError: too big"):
            player.ask("round")
    finally:
        player.stop()


def test_a_contestant_may_refuse(tmp_path: Path) -> None:
    body = "from benchmarks.speed.protocol import Line\nLine().refuse('no such argument')\n"
    player = fake(tmp_path, body)
    try:
        with pytest.raises(contest.Refused, match="no such argument"):
            player.ready()
    finally:
        player.stop()


def test_processes_that_outlive_a_contestant_are_ended(tmp_path: Path) -> None:
    body = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n" + FAKE
    player = fake(tmp_path, body.replace("COUNTS", "(child.pid, 0)"))
    player.ready()
    child = player.ask("round")["steps"]
    player.stop()
    stat = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 20  # A busy machine lets a process that was killed wait.
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_options_survive_the_command_line() -> None:
    for options in (
        protocol.Options("W1", "a b.npz", None, 1, ""),
        protocol.Options("W2", "x", 2, 4, "compile"),
    ):
        assert protocol.Options.parse(options.arguments()) == options


# The run


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ({"steps": 600, "samples": 30_000}, False),
        ({"steps": 599, "samples": 30_000}, True),
        ({"steps": 600, "samples": 29_950}, True),
        ({"steps": None, "samples": None}, True),
    ],
    ids=["same", "fewer-steps", "fewer-samples", "unknown"],
)
def test_other_amounts_of_work_are_not_compared(answer: dict[str, Any], refused: bool) -> None:
    if not refused:
        runner.check_work(answer, WORKLOADS["W1"].amount())
        return
    with pytest.raises(contest.Failed, match="needs 600 steps on 30000 samples"):
        runner.check_work(answer, WORKLOADS["W1"].amount())


def test_an_event_interleaves_and_leaves_out_who_does_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"undrift": "(600, 30000)", "deepcopy-1": "(600, 30000)", "deepcopy-threads": "(1, 1)"}

    def start(self: runner.Event, who: str) -> contest.Player:
        (tmp_path / who).mkdir()
        return fake(tmp_path / who, FAKE, counts[who])

    monkeypatch.setattr(runner.Event, "start", start)
    event = runner.Event("W1", tmp_path, runner.Console())
    names = list(counts)
    try:
        runner.hold(event, names, rounds=3, warm_up=2, rehearsed=None)
    finally:
        event.close()
    assert list(event.scores) == ["undrift", "deepcopy-1"]
    assert event.failed
    assert "needs 600 steps" in event.left_out["deepcopy-threads"]
    for score in event.scores.values():
        assert len(score.seconds) == len(score.cpu_seconds) == 3
        assert score.rounds == 1 + 1 + 3
        assert score.accuracy == 0.25 * 5
        assert score.first_round_seconds is not None
        assert score.execution == {"mode": "loop"}
    assert "deepcopy-threads is left out" in capsys.readouterr().out


def test_who_does_less_in_a_later_round_is_left_out_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runner.Event,
        "start",
        lambda self, who: fake(tmp_path, FAKE, "(600, 30000) if rounds < 3 else (590, 29500)"),
    )
    event = runner.Event("W1", tmp_path, runner.Console())
    runner.hold(event, ["undrift"], rounds=3, warm_up=1, rehearsed=None)
    assert event.scores == {}
    assert "got 590 on 29500" in event.left_out["undrift"]


def test_contestants_are_chosen_by_name_or_family_with_the_reference_first() -> None:
    assert roster.choose(["pfl"]) == ["undrift", "pfl-1", "pfl-threads", "pfl-processes"]
    assert roster.choose(["flower", "pfl-1"]) == ["undrift", "pfl-1", "flower"]
    assert roster.choose(None) == list(roster.CONTESTANTS)
    with pytest.raises(ValueError, match="got 'tensorflow'"):
        roster.choose(["tensorflow"])


def test_every_peer_has_an_environment_and_its_module() -> None:
    here = Path(contest.__file__).parent / "contestants"
    for who in roster.CONTESTANTS.values():
        assert (here / f"{who.module}.py").exists()
        assert set(who.workloads) <= set(WORKLOADS)
    assert {who.peer for who in roster.CONTESTANTS.values()} == {None, *peers.PEERS}


# Figures


def test_ratios_are_medians_of_pairs_and_not_ratios_of_medians() -> None:
    ours, theirs = [1.0, 4.0, 10.0], [3.0, 4.0, 15.0]
    assert results.paired(theirs, ours) == 1.5  # of 3, 1, 1.5; the medians' is 1
    assert results.paired([], []) is None


def score(seconds: list[float], first: float, peak: int, **more: Any) -> dict[str, Any]:
    made = results.Score(seconds, [2 * s for s in seconds], 0.1, first, peak, 0.8, 5)
    return made.to_dict() | more


def found() -> dict[str, Any]:
    scores = {
        "undrift": score([1.0, 2.0, 4.0], 5.0, 10**9),
        "pfl-1": score([3.0, 3.0, 8.0], 10.0, 2 * 10**9),
        "pfl-processes": score([2.0, 2.0, 9.0], 20.0, 3 * 10**9, disturbed=True),
        "flower": score([10.0, 20.0, 40.0], 100.0, 4 * 10**9),
    }
    held = {
        "title": "small CNN",
        "data": "random",
        "scores": scores,
        "summary": results.summary(scores),
        "left_out": {"fedjax": "it ended"},
    }
    return {
        "date": "2026-01-31T14:30:05+00:00",
        "machine": {"cpu": "A CPU", "cores": 2},
        "versions": {
            "undrift": {"undrift": "0.1.0", "torch": "2.13.0+cpu"},
            "pfl": {"pfl": "0.6.0"},
            "flower": {"flwr": "1.41.0"},
        },
        "rounds": 3,
        "warm_up": 2,
        "workloads": {"W1": held},
    }


def test_the_summary_has_medians_and_ratios() -> None:
    summary = found()["workloads"]["W1"]["summary"]
    assert summary["undrift"]["ratio"] == dict.fromkeys(summary["undrift"]["ratio"], 1.0)
    assert summary["pfl-1"]["median"]["seconds"] == 3.0
    assert summary["pfl-1"]["ratio"]["seconds"] == 2.0  # of 3, 1.5, 2
    assert summary["flower"]["ratio"]["first_round_seconds"] == 20.0
    assert summary["pfl-1"]["ratio"]["peak_bytes"] == 2.0


def test_a_peer_stands_for_its_best_set_up() -> None:
    best = results.best_set_ups(found()["workloads"]["W1"]["scores"])
    assert best == {"pfl": "pfl-processes", "flower": "flower"}


def test_the_readme_gets_seconds_of_undrift_and_ratios_of_each_peer() -> None:
    lines = table.brief(results.joined([found()])).splitlines()
    assert lines[:4] == [
        "| seconds a round | undrift | pfl-research | Flower |",
        "|---|---|---|---|",
        "| W1, small CNN | 2 | 2x\\* | 10x |",
        "",
    ]
    assert "undrift's seconds in the same turn. Measured 2026-01-31 on 2 cores" in lines[-1]
    assert "Disturbed" in lines[-1]
    assert lines[-1].endswith(table.MORE)
    with_torch = found()
    scores = with_torch["workloads"]["W1"]["scores"]
    scores["undrift-torch"] = scores["undrift"]
    with_torch["workloads"]["W1"]["summary"] = results.summary(scores)
    whole = results.joined([with_torch])
    assert "kernels=False" in table.markdown(whole)
    assert "kernels=False" not in table.brief(whole)


def test_the_page_gets_a_row_for_each_peer() -> None:
    lines = table.markdown(results.joined([found()])).splitlines()
    assert lines[0] == "| seconds a round | W1, small CNN | first round, W1 |"
    assert lines[2:5] == [
        "| undrift | 2 | 5 s |",
        "| pfl-research 0.6.0 | 2\\* (2x) | 20 s\\* (4x) |",
        "| Flower 1.41.0 | 20 (10x) | 100 s (20x) |",
    ]
    text = "\n".join(lines[5:])
    assert "Measured 2026-01-31 on 2 cores (A CPU), torch 2.13.0+cpu" in text
    assert "Disturbed" in text


def test_the_table_is_put_between_its_marks_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme, page = tmp_path / "README.md", tmp_path / "page.md"
    made = tmp_path / "speed-2026-01-31T1430.json"
    made.write_text(json.dumps(found()))
    for path in (readme, page):
        path.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    arguments = [str(made), "--readme", str(readme), "--page", str(page)]
    assert table.main([*arguments, "--check"]) == 1
    assert "is not made from" in capsys.readouterr().out
    assert "old" in readme.read_text()
    assert table.main(arguments) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n| seconds a round |")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "old" not in text + page.read_text()
    assert "first round" in page.read_text()
    assert "first round, W1" not in text
    assert table.main([*arguments, "--check"]) == 0
    page.write_text(page.read_text().replace("Flower", "Flowers"))
    assert table.main([*arguments, "--check"]) == 1
    readme.write_text("no marks\n")
    assert table.main(arguments) == 1
    assert readme.read_text() == "no marks\n"


def file_of(folder: Path, date: str, *names: str, turns: int = 1, cpu: str = "A CPU") -> Path:
    """Writes results of a day, in which undrift took as many seconds as the day has."""
    made = found() | {"date": date, "machine": {"cpu": cpu, "cores": 2}}
    scores = {"undrift": score([float(date[8:10])] * turns, 1.0, 1)}
    held = {"title": "", "scores": scores, "summary": results.summary(scores), "left_out": {}}
    path = results.place(date, folder)
    path.write_text(json.dumps(made | {"workloads": dict.fromkeys(names, held)}))
    return path


def test_each_workload_has_its_newest_results(tmp_path: Path) -> None:
    assert results.newest(tmp_path) == []
    file_of(tmp_path, "2026-01-30T09:00:00+00:00", "W1", "W2")
    old = file_of(tmp_path, "2026-01-31T09:00:00+00:00", "W1", "W2", turns=2)
    new = file_of(tmp_path, "2026-02-01T09:00:00+00:00", "W3", "W2", turns=3, cpu="B CPU")
    results.place("2027-01-01T00:00:00+00:00", tmp_path, kind="methods").write_text("{}")
    assert results.newest(tmp_path) == [old, new]
    whole = results.joined([json.loads(path.read_text()) for path in (old, new)])
    assert list(whole["workloads"]) == ["W1", "W2", "W3"]
    shown = table.brief(whole)
    rows = [line for line in shown.splitlines() if line.startswith("| W")]
    assert rows == ["| W1,  | 31 |", "| W2,  | 1 |", "| W3,  | 1 |"]
    assert "2026-01-31 on 2 cores (A CPU), torch 2.13.0+cpu (W1); 2026-02-01 on" in shown
    assert "medians of 2 (W1), 3 (W2, W3) interleaved turns" in shown


def test_the_page_names_set_ups_that_were_left_out() -> None:
    text = table.markdown(results.joined([found()]))
    assert "W1: pfl 2 processes" in text
    assert "fedjax: it ended" in text
    assert "pfl-threads, fedlab-1, fedlab-threads: not asked for" in text


def test_who_was_not_asked_for_is_written_down(tmp_path: Path) -> None:
    event = runner.Event("A1", tmp_path, runner.Console())
    runner.hold(event, [], rounds=1, warm_up=1, rehearsed=None)
    assert event.left_out == dict.fromkeys(["undrift", "undrift-full-precision"], "not asked for")


def test_results_tell_how_undrift_computed() -> None:
    small = replace(WORKLOADS["W1b10"], cohort=3, steps=2, batch=5)
    inputs, targets = torch.randn(30, *small.shape), torch.arange(30) % 10
    clients = ud.Clients.split(inputs, targets, list(np.arange(30).reshape(3, 10)))
    run = simulation(small, clients, kernels=False, mode="loop")
    assert execution_of(run) == {
        "mode": "loop",
        "why": "asked for",
        "gradients": "torch (kernels are off)",
    }


def test_both_tables_are_of_the_newest_results() -> None:
    assert table.main(["--check"]) == 0


def test_remarks_name_who_was_disturbed_and_left_out() -> None:
    held = found()["workloads"]["W1"]
    held["scores"]["pfl-processes"]["others_cores"] = 0.5
    held["scores"]["flower"]["idle_cores"] = 0.25
    said = " ".join(show.remarks(held))
    assert "0.50 of a core during the turns of pfl-processes" in said
    assert "waited took up to 0.25 of a core" in said
    assert "fedjax, it ended" in said


def test_the_cpu_is_named() -> None:
    assert results.cpu_model("processor : 0\nmodel name\t: A CPU @ 2 GHz\n") == "A CPU @ 2 GHz"


# Methods


def test_methods_take_turns_in_alternating_order_and_warm_up_is_left_out() -> None:
    played: list[str] = []
    plays = {name: (lambda name=name: played.append(name)) for name in "ab"}
    taken = methods.measure(plays, rounds=2, warm_up=1)
    assert "".join(played) == "abbaab"
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 2, "b": 2}


def test_who_diverges_is_left_out_and_the_others_go_on() -> None:
    played = 0

    def diverge() -> None:
        nonlocal played
        played += 1
        if played == 2:
            raise DivergenceError("NaN", round=2, clients=[0])

    taken = methods.measure({"a": lambda: None, "b": diverge, "c": lambda: None}, 3, 0)
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "c": 3}
    assert played == 2


def test_every_method_is_compared_with_the_plainest_of_its_family() -> None:
    assert {name.lower() for name in methods.METHODS} == SUMMARIES.keys()
    assert set(methods.parsed([]).methods) == methods.METHODS.keys()
    bases = {name: methods.base(name) for name in ("Scaffold", "FedAvg", "LDSGD", "Marsit")}
    assert bases == {"Scaffold": "FedAvg", "FedAvg": "FedAvg", "LDSGD": "DSGD", "Marsit": "DSGD"}
    assert methods.SMALLER.keys() <= methods.METHODS.keys()


def test_methods_are_measured_beside_their_base_so_many_at_a_time() -> None:
    assert methods.groups(["FedAvg", "Scaffold", "DSGD", "FedSAM", "MOON", "PSGD"], 2) == [
        ["Scaffold", "FedSAM"],
        ["MOON"],
        ["PSGD"],
    ]
    assert methods.groups(["DSGD"], 5) == [["DSGD"]]
    measured = {name for group in methods.groups([*methods.METHODS], 5) for name in group}
    assert measured == methods.METHODS.keys() - {"FedAvg", "DSGD"}


@pytest.mark.parametrize("kind", list(ud.ALGORITHMS), ids=lambda kind: kind.__name__)
def test_every_method_plays_a_round_of_the_small_cnn(kind: type) -> None:
    small = replace(WORKLOADS["W1"], cohort=3, steps=2, batch=5)
    noise = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, *small.shape, generator=noise)
    clients = ud.Clients.split(inputs, torch.arange(30) % 10, list(np.arange(30).reshape(3, 10)))
    run = simulation(small, clients, kind(lr=methods.SMALLER.get(kind.__name__, methods.LR)))
    record = next(run)
    assert record.round == 1
    assert record.gradients >= 3 * 2


def test_the_methods_of_each_family_have_a_table() -> None:
    row = {"ratio": 1.25, "disturbed": False}
    made = found() | {"cohort": 2, "workloads": {"W1": {"MOON": row, "PSGD": row}, "W2": {}}}
    assert methods.markdown(made).splitlines() == [
        "| relative to FedAvg | W1 | W2 |",
        "|---|---|---|",
        "| MOON | 1.25 | - |",
        "",
        "| relative to DSGD | W1 | W2 |",
        "|---|---|---|",
        "| PSGD | 1.25 | - |",
        "",
        "2026-01-31, A CPU, 2 cores, torch 2.13.0+cpu; medians of 3 rounds after 2 to warm up. "
        "2 clients a round.",
    ]


# Environments


def test_an_environment_with_cuda_libraries_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)

    def create(place: Path, with_pip: bool) -> None:
        (place / "lib" / "python3.11" / "site-packages").mkdir(parents=True)

    monkeypatch.setattr(peers.venv, "create", create)
    packages = [{"name": "Pfl", "version": "0.6.0"}, {"name": "nvidia-cublas", "version": "1"}]
    calls: list[tuple[str, ...]] = []

    def pip(name: str, *arguments: str) -> str:
        calls.append(arguments)
        return json.dumps(packages)

    monkeypatch.setattr(peers, "_pip", pip)
    with pytest.raises(SystemExit, match="1"):
        peers.main(["build", "pfl"])
    assert "pfl: failed. CUDA libraries were installed (nvidia-cublas)" in capsys.readouterr().out
    assert not peers.is_built("pfl")
    assert not (tmp_path / "pfl").exists()
    assert str(peers.CONSTRAINTS) in calls[0]  # torch is pinned

    del packages[1]
    with pytest.raises(SystemExit, match="0"):
        peers.main(["build", "pfl"])
    assert peers.is_built("pfl")
    assert peers.installed("pfl") == {"pfl": "0.6.0"}
