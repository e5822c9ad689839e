"""The files of a federation: what the centre keeps, and what each site gets."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from undrift.check import require
from undrift.errors import UndriftError
from undrift.files import write_atomic
from undrift.untrusted import parse_toml

EXPERIMENT, COLUMNS, AUTHORITY = "experiment.toml", "columns.json", "ca.crt"
CONNECTION = "centre"  # the name of the SuperLink for Flower's own commands


@dataclass(frozen=True)
class CentreFolder:
    """Names the files of a centre."""

    path: Path

    @classmethod
    def opened(cls, path: Path) -> CentreFolder:
        """Return the folder, or raise if `undrift federation init` has not written it."""
        folder = cls(path.absolute())
        for name in (AUTHORITY, "server.pem", "server.key", EXPERIMENT):
            there = (folder.path / name).is_file()
            remedy = "`undrift federation init` writes one"
            require(there, "A centre", f"a folder with {name}", str(path), remedy)
        return folder

    @property
    def experiment(self) -> Path:
        """Return the file of the experiment."""
        return self.path / EXPERIMENT

    @property
    def home(self) -> Path:
        """Return the folder of Flower's own files."""
        return self.path / "flower"

    @property
    def logs(self) -> Path:
        """Return the folder of logs."""
        return self.path / "logs"

    @property
    def database(self) -> Path:
        """Return the file in which the SuperLink remembers its nodes."""
        return self.home / "superlink.db"

    def keys(self) -> dict[str, str]:
        """Return the public key of each site that may connect."""
        found: dict[str, str] = {}
        for path in sorted((self.path / "sites").glob("*.pub")):
            words = path.read_text(encoding="utf-8").split()
            valid = len(words) >= 2 and words[0].startswith("ecdsa-sha2-nistp")
            require(valid, str(path), "a public key as ssh-keygen -t ecdsa writes it", words[:1])
            key = " ".join(words[:2])
            twice = next((name for name, other in found.items() if other == key), None)
            if twice is not None:
                raise UndriftError(
                    f"Sites need different keys, got the same for {twice} and {path.stem}; make a "
                    "new one with `undrift federation key`."
                )
            found[path.stem] = key
        return found

    def superlink(self, *, new: bool = False) -> str:
        """Return the SuperLink's address on the loopback, which is chosen once."""
        config = self.home / "config.toml"
        if config.is_file():
            values = parse_toml(config.read_text(encoding="utf-8"))
            return str(values["superlink"][CONNECTION]["address"])
        if not new:
            raise UndriftError(
                f"A run needs a SuperLink, got none that was started in {str(self.path)!r}; start "
                "it with `undrift federation serve`."
            )
        address = f"127.0.0.1:{free_port()}"
        self.home.mkdir(mode=0o700, exist_ok=True)
        write_atomic(
            config,
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{address}"\nroot-certificates = "{self.path / AUTHORITY}"\n',
        )
        return address


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")
