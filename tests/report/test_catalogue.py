"""What a round of each method costs: traffic, gradients per step, and who keeps state."""

from __future__ import annotations

import pytest

import undrift as ud
from undrift.report.catalogue import Entry, citation, entries

D = 6 * 8 + 8 + 8 * 3 + 3  # the dry run's model, in float32
V = 4 * D

# name: vectors down and up, scalars' bytes down and up, gradients per step, client state
TABLE = {
    "fedavg": (1, 1, 0, 0, 1, False),
    "fedprox": (1, 1, 0, 0, 1, False),
    "scaffold": (2, 2, 0, 0, 1, True),
    "fedspeed": (1, 1, 0, 0, 2, True),
    "fedacg": (1, 1, 0, 0, 1, False),
    "fedagrac": (2, 2, 4, 0, 1, True),
    "fedavgm": (1, 1, 0, 0, 1, False),
    "fedadam": (1, 1, 0, 0, 1, False),
    "fedyogi": (1, 1, 0, 0, 1, False),
    "fedadagrad": (1, 1, 0, 0, 1, False),
    "fedcm": (2, 1, 0, 0, 1, False),
    "feddyn": (1, 1, 0, 0, 1, True),
    "fedpd": (1, 1, 0, 0, 1, True),
    "fedadmm": (1, 1, 0, 0, 1, True),
    "feddc": (2, 2, 0, 0, 1, True),
    "fednova": (1, 1, 0, 4, 1, False),
    "fedlin": (2, 2, 0, 0, 1.1, False),  # one full gradient beside ten steps
    "fedsam": (1, 1, 0, 0, 2, False),
    "mofedsam": (2, 1, 0, 0, 2, False),
    "fedgamma": (2, 2, 0, 0, 2, True),
    "moon": (1, 1, 0, 0, 1, True),
    "fedmlb": (1, 1, 0, 0, 1, False),
}


# Peers on a ring of four. name: bytes sent by all in one exchange, node state
PIECES = (21, 21, 21, 20)  # of the all-reduced vector


def _on_ring(*widths: int) -> int:
    """Bytes of a ring's messages: each hop of the merging half, then three copies of the result."""
    *merging, copied = widths
    hops = [*merging, copied, copied, copied]
    return sum(-(-size * width // 8) for size in PIECES for width in hops)


SCALAR = 6 * 4  # one number all-reduced over four: one piece, three hops there and three back
PEERS = {
    "dsgd": (8 * V, False),
    "ldsgd": (8 * V, False),
    "gtsgd": (16 * V, True),
    "netfleet": (16 * V, True),
    "psgd": (6 * V, False),
    "signsgd": (_on_ring(1, 2, 2, 1), False),
    "efsignsgd": (_on_ring(1, 2, 2, 3) + SCALAR, True),
    "ssdm": (_on_ring(1, 2, 2, 3), True),
    "cascadingssdm": (_on_ring(1, 1, 1, 1) + 24 * 4, True),
    "marsit": (_on_ring(1, 1, 1, 1), True),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Entry]:
    return {entry.name: entry for entry in entries(ud.ALGORITHMS)}


def test_the_table_is_complete(measured: dict[str, Entry]) -> None:
    assert list(measured) == [*TABLE, *PEERS]


@pytest.mark.parametrize("name", TABLE)
def test_costs_are_those_of_the_table(measured: dict[str, Entry], name: str) -> None:
    down, up, scalars_down, scalars_up, gradients, keeps = TABLE[name]
    entry = measured[name]
    sent = (down + up) * V + scalars_down + scalars_up
    assert entry.traffic == pytest.approx(sent / (2 * V), rel=1e-12)
    assert entry.gradients == pytest.approx(gradients)
    assert (entry.client_state != "-") == keeps


@pytest.mark.parametrize("name", PEERS)
def test_costs_of_peers(measured: dict[str, Entry], name: str) -> None:
    sent, keeps = PEERS[name]
    entry = measured[name]
    assert entry.traffic * 8 * V == pytest.approx(sent, rel=1e-12)  # FedAvg: 4 up and 4 down
    assert entry.gradients == 1
    assert (entry.client_state != "-") == keeps
    assert entry.family == ("gossip" if sent >= 8 * V else "all-reduce")


def test_every_paper_has_authors_and_a_year() -> None:
    for cls in ud.ALGORITHMS:
        authors, *_, year = citation(cls).replace(",", " ").split()
        assert authors[0].isupper()
        assert 2010 <= int(year) <= 2026
