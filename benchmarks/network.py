"""Several hosts on one machine: Linux network namespaces joined by a switch, with limited links.

    with hosts(4, rate="100mbit") as four:
        outputs = launch(four, ["worker.py"], timeout=60)   # ranks 0, 1, 2, 3 of one world

Every host is a namespace with one interface. Its other end is a port of a bridge that lives in a
namespace of its own, so the machine's network is not touched. `rate` limits what a host sends and,
at the port, what it receives (a token bucket of 0.3 ms, small against the messages that are
measured, so that hardly anything passes for free); `delay` is added to what it sends. Needs root
and iproute2; a delay also needs a kernel with netem.

    python -m benchmarks.network [100mbit 1gbit ...]     # what TCP reaches under these limits
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from undrift.check import is_whole, require
from undrift.errors import UndriftError

PREFIX = "undrift"
DEVICE, SUBNET = "eth0", "10.0.0.0/24"
MOST = 250  # hosts, the addresses of one /24
BUCKET = 0.3e-3  # seconds of the rate that may pass at once after a pause
QUEUE = 20e-3  # seconds of the rate that wait before packets are dropped
LEAST_BUCKET, LEAST_QUEUE = 16 * 1024, 256 * 1024  # bytes
PACKET = 64 * 1024  # bytes that the kernel hands over at once, less where the bucket is small


class NetworkError(UndriftError):
    """Says that hosts could not be made, or that a program on them failed."""


@dataclass(frozen=True)
class Host:
    """A host that runs programs; `namespace` is empty for the machine itself."""

    address: str
    device: str
    namespace: str = ""

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` on this host."""
        if not self.namespace:
            return list(argv)
        return [_tool("ip"), "netns", "exec", self.namespace, *argv]

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(argv), **options)

    def connect(self, wanted: bool) -> None:
        """Put the host on the network, or cut it off."""
        _ip(self.namespace, f"link set {self.device} {'up' if wanted else 'down'}")

    def sent_bytes(self) -> int:
        """Return the bytes that have left the interface, with one header for up to 64 kB."""
        where = ["-n", self.namespace] if self.namespace else []
        (link,) = json.loads(_run("ip", *where, "-s", "-j", "link", "show", self.device))
        return int(link["stats64"]["tx"]["bytes"])


def this_machine() -> Host:
    """Return the machine itself, over its loopback, without limits and without root."""
    return Host("127.0.0.1", "lo")


@functools.cache
def available(rate: str | None = None, delay: str | None = None) -> str:
    """Return why such hosts cannot be made here, or an empty text; it is tried out once."""
    try:
        with hosts(1, rate=rate, delay=delay):
            return ""
    except NetworkError as error:
        return str(error)


@contextmanager
def hosts(count: int, rate: str | None = None, delay: str | None = None) -> Iterator[list[Host]]:
    """Yield `count` hosts that reach each other; they and their programs end with the block.

    `rate` is such as "100mbit" or "1gbit", `delay` such as "500us" or "10ms".
    """
    require(is_whole(count) and 1 <= count <= MOST, "hosts", f"1 to {MOST} hosts", count)
    link = _Link(rate, delay)
    if os.geteuid() != 0:
        raise NetworkError("Network namespaces need root; run as root.")
    for tool in ("ip", "tc") if rate or delay else ("ip",):
        _tool(tool)
    _remove_what_the_dead_left()
    name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
    with ExitStack() as removal:
        switch = _namespace(f"{name}-switch", removal)
        _ip(switch, "link add bridge type bridge", "link set bridge up")
        made = []
        for number in range(count):
            namespace = _namespace(f"{name}-{number}", removal)
            made.append(_plug(namespace, switch, number, link))
        yield made


