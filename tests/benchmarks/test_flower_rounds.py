"""The floor of a round with Flower is read from the records of a run."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.flower_rounds import floor_of


def test_rounds_without_an_evaluation_count_for_the_exchange_alone(tmp_path: Path) -> None:
    rows = [(5.0, 0.0, None), (6.0, 5.5, 0.3), (9.0, 7.5, 0.2)]
    names = "seconds", "evaluation_seconds", "loss"
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    assert floor_of(tmp_path) == {
        "rounds": 3,
        "exchange": {"least": 5.0, "median": 6.0, "largest": 9.0},
        "evaluation": {"least": 5.5, "median": 6.5, "largest": 7.5},
        "round": {"least": 11.5, "median": 14.0, "largest": 16.5},
    }
    (tmp_path / "records.jsonl").write_text(lines[0] + "\n")
    assert floor_of(tmp_path) == {
        "rounds": 1,
        "exchange": {"least": 5.0, "median": 5.0, "largest": 5.0},
    }
