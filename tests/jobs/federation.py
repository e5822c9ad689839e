"""Programs of the tests of federations: a site and a centre as processes of their own.

python -m tests.jobs.federation site FOLDER NUMBER
python -m tests.jobs.federation centre FOLDER DEADLINE
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import undrift as ud
from tests.support.federation import NAMES, experiment, own
from undrift.federation import Centre, Site, SiteServer, SocketTransport


def main() -> None:
    torch.set_num_threads(1)
    role, folder = sys.argv[1], Path(sys.argv[2])
    described = experiment(ud.Scaffold(lr=0.1), rounds=6, work=ud.Steps(3))
    if role == "site":
        name = NAMES[int(sys.argv[3])]
        site = Site(described, own(int(sys.argv[3])), folder / name, name=name)
        server = SiteServer(site, folder / "sockets" / f"{name}.sock")
        print("ready", flush=True)
        server.serve()
        return
    saved = any((folder / "centre").glob("centre-*"))
    transport = SocketTransport(folder / "sockets", deadline=float(sys.argv[3]))
    centre = Centre(described, transport, checkpoint=folder / "centre", resume=saved)
    for record in centre:
        print(f"round {record.round} clients {record.clients}", flush=True)
    print(f"sha256 {centre.model_sha256}", flush=True)


if __name__ == "__main__":
    main()
