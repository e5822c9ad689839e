"""`undrift federation`: training on data that stay at their sites, with Flower between them."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.check import require
from undrift.cli.foreign import Command, CommandGroup
from undrift.cli.options import ForceOption, JsonOption, OutOption, QuietOption, TrackOption
from undrift.cli.shared import signals_as_codes

if TYPE_CHECKING:
    from undrift.deployment.environment import FlowerEnvironment

federation_app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Train on data that stay at their sites.\n\n"
    "Flower carries the messages; it has an environment of its own (--flower, $UNDRIFT_FLOWER, "
    ".venv-flower). Example: undrift federation demo fed --out runs/federation",
)
FlowerOption = Annotated[
    Path | None,
    typer.Option(help="Environment that has Flower; else $UNDRIFT_FLOWER or .venv-flower."),
]
CentreArgument = Annotated[Path, typer.Argument(help="The centre's folder, as init writes it.")]
TrustFlag = Annotated[bool, typer.Option("--trust", help="Run the code that the experiment names.")]


@federation_app.command("init", cls=Command)
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[
        str | None,
        typer.Option(help="Names of sites, by commas; else the experiment's, or north,south,west."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT where sites reach the centre; else the experiment's, or 127.0.0.1:9092."
        ),
    ] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="Your own experiment; without it an example.")
    ] = None,
    flower: FlowerOption = None,
    trust: TrustFlag = False,
) -> None:
    """Write an experiment, certificates, keys and READMEs with the commands.

    Without --experiment there are also generated tables of three hospitals. Files of code that the
    experiment names are copied for each site.
    """
    from undrift.deployment.init import init as write

    names = [name.strip() for name in (sites or "").split(",") if name.strip()]
    environment = _flower(flower)
    readme = write(folder, environment, names, address, experiment=experiment, trust=trust)
    print(readme.read_text(encoding="utf-8"))


@federation_app.command("key", cls=Command)
def key(
    file: Annotated[Path, typer.Argument(help="Where the private key goes, such as east.key.")],
    flower: FlowerOption = None,
) -> None:
    """Write the key pair of one more site; FILE.pub goes to the centre's folder of sites."""
    from undrift.deployment.init import make

    require(not file.exists(), "federation key", "a new file", str(file))
    make(_flower(flower), "node", file.absolute())
    print(f"{file}.pub goes to centre/sites/{file.stem}.pub, {file} stays at the site.")


@federation_app.command("serve", cls=Command)
def serve(folder: CentreArgument, flower: FlowerOption = None, trust: TrustFlag = False) -> None:
    """Run SuperLink and gate of the centre, supervised, until Ctrl-C."""
    from undrift.config.experiment import Experiment
    from undrift.deployment.folders import CentreFolder
    from undrift.deployment.serve import serve as serve_centre

    centre = CentreFolder.opened(folder)
    federation = Experiment.read(centre.experiment, trust=trust).federation
    with _stoppable():
        serve_centre(centre, _flower(flower), federation, _say)


