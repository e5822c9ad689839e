"""Two machines: hosts that share no folder and reach each other over a network only.

The hosts are network namespaces, which need root; where they cannot be made the tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.network import Host, hosts

from benchmarks import network
from tests.support.commands import PROGRAM
from undrift.cli import main as cli

missing = network.available()
pytestmark = pytest.mark.skipif(bool(missing), reason=missing or "hosts can be made")

PORT = 29400  # every pair of hosts is a network of its own
RUNS = {
    "scaffold": ["--work", "steps:3", "--lr", "0.05"],
    "netfleet": ["--topology", "ring", "--work", "steps:3", "--lr", "0.02"],
    "marsit": ["--lr", "0.05", "--server-lr", "0.002", "--period", "none"],
}
COMMON = ["--data", "digits", "--clients", "6", "--quiet", "--json"]


def command(method: str, *options: str) -> list[str]:
    """`undrift run METHOD`, without the name of the program."""
    return ["run", method, *RUNS[method], *COMMON, "--out", f"out-{method}", *options]


def torchrun(*options: str, program: Sequence[str], processes: int = 2) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*start, "--monitor-interval", "0.2", *options, *program]


class Machine:
    """A host with a folder of its own, and a program that runs on it."""

    def __init__(self, host: Host, folder: Path, argv: Sequence[str], **settings: str) -> None:
        folder.mkdir()
        self.folder = folder
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": host.device}
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
            self.process = host.popen(
                argv, cwd=folder, env={**environment, **settings}, stdout=out, stderr=err
            )

    @property
    def printed(self) -> list[str]:
        return (self.folder / "stdout").read_text().splitlines()

    @property
    def said(self) -> str:
        """Its errors, without line breaks."""
        return " ".join((self.folder / "stderr").read_text().split())

    def workers(self) -> list[int]:
        """Process ids of torchrun's workers, in the order of their ranks."""
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def finish(self, seconds: float = 150) -> None:
        assert self.process.wait(seconds) == 0, self.said

    def fail(self, seconds: float = 60) -> str:
        """What it says when it ends with an error."""
        assert self.process.wait(seconds) > 0, self.said
        return self.said


class Pair:
    """Two hosts, and what has been started on them."""

    def __init__(self, folder: Path, both: Sequence[Host]) -> None:
        self.folder, self.hosts = folder, both
        self.address = both[0].address  # where rank 0 is to be found
        self.started: list[Machine] = []

    def start(self, number: int, name: str, argv: Sequence[str], **settings: str) -> Machine:
        machine = Machine(self.hosts[number], self.folder / name, argv, **settings)
        self.started.append(machine)
        return machine

    def torchrun(self, program: Sequence[str], *options: str) -> list[Machine]:
        """The documented recipe: the same command on both, with its own --node-rank."""
        where = ["--master-addr", self.address, "--master-port", str(PORT), *options]
        return [
            self.start(
                number,
                f"machine-{number}",
                torchrun(*where, "--nnodes", "2", "--node-rank", str(number), program=program),
            )
            for number in (0, 1)
        ]

    def by_hand(
        self, number: int, rank: int, size: int, run: Sequence[str], address: str = ""
    ) -> Machine:
        """A rank that no torchrun has started."""
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": str(PORT)}
        place["MASTER_ADDR"] = address or self.address
        return self.start(number, f"rank-{rank}", [sys.executable, "-m", "undrift", *run], **place)


@pytest.fixture
def pair(tmp_path) -> Iterator[Pair]:
    with hosts(2) as both:
        made = Pair(tmp_path, both)
        yield made
        for machine in made.started:
            machine.process.kill()  # its workers end with the hosts
            machine.process.wait()


def hashes(lines: Sequence[str]) -> list[str]:
    return [json.loads(line)["model_sha256"] for line in lines]


def on_one_machine(folder: Path, *argv: str) -> list[str]:
    """Hashes that a program without namespaces prints."""
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return hashes(done.stdout.splitlines())


def between(pair: Pair, methods: Sequence[str]) -> dict[str, str]:
    """The hashes that two ranks on each of two machines end with, method by method."""
    program = pair.folder / "program.py"
    program.write_text(PROGRAM)
    first, second = pair.torchrun(arguments_of(program, methods))
    first.finish()
    second.finish()
    assert second.printed == []  # rank 0 prints and writes for all
    assert not list(second.folder.glob("out-*"))
    for method in methods:
        records = (first.folder / f"out-{method}" / "records.jsonl").read_text().splitlines()
        assert len(records) == 4
    return dict(zip(methods, hashes(first.printed), strict=True))


def arguments_of(program: Path, methods: Sequence[str]) -> list[str]:
    return [str(program), json.dumps([command(method, "--rounds", "4") for method in methods])]


@pytest.mark.long
def test_marsit_on_two_machines_ends_as_in_one_process(pair, monkeypatch, capsys):
    found = between(pair, ["marsit"])
    monkeypatch.chdir(pair.folder)
    monkeypatch.setattr(sys, "argv", ["undrift", *command("marsit", "--rounds", "4")])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    # One bit a coordinate does not depend on how many processes there are.
    assert [found["marsit"]] == hashes(capsys.readouterr().out.splitlines())


@pytest.mark.long
def test_two_machines_give_what_as_many_processes_of_one_give(pair):
    found = between(pair, list(RUNS))
    runs = arguments_of(pair.folder / "program.py", list(RUNS))
    argv = torchrun("--standalone", program=runs, processes=4)
    four = on_one_machine(pair.folder / "one", *argv)
    assert found == dict(zip(RUNS, four, strict=True))


