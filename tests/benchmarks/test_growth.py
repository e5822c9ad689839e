"""The measurement of growing runs, on the smallest ones."""

import math
from pathlib import Path

import pytest
from benchmarks.growth import METHODS, Point

from benchmarks import growth


def test_every_point_of_a_line_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [Point(cohort=n, registered=4) for n in (2, 3)]
    monkeypatch.setattr(growth, "peak", lambda point, method: 100.0 * point.cohort)
    monkeypatch.setattr(growth, "WARM_UP", 1)
    monkeypatch.setattr(growth, "LONG", 5)  # so short a run that nothing is compiled for it
    (rows,) = growth.lines_of({"cohort": ("clients a round", points)}, 2)
    assert [row["size"] for row in rows] == [2, 3]
    for row in rows:
        assert all(0 < row[method] < math.inf for method in METHODS)
        assert row["SCAFFOLD MB"] == 100 * row["size"]
    assert growth.table(rows).count("\n") == 3
    monkeypatch.setattr(growth, "LINES", {"cohort": growth.LINES["cohort"]})
    growth.picture(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes()[:4] == b"\x89PNG"


def test_models_have_about_the_parameters_that_are_asked_for() -> None:
    for point in growth.LINES["parameters"][1][:-2]:  # without ten million
        count = sum(parameter.numel() for parameter in point.model().parameters())
        assert count == pytest.approx(point.parameters, rel=0.01)


@pytest.mark.long
def test_the_peak_is_that_of_a_process_of_its_own() -> None:
    small, large = Point(registered=10, cohort=2), Point(registered=10, cohort=2, parameters=10**6)
    peaks = [growth.peak(point, "SCAFFOLD") for point in (small, large)]
    assert 50 < peaks[0] < peaks[1] < 2_000
