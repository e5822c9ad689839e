"""The policy of a run about uploads: who is dropped, how many must stay, how they combine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from undrift.aggregation.attacks import Attack
from undrift.aggregation.robust import Aggregation
from undrift.check import is_whole, require

OnBad = Literal["stop", "drop"]
HALF = 0.5  # of the cohort, the quorum where clients are dropped and none is given


@dataclass(frozen=True)
class UploadPolicy:
    """Says what becomes of uploads.

    on_bad: whether a bad upload stops the run or is left out.
    quorum: uploads that a round needs, as a share of those drawn or as a number.
    aggregation: the rule that stands in for the weighted mean.
    attack: what some clients of a simulation do instead of uploading what they computed.
    """

    on_bad: OnBad = "stop"
    quorum: float | int | None = None
    aggregation: Aggregation | None = None
    attack: Attack | None = None

    @property
    def holds(self) -> bool:
        """Return whether all uploads of a round must be in memory at the same time."""
        return self.on_bad == "drop" or self.aggregation is not None or self.attack is not None

    def check(self, who: str) -> None:
        """Raise `ValueError` unless the quorum is one."""
        quorum = self.quorum
        share = isinstance(quorum, float) and 0 < quorum <= 1
        sound = quorum is None or share or (is_whole(quorum) and quorum >= 1)
        require(sound, who, "quorum as a share in (0, 1] or a number >= 1", quorum)

    def check_cohort(self, most: int) -> None:
        """Raise `ValueError` if no cohort, which has `most` clients at most, reaches the quorum."""
        quorum = self.quorum
        within = not isinstance(quorum, int) or quorum <= most
        remedy = "lower it, let more clients take part, or give a share such as 0.5"
        require(within, "quorum", f"at most the {most} clients of a round", quorum, remedy)

    def needed(self, drawn: int) -> int:
        """Return how many uploads make a round of so many clients that were drawn."""
        quorum = self.quorum
        if quorum is None:
            quorum = HALF if self.on_bad == "drop" else 0
        share = isinstance(quorum, float)
        needed = math.ceil(quorum * drawn - 1e-9) if share else int(quorum)
        if self.aggregation is not None:
            needed = max(needed, self.aggregation.least(drawn))
        return max(1, needed)

    def settings(self) -> dict[str, str]:
        """Return what a resumed run must have in common, empty where everything is as usual."""
        named = {"on_bad": self.on_bad, "quorum": self.quorum, "aggregation": self.aggregation,
                 "attack": self.attack}  # fmt: skip
        usual = {"on_bad": "stop"}
        return {
            name: repr(v) for name, v in named.items() if v is not None and v != usual.get(name)
        }
