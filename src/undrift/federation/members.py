"""The sites of a federation as its centre knows them: names, numbers of samples, and rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.data.availability import Availability, Spans
from undrift.errors import UndriftError
from undrift.federation.messages import SiteCensus, StateName


@dataclass(frozen=True)
class Member:
    """Describes one site; its place in the list of members is its number as a client."""

    name: str
    samples: int
    test_samples: int
    form: str  # shapes and dtypes of a sample
    joined: int = 0  # the first round in which it may take part
    left: int | None = None  # the first round in which it no longer does


@dataclass(frozen=True)
class Ledger:
    """Holds what the server's model has seen: members, counted states and announced steps.

    It is part of the centre's checkpoint. `counted` has the name of each client's state after the
    last exchange that was counted; its version is 2 t for an answer and 2 t + 1 for an upload in
    round t.
    """

    members: tuple[Member, ...] = ()
    counted: Mapping[int, StateName] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)  # K_i that sites choose themselves

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of samples of every client."""
        return np.array([member.samples for member in self.members], dtype=np.int64)

    @property
    def availability(self) -> Availability | None:
        """Return who is present in which round, None where everybody always is."""
        spans = [(member.joined, member.left) for member in self.members]
        return None if set(spans) == {(0, None)} else Spans(spans)

    def present(self, t: int) -> list[int]:
        """Return the clients that may take part in round t."""
        return [
            i
            for i, member in enumerate(self.members)
            if member.joined <= t and (member.left is None or t < member.left)
        ]

    def number(self, name: str, t: int) -> int | None:
        """Return the client of the site with this name that is present in round t."""
        return next((i for i in self.present(t) if self.members[i].name == name), None)

    def joined(self, censuses: Sequence[SiteCensus], t: int) -> Ledger:
        """Return the ledger with new sites, which take part from round t on."""
        ledger = self
        for census in sorted(censuses, key=lambda census: census.site):
            if ledger.number(census.site, t) is not None:
                raise UndriftError(
                    f"A federation needs sites with different names, got two named "
                    f"{census.site!r}; rename one."
                )
            if ledger.members and census.form != ledger.members[0].form:
                raise UndriftError(
                    f"Site {census.site} needs samples of the form {ledger.members[0].form}, as "
                    f"{ledger.members[0].name} has, got {census.form}; convert them."
                )
            member = Member(census.site, census.samples, census.test_samples, census.form, t)
            steps = dict(ledger.steps)
            if census.steps is not None:
                steps[len(ledger)] = census.steps
            ledger = replace(ledger, members=(*ledger.members, member), steps=steps)
        return ledger

    def without(self, name: str, t: int) -> Ledger:
        """Return the ledger after a site has left before round t; its dual stays in the mean."""
        client = self.number(name, t)
        if client is None:
            raise UndriftError(
                f"A site that leaves needs to be there, got {name!r} in round {t + 1}."
            )
        members = list(self.members)
        members[client] = replace(members[client], left=t)
        return replace(self, members=tuple(members))

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as JSON takes it."""
        return {
            "members": [asdict(member) for member in self.members],
            "counted": [[client, *name] for client, name in sorted(self.counted.items())],
            "steps": sorted(self.steps.items()),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Ledger:
        """Return the ledger that `to_dict` made."""
        members = tuple(Member(**member) for member in fields["members"])
        counted = {client: StateName(*name) for client, *name in fields["counted"]}
        return cls(members, counted, dict(map(tuple, fields["steps"])))
