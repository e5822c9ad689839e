"""Flower's environment: where it is, and how its programs are called.

Its requirements clash with those of others, so it has a virtual environment of its own. Nothing of
it is imported here.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from undrift.deployment.supervise import printed, unstartable
from undrift.errors import UndriftError

VERSION = "1.41.0"
VARIABLE = "UNDRIFT_FLOWER"
DEFAULT = Path(".venv-flower")
PROGRAMS = "flwr", "flower-superlink", "flower-supernode"


def recipe(folder: Path | str = DEFAULT, python: str = "python3") -> str:
    """Return the command that makes an environment for Flower, which needs Python 3.11 or later."""
    return f"{python} -m venv {folder} && {folder}/bin/pip install flwr=={VERSION}"


RECIPE = recipe()


@dataclass(frozen=True)
class FlowerEnvironment:
    """Names the folder of a virtual environment that has Flower."""

    folder: Path

    @property
    def option(self) -> str:
        """Return the option by which commands find it, empty where they look for it anyway."""
        if self.folder == DEFAULT.absolute():
            return ""
        return f" --flower {shlex.quote(str(self.folder))}"

    @classmethod
    def find(cls, folder: Path | None = None) -> FlowerEnvironment:
        """Return the environment in a folder, else in $UNDRIFT_FLOWER, else in .venv-flower."""
        named = folder or Path(os.environ.get(VARIABLE) or DEFAULT)
        python = named / "bin" / "python"
        if not python.is_file():
            raise UndriftError(
                f"A federation needs Flower {VERSION} in an environment of its own, got none in "
                f"{str(named)!r}; make one with `{RECIPE}`, and name another place by --flower or "
                f"{VARIABLE}."
            )
        code = "import importlib.metadata as m; print(m.version('flwr'))"
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if found.stdout.strip() != VERSION:
            got = found.stdout.strip() or "none"
            raise UndriftError(
                f"A federation needs Flower {VERSION}, got {got} in {str(named)!r}; install it "
                f"with `{named}/bin/pip install flwr=={VERSION}`."
            )
        missing = [name for name in PROGRAMS if not (named / "bin" / name).is_file()]
        if missing:
            raise UndriftError(
                f"A federation needs the programs of Flower, got no {', '.join(missing)} in "
                f"{str(named)!r}; remove it, and make it anew with `{recipe(named)}`."
            )
        return cls(named.absolute())

    def program(self, name: str) -> str:
        """Return the path of one of its programs."""
        return str(self.folder / "bin" / name)

    def variables(self, home: Path) -> dict[str, str]:
        """Return the variables that its programs are started with; they report nothing home."""
        kept = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "TMPDIR")
        return {
            **_named(os.environ, kept),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(home),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(
        self,
        *arguments: str | Path,
        home: Path,
        say: Callable[[str], None] = lambda text: None,
        timeout: float = 120.0,
    ) -> str:
        """Return what a short program prints; raise with its last line if it fails.

        `say` gets the command as an operator can repeat it.
        """
        command = [self.program(str(arguments[0])), *map(str, arguments[1:])]
        say(f"{arguments[0]}: {printed(command, self.variables(home))}")
        try:
            done = subprocess.run(
                command,
                env=self.variables(home),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UndriftError(f"{arguments[0]} did not end within {timeout:g} s.") from None
        except OSError as error:
            raise unstartable(command[0], error) from error
        if done.returncode:
            lines = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
            raise UndriftError(f"{arguments[0]} {arguments[1]} failed: {lines[-1]}")
        return done.stdout


def _named(variables: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: variables[name] for name in names if name in variables}
