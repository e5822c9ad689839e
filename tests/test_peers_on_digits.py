"""What the documents of NET-FLEET and Marsit claim, on real data: handwritten digits."""

from __future__ import annotations

from typing import Any

import pytest

import undrift as ud
from undrift.cli import setting


def final(ground: Any, algorithm: Any) -> tuple[ud.PeerRecord, int]:
    run = ground.start(algorithm, seed=0, evaluate_every=ground.rounds)
    *_, record = run
    return record, run.totals.bytes_up


def test_netfleet_is_ahead_at_equal_communication_rounds() -> None:
    """Two labels a worker, every method at the same lr; the nodes' own models even more so."""
    ground = setting(clients=20, partition="shards:2", batch_size=0, rounds=100)
    ends = {
        cls.__name__: final(ground, cls(lr=0.1))[0]
        for cls in (ud.DSGD, ud.LDSGD, ud.GTSGD, ud.NetFleet)
    }
    ahead = ends.pop("NetFleet")
    assert ahead.accuracy > 0.93
    for name, behind in ends.items():
        assert ahead.accuracy > behind.accuracy + 0.02, name
        assert ahead.node_accuracy > behind.node_accuracy + 0.05, name


@pytest.mark.parametrize("workers", [2, 8])
def test_cascading_collapses_and_marsit_follows_full_precision(workers: int) -> None:
    ground = setting(clients=workers, partition="iid", model="logistic", batch_size=40, rounds=120)
    exact, sent = final(ground, ud.PSGD(lr=0.1))
    one_bit, bits_sent = final(ground, ud.Marsit(lr=0.1))
    cascaded = min(
        (final(ground, ud.CascadingSSDM(lr=lr))[0] for lr in (1e-3, 0.1)), key=lambda r: r.loss
    )
    assert exact.accuracy > 0.88
    assert one_bit.accuracy > exact.accuracy - 0.03
    assert sent / 32 <= bits_sent <= sent / 29, "each piece ends with a whole byte"
    assert cascaded.accuracy < 0.5
    assert cascaded.sign_matching == pytest.approx(0.5, abs=0.06), "no better than a coin"
    assert one_bit.sign_matching > 0.58


def test_cascading_alone_is_compression_once() -> None:
    """With one worker there is nothing to cascade and it learns: it is the hops that undo it."""
    ground = setting(clients=1, partition="iid", model="logistic", batch_size=40, rounds=500)
    assert final(ground, ud.CascadingSSDM(lr=0.1))[0].accuracy > 0.75
