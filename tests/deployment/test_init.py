"""The folders of a new federation have the sites and the address that were named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undrift import __version__
from undrift.config.experiment import Experiment
from undrift.deployment import init as module
from undrift.deployment.environment import RECIPE, FlowerEnvironment
from undrift.deployment.folders import AUTHORITY, EXPERIMENT
from undrift.deployment.init import init
from undrift.errors import UndriftError

FLOWER = FlowerEnvironment(Path("/opt/flower env"))
FAILING: set[str] = set()  # the names of keys that cannot be made


@pytest.fixture(autouse=True)
def _without_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty files where Flower's environment makes keys and certificates."""
    FAILING.clear()

    def make(flower: Any, what: str, place: Path, *rest: Any) -> None:
        if place.name in FAILING:
            raise UndriftError("Certificates and keys could not be made: no space.")
        if what == "authority":
            for name in (AUTHORITY, "ca.key"):
                (place / name).touch()
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
    written = Experiment.of(values).to_toml()
    path.write_text(written.replace('on_bad = "stop"\n', ""))
    return path


def federation_of(folder: Path) -> Any:
    return Experiment.read(folder / "centre" / EXPERIMENT).federation


def test_sites_and_address_are_those_of_the_experiment(tmp_path: Path) -> None:
    path = own(tmp_path, sites=["hill", "mill"], address="centre.example.org:1234")
    readme = init(tmp_path / "fed", FLOWER, experiment=path)
    made = federation_of(tmp_path / "fed")
    assert (list(made.sites), made.address) == (["hill", "mill"], "centre.example.org:1234")
    assert (tmp_path / "fed" / "hill" / "hill.key").exists()
    text = readme.read_text()
    assert "A federation of hill, mill" in text
    assert "--data TABLE.csv" in text, "there is no generated table"
    assert "patients" not in text


def test_what_is_named_in_the_shell_is_taken_instead(tmp_path: Path) -> None:
    path = own(tmp_path, sites=["hill", "mill"], address="centre.example.org:1234")
    init(tmp_path / "fed", FLOWER, ["lake"], "localhost:99", experiment=path)
    made = federation_of(tmp_path / "fed")
    assert (list(made.sites), made.address) == (["lake"], "localhost:99")


def test_without_names_there_are_three_hospitals_here(tmp_path: Path) -> None:
    readme = init(tmp_path / "fed", FLOWER)
    made = federation_of(tmp_path / "fed")
    assert (list(made.sites), made.host) == (["north", "south", "west"], "127.0.0.1")
    table = tmp_path / "fed" / "north" / "patients.csv"
    assert table.exists()
    assert f"--data {table}" in readme.read_text()


@pytest.mark.parametrize("before", ["nothing", "an empty folder"])
def test_what_fails_leaves_nothing_and_can_be_repeated(before: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "fed"
    if before == "an empty folder":
        folder.mkdir(parents=True)
    FAILING.add("west.key")
    with pytest.raises(UndriftError, match="no space"):
        init(folder, FLOWER)
    left = [path for path in tmp_path.rglob("*") if path not in (folder, folder.parent)]
    assert left == [], "keys of other sites and of the authority, too"
    FAILING.clear()
    init(folder, FLOWER)
    assert (folder / "west" / "west.key").exists()
    assert not list(folder.parent.glob(".*")), "no part is left"


def test_commands_say_where_flower_is_and_how_to_install_it(tmp_path: Path) -> None:
    readme = init(tmp_path / "fed", FLOWER, address="centre.example.org:1234").read_text()
    assert RECIPE in readme
    commands = [line for line in readme.splitlines() if line.startswith("    undrift federation")]
    assert len(commands) == 6, "serve, three sites, run and its resume"
    assert all(line.endswith(" --flower '/opt/flower env'") for line in commands)
    usual = init(tmp_path / "usual", FlowerEnvironment(Path(".venv-flower").absolute()))
    assert "undrift federation serve" in usual.read_text()
    assert "--flower '" not in usual.read_text(), "it is found without the option"


def test_each_site_gets_commands_that_hold_on_its_own_machine(tmp_path: Path) -> None:
    init(tmp_path / "fed", FLOWER, address="centre.example.org:1234")
    place = tmp_path / "fed" / "south"
    text = (place / "README.md").read_text()
    assert "    undrift federation site --key south.key --data patients.csv" in text
    assert "centre.example.org, port 1234" in text
    assert RECIPE in text
    assert f"undrift {__version__}" in text
    assert str(tmp_path) not in text, "its folder will be elsewhere"
    assert "flower env" not in text
    given = own(tmp_path, sites=["hill"])
    init(tmp_path / "own", FLOWER, experiment=given)
    assert "--data TABLE.csv" in (tmp_path / "own" / "hill" / "README.md").read_text()


def test_code_that_the_experiment_names_goes_to_each_site(tmp_path: Path) -> None:
    code = "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): ...\n"
    (tmp_path / "mine.py").write_text(code)
    path = own(tmp_path, sites=["hill"])
    path.write_text(path.read_text().replace('name = "mlp"', 'name = "mine.py:Net"'))
    with pytest.raises(ValueError, match="needs your trust"):
        init(tmp_path / "fed", FLOWER, experiment=path)
    readme = init(tmp_path / "fed", FLOWER, experiment=path, trust=True)
    (tmp_path / "mine.py").unlink()
    for place in ("centre", "hill"):
        folder = tmp_path / "fed" / place
        assert (folder / "mine.py").read_text() == code
        read = Experiment.read(folder / EXPERIMENT, trust=True)
        assert read.model.name == f"{folder / 'mine.py'}:Net"
    assert "hill.key --data TABLE.csv --trust" in (folder / "README.md").read_text()
    assert "centre --flower '/opt/flower env' --trust" in readme.read_text()


def test_an_experiment_that_no_site_would_take_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    path = own(tmp_path, sites=["hill"])
    path.write_text(path.read_text().replace("[training]", '[training]\non_bad = "stop"'))
    with pytest.raises(ValueError, match=r'training.on_bad = "drop", .* got \'stop\'; remove it'):
        init(tmp_path / "fed", FLOWER, experiment=path)
    assert not (tmp_path / "fed").exists()
