"""The folders of a new federation: an experiment, certificates, keys, and how to go on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.config.federation import ADDRESS
from undrift.deployment import example
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import AUTHORITY, COLUMNS, EXPERIMENT, is_loopback
from undrift.errors import UndriftError

PROGRAM = Path(__file__).with_name("certificates.py")
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
) -> Path:
    """Write the folders of a centre and its sites, and return the README with the commands.

    Sites and address that are not given are those of the experiment, if it names them.
    """
    new = not folder.exists() or not any(folder.iterdir())
    require(new, "federation init", "a new folder", str(folder), "choose another name")
    given = None if experiment is None else Experiment.read(experiment)
    named = None if given is None else given.federation
    sites = sites or (named.sites if named is not None and named.sites else SITES)
    address = address or (named.address if named is not None and named.address else ADDRESS)
    example_wanted = given is None
    if example_wanted:
        known = ", ".join(example.HOSPITALS)
        own = set(sites) <= set(example.HOSPITALS)
        remedy = "pass your own experiment by --experiment"
        require(own, "The example", f"sites of {known}", list(sites), remedy)
    centre = folder / "centre"
    (centre / "sites").mkdir(parents=True, mode=0o700)
    centre.chmod(0o700)
    _write_experiment(centre, given, sites, address)
    written = Experiment.read(centre / EXPERIMENT).federation
    make(flower, "authority", centre)
    hosts = [] if is_loopback(written.host) else [written.host]
    make(flower, "server", centre, *hosts)
    for name in written.sites:
        place = folder / name
        place.mkdir(mode=0o700)
        make(flower, "node", place / f"{name}.key")
        shutil.move(place / f"{name}.key.pub", centre / "sites" / f"{name}.pub")
        for file in (EXPERIMENT, COLUMNS, AUTHORITY):
            if (centre / file).is_file():
                shutil.copy(centre / file, place / file)
        if example_wanted:
            example.write_table(place / "patients.csv", name)
    readme = folder / "README.md"
    table = "patients.csv" if example_wanted else None
    text = _readme(folder, written.sites, written.host, written.port, table)
    readme.write_text(text, encoding="utf-8")
    return readme


def _write_experiment(
    centre: Path, given: Experiment | None, sites: Sequence[str], address: str
) -> None:
    if given is None:
        (centre / EXPERIMENT).write_text(default_experiment(sites, address), encoding="utf-8")
        (centre / COLUMNS).write_text(example.columns().to_json() + "\n", encoding="utf-8")
        return
    values = given.values()
    section = values.setdefault("federation", {})
    section["sites"], section["address"] = list(sites), address
    if given.federation.columns is not None:
        shutil.copy(given.federation.columns, centre / COLUMNS)
        section["columns"] = COLUMNS
    (centre / EXPERIMENT).write_text(tomli_w.dumps(values), encoding="utf-8")


def _readme(folder: Path, sites: Sequence[str], host: str, port: int, table: str | None) -> str:
    """Return the commands of this federation; `table` is the generated one of each site."""
    name = sites[0]
    where = "this machine" if is_loopback(host) else f"{host}"
    started = "\n".join(
        f"    undrift federation site --key {folder / each / f'{each}.key'} "
        f"--data {'TABLE.csv' if table is None else folder / each / table}"
        for each in sites
    )
    return f"""\
# A federation of {", ".join(sites)}

The folder `centre` stays at the centre, on {where}; nobody else gets it. Each other folder goes to
its site, with the private key in it, by a way that only you and the site can read.

## The centre

    undrift federation serve {folder / "centre"}

runs until Ctrl-C, in a terminal of its own. It listens on port {port} for sites, with TLS, and lets
those in whose keys are in `centre/sites`. A key that is removed there is revoked. The SuperLink
itself listens on the loopback.

## The sites

Each site starts its own, which runs until Ctrl-C; `--data` is its own table.

{started}

As root the table stays closed to what Flower runs: `--relay-user` names the other user, who must be
able to start Flower's environment; `--same-user` does without. On another machine the paths are
those of the folder that the site got, such as `{name}.key`.

## The run

    undrift federation run {folder / "centre"} --out runs/federation

writes records, a table and the model as `undrift run` does, and
`undrift report runs/federation` the page. `undrift federation run {folder / "centre"} --resume
runs/federation` goes on after it was stopped or killed.
"""