@pytest.mark.long
def test_marsit_sends_the_bits_that_the_thesis_counts(pair):
    """2 (M - 1) / M bits a coordinate a round over every link of a ring of M workers.

    Of the four links of workers 0, 1 | 2, 3 each machine's interface carries one, so what it sends
    is known. Up to 5 % more, some 10 kB a round whatever the model's size, are for the headers of
    messages and packets, for acknowledgements, and for adding up the records of all processes.
    """
    rounds, hidden, workers = 30, 20_000, 4
    coordinates = 64 * hidden + hidden + hidden * 10 + 10
    run = command("marsit", "--clients", str(workers), "--model", f"mlp:hidden={hidden}")
    run += ["--batch-size", "4"]  # less to compute
    run += ["--rounds", str(rounds), "--evaluate-every", str(rounds), "--timeout", "60"]
    run.remove("--json")  # whose hash is of all that all workers hold, which would be sent for it
    machines = [pair.by_hand(number, number, 2, run) for number in (0, 1)]
    for machine in machines:
        machine.finish()
    sent = [host.sent_bytes() for host in pair.hosts]
    expected = rounds * coordinates * 2 * (workers - 1) / workers / 8
    at_the_start = 2 * 4 * coordinates  # everybody gets rank 0's model, to be checked and to begin
    assert expected <= sent[0] - at_the_start <= 1.05 * expected
    assert expected <= sent[1] <= 1.05 * expected
    records = (machines[0].folder / "out-marsit" / "records.jsonl").read_text().splitlines()
    counted = sum(json.loads(line)["bytes_up"] for line in records)
    assert counted == pytest.approx(workers * expected, rel=1e-3)


@pytest.mark.long
def test_a_machine_that_never_comes_is_named(pair):
    run = command("marsit", "--rounds", "2", "--timeout", "10")
    # Of three ranks two come; the third looks for them where they are not.
    waiting = [pair.by_hand(number, number, 3, run) for number in (0, 1)]
    astray = pair.by_hand(1, 2, 3, run, address="10.0.0.77")
    own = ["--master-addr", pair.address, "--master-port", str(PORT + 1), "--node-rank", "0"]
    own += ["--nnodes", "2", "--rdzv-conf", "timeout=5"]
    alone = pair.start(0, "alone", torchrun(*own, program=["-m", "undrift", *run]))
    for machine in waiting:
        told = machine.fail()
        assert re.search(r"Error: .* got nothing from rank 2 within 10 s; start every", told), told
    told = astray.fail()
    assert "Error: Rank 2 needs to reach rank 0 at 10.0.0.77:29400, got" in told
    assert "1/2 clients joined" in alone.fail()  # torchrun's own words


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("uninterrupted") / "one"
    argv = [sys.executable, "-m", "undrift", *command("scaffold", *KILLED, "--processes", "4")]
    (found,) = on_one_machine(folder, *argv)
    return found


KILLED = ["--rounds", "60", "--work", "steps:20", "--evaluate-every", "30"]


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_rank_that_is_killed_comes_back_from_folders_that_are_not_shared(
    pair, uninterrupted, victim
):
    saving = ["--checkpoint", "saved", "--checkpoint-every", "5", "--timeout", "60"]
    run = ["-m", "undrift", *command("scaffold", *KILLED, *saving)]
    machines = pair.torchrun(run, "--max-restarts", "2")
    records = machines[0].folder / "out-scaffold" / "records.jsonl"
    end = time.monotonic() + 90
    while not records.exists() or len(records.read_text().splitlines()) < 12:
        assert time.monotonic() < end, machines[0].said
        time.sleep(0.02)
    os.kill(machines[victim // 2].workers()[victim % 2], signal.SIGKILL)
    for machine in machines:
        machine.finish()
    assert "4 processes, going on from round " in machines[0].said
    assert machines[1].printed == []
    assert hashes(machines[0].printed) == [uninterrupted]
    for number, machine in enumerate(machines):
        saved = {path.name for path in (machine.folder / "saved").iterdir()}
        assert saved == {f"rank-{2 * number}-of-4", f"rank-{2 * number + 1}-of-4"}


@pytest.mark.long
@pytest.mark.parametrize("trial", range(10))
def test_a_machine_that_is_cut_off_is_noticed_and_the_run_goes_on_when_it_is_back(
    pair, uninterrupted, trial
):
    """Both sides notice within the timeout and five seconds; it goes on within thirty."""
    timeout = 8.0
    saving = ["--checkpoint", "saved", "--checkpoint-every", "5", "--timeout", str(timeout)]
    run = ["-m", "undrift", *command("scaffold", *KILLED, *saving)]
    machines = pair.torchrun(run, "--max-restarts", "20")
    records = machines[0].folder / "out-scaffold" / "records.jsonl"

    def recorded() -> int:
        return len(records.read_text().splitlines()) if records.exists() else 0

    def wait_until(condition, seconds: float) -> float:
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < seconds, [machine.said for machine in machines]
            time.sleep(0.02)
        return time.monotonic() - start

    wait_until(lambda: recorded() >= 5 + trial, 120)
    pair.hosts[1].connect(False)
    before = recorded()
    noticed = re.compile("has not answered for|was lost, killed or crashed|lost each other")
    both = wait_until(lambda: all(noticed.search(each.said) for each in machines), timeout + 5)
    pair.hosts[1].connect(True)
    back = wait_until(lambda: recorded() > before + 1, 30)
    print(f"noticed after {both:.1f} s, back after {back:.1f} s")
    for machine in machines:
        machine.finish()
    assert hashes(machines[0].printed) == [uninterrupted]
