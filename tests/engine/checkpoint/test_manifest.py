"""Manifests that are sealed and make no sense: typed errors, and the checkpoint before them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.problems import bed
from tests.support.runs import start_on_quadratics
from undrift.engine.checkpoint import store
from undrift.files import seal, unseal

CHANGES: dict[str, Any] = {
    "round": [-5, 1, 2.0, "2", None, 10**30],
    "format": [0, None, "2"],
    "totals": [None, [], {"bytes_up": "much"}, {"other": 1}],
    "record": [[], {"round": 2}, "x"],
    "settings": [None, [], {"lr": 1}],
    "execution": [[], {"mode": "sideways"}, {"mode": [1]}],
    "best": [[], {"round": 1}, {"round": 1, "metric": "loss", "value": "low", "stale": 0}],
    "states": [-1, "1", 1.5, [0]],
    "sha256": [None, 5, "0"],
}


def start(folder: Path, **options: Any) -> ud.Run:
    algorithm, problem = ud.Scaffold(lr=0.1), bed(4)
    return start_on_quadratics(algorithm, problem, rounds=4, work=ud.Steps(2), **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with checkpoints of rounds 1 and 2."""
    folder = tmp_path_factory.mktemp("saved")
    with start(folder, checkpoint=folder) as run:
        next(run), next(run)
    return folder


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values]
)
def test_a_sealed_manifest_that_makes_no_sense_is_passed_over(
    name: str, value: Any, saved: Path
) -> None:
    path = saved / "round-00000002" / "manifest.json"
    content = path.read_bytes()
    body = json.loads(unseal(content, "manifest.json"))
    try:
        path.write_bytes(seal(json.dumps(body | {name: value}).encode()))
        with pytest.warns(UserWarning, match="round-00000002 is damaged"):
            assert store.sound_rounds(saved) == [1]
        with pytest.warns(UserWarning, match="round-00000002 is damaged"):
            assert start(saved, resume=saved).round == 1
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("missing", ["round", "format", "totals", "settings", "sha256"])
def test_a_sealed_manifest_without_a_field(missing: str, saved: Path) -> None:
    path = saved / "round-00000002" / "manifest.json"
    content = path.read_bytes()
    body = json.loads(unseal(content, "manifest.json"))
    del body[missing]
    try:
        path.write_bytes(seal(json.dumps(body).encode()))
        with pytest.warns(UserWarning, match="is damaged"):
            assert store.sound_rounds(saved) == [1]
    finally:
        path.write_bytes(content)
