"""Records of rounds, as runs leave them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from undrift.results.record import PeerRecord


def peer_record(round: int, **changes: Any) -> PeerRecord:
    """Return a record of peers that have not been evaluated, with some fields changed."""
    record = PeerRecord(round, 4, None, None, 8, 0, 4, 40, 0.5, None, 0.5, None, 2, 2, 6, 1.5, 0.75)
    return replace(record, **changes)
