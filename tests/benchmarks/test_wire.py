"""Figures 3.1a and 3.5 of the thesis, by the wire benchmark on a few coordinates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import wire_figures
from tests.support.system import ROOT

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