def launch(
    world: Sequence[Host],
    argv: Sequence[str],
    *,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Run `python *argv` on every host as the ranks of one world; what each wrote to its output.

    A host that occurs several times gets several ranks. When a rank fails or `timeout` seconds have
    passed, all are killed and the error has that rank's last lines.
    """
    require(len(world) > 0, "launch", "at least one host", list(world))
    places = [(rank, host, list(world[:rank]).count(host)) for rank, host in enumerate(world)]
    shared = {
        **os.environ,
        "WORLD_SIZE": str(len(world)),
        "MASTER_ADDR": world[0].address,
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        files = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in "oe"] for _ in world]
        running: list[subprocess.Popen[Any]] = []
        stack.callback(_kill_all, running)
        for rank, host, local in places:
            own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GLOO_SOCKET_IFNAME": host.device}
            environment = {**shared, **own, **(env or {})}
            out, err = files[rank]
            start = host.popen([sys.executable, *argv], stdout=out, stderr=err, env=environment)
            running.append(start)
        _wait(running, [err for _, err in files], timeout)
        return [_text(out) for out, _ in files]


def _wait(
    running: Sequence[subprocess.Popen[Any]], errors: Sequence[IO[str]], timeout: float
) -> None:
    end = time.monotonic() + timeout
    while True:
        codes = [process.poll() for process in running]
        for rank, code in enumerate(codes):
            if code:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise NetworkError(f"Rank {rank} failed with {how}:\n{_text(errors[rank])[-4000:]}")
        if None not in codes:
            return
        if time.monotonic() > end:
            late = codes.index(None)
            raise NetworkError(
                f"Rank {late} needs to end within {timeout:g} s and did not; its last lines:\n"
                f"{_text(errors[late])[-4000:]}"
            )
        time.sleep(0.02)


def _kill_all(running: Sequence[subprocess.Popen[Any]]) -> None:
    for process in running:
        if process.poll() is None:
            process.kill()
    for process in running:
        process.wait()


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _free_port() -> int:
    """Return a port below the range that outgoing connections may take at any time."""
    for port in (20_000 + secrets.randbelow(12_000) for _ in range(100)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise NetworkError("A world needs a free port between 20000 and 32000, found none in 100.")


def _namespace(name: str, removal: ExitStack) -> str:
    removal.callback(_remove, name)  # first, so that an interrupt in between leaves nothing
    _run("ip", "netns", "add", name)
    return name


def _remove(name: str) -> None:
    """Kill all programs in a namespace and delete it, if it exists."""
    listed = subprocess.run(
        [_tool("ip"), "netns", "pids", name], capture_output=True, text=True, check=False
    )
    for pid in listed.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run([_tool("ip"), "netns", "delete", name], capture_output=True, check=False)


def _remove_what_the_dead_left() -> None:
    """Remove namespaces of processes that were killed before they could do so."""
    for line in _run("ip", "netns", "list").splitlines():
        found = re.match(rf"({PREFIX}-(\d+)-[0-9a-f]{{6}}-\S+)", line)
        if found and not os.path.exists(f"/proc/{found[2]}"):
            _remove(found[1])


def _plug(namespace: str, switch: str, number: int, link: _Link) -> Host:
    """Connect a namespace to the switch."""
    address, port = f"10.0.0.{number + 1}", f"port{number}"
    _ip(
        namespace,
        "link set lo up",
        f"link add {DEVICE} type veth peer name {port} netns {switch}",
        f"address add {address}/24 dev {DEVICE}",
    )
    for where, device in ((namespace, DEVICE), (switch, port)):
        # No chatter of IPv6 in the counts of bytes; a kernel without it need not be told.
        with suppress(NetworkError):
            _ip(where, f"link set {device} addrgenmode none")
        if link.rate:  # large packets leave gaps, as the bucket must fill for each
            _ip(where, f"link set {device} gso_max_size {min(PACKET, link.bucket // 2)}")
    _ip(switch, f"link set {port} master bridge", f"link set {port} up")
    _ip(namespace, f"link set {DEVICE} up")
    # The same control on every machine whose kernel has it, whatever its administrator prefers.
    with suppress(NetworkError):
        _ip(namespace, f"route change {SUBNET} dev {DEVICE} src {address} congctl cubic")
    if link.delay:
        late = ["root", "handle", "1:", "netem", "delay", link.delay, "limit", "100000"]
        _run("tc", "-n", namespace, "qdisc", "add", "dev", DEVICE, *late)
    if link.rate:
        within = ["parent", "1:1"] if link.delay else ["root"]
        _run("tc", "-n", namespace, "qdisc", "add", "dev", DEVICE, *within, *link.limit)
        _run("tc", "-n", switch, "qdisc", "add", "dev", port, "root", *link.limit)
    return Host(address, DEVICE, namespace)


@dataclass(frozen=True)
class _Link:
    rate: str | None
    delay: str | None

    def __post_init__(self) -> None:
        if self.rate is not None:
            bits_per_second(self.rate)
        if self.delay is not None:
            _quantity("delay", self.delay, {"us": 1e-6, "ms": 1e-3, "s": 1.0}, "'10ms'")

    @property
    def bucket(self) -> int:
        return self._bytes(LEAST_BUCKET, BUCKET)

    @property
    def limit(self) -> list[str]:
        """Return the token bucket as tc's arguments."""
        queue = self._bytes(LEAST_QUEUE, QUEUE)
        return ["tbf", "rate", str(self.rate), "burst", str(self.bucket), "limit", str(queue)]

    def _bytes(self, least: int, seconds: float) -> int:
        return max(least, int(bits_per_second(str(self.rate)) / 8 * seconds))


def bits_per_second(rate: str) -> float:
    """Return the number of a rate such as "100mbit"."""
    return _quantity("rate", rate, {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}, "'100mbit'")


def _quantity(name: str, value: str, units: Mapping[str, float], example: str) -> float:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(units)})", str(value))
    amount = float(found[1]) * units[found[2]] if found else 0.0
    require(amount > 0, "hosts", f"{name} such as {example}", value)
    return amount