@federation_app.command("site", cls=Command)
def site(
    key: Annotated[Path, typer.Option(help="The site's private key, NAME.key.")],
    data: Annotated[str, typer.Option(help="Its own table, or code such as mine.py:load.")],
    experiment: Annotated[
        Path | None, typer.Option(help="The accepted experiment; beside the key.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="The centre's authority; beside the key.")] = None,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the centre; as the experiment has it.")
    ] = None,
    accept: Annotated[
        str | None, typer.Option(help="Digests of the trials that you accept, by commas.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder of states; beside the key.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder of logs; beside the key.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Local steps that the site chooses; as the experiment has it."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time for local steps, instead: the site chooses them by it."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="Who holds data and state; the owner of the table or the code."),
    ] = None,
    relay_user: Annotated[
        str, typer.Option(help="Who runs what Flower brings, if you are root.")
    ] = "nobody",
    same_user: Annotated[
        bool, typer.Option("--same-user", help="What Flower runs may read the data.")
    ] = False,
    flower: FlowerOption = None,
    trust: TrustFlag = False,
) -> None:
    """Run a site, supervised, until Ctrl-C: its resident process and a SuperNode.

    The site answers only requests of the experiment in its file; what that is, is printed.
    """
    from undrift.config.experiment import Experiment
    from undrift.deployment.folders import AUTHORITY, EXPERIMENT
    from undrift.deployment.plan import Accepted, resolved
    from undrift.deployment.site import SiteSettings, check_site, serve_site
    from undrift.usercode.names import absolute_name, is_code

    beside = key.absolute().parent
    file = (experiment or beside / EXPERIMENT).absolute()
    described = resolved(Experiment.read(file, trust=trust))
    federation = described.federation
    settings = SiteSettings(
        name=key.stem,
        experiment=file,
        data=absolute_name(data, Path.cwd()) if is_code(data) else str(Path(data).absolute()),
        key=key.absolute(),
        authority=(ca or beside / AUTHORITY).absolute(),
        address=address or f"{federation.host}:{federation.port}",
        state=(state or beside / "state").absolute(),
        logs=(logs or beside / "logs").absolute(),
        user=user,
        relay_user=None if same_user else relay_user,
        steps=steps,
        seconds=seconds,
        trust=trust,
    )
    check_site(settings, described)
    facts, found = Accepted.of(described)
    if accept is not None:
        wanted = {each.strip() for each in accept.split(",")}
        remedy = "read the file, and accept what it is"
        require(
            wanted == set(found.values()), "--accept", ", ".join(found.values()), accept, remedy
        )
    for name, value in facts.items():
        _say(f"  {name}: {value[:200]}")
    for name, digest in found.items():
        _say(f"Site {settings.name} answers to {name}: {digest}")
    with _stoppable():
        serve_site(settings, _flower(flower), _say)


@federation_app.command("run", cls=Command)
def run(
    folder: CentreArgument,
    out: OutOption = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of results to go on with.")] = None,
    newcomer: Annotated[
        list[str] | None,
        typer.Option(help="With --resume: a site whose state is lost goes on as a new one."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    track: TrackOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Do not start the run again where it is killed.")
    ] = False,
    flower: FlowerOption = None,
    trust: TrustFlag = False,
) -> None:
    """Run the experiment of a centre with its sites; `serve` and the sites must run.

    The run is supervised: one that is killed is started again and goes on.
    """
    both = out is None or resume is None
    require(both, "--resume", "no --out, it goes on in its folder", str(out))
    require(resume is not None or not newcomer, "--newcomer", "--resume beside it", newcomer)
    from undrift.cli.federation_run import free_folder, run_once, supervise

    if once:
        run_once(
            folder,
            out,
            resume,
            newcomer or (),
            force=force,
            as_json=as_json,
            quiet=quiet,
            track=track or (),
            flower=flower,
            trust=trust,
        )
        return
    place = resume or out or free_folder()
    first = ["--out", str(place), *(["--force"] if force else [])]
    if resume is not None:
        first = ["--resume", *first[1:], *(f"--newcomer={name}" for name in newcomer or ())]
    command = [
        *(sys.executable, "-m", "undrift", "federation", "run", str(folder), "--once"),
        *(["--json"] if as_json else []),
        *(["--quiet"] if quiet else []),
        *(f"--track={name}" for name in track or ()),
        *([] if flower is None else ["--flower", str(flower)]),
        *(["--trust"] if trust else []),
    ]
    supervise(folder, command, first, place, quiet=quiet)


@federation_app.command("demo", cls=Command)
def demo(
    folder: Annotated[Path, typer.Argument(help="A new folder for centre and sites.")],
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs/federation"),
    port: Annotated[int, typer.Option(help="Of the centre; 0: a free one.")] = 0,
    force: ForceOption = False,
    flower: FlowerOption = None,
) -> None:
    """Run three sites with generated tables on this machine, from init to a page."""
    from undrift.deployment.accounts import Account
    from undrift.deployment.folders import free_port
    from undrift.deployment.init import init as write
    from undrift.deployment.supervise import SupervisedProgram, Supervisor
    from undrift.runs.folder import read

    environment = _flower(flower)
    if force and (folder / "centre").is_dir():
        shutil.rmtree(folder)
    names = ["north", "south", "west"]
    write(folder.absolute(), environment, names, f"127.0.0.1:{port or free_port()}")
    undrift = [sys.executable, "-m", "undrift", "federation"]
    place = ["--flower", str(environment.folder)]
    separate = os.geteuid() == 0 and Account.named("nobody").can_run(environment.program("python"))
    with signals_as_codes(), Supervisor(folder / "logs", _say) as supervisor:
        variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        centre = str((folder / "centre").absolute())
        supervisor.start(SupervisedProgram("serve", [*undrift, "serve", centre, *place], variables))
        for name in names:
            own = (folder / name).absolute()
            files = ["--key", str(own / f"{name}.key"), "--data", str(own / "patients.csv")]
            files += [] if separate else ["--same-user"]
            supervisor.start(SupervisedProgram(name, [*undrift, "site", *files, *place], variables))
        run(folder / "centre", out=out, force=force, flower=environment.folder)
    print(f"Page: {read(out).report()}")


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the programs that are supervised, and then this one."""
    from undrift.engine.processes.interrupts import handled

    with signals_as_codes(), handled():
        yield


def _flower(folder: Path | None) -> "FlowerEnvironment":
    from undrift.deployment.environment import FlowerEnvironment

    return FlowerEnvironment.find(folder)


def _say(text: str) -> None:
    print(text, flush=True)
