"""A site: its resident process, and a SuperNode that runs as another user."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from undrift.config.experiment import Experiment
from undrift.data.tables.files import is_table
from undrift.deployment.accounts import Account, relay_account
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import free_port
from undrift.deployment.supervise import Hopeless, SupervisedProgram, Supervisor
from undrift.errors import UndriftError
from undrift.federation.site import require_own_work
from undrift.usercode.names import is_code, place_of

ERROR = "A site could not start: "  # what the site process writes before its reason
PACKAGES = Path(__file__).parents[2]  # where this package is imported from
_REFUSED = {
    "CERTIFICATE_VERIFY_FAILED": Hopeless(
        "A site needs the certificate of its centre's authority, got another one; ask the centre "
        "for its ca.crt."
    ),
    "[code: 2001]": Hopeless(
        "A site needs a key that the centre has registered, got none; name it by --key."
    ),
    # A node that was killed counts as connected for a minute, so the same is said of it.
    "[code: 2004]": Hopeless(
        "A site needs a key that the centre has registered and that no other site uses at the same "
        "time, got one that the centre refuses; ask the centre whether it was revoked.",
        240.0,
    ),
}
# After a link was cut for half a minute a SuperNode gives up, and its process stays.
_GIVEN_UP = ("Giving up reconnection",)
_BAD = {ERROR: Hopeless()}


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """Says what a site's operator has chosen."""

    name: str
    experiment: Path
    data: str  # a table, or code
    key: Path
    authority: Path
    address: str
    state: Path
    logs: Path
    user: str | None = None  # who holds data and state; None: the owner of the table or the code
    relay_user: str | None = "nobody"  # None: the same user, who can read the data then
    steps: int | None = None  # that the site chooses itself
    seconds: float | None = None  # that its local steps may take
    trust: bool = False


def serve_site(
    settings: SiteSettings,
    flower: FlowerEnvironment,
    say: Callable[[str], None],
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run a site until `until` returns True."""
    holder, relay = _accounts(settings, flower, say)
    with (
        tempfile.TemporaryDirectory(prefix="undrift-", dir="/tmp") as place,
        Supervisor(settings.logs, say) as supervisor,
    ):
        folder = Path(place)
        path = folder / "socket" / "site.sock"
        _make(settings.state, holder, 0o700)
        _make(path.parent, holder, 0o700)
        _make(home := folder / "node", relay, 0o700)
        if holder is not None and relay is not None:
            os.chown(path.parent, holder.uid, relay.gid)
            path.parent.chmod(0o2750)  # The socket gets the folder's group.
            folder.chmod(0o711)
        key = _copied(settings.key, home, relay)
        authority = _copied(settings.authority, home, relay)
        group = relay is not None
        supervisor.start(_process(settings, holder, path, group=group))
        supervisor.start(_node(settings, flower, relay, home, key, authority, path))
        supervisor.watch(until)


def _accounts(
    settings: SiteSettings, flower: FlowerEnvironment, say: Callable[[str], None]
) -> tuple[Account | None, Account | None]:
    """Return who holds the data and who runs what Flower brings; None for the caller's own user."""
    data, tabular = settings.data, is_table(settings.data)
    if settings.relay_user is None or os.geteuid() != 0:
        why = "" if os.geteuid() == 0 else " Only root can start programs as other users."
        say(f"What Flower runs at this site could read its data and its state.{why}")
        return None, None
    if settings.user is not None:
        holder = Account.named(settings.user)
    else:
        file = Path(place_of(data) if is_code(data) else data)
        holder = Account.of(file.stat().st_uid if file.is_file() else os.geteuid())
    relay = relay_account(settings.relay_user, holder, Path(data) if tabular else None)
    if not tabular:
        say(
            f"{data} is no table, so whether the user {relay.name}, who runs what Flower brings, "
            f"can read what it reads is not checked: close it by `chmod 600`. It is run by the "
            f"user {holder.name}; --user names another."
        )
    python = flower.program("python")
    if not relay.can_run(python):
        raise UndriftError(
            f"The user {relay.name}, who runs what Flower brings, needs to start {python!r}, got "
            "no right to; make Flower's environment with an interpreter that all users can start, "
            "such as /usr/bin/python3."
        )
    return holder, relay


def _process(
    settings: SiteSettings, holder: Account | None, path: Path, *, group: bool
) -> SupervisedProgram:
    command = [
        *(sys.executable, "-m", "undrift.deployment.site_process"),
        *(str(settings.experiment), settings.name, settings.data, str(settings.state), str(path)),
        *(["--group"] if group else []),
        *(["--trust"] if settings.trust else []),
        *([] if settings.steps is None else ["--steps", str(settings.steps)]),
        *([] if settings.seconds is None else ["--seconds", str(settings.seconds)]),
    ]
    variables = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    return SupervisedProgram("site", command, variables, holder, hopeless=_BAD)


def _node(
    settings: SiteSettings,
    flower: FlowerEnvironment,
    relay: Account | None,
    home: Path,
    key: Path,
    authority: Path,
    path: Path,
) -> SupervisedProgram:
    command = [
        flower.program("flower-supernode"),
        *("--superlink", settings.address),
        *("--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--node-config", f'socket="{path}"'),
        *("--host", "127.0.0.1", "--port", str(free_port())),
    ]
    return SupervisedProgram(
        "supernode", command, flower.variables(home), relay, hopeless=_REFUSED, stuck=_GIVEN_UP
    )


def _make(folder: Path, account: Account | None, mode: int) -> None:
    """Make a folder that belongs to a user alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    if account is not None:
        account.own(folder, mode)
    else:
        folder.chmod(mode)


def _copied(file: Path, folder: Path, account: Account | None) -> Path:
    """Return a copy of a file that only the user of the folder can read."""
    copy = folder / file.name
    shutil.copy(file, copy)
    copy.chmod(0o600)
    if account is not None:
        account.own(copy, 0o600)
    return copy


def check_site(settings: SiteSettings, experiment: Experiment) -> None:
    """Raise before anything is started if a site's files do not fit."""
    for what, path in (("key", settings.key), ("ca", settings.authority)):
        if not path.is_file():
            raise UndriftError(
                f"--{what} needs a file that is there, got {str(path)!r}; `undrift federation "
                "init` writes it into the site's folder."
            )
    if settings.key.stat().st_mode & 0o077:
        raise UndriftError(
            f"--key needs a file that only its owner can read, got {str(settings.key)!r}; say "
            f"`chmod 600 {settings.key}`."
        )
    if is_table(settings.data) and not Path(settings.data).is_file():
        raise UndriftError(
            f"--data needs a table that is there, got {settings.data!r}; name the file that has "
            "this site's rows."
        )
    require_own_work(settings.steps, settings.seconds)
    if settings.name not in experiment.federation.sites:
        raise UndriftError(
            f"A site needs a name that the experiment has, one of "
            f"{', '.join(experiment.federation.sites)}, got {settings.name!r}; a key's file is "
            "named after its site."
        )
