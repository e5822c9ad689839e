"""Hosts as network namespaces, as the benchmarks and the tests across machines use them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.network import Host, NetworkError, hosts, launch, this_machine, throughput

from benchmarks import network

missing = network.available(rate="1gbit")
needs_hosts = pytest.mark.skipif(bool(missing), reason=missing or "hosts can be made")

WORKER = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["OMP_NUM_THREADS"], total.item())
dist.destroy_process_group()
"""


def namespaces() -> list[str]:
    """Of this process; others may run the same tests at the same time."""
    listed = subprocess.run([*_ip(), "netns", "list"], capture_output=True, text=True, check=True)
    mine = f"{network.PREFIX}-{os.getpid()}-"
    return [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(mine)]


def _ip() -> list[str]:
    return Host("", "", "x").command([])[:1]


def sleeper(host: Host) -> subprocess.Popen[bytes]:
    return host.popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])


@needs_hosts
def test_hosts_reach_each_other_as_one_world():
    with hosts(3) as three:
        assert len({host.address for host in three}) == 3
        before = [host.sent_bytes() for host in three]
        outputs = launch(three, ["-c", WORKER], timeout=60)
        assert outputs == [f"{rank} 0 1 6.0\n" for rank in range(3)]
        for host, sent in zip(three, before, strict=True):
            assert host.sent_bytes() > sent


@needs_hosts
def test_bytes_that_left_are_counted():
    with hosts(2) as (sender, receiver):
        before = sender.sent_bytes(), receiver.sent_bytes()
        throughput(sender, receiver, 2_000_000)
        # 66 bytes of headers to 1448 or, where the card would cut packets, to up to 65,000 bytes.
        assert 1.0005 < (sender.sent_bytes() - before[0]) / 2e6 < 1.06
        assert receiver.sent_bytes() - before[1] < 200_000


@needs_hosts
def test_the_limit_holds():
    with hosts(2, rate="40mbit") as (one, other):
        reached: list[float] = []
        while len(reached) < 3 and max(reached, default=0) < 0.85 * 40e6:  # a busy machine lags
            reached.append(throughput(one, other, 1_500_000))
        assert 0.85 * 40e6 < max(reached) < 1.05 * 40e6


SERVE = """
import socket, sys, threading, time
server = socket.create_server((sys.argv[1], 5001))
print(flush=True)
links = [server.accept()[0] for _ in range(int(sys.argv[2]))]
def drain(link):
    while link.recv(2**16):
        pass
start = time.perf_counter()
readers = [threading.Thread(target=drain, args=(link,)) for link in links]
for reader in readers:
    reader.start()
for reader in readers:
    reader.join()
print(time.perf_counter() - start)
"""
PUSH = """
import socket, sys, threading
links = [socket.create_connection((address, 5001)) for address in sys.argv[1:]]
def push(link):
    link.sendall(bytes(1_500_000))
    link.close()
for link in links:
    threading.Thread(target=push, args=(link,)).start()
"""


@needs_hosts
@pytest.mark.parametrize("shared", ["sender", "receiver"])
def test_two_transfers_share_the_link_of_a_host(shared):
    """In both directions: 3 MB that start at once take 0.6 s, not 0.3."""
    python = [sys.executable, "-S", "-c"]
    with hosts(3, rate="40mbit") as (one, other, common), ExitStack() as stack:
        senders, receivers = [common], [one, other]
        if shared == "receiver":
            senders, receivers = receivers, senders
        servers = []
        for host in receivers:
            argv = [*python, SERVE, host.address, str(len(senders))]
            server = stack.enter_context(host.popen(argv, stdout=subprocess.PIPE, text=True))
            server.stdout.readline()
            servers.append(server)
        to = [host.address for host in receivers]
        for host in senders:
            stack.enter_context(host.popen([*python, PUSH, *to]))
        seconds = max(float(server.stdout.readline()) for server in servers)
    # Less than 0.6 by what the first transfer did before the second began.
    assert seconds > 0.45


@needs_hosts
def test_nothing_is_left_behind():
    with hosts(2, rate="100mbit") as two:
        assert len(namespaces()) == 3
        process = sleeper(two[0])
    assert namespaces() == []
    assert process.wait(timeout=10) == -signal.SIGKILL


@needs_hosts
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_by_errors(error):
    with pytest.raises(error), hosts(1):
        raise error
    assert namespaces() == []


@needs_hosts
def test_what_a_killed_process_left_is_removed_by_the_next():
    code = "from benchmarks.network import hosts\nimport time\n"
    code += "with hosts(1) as one:\n    print(one[0].namespace, flush=True)\n    time.sleep(600)"
    root = Path(network.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root
    ) as killed:
        left = killed.stdout.readline().strip()
        killed.kill()
    listing = [*_ip(), "netns", "list"]
    assert left in subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    with hosts(1):
        assert left not in subprocess.run(listing, capture_output=True, text=True).stdout


def test_the_rank_that_fails_is_named_and_the_others_do_not_wait_for_it():
    code = "import os, sys, time\n"
    code += "if os.environ['RANK'] == '1': sys.exit('no data here')\ntime.sleep(600)"
    start = time.monotonic()
    with pytest.raises(NetworkError, match=r"Rank 1 failed with exit code 1:\nno data here"):
        launch([this_machine()] * 2, ["-S", "-c", code], timeout=30)
    assert time.monotonic() - start < 20


def test_a_rank_that_hangs_is_named():
    code = "import os, sys, time\n"
    code += "if os.environ['RANK'] == '1':\n    print('stuck', file=sys.stderr, flush=True)\n"
    code += "    time.sleep(600)"
    with pytest.raises(NetworkError, match=r"Rank 1 needs to end within 2 s .*\nstuck"):
        launch([this_machine()] * 2, ["-S", "-c", code], timeout=2)


def test_ranks_on_one_host_count_locally():
    code = "import os; print(os.environ['RANK'], os.environ['LOCAL_RANK'], end='')"
    assert launch([this_machine()] * 2, ["-S", "-c", code]) == ["0 0", "1 1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "hosts needs 1 to 250 hosts, got 0"),
        ({"count": True}, "hosts needs 1 to 250 hosts, got True"),
        ({"count": 2, "rate": "fast"}, "hosts needs rate such as '100mbit', got 'fast'"),
        ({"count": 2, "rate": "0mbit"}, "hosts needs rate such as '100mbit', got '0mbit'"),
        ({"count": 2, "delay": "10"}, "hosts needs delay such as '10ms', got '10'"),
    ],
    ids=["none", "bool", "word", "zero", "unit"],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message), hosts(**options):
        pass


def test_no_right_and_no_tool_are_said(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.available.__wrapped__() == "Network namespaces need root; run as root."
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(network.shutil, "which", lambda name, path=None: None)
    network._tool.cache_clear()
    said = network.available.__wrapped__()
    assert said == "Network namespaces need `ip`, found none; install iproute2."