def _ip(namespace: str, *commands: str) -> None:
    for command in commands:
        _run("ip", "-n", namespace, *command.split())


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_tool(tool), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise NetworkError(f"`{tool} {' '.join(arguments)}` needs to work, got: {said}")
    return done.stdout


@functools.cache
def _tool(name: str) -> str:
    """Return the path of ip or tc, which root's PATH may lack in containers."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise NetworkError(f"Network namespaces need `{name}`, found none; install iproute2.")
    return found


_SERVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
link, _ = server.accept()
left, buffer = int(sys.argv[2]), bytearray(2**18)
start = time.perf_counter()
while left > 0:
    left -= link.recv_into(buffer)
print(time.perf_counter() - start)
"""
_PUSH = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as link:
    left, data = int(sys.argv[2]), bytes(2**18)
    while left > 0:
        left -= link.send(data[:left])
"""


def throughput(sender: Host, receiver: Host, nbytes: int) -> float:
    """Return bits per second of one TCP connection that carries `nbytes`."""
    amount = [receiver.address, str(nbytes)]
    python = [sys.executable, "-S", "-c"]
    with receiver.popen([*python, _SERVE, *amount], stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None or server.stdout.readline() != "ready\n":
                raise NetworkError(f"A server on {receiver.address} needs to start and did not.")
            subprocess.run(sender.command([*python, _PUSH, *amount]), check=True, timeout=120)
            return 8 * nbytes / float(server.stdout.readline())
        finally:
            server.kill()


def main() -> None:
    for rate in sys.argv[1:] or ["100mbit", "1gbit", "10gbit"]:
        per_second = bits_per_second(rate)
        with hosts(3, rate=rate) as (one, other, third):
            for sender, receiver in itertools.permutations((one, other, third), 2):
                reached = throughput(sender, receiver, int(per_second / 8))
                print(
                    f"{rate:>8}: {sender.address} to {receiver.address} "
                    f"{reached / 1e6:9.1f} Mbit/s, {100 * reached / per_second:.1f} %"
                )


if __name__ == "__main__":
    main()
