"""What the documents of NET-FLEET and Marsit claim, on real data: handwritten digits."""

from __future__ import annotations

from typing import Any

import pytest

import undrift as ud
from tests.support.commands import built_run


def final(ground: dict[str, Any], name: str, lr: float) -> tuple[ud.PeerRecord, int]:
    every = {"every": ground["training"]["rounds"]}
    run = built_run({"name": name, "lr": lr}, evaluation=every, **ground)
    *_, record = run
    return record, run.totals.bytes_up


def test_netfleet_is_ahead_at_equal_communication_rounds() -> None:
    """Two labels a worker, every method at the same lr; the nodes' own models even more so."""
    ground = {
        "data": {"clients": 20, "partition": "shards:2"},
        "training": {"batch_size": 0, "rounds": 100},
    }
    ends = {name: final(ground, name, 0.1)[0] for name in ("dsgd", "ldsgd", "gtsgd", "netfleet")}
    ahead = ends.pop("netfleet")
    assert ahead.accuracy > 0.93
    for name, behind in ends.items():
        assert ahead.accuracy > behind.accuracy + 0.02, name
        assert ahead.node_accuracy > behind.node_accuracy + 0.05, name


def convex(clients: int, rounds: int) -> dict[str, Any]:
    return {
        "data": {"clients": clients, "partition": "iid"},
        "model": {"name": "logistic"},
        "training": {"batch_size": 40, "rounds": rounds},
    }


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.long)])
def test_cascading_collapses_and_marsit_follows_full_precision(workers: int) -> None:
    ground = convex(workers, 120)
    exact, sent = final(ground, "psgd", 0.1)
    one_bit, bits_sent = final(ground, "marsit", 0.1)
    cascaded = min(
        (final(ground, "cascadingssdm", lr)[0] for lr in (1e-3, 0.1)), key=lambda r: r.loss
    )
    assert exact.accuracy > 0.88
    assert one_bit.accuracy > exact.accuracy - 0.03
    assert sent / 32 <= bits_sent <= sent / 29, "each piece ends with a whole byte"
    assert cascaded.accuracy < 0.5
    assert cascaded.sign_matching == pytest.approx(0.5, abs=0.06), "no better than a coin"
    assert one_bit.sign_matching > 0.58


def test_cascading_alone_is_compression_once() -> None:
    """With one worker there is nothing to cascade and it learns: it is the hops that undo it."""
    assert final(convex(1, 500), "cascadingssdm", 0.1)[0].accuracy > 0.75
