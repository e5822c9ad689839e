"""The centre's side of Flower: SuperLink, gate, and the keys of sites that may connect."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from undrift.config.federation import Federation
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import AUTHORITY, CONNECTION, CentreFolder, is_loopback
from undrift.deployment.supervise import Hopeless, SupervisedProgram, Supervisor
from undrift.errors import UndriftError
from undrift.federation import frames
from undrift.files import write_atomic
from undrift.untrusted import read_json

HERE = Path(__file__).parent
_TAKEN = {
    "address already in use": Hopeless(
        "A centre needs a free port, got one on which another program listens; stop it, or choose "
        "another by federation.address."
    )
}


def superlink(folder: CentreFolder, flower: FlowerEnvironment) -> SupervisedProgram:
    """Return the SuperLink, which listens on the loopback."""
    host, _, port = folder.superlink(new=True).rpartition(":")
    files = folder.path
    command = [
        flower.program("flower-superlink"),
        *("--ssl-ca-certfile", str(files / AUTHORITY)),
        *("--ssl-certfile", str(files / "server.pem")),
        *("--ssl-keyfile", str(files / "server.key")),
        *("--host", host, "--port", port),
        *("--database", str(folder.database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]
    return SupervisedProgram("superlink", command, flower.variables(folder.home), hopeless=_TAKEN)


def gate(
    folder: CentreFolder, flower: FlowerEnvironment, federation: Federation
) -> SupervisedProgram:
    """Return the gate, which listens where sites reach the centre."""
    host = federation.host if is_loopback(federation.host) else "0.0.0.0"
    command = [
        *(flower.program("python"), str(HERE / "gate.py")),
        *(host, str(federation.port), folder.superlink()),
        *(str(folder.path / name) for name in (AUTHORITY, "server.pem", "server.key")),
    ]
    return SupervisedProgram("gate", command, flower.variables(folder.home), hopeless=_TAKEN)


class Registry:
    """Lets exactly those nodes connect whose keys are in the centre's folder of sites."""

    def __init__(
        self, folder: CentreFolder, flower: FlowerEnvironment, say: Callable[[str], None]
    ) -> None:
        self._folder, self._flower, self._say = folder, flower, say
        self._file = folder.home / "registered.json"
        if not folder.database.exists():  # A new SuperLink knows nobody.
            self._file.unlink(missing_ok=True)
        self._nodes: dict[str, str] = read_json(self._file) if self._file.is_file() else {}
        self.ready = False

    def update(self) -> None:
        """Accept new keys and revoke those that are gone, when the SuperLink answers."""
        keys = {key: name for name, key in self._folder.keys().items()}
        if self.ready and keys.keys() == self._nodes.keys():
            return
        host, _, port = self._folder.superlink().rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            return
        for key in [key for key in self._nodes if key not in keys]:
            self._flwr("unregister", self._nodes.pop(key))
            self._say("A key was revoked.")
            self._remember()
        for key in [key for key in keys if key not in self._nodes]:
            file = self._folder.path / "sites" / f"{keys[key]}.pub"
            answer = self._flwr("register", str(file), "--name", keys[key], "--format", "json")
            with suppress(ValueError, KeyError):
                self._nodes[key] = str(json.loads(answer[answer.index("{") :])["node-id"])
            self._remember()
        if not self.ready:
            self._say(f"The centre waits for {', '.join(keys.values()) or 'keys of sites'}.")
        self.ready = True

    def _flwr(self, verb: str, what: str, *options: str) -> str:
        arguments = ("flwr", "supernode", verb, what, CONNECTION, *options)
        return self._flower.run(*arguments, home=self._folder.home, say=self._say)

    def _remember(self) -> None:
        write_atomic(self._file, json.dumps(self._nodes))


def serve(
    folder: CentreFolder,
    flower: FlowerEnvironment,
    federation: Federation,
    say: Callable[[str], None],
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run SuperLink and gate until `until` returns True, and keep to the keys in the folder.

    The gate starts when the SuperLink knows the keys: a SuperNode that is refused gives up, and one
    that reaches nobody tries again.
    """
    with Supervisor(folder.logs, say) as supervisor:
        supervisor.start(superlink(folder, flower))
        registry = Registry(folder, flower, say)
        trouble, opened = "", False

        def update() -> bool:
            nonlocal trouble, opened
            before, trouble = trouble, ""
            try:
                registry.update()
                if registry.ready and not opened:
                    supervisor.start(gate(folder, flower, federation))
                    opened = True
            except (UndriftError, ValueError, OSError) as error:
                # The SuperLink may be starting again, or a key's file is not whole yet.
                trouble = str(error)
                if trouble != before:
                    say(trouble)
            return until()

        supervisor.watch(update)


def write_app(folder: Path) -> Path:
    """Write the Flower app that carries messages, and return its folder."""
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    shutil.copytree(HERE / "flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(frames.__file__, app / "undrift_relay" / "frames.py")
    return app


def start_relay(
    folder: CentreFolder,
    flower: FlowerEnvironment,
    app: Path,
    path: Path,
    say: Callable[[str], None],
) -> None:
    """Let the SuperLink start a relay that connects to a socket, and say how."""
    folder.superlink()  # which raises if there is none, before Flower writes a file of its own
    arguments = ("flwr", "run", app, CONNECTION, "--run-config", f'socket="{path}"')
    flower.run(*arguments, home=folder.home, say=say)
