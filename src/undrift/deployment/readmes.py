"""Texts that tell the operators of a new federation how to go on."""

from __future__ import annotations

from pathlib import Path

from undrift import __version__
from undrift.config.federation import Federation
from undrift.deployment.environment import RECIPE, recipe
from undrift.deployment.folders import is_loopback

README, TABLE = "README.md", "patients.csv"
SHARED = "/opt/undrift-flower"  # where the users of a machine can start programs


def centre_readme(folder: Path, federation: Federation, option: str, table: str | None) -> str:
    """Return the commands of a federation, which have an option; `table` is that of each site."""
    sites, centre = federation.sites, folder / "centre"
    where = "this machine" if is_loopback(federation.host) else federation.host
    started = "\n".join(
        f"    undrift federation site --key {folder / each / f'{each}.key'} "
        f"--data {'TABLE.csv' if table is None else folder / each / table}{option}"
        for each in sites
    )
    return f"""\
# A federation of {", ".join(sites)}

The folder `centre` stays at the centre, on {where}; nobody else gets it. Each other folder goes to
its site, with the private key in it, by a way that only you and the site can read. It has a
README.md of its own, with the commands of a site on another machine.

All of them need Python 3.11 or later, undrift {__version__} with its extra `tables`, and Flower in
an environment of its own. Commands look for it in `--flower`, `$UNDRIFT_FLOWER` and `.venv-flower`:

    {RECIPE}

## The centre

    undrift federation serve {centre}{option}

runs until Ctrl-C, in a terminal of its own. It listens on port {federation.port} for sites, with
TLS, and lets those in whose keys are in `centre/sites`. A key that is removed there is revoked. The
SuperLink itself listens on the loopback.

## The sites

Each site starts its own, which runs until Ctrl-C; `--data` is its own table. On this machine:

{started}

As root the table stays closed to what Flower runs: `--relay-user` names the other user, who must be
able to start Flower's environment; `--same-user` does without.

## The run

    undrift federation run {centre} --out runs/federation{option}

writes records, a table and the model as `undrift run` does, and
`undrift report runs/federation` the page. This goes on after it was stopped or killed:

    undrift federation run {centre} --resume runs/federation{option}
"""


def site_readme(name: str, federation: Federation, table: str | None, option: str) -> str:
    """Return the commands of one site, which start in its own folder, on whatever machine."""
    start = f"undrift federation site --key {name}.key --data {table or 'TABLE.csv'}{option}"
    return f"""\
# Site {name} of a federation

`{name}.key` is who this site is: nobody else gets this folder. The centre is at
{federation.host}, port {federation.port}, which this machine must be able to reach.

Read `experiment.toml` first, and the code that it names, if it does: this site computes what they
say, and nothing else. Then install undrift {__version__}, as the centre has, with its extra
`tables` and Python 3.11 or later. Flower gets an environment of its own, where another user of this
machine can start it:

    {recipe(SHARED, "/usr/bin/python3")}

Start the site as root, in this folder; it runs until Ctrl-C:

    {start} --flower {SHARED}

What Flower runs is then another user, who can read neither table nor state. Without root it could
read both; then Flower may as well be in this folder, by
`{RECIPE}`, and

    {start}

starts the site. `--data` is this site's own table. Logs are in `logs`, and the site's state, which
must not be lost, in `state`.
"""
