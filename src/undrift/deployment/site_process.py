"""The resident process of a site: data, model and state, behind a Unix socket.

python -m undrift.deployment.site_process EXPERIMENT NAME DATA STATE SOCKET [--group]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from undrift.config.experiment import Experiment
from undrift.deployment.host import AgreeingHost, SiteHost, own_table, site_clients
from undrift.deployment.plan import resolved
from undrift.deployment.site import ERROR
from undrift.errors import UndriftError, first_line
from undrift.federation import SiteServer


def main() -> None:
    """Serve requests until the process is ended."""
    parser = argparse.ArgumentParser()
    for name in ("experiment", "name", "data", "state", "socket"):
        parser.add_argument(name)
    parser.add_argument("--group", action="store_true")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.umask(0o077)
    try:
        experiment = resolved(Experiment.read(options.experiment, trust=options.trust))
        name, state = options.name, Path(options.state)
        own = {"steps": options.steps, "seconds": options.seconds, "say": _say}
        host: SiteHost | AgreeingHost
        if experiment.federation.agree:
            table = own_table(experiment, options.data)
            samples, host = len(table.rows[0]), AgreeingHost(experiment, name, table, state, **own)
        else:
            data = site_clients(experiment, options.data)
            samples, host = len(data.targets), SiteHost(experiment, name, data, state, **own)
        server = SiteServer(host, options.socket, group=options.group)
    except (ValueError, UndriftError, OSError) as error:
        _say(f"{ERROR}{first_line(error)}.")
        sys.exit(2)
    _say(f"The site answers; it has {samples} training samples.")
    server.serve()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
