"""`undrift federation run` runs in this process, or starts a run that it supervises."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from undrift.cli.shared import signals_as_codes

if TYPE_CHECKING:
    from undrift.deployment.environment import FlowerEnvironment
    from undrift.deployment.folders import CentreFolder
    from undrift.deployment.transport import RelayTransport


def free_folder() -> Path:
    """Return a folder for results where the operator names none."""
    from undrift.runs.folder import choose_folder

    return choose_folder(None, "federation")


def supervise(
    folder: Path, command: list[str], first: list[str], out: Path, *, quiet: bool
) -> None:
    """Run a command that is started again where it is killed, and end with its code."""
    from undrift.deployment.folders import CentreFolder
    from undrift.deployment.lines import RUN_LOG, LogLines
    from undrift.deployment.supervised_run import supervise_run

    logs = CentreFolder.opened(folder).logs
    with closing(LogLines(logs / RUN_LOG, quiet=quiet)) as lines:
        code = supervise_run(command, first, out, logs, lines.say)
    if code:
        raise typer.Exit(code)


def run_once(
    folder: Path,
    out: Path | None,
    resume: Path | None,
    newcomers: Sequence[str],
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
    track: Sequence[str],
    flower: Path | None,
    trust: bool,
) -> None:
    """Run the experiment in this process."""
    from undrift.cli.progress import ProgressBar
    from undrift.config.experiment import Experiment
    from undrift.deployment.environment import FlowerEnvironment
    from undrift.deployment.folders import CentreFolder
    from undrift.deployment.plan import resolved
    from undrift.deployment.run import run_federation
    from undrift.deployment.run_log import RunLog
    from undrift.report.terminal import print_results
    from undrift.results.filenames import CHECKPOINTS
    from undrift.runs.folder import read_experiment
    from undrift.runs.options import RunOptions
    from undrift.runs.spelling import FLAGS, Spelling

    centre = CentreFolder.opened(folder)
    if resume is None:
        experiment = Experiment.read(centre.experiment, trust=trust)
    else:
        experiment = read_experiment(resume, FLAGS, trust)
    experiment = resolved(experiment)
    command = f"undrift federation run {folder} --resume {resume or out or 'FOLDER'}"
    bar = ProgressBar(quiet=quiet)
    with (
        signals_as_codes(),
        bar,
        RunLog(centre.logs, bar, quiet=quiet) as log,
        tempfile.TemporaryDirectory(prefix="undrift-", dir="/tmp") as place,
        _relay(
            centre, FlowerEnvironment.find(flower), experiment, Path(place), log.say
        ) as transport,
    ):
        if resume is None or not any((resume / CHECKPOINTS).glob("*/centre-*")):
            log.say(f"Waiting for the SuperLink, {', '.join(experiment.federation.sites)}.")
            transport.wait(list(experiment.federation.sites))
        options = RunOptions(
            out=out,
            resume=resume,
            force=force,
            track=track,
            arguments=sys.argv[1:],
            spelling=Spelling(flags=True, command=command),
            observer=log,
        )
        result = run_federation(
            experiment,
            "federation",
            transport,
            options,
            newcomers=newcomers,
            admitted=transport.admitted,
        )
    if result.trials and result.experiment is not None:
        comparison = result.comparison()
        print_results(result.trials, experiment, result.folder, comparison, as_json=as_json)
    if result.stopped:
        raise typer.Exit(128 + result.stopped)


@contextmanager
def _relay(
    centre: "CentreFolder",
    flower: "FlowerEnvironment",
    experiment: Any,
    place: Path,
    say: Callable[[str], None],
) -> Iterator["RelayTransport"]:
    """Give the transport of a run, and let its relay end."""
    from undrift.config.federation import DEADLINE, PATIENCE
    from undrift.deployment.serve import start_relay, write_app
    from undrift.deployment.transport import RelayTransport

    federation = experiment.federation
    app = write_app(place)
    transport = RelayTransport(
        centre.keys,
        lambda path: start_relay(centre, flower, app, path, say),
        place,
        deadline=federation.deadline or DEADLINE,
        patience=federation.patience or PATIENCE,
    )
    try:
        yield transport
    finally:
        transport.close()
