"""Damaged checkpoints: how many are noticed, and whether a sound one is used.

    python -m benchmarks.corruption [--count 10000] [--seed 0]

A run of SCAFFOLD leaves two checkpoints that share segments of client states. Then, again and
again, one file of the newest, or one that both need, is damaged: a bit or a byte is flipped, a
block zeroed, the file cut, lengthened, emptied, removed, or overwritten by another file. Every
time a run must find a checkpoint that it can go on from, warn of the damage, and hold exactly the
model and the states of clients that were saved in that round.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import undrift as ud
from undrift import testing, tree
from undrift.engine.checkpoint import shards, store
from undrift.engine.world import World

SCAFFOLD = ud.Scaffold(lr=0.1)
ROUNDS = 6
NEWEST = f"round-{ROUNDS:08d}"
Damage = Callable[[bytes, random.Random, list[bytes]], bytes | None]


def _flip(content: bytes, place: int, mask: int) -> bytes:
    return content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]


def _zeroed(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    begin = rng.randrange(len(content))
    end = min(len(content), begin + rng.choice([1, 64, 512, 4096]))
    return content[:begin] + bytes(end - begin) + content[end:]


DAMAGES: dict[str, Damage] = {
    "a bit flipped": lambda c, rng, _: _flip(c, rng.randrange(len(c)), 1 << rng.randrange(8)),
    "a byte replaced": lambda c, rng, _: _flip(c, rng.randrange(len(c)), rng.randrange(1, 256)),
    "a block zeroed": _zeroed,
    "cut": lambda c, rng, _: c[: rng.randrange(len(c))],
    "lengthened": lambda c, rng, _: c + rng.randbytes(rng.choice([1, 8, 512])),
    "emptied": lambda c, rng, _: b"",
    "removed": lambda c, rng, _: None,
    "overwritten by another file": lambda c, rng, others: rng.choice(others),
}


def states(server: Any, clients: Mapping[int, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors of the server, its model and its dual, and of the clients, by name."""
    owners = {"server": server} | {f"client {i}": clients[i] for i in sorted(clients)}
    return {
        f"{owner}, leaf {place}": leaf
        for owner, state in owners.items()
        for place, leaf in enumerate(tree.leaves(state))
    }


def tells(warning: warnings.WarningMessage, path: Path) -> bool:
    """Return whether a warning says that this file is damaged, be it mended or passed over."""
    text = str(warning.message)
    passed_over = text.startswith(f"Checkpoint {NEWEST} is damaged")
    return passed_over or (f"{path.name}: " in text and " is sound" in text)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two runs hold the same bits."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def held_in(folder: Path, like: ud.Run) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the round that a run like this one goes on from, and what it holds then."""
    newest = shards.find(folder, World())
    if newest is None:
        return -1, {}
    saved = store.read(
        folder,
        newest.round,
        settings=like._saved_settings,
        templates=like._templates,
        record_type=ud.Record,
        device=like.x.device,
    )
    return newest.round, states(saved.server, saved.clients)


def main() -> None:
    """Damage, look, restore; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    count, noticed, sound, newest = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = testing.start(SCAFFOLD, rounds=ROUNDS, participation=2, checkpoint=folder)
        held = {}
        for record in run:
            held[record.round] = states(run.state, run.client_states)
        contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        contents = {path: content for path, content in contents.items() if content}
        older = {f"round-{ROUNDS - 1:08d}", f"version-{ROUNDS - 1:08d}.json"}
        needed = [path for path in contents if not older & {path.name, path.parent.name}]
        while sum(count.values()) < options.count:
            path, kind = rng.choice(needed), rng.choice(list(DAMAGES))
            others = [c for other, c in contents.items() if other != path]
            damaged = DAMAGES[kind](contents[path], rng, others)
            if damaged == contents[path]:
                continue  # such as zeros that were zeros before
            count[kind] += 1
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                round, found = held_in(folder, run)
            noticed[kind] += any(tells(warning, path) for warning in said)
            sound[kind] += round in (ROUNDS - 1, ROUNDS) and same(found, held[round])
            newest[kind] += round == ROUNDS
            path.write_bytes(contents[path])
    print(f"{'damage':<30}{'trials':>8}{'noticed':>9}{'sound state':>13}{'newest round':>14}")
    for kind in sorted(count):
        row = (count[kind], noticed[kind], sound[kind], newest[kind])
        print(f"{kind:<30}{row[0]:>8}{row[1]:>9}{row[2]:>13}{row[3]:>14}")
    total = [sum(each.values()) for each in (count, noticed, sound, newest)]
    print(f"{'all':<30}{total[0]:>8}{total[1]:>9}{total[2]:>13}{total[3]:>14}")


if __name__ == "__main__":
    main()
