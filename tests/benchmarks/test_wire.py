"""Figures 3.1a and 3.5 of the thesis, by the wire benchmark on a few coordinates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import wire_figures, wire_results
from tests.support.system import ROOT
from undrift.papers import catalogue
from undrift.papers.judge import judge
from undrift.papers.store import is_current

PHASES = ("computation", "compression", "communication")


@pytest.mark.long
def test_figure_3_1a_is_measured_between_processes(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "figure.json"
    command = [sys.executable, "-m", "benchmarks.wire", "--figure", "3.1a", "--links", "loopback"]
    command += ["--coordinates", "20000", "--repeat", "1", "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3 workers as processes of one machine" in done.stdout
    rows = {(row["route"], row["method"]): row for row in json.loads(out.read_text())}
    methods = ("none", "SSDM", "cascading", "Marsit")
    assert set(rows) == {(route, name) for route in ("ring", "server") for name in methods}
    for row in rows.values():
        assert row["iteration"] == pytest.approx(sum(row[phase] for phase in PHASES))
        assert min(row["computation"], row["communication"]) > 0
        assert (row["compression"] > 0) == (row["method"] != "none")

    def bits(route: str, method: str) -> float:
        return float(8 * rows[route, method]["bytes"] / 20000)

    # A worker of three sends its vector to a server once, and on a ring two thirds of it twice.
    # Beside that come headers, and of cascading a norm for each piece.
    assert bits("server", "none") == pytest.approx(32, abs=0.1)
    assert bits("ring", "none") == pytest.approx(32 * 4 / 3, abs=0.1)
    assert bits("server", "Marsit") == pytest.approx(1, abs=0.1)
    assert bits("ring", "Marsit") == pytest.approx(4 / 3, abs=0.1)
    # The server sends its result to each of three workers.
    assert rows["server", "none"]["all_bytes"] == pytest.approx(6 * 4 * 20000, rel=0.01)
    assert rows["ring", "none"]["all_bytes"] == pytest.approx(4 * 4 * 20000, rel=0.01)
    # Sums of one and of two signs take 1 and 2 bits, the result of three takes 2.
    assert bits("server", "SSDM") == pytest.approx(1, abs=0.1)
    assert bits("ring", "SSDM") == pytest.approx((1 + 2 + 2 * 2) / 3, abs=0.1)


def test_figure_3_5_has_the_six_methods() -> None:
    rows = [
        {"method": name, "route": route, "iteration": seconds, "bytes": seconds}
        for route in ("ring", "torus")
        for name, seconds in (("PSGD", 200.0), ("Marsit", 100.0), ("SSDM", 150.0))
    ]
    added = wire_figures.periodic(rows)
    assert [(row["method"], row["route"]) for row in added] == [
        ("Marsit-100", "ring"),
        ("Marsit-100", "torus"),
    ]
    assert added[0]["iteration"] == pytest.approx((99 * 100 + 200) / 100)
    names = {*wire_figures.FIGURES["3.5"], "Marsit-100"}
    assert names == {"PSGD", "signSGD", "EF-signSGD", "SSDM", "Marsit-100", "Marsit"}
    assert wire_figures.periodic([row for row in rows if row["method"] != "PSGD"]) == []


def test_repetitions_on_a_link_become_results_that_claims_are_judged_by() -> None:
    times = {"none": (0.0, 1.0), "SSDM": (0.2, 0.3), "cascading": (0.4, 0.1), "Marsit": (0.1, 0.1)}
    common = {"figure": "3.1a", "workers": 3, "coordinates": 2_300_000, "code": "fixed"}
    common |= {"link": "100mbit", "bandwidth": 1e8}
    rows = []
    for route, slower in (("ring", 1.0), ("server", 2.0)):
        for method, (compression, communication) in times.items():
            own = 0.5 if (method, route) == ("SSDM", "server") else slower
            sent = [own * communication * (1 + n / 100) for n in range(3)]
            repetitions = [
                {"compression": compression, "iteration": 0.3 + compression + each} for each in sent
            ]
            row = {"route": route, "method": method, "all_bytes": 8e6 * slower}
            rows.append({**common, **row, "repetitions": repetitions})
    stored = wire_results.results(rows)
    paper = catalogue.find("marsit/figure3_1a").paper
    assert is_current(stored, paper)
    assert stored.seeds == [0, 1, 2]
    assert {trial.panel for trial in stored.trials} == set(paper.panel_names)
    verdicts = [each.text for each in judge(paper, stored)]
    assert verdicts == ["shown at another setting"] * 4
    slow = [{**row, "repetitions": row["repetitions"][::-1]} for row in rows]
    assert wire_results.results(slow).trials != stored.trials
    assert "2,300,000 random coordinates" in stored.sentences[0]


def test_panels_of_the_figures_are_those_of_the_files() -> None:
    for figure, routes in wire_figures.FIGURE_ROUTES.items():
        paper = catalogue.find(f"marsit/figure{figure.replace('.', '_')}").paper
        found = {panel for route in routes for panel in wire_results.panels_of(figure, route)}
        assert found == set(paper.panel_names)
        names = {*wire_figures.FIGURES[figure]} | ({"Marsit-100"} if figure == "3.5" else set())
        assert {wire_results.NAMES.get(name, name) for name in names} == set(paper.method_names)
