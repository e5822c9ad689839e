"""Runs a module's `main` in several processes: `python -m tests.support.forks N MODULE ARGUMENTS`.

They are copies of one process that has imported torch, which takes seconds of CPU time, and find
each other by the variables of torchrun. torchrun itself is at work in the tests of `--processes`.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys


def free_port() -> int:
    """Return the number of a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Fork, run the module's `main` in every copy, and end with 1 if one of them has failed."""
    size, job = sys.argv[1], importlib.import_module(sys.argv[2])
    del sys.argv[1:3]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    copies = []
    for rank in map(str, range(int(size))):
        copies.append(os.fork())
        if copies[-1] == 0:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
            job.main()
            return
    ends = [os.waitpid(copy, 0)[1] for copy in copies]
    sys.exit(any(ends))


if __name__ == "__main__":
    main()
