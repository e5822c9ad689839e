"""The folders of a new federation have the sites and the address that were named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undrift.config.experiment import Experiment
from undrift.deployment import init as module
from undrift.deployment.folders import EXPERIMENT
from undrift.deployment.init import init


@pytest.fixture(autouse=True)
def _without_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty files where Flower's environment makes keys and certificates."""

    def make(flower: Any, what: str, place: Path, *rest: Any) -> None:
        if what == "node":
            place.touch()
            place.with_name(f"{place.name}.pub").touch()

    monkeypatch.setattr(module, "make", make)


def own(tmp_path: Path, **federation: Any) -> Path:
    path = tmp_path / "mine.toml"
    values = {
        "methods": [{"name": "fedavg"}],
        "federation": {"inputs": [4], "outputs": 2, **federation},
    }
    path.write_text(Experiment.of(values).to_toml())
    return path


def federation_of(folder: Path) -> Any:
    return Experiment.read(folder / "centre" / EXPERIMENT).federation


def test_sites_and_address_are_those_of_the_experiment(tmp_path: Path) -> None:
    path = own(tmp_path, sites=["hill", "mill"], address="centre.example.org:1234")
    readme = init(tmp_path / "fed", None, experiment=path)  # type: ignore[arg-type]
    made = federation_of(tmp_path / "fed")
    assert (list(made.sites), made.address) == (["hill", "mill"], "centre.example.org:1234")
    assert (tmp_path / "fed" / "hill" / "hill.key").exists()
    text = readme.read_text()
    assert "A federation of hill, mill" in text
    assert "--data TABLE.csv" in text, "there is no generated table"
    assert "patients" not in text


def test_what_is_named_in_the_shell_is_taken_instead(tmp_path: Path) -> None:
    path = own(tmp_path, sites=["hill", "mill"], address="centre.example.org:1234")
    init(tmp_path / "fed", None, ["lake"], "localhost:99", experiment=path)  # type: ignore[arg-type]
    made = federation_of(tmp_path / "fed")
    assert (list(made.sites), made.address) == (["lake"], "localhost:99")


def test_without_names_there_are_three_hospitals_here(tmp_path: Path) -> None:
    readme = init(tmp_path / "fed", None)  # type: ignore[arg-type]
    made = federation_of(tmp_path / "fed")
    assert (list(made.sites), made.host) == (["north", "south", "west"], "127.0.0.1")
    table = tmp_path / "fed" / "north" / "patients.csv"
    assert table.exists()
    assert f"--data {table}" in readme.read_text()
