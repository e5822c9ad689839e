"""The costs of Outer in docs/outer.md are those of the results that are kept."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import outer_speed
from tests.support.system import ROOT

KEPT = json.loads(outer_speed.RESULTS.read_text())


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (ROOT / "docs" / "outer.md").read_text()
    assert "\n".join(outer_speed.report_steps(KEPT["step"])) in page
    assert "\n".join(outer_speed.report_meetings(KEPT["meeting"])) in page


def test_a_variant_is_compared_with_the_plain_loop_of_its_turn() -> None:
    seconds = {name: [1.0, 4.0, 2.0] for name in outer_speed.VARIANTS}
    seconds["FedSpeed"] = [3.0, 6.0, 3.0]  # 3, 1.5 and 1.5 times as long as two gradients
    seconds[outer_speed.SGD] = [9.0, 9.0, 9.0]
    lines = outer_speed.report_steps({"seconds": seconds})
    assert "| FedSpeed | 3.000 (3.000 to 6.000) | +50.0 % |" in lines
    assert "| torch's AdamW | 2.000 (1.000 to 4.000) |  |" in lines


def test_another_measure_leaves_the_first(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    outer_speed.keep(path, "step", lambda: {"seconds": 1})
    outer_speed.keep(path, "meeting", lambda: {"seconds": 2})
    kept = json.loads(path.read_text())
    assert {what: each["seconds"] for what, each in kept.items()} == {"step": 1, "meeting": 2}
    assert {"date", "machine", "load"} < set(kept["step"])
