"""The folders of a new federation: an experiment, certificates, keys, and how to go on."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.config.federation import ADDRESS, Federation
from undrift.deployment import example
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import AUTHORITY, COLUMNS, EXPERIMENT, is_loopback
from undrift.deployment.plan import resolved
from undrift.deployment.readmes import README, TABLE, centre_readme, site_readme
from undrift.errors import UndriftError
from undrift.files import part_of
from undrift.usercode.names import code_fields, is_code, place_of

PROGRAM = Path(__file__).with_name("certificates.py")
COPIED = ".toml", ".json", ".py"  # what a site gets beside its key and the authority
SITES = "north", "south", "west"  # where nobody names others


def make(flower: FlowerEnvironment, *arguments: str | Path) -> None:
    """Run the program that makes certificates and keys in Flower's environment."""
    command = [flower.program("python"), str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UndriftError(f"Certificates and keys could not be made: {last}")


def default_experiment(sites: Sequence[str], address: str) -> str:
    """Return the text of an experiment to begin with."""
    values = {
        "title": "Hospitals (generated tables)",
        "seeds": [0],
        "methods": [{"name": "scaffold", "lr": 0.1}],
        "model": {"name": "mlp", "hidden": 16},
        "training": {"rounds": 5, "work": "epochs:1", "batch_size": 20},
        "federation": {"sites": list(sites), "address": address, "columns": COLUMNS},
    }
    return tomli_w.dumps(values)


def init(
    folder: Path,
    flower: FlowerEnvironment,
    sites: Sequence[str] = (),
    address: str | None = None,
    *,
    experiment: Path | None = None,
    trust: bool = False,
) -> Path:
    """Write the folders of a centre and its sites, and return the README with the commands.

    Sites and address that are not given are those of the experiment, if it names them. The folder
    is written whole or not at all.
    """
    new = not folder.exists() or not any(folder.iterdir())
    require(new, "federation init", "a new folder", str(folder), "choose another name")
    given = None if experiment is None else Experiment.read(experiment, trust=trust)
    named = None if given is None else given.federation
    sites = sites or (named.sites if named is not None and named.sites else SITES)
    address = address or (named.address if named is not None and named.address else ADDRESS)
    if given is None:
        known = ", ".join(example.HOSPITALS)
        own = set(sites) <= set(example.HOSPITALS)
        remedy = "pass your own experiment by --experiment"
        require(own, "The example", f"sites of {known}", list(sites), remedy)
    place = folder.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(place)
    try:
        written = _write_experiment(part / "centre", given, sites, address, trust=trust)
        _write_keys(part, flower, written.federation)
        for name in written.federation.sites:
            for file in (part / "centre").glob("*"):
                if file.suffix in COPIED or file.name == AUTHORITY:
                    shutil.copy(file, part / name / file.name)
            if given is None:
                example.write_table(part / name / TABLE, name)
        _write_readmes(part, folder, flower, written)
        place.mkdir(exist_ok=True)  # An empty one may be there, and be where the shell is.
        for each in part.iterdir():
            each.rename(place / each.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder / README


def _write_experiment(
    centre: Path,
    given: Experiment | None,
    sites: Sequence[str],
    address: str,
    *,
    trust: bool,
) -> Experiment:
    """Write the experiment with all files that it names into a new folder, and return it.

    One that is refused by `site` and `run` is refused here.
    """
    (centre / "sites").mkdir(parents=True, mode=0o700)
    centre.chmod(0o700)
    path = centre / EXPERIMENT
    if given is None:
        path.write_text(default_experiment(sites, address), encoding="utf-8")
        (centre / COLUMNS).write_text(example.columns().to_json() + "\n", encoding="utf-8")
        return resolved(Experiment.read(path))
    values = given.values()
    if "on_bad" not in given.training.model_fields_set:
        values["training"].pop("on_bad", None)
    section = values.setdefault("federation", {})
    section["sites"], section["address"] = list(sites), address
    if given.federation.columns is not None:
        shutil.copy(given.federation.columns, centre / COLUMNS)
        section["columns"] = COLUMNS
    for table, field in code_fields(values):
        file = Path(place_of(table[field]))
        if is_code(table[field]) and file.suffix == ".py":
            once = not (centre / file.name).exists() or filecmp.cmp(file, centre / file.name)
            require(once, "federation init", "files of code of different names", str(file))
            shutil.copy(file, centre / file.name)
            table[field] = f"{file.name}:{table[field].rpartition(':')[2]}"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return resolved(Experiment.read(path, trust=trust))


def _write_keys(folder: Path, flower: FlowerEnvironment, federation: Federation) -> None:
    """Write the centre's authority and certificate, and a key for each site into its own folder."""
    centre = folder / "centre"
    make(flower, "authority", centre)
    hosts = [] if is_loopback(federation.host) else [federation.host]
    make(flower, "server", centre, *hosts)
    for name in federation.sites:
        place = folder / name
        place.mkdir(mode=0o700)
        make(flower, "node", place / f"{name}.key")
        shutil.move(place / f"{name}.key.pub", centre / "sites" / f"{name}.pub")


def _write_readmes(
    part: Path, folder: Path, flower: FlowerEnvironment, experiment: Experiment
) -> None:
    """Write how to go on, for the centre and for each site; `folder` is where it all will be."""
    federation = experiment.federation
    trust = " --trust" if experiment.code else ""
    for name in federation.sites:
        table = TABLE if (part / name / TABLE).exists() else None
        text = site_readme(name, federation, table, trust)
        (part / name / README).write_text(text, encoding="utf-8")
    text = centre_readme(folder, federation, flower.option + trust, table)
    (part / README).write_text(text, encoding="utf-8")
