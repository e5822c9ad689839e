"""What `test_network.py` runs in three processes: `main` with a folder as its argument."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import undrift as ud
from undrift import keyed, testing
from undrift.comm import compiled
from undrift.comm.merges import Cascade, Largest, Mean, OneBit, OwnNorm, SignSum
from undrift.comm.routes import Ring, Route, SegmentedRing, Server, Torus, Tree
from undrift.engine.collectives import schedule
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.collectives.inprocess import Loopback
from undrift.engine.collectives.network import NetworkExchange
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.processes.group import Processes
from undrift.engine.processes.rendezvous import join
from undrift.engine.processes.transport import Incoming, Outgoing, Transport
from undrift.engine.world import RankBlocks

MERGES = (
    Mean(),
    Largest(),
    OneBit(),
    SignSum(),
    SignSum("gamma"),
    SignSum("omega", vote=True),
    SignSum(stochastic=True),
    Cascade(),
    OwnNorm("inf"),
)
ROUTES = {
    3: (Ring(), SegmentedRing(20), Tree(), Server(), Torus(3, 1)),
    6: (Ring(), SegmentedRing(20), Tree(), Server(), Torus(2, 3)),
    7: (Ring(), Tree(), Server()),
}
FOR_LONG = (Ring(), SegmentedRing(2**15), Tree(), Server(), Torus(3, 1))
BAD = (0, 1, 5)  # of seven workers, two of them on rank 0
SIZES = (2, 83)  # fewer coordinates than workers, and a number that nothing divides


def draws(vector: int) -> Any:
    def generator(purpose: str, *place: int) -> np.random.Generator:
        return keyed.generator(1, purpose, vector, *place)

    return generator


def vectors(workers: int, size: int, seed: int) -> list[torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=noise).clamp(-1, 1) for _ in range(workers)]


def literal(post: Transport) -> list[str]:
    """Routes and merges whose result or traffic is not that of the simulator, bit for bit."""
    wrong = []
    for workers, routes in ROUTES.items():
        blocks = RankBlocks(workers, post.size)
        own = blocks.of(post.rank)
        for size in SIZES:
            given = vectors(workers, size, seed=workers)
            for route in routes:
                for how in MERGES:
                    expected, made = Traffic(workers), Traffic(workers)
                    every = {worker: [vector] for worker, vector in enumerate(given)}
                    mine = {worker: every[worker] for worker in own}
                    reduce = partial(all_reduce, merge=how, route=route, draws=[draws(0)])
                    alone = RankBlocks(workers, 1)
                    want, _ = reduce(Loopback(), every, traffic=expected, blocks=alone)
                    got, bad = reduce(post, mine, traffic=made, blocks=blocks)
                    rows = [*own, workers] if post.rank == 0 else [*own]  # the server is on rank 0
                    same = torch.equal(got[0], want[0]) and not bad
                    same &= made.hops == expected.hops
                    same &= bool((made.links[rows] == expected.links[rows]).all())
                    if not same:
                        wrong.append(f"{workers} {size} {route} {how}")
    return wrong


def long_vectors(post: Transport) -> list[str]:
    """Routes and merges of which rank 0 with C++ and the others with NumPy make other bits.

    The simulator reduces long vectors piece by piece, processes hop by hop.
    """
    given = vectors(3, schedule.LONG + 9, seed=1)
    wrong = []
    for route in FOR_LONG:
        for how in (Mean(), OneBit(), SignSum(), Cascade()):
            expected, made = Traffic(3), Traffic(3)
            reduce = partial(all_reduce, merge=how, route=route, draws=[draws(0)])
            every = {worker: [vector] for worker, vector in enumerate(given)}
            want, _ = reduce(Loopback(), every, traffic=expected, blocks=RankBlocks(3, 1))
            got, bad = reduce(post, {post.rank: every[post.rank]}, traffic=made)
            same = torch.equal(got[0], want[0]) and made.hops == expected.hops and not bad
            same &= bool((made.links[post.rank] == expected.links[post.rank]).all())
            if not same:
                wrong.append(f"{route} {how}")
    return wrong


def use_one_path(rank: int) -> None:
    """Let rank 0 pack and draw by C++, where there is a compiler, and the others by NumPy."""
    compiled.loader = compiled.Loader()
    if rank == 0:
        compiled.loader.build()
    else:
        compiled.SHORT = 2**62


def together(post: Transport) -> bool:
    """Whether vectors that travel together end as each by itself, with fewer messages."""
    sizes = (5, 83, 1, 16)
    given = [vectors(3, size, seed=size) for size in sizes]
    mine = {post.rank: [each[post.rank] for each in given]}
    rng = [draws(v) for v in range(len(sizes))]
    before = post.sent
    joint, _ = all_reduce(post, mine, OneBit(), Ring(), rng)
    joint_bytes, before = post.sent - before, post.sent
    single = [
        all_reduce(post, {post.rank: [own]}, OneBit(), Ring(), [draw])[0][0]
        for own, draw in zip(mine[post.rank], rng, strict=True)
    ]
    same = all(torch.equal(a, b) for a, b in zip(joint, single, strict=True))
    return same and joint_bytes < post.sent - before


def flagged(post: Transport, routes: Sequence[Route], size: int) -> list[list[int]]:
    """Who is said to be not finite, for each route, when the last entry of worker 1 of 3 is."""
    told = []
    for route in routes:
        own = torch.full((size,), 0.5)
        own[-1] = torch.nan if post.rank == 1 else 0.5
        how = SignSum(stochastic=True)  # which could not even pack it
        _, bad = all_reduce(post, {post.rank: [own]}, how, route, [draws(0)])
        told.append(bad)
    return told


def refused() -> list[list[int]]:
    """Return the workers that an exchange names, for each route, when three of seven are bad."""
    world = join()
    assert isinstance(world, Processes)
    named = []
    for route in ROUTES[7]:
        exchange = NetworkExchange(
            size=7, topology=None, route=route, t=0, seed=0, traffic=Traffic(7), world=world
        )
        rows = torch.ones(len(exchange.nodes), 40)
        for row, node in zip(rows, exchange.nodes, strict=True):
            row[node] = torch.nan if node in BAD else 1.0
        try:
            exchange.reduce([rows], SignSum(stochastic=True))
        except ud.DivergenceError as error:
            named.append(error.clients if error.everywhere else [])
    return named


def out_of_step(post: Transport) -> str:
    """What a process says to a message that it does not expect."""
    others = [rank for rank in range(post.size) if rank != post.rank]
    data = torch.zeros(4, dtype=torch.uint8)
    letters = [Outgoing(rank, f"a message of rank {post.rank}", data) for rank in others]
    try:
        post.exchange(letters, [Incoming(rank, "another", 4) for rank in others]).wait()
    except ud.UndriftError as error:
        return str(error)
    return "nothing"


def gradient_norm() -> list[float | None]:
    """Of the mean model, which processes compute together."""
    options = {
        "evaluation": ud.EvaluationOptions(gradient_norm=True, every=1),
        "weight_decay": 0.3,
        "rounds": 2,
    }
    return [record.gradient_norm for record in testing.start(ud.DSGD(lr=0.1), **options)]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    post = Transport()
    use_one_path(post.rank)
    found = {
        "literal": literal(post),
        "together": together(post),
        "long": long_vectors(post),
        "flagged": flagged(post, ROUTES[3], 40),
        "flagged in a piece": flagged(post, FOR_LONG, schedule.LONG + 9),
        "refused": refused(),
        "out of step": out_of_step(post),
        "gradient norm": gradient_norm(),
    }
    Path(sys.argv[1], f"rank-{post.rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
