"""A whole federation of Flower's own processes on the loopback, for `make test-federation`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import undrift as ud
from tests.support.hospitals import NAMES, pooled, write_experiment
from tests.support.system import ROOT
from undrift.config.experiment import Experiment
from undrift.deployment.accounts import Account
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import free_port
from undrift.deployment.init import init, make
from undrift.deployment.plan import federated_jobs, resolved

PATIENCE = 600.0  # seconds for anything to happen on a busy machine
LONG = 1800.0  # seconds of a whole run on a busy machine


def wait_for(happened: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Return when something has happened; fail if it does not."""
    end = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.1)


class Deployment:
    """Starts `undrift federation` commands as an operator does, and kills what they start.

    `sections` are those of the experiment that differ, `federation` are values of that section.
    """

    def __init__(
        self,
        folder: Path,
        rounds: int = 3,
        sections: Mapping[str, Any] | None = None,
        **federation: object,
    ) -> None:
        self.folder, self.flower = folder, FlowerEnvironment.find()
        self.place = folder / "fed"
        python = self.flower.program("python")
        self.separate = os.geteuid() == 0 and Account.named("nobody").can_run(python)
        open_to_all(folder)  # so that what is closed is closed by the commands
        section = {
            "address": f"127.0.0.1:{free_port()}",
            "deadline": PATIENCE,
            "patience": PATIENCE,
            **federation,
        }
        usual = {
            "training": {"rounds": rounds},
            "evaluation": {"every": rounds},
            "federation": section,
        }
        wanted = write_experiment(folder / "given", **{**usual, **(sections or {})})
        init(self.place, self.flower, NAMES, section["address"], experiment=wanted)  # type: ignore[arg-type]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a command, whose output is in a file."""
        command = [sys.executable, "-m", "undrift", "federation", *map(str, arguments)]
        variables = {**os.environ, "UNDRIFT_FLOWER": str(self.flower.folder)}
        variables["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        with self.output(name).open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=self.folder
            )
        self.processes[name] = process
        return process

    def output(self, name: str) -> Path:
        """Return the file with what a command has printed."""
        return self.folder / f"{name}.out"

    def text(self, name: str) -> str:
        """Return what a command has printed."""
        return self.output(name).read_text(errors="replace") if self.output(name).exists() else ""

    def serve(self) -> None:
        """Start the centre's SuperLink and gate."""
        self.start("serve", "serve", self.place / "centre")

    def admit(self, name: str, like: str) -> None:
        """Make the folder of one more site, with a new key and a table like that of another."""
        from undrift.deployment import example

        place = self.place / name
        place.mkdir(mode=0o700)
        make(self.flower, "node", place / f"{name}.key")
        for file in ("ca.crt", "columns.json"):
            shutil.copy(self.place / like / file, place / file)
        text = (self.place / like / "experiment.toml").read_text()
        (place / "experiment.toml").write_text(text.replace(f'"{like}"', f'"{like}", "{name}"'))
        example.write_table(place / "patients.csv", like)
        (place / f"{name}.key.pub").rename(self.place / "centre" / "sites" / f"{name}.pub")
        self.site(name)

    def site(self, name: str, *options: object) -> None:
        """Start a site with a table of its own."""
        from undrift.deployment import example

        table = self.place / name / "patients.csv"
        if not table.exists():
            example.write_table(table, name)
        key = self.place / name / f"{name}.key"
        users = () if self.separate or os.geteuid() != 0 else ("--same-user",)
        self.start(name, "site", "--key", key, "--data", table, *users, *options)

    def run(self, *options: object) -> subprocess.Popen[bytes]:
        """Start a run."""
        return self.start("run", "run", self.place / "centre", *options)

    def up(self) -> None:
        """Start the centre and all sites."""
        self.serve()
        for name in NAMES:
            self.site(name)

    def finish(self, *options: object) -> None:
        """Run to the end."""
        code = self.run(*options or ("--out", self.folder / "out")).wait(LONG)
        assert code == 0, self.text("run")[-2000:]

    def found(self) -> str:
        """Return the hash that the run has recorded."""
        records = json.loads((self.folder / "out" / "records.json").read_text())
        return str(records["model_sha256"])

    def expected(self) -> str:
        """Return the hash of the simulation of the same tables."""
        described = resolved(Experiment.read(self.place / "centre" / "experiment.toml"))
        tables = self.folder / "tables"
        tables.mkdir(exist_ok=True)
        for name in NAMES:
            shutil.copy(self.place / name / "patients.csv", tables / f"{name}.csv")
        (planned,) = federated_jobs(described)
        run = ud.simulate(
            planned.experiment.algorithm,
            planned.experiment.model,
            pooled(described, tables),
            mode="loop",
            kernels=False,
            loss=planned.experiment.loss,
            work=planned.experiment.work,
            batch_size=20,
            rounds=planned.experiment.rounds,
            seed=0,
        )
        list(run)
        return run.model_sha256

    def round(self) -> int:
        """Return how many rounds are recorded."""
        records = self.folder / "out" / "records.jsonl"
        return len(records.read_text().splitlines()) if records.is_file() else 0

    def below(self, name: str, command: str) -> list[int]:
        """Return the processes below one of the commands whose command line has a text."""
        return [pid for pid in descendants(self.processes[name].pid) if command in line(pid)]

    def kill(self, command: str, name: str = "serve") -> None:
        """Kill the processes below one of the commands whose command line has a text."""
        wait_for(lambda: self.below(name, command), f"{command} of {name} does not run")
        for pid in self.below(name, command):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Let a site's process do nothing, from when a ClientApp waits for its reply."""
        (pid,) = self.below(name, "site_process")
        (path,) = (word for word in line(pid).split() if word.endswith("site.sock"))
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: connections(path), f"nobody asks {name}", LONG)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def cut_link(self, seconds: float) -> None:
        """Let the gate pass nothing for some time."""
        (gate,) = self.below("serve", "gate.py")
        os.kill(gate, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(gate, signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill all commands and all that they have started."""
        pids = [pid for process in self.processes.values() for pid in descendants(process.pid)]
        for process in self.processes.values():
            process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(PATIENCE)
        self.processes.clear()

    def close(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.terminate()
        end = time.monotonic() + 30
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        self.kill_all()


def open_to_all(folder: Path) -> None:
    """Let every user of the system enter a temporary folder."""
    root = Path(tempfile.gettempdir())
    if root in folder.parents:
        for path in (folder, *folder.parents[: folder.parents.index(root)]):
            if path.stat().st_uid == os.geteuid():
                path.chmod(path.stat().st_mode | 0o055)


def listening(pids: Iterable[int]) -> set[str]:
    """Return the addresses on which these processes wait for connections."""
    held = set()
    for pid in pids:
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    held.add(os.readlink(link))
    found = set()
    for file, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            place, state, number = (row.split()[k] for k in (1, 3, 9))
            if state == "0A" and f"socket:[{number}]" in held:
                words = bytes.fromhex(place.partition(":")[0])
                packed = b"".join(words[k : k + 4][::-1] for k in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, packed))
    return found


def connections(path: str) -> int:
    """Return how many connections to a Unix socket there are, beside who listens there."""
    rows = Path("/proc/net/unix").read_text().splitlines()
    return sum(row.split()[-1] == path for row in rows) - 1


def line(pid: int) -> str:
    """Return the command line of a process, empty if it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def descendants(pid: int) -> list[int]:
    """Return all processes that a process has started, directly or not."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                fields = re.sub(r"\(.*\)", "", (path / "stat").read_text()).split()
                parents.setdefault(int(fields[2]), []).append(int(path.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found
