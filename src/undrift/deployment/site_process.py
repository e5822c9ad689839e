"""The resident process of a site: data, model and state, behind a Unix socket.

python -m undrift.deployment.site_process EXPERIMENT NAME DATA STATE SOCKET [--group]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.config.sections import Data
from undrift.data import Clients, Dataset
from undrift.data.holdout import train_and_test
from undrift.data.stored import Samples, Stored
from undrift.data.tables.files import is_table
from undrift.data.tables.read import as_frame, require_columns, with_targets
from undrift.deployment.plan import federated_jobs, resolved, sample_form
from undrift.deployment.site import ERROR
from undrift.errors import DataError, UndriftError, first_line
from undrift.federation import FederatedExperiment, Site, SiteServer
from undrift.federation.messages import LONGEST_TEXT, Header, Refusal, SiteMessage
from undrift.runs.load import load_clients, load_dataset


def site_clients(experiment: Experiment, source: str) -> Clients:
    """Return the data of one site: a table, or what code such as `mine.py:load` returns."""
    if not is_table(source):
        data = Data(name=source)
        own = load_clients(data)
        if own is None:
            return load_dataset(data).split("iid", 1)
        clients = own.split(None, 0)
        one = "clients of which there is one, which is this site"
        require(len(clients) == 1, source, one, len(clients), "return a Dataset, or one pair")
        return clients
    columns, data = sample_form(experiment).preprocessing, experiment.data
    if columns is None:
        raise UndriftError(
            "A site with a table needs an experiment that declares columns, got one without; add "
            "data.columns or federation.columns."
        )
    frame = as_frame(source, separator=data.separator, decimal=data.decimal)
    require_columns(frame, {"target": columns.target.name})
    if data.missing_target == "drop":
        frame = with_targets(frame, columns.target.name)
    if len(frame) < 2:
        raise DataError(
            f"{source} needs at least 2 rows, of which one is tested, got {len(frame)}."
        )
    inputs, targets = columns.inputs(frame), columns.target.encode(frame)
    rows = train_and_test(len(frame), data.test_fraction, 0)
    train, test = (Samples(inputs[some], targets[some]) for some in rows)
    stored = Stored(train, test, classes=max(1, len(columns.target.classes)))
    return Dataset.of(stored).split("iid", 1)


class SiteHost:
    """Answers requests to the trials of one experiment, which the operator of the site accepted.

    `steps` and `seconds` are those of `Site`. `say` gets a line for each request and its reply.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        data: Clients,
        folder: Path,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._say = say
        self._name, self._data, self._folder = name, data, folder
        self._steps, self._seconds = steps, seconds
        self._accepted = {
            each.experiment.digest: each.experiment for each in federated_jobs(experiment)
        }
        self._site = lru_cache(maxsize=1)(self._new_site)  # trials run one after the other
        self._site(next(iter(self._accepted)))  # which raises if data and model do not fit

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to a request; another experiment gets a refusal."""
        reply = self._answer(message)
        self._say(f"{_said(message.header)}: {_said(reply.header)}")
        return reply

    def _answer(self, message: SiteMessage) -> SiteMessage:
        wanted = getattr(message.header, "experiment", None)
        experiment = self._accepted.get(str(wanted))
        if experiment is None:
            accepted = ", ".join(self._accepted)
            reason = (
                f"Site {self._name} needs requests of the experiment {accepted}, which its "
                f"operator has accepted, got {str(wanted)[:40]}; compare the files."
            )
            return SiteMessage(Refusal(reason=reason[:LONGEST_TEXT]))
        return self._site(experiment.digest).answer(message)

    def _new_site(self, digest: str) -> Site:
        experiment: FederatedExperiment = self._accepted[digest]
        return Site(
            experiment,
            self._data,
            self._folder / digest,
            name=self._name,
            steps=self._steps,
            seconds=self._seconds,
            say=self._say,
        )


def _said(header: Header) -> str:
    """Return what a message is, for the log of the site's operator."""
    fields = header.model_dump(include={"kind", "t", "stage", "attempt", "reason"})
    kind = fields.pop("kind", "message")
    return " ".join([kind, *(f"{name}={value}" for name, value in fields.items())])


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
        data = site_clients(experiment, options.data)
        host = SiteHost(
            experiment,
            options.name,
            data,
            Path(options.state),
            steps=options.steps,
            seconds=options.seconds,
            say=lambda text: print(text, flush=True),
        )
        server = SiteServer(host, options.socket, group=options.group)
    except (ValueError, UndriftError, OSError) as error:
        print(f"{ERROR}{first_line(error)}.", flush=True)
        sys.exit(2)
    print(f"The site answers; it has {len(data.targets)} training samples.", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
