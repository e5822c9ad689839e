"""Programs of the tests of federations: a site and a centre as processes of their own.

python -m tests.jobs.federation site FOLDER NUMBER [MOMENT WRITE | bad WHAT]
python -m tests.jobs.federation centre FOLDER DEADLINE QUORUM [MOMENT WRITE | twice NAME]

With a moment, before, inside or after, the process kills itself then at one of its writes. A bad
site has another experiment or version, or sends something else in round 2. A centre may hear the
uploads of one site twice, as it would where a transport asks again for what has arrived.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch

import undrift as ud
from tests.support.bad_replies import BAD
from tests.support.federation import NAMES, experiment, own
from undrift.errors import UndriftError
from undrift.federation import Centre, Site, SiteServer, SocketTransport, sealed, sockets
from undrift.federation import site as module
from undrift.federation.messages import ExchangeRequest, decode
from undrift.federation.transport import Arrived
from undrift.files import part_of


def kill_at(moment: str, number: int) -> None:
    """Let this process be killed at one of the writes of its state or checkpoint."""
    write, writes = sealed.write_atomic, count(1)

    def write_and_die(path: Path, content: str | bytes) -> None:
        now = next(writes) == number
        if now and moment == "inside":
            assert isinstance(content, bytes)
            part_of(path).write_bytes(content[: len(content) // 2])
        if now and moment != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, content)
        if now:
            os.kill(os.getpid(), signal.SIGKILL)

    sealed.write_atomic = write_and_die


def reply_badly(what: str) -> None:
    """Let this site send something else in round 2."""
    answer = sockets.answer

    def changed(site: Any, data: bytes) -> bytes:
        request, reply = decode(data).header, answer(site, data)
        if isinstance(request, ExchangeRequest) and (request.t, request.stage) == (1, "upload"):
            return BAD[what][0](request, reply)[0]
        return reply

    sockets.answer = changed


class AskingTwice(SocketTransport):
    """Brings the uploads of one site twice: its process computes and sends both."""

    site = ""

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        yield from super().ask(requests)
        again = {name: data for name, data in requests.items() if name == self.site}
        if any(isinstance(decode(data).header, ExchangeRequest) for data in again.values()):
            yield from super().ask(again)


def main() -> None:
    torch.set_num_threads(1)
    optional = sys.argv[5:] if sys.argv[1] == "centre" else sys.argv[4:]
    role, folder = sys.argv[1], Path(sys.argv[2])
    rate = 0.1
    match optional:
        case ["bad", "experiment"]:
            rate = 0.2
        case ["bad", "version"]:
            module.code_digest = lambda: "another"
        case ["bad", what]:
            reply_badly(what)
        case ["twice", name]:
            AskingTwice.site = name
        case [moment, write]:
            kill_at(moment, int(write))
    described = experiment(ud.Scaffold(lr=rate), rounds=6, work=ud.Steps(3))
    if role == "site":
        name = NAMES[int(sys.argv[3])]
        site = Site(described, own(int(sys.argv[3])), folder / name, name=name)
        server = SiteServer(site, folder / "sockets" / f"{name}.sock")
        print("ready", flush=True)
        server.serve()
        return
    quorum, saved = float(sys.argv[4]), any((folder / "centre").glob("centre-*"))
    transport = AskingTwice(folder / "sockets", deadline=float(sys.argv[3]))
    place = folder / "centre"
    try:
        centre = Centre(described, transport, checkpoint=place, resume=saved, quorum=quorum)
    except UndriftError as error:
        print(error, flush=True)
        return
    for record in centre:
        print(f"round {record.round} clients {record.clients}", flush=True)
        for name, reason in centre.left_out.items():
            print(f"without {name}: {reason}", flush=True)
    print(f"sha256 {centre.model_sha256}", flush=True)


if __name__ == "__main__":
    main()
