"""The benchmark of bad updates, in short: every bad one is dropped and no honest one."""

from __future__ import annotations

import pytest

from benchmarks import bad_updates


def test_the_benchmark_drops_every_bad_update_and_no_honest_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_updates, "METHODS", ("scaffold",))
    bad_updates.bad(seeds=(0,), rounds=2)
    bad_updates.honest(seeds=(0,), rounds=2, work="uniform:2:8")
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    told = [row for row in rows if row[0] in bad_updates.BAD]
    assert [row[0] for row in told] == list(bad_updates.BAD)
    assert all(int(sent) == int(dropped) > 0 == int(wrong) for _, sent, dropped, wrong in told)
    (honest,) = (row for row in rows if row[0] == "scaffold")
    assert honest[1:3] == ["20", "0"]
    assert 1 <= float(honest[3].split(" ")[0]) < 100
