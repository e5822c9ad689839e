"""Validation of what comes back from sites, before anything of it counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from undrift import tree
from undrift.engine.processes.rendezvous import code_digest
from undrift.errors import UndriftError
from undrift.federation.forms import require_form
from undrift.federation.messages import (
    CensusRequest,
    ExchangeReply,
    Header,
    LostState,
    MessageError,
    Refusal,
    SiteCensus,
    SiteMessage,
    Stage,
    StateName,
    decode,
    encode,
)
from undrift.federation.transport import Arrived, SiteTransport

H = TypeVar("H", bound=Header)


class Reply(NamedTuple, Generic[H]):
    """Holds a reply that was read: who sent it, its header and its tensors."""

    site: str
    header: H
    tensors: Sequence[Tensor]


class Replies:
    """Reads what arrives from the named clients.

    `bases` are the states that they were asked to start from. `left_out` has the reason for each
    client that fails, `repeated` those of which more came than what counts.
    """

    def __init__(
        self,
        arrived: Iterable[Arrived],
        clients: Mapping[str, int],
        bases: Mapping[str, StateName] | None = None,
    ) -> None:
        self._arrived, self._clients, self._bases = arrived, clients, bases or {}
        self.left_out: dict[str, str] = {}
        self.repeated: dict[str, str] = {}

    def of(self, kind: type[H]) -> Iterator[Reply[H]]:
        """Yield the first reply of each site that is of this kind and of its own client."""
        heard = set()
        for name, data in self._arrived:
            if name not in self._clients:
                continue  # Nobody asked the site.
            if name in heard:
                self.repeated[name] = "a second reply, which does not count"
                continue
            try:
                header, tensors = decode(data)
            except MessageError as error:
                self.left_out[name] = str(error)
                continue
            if (
                isinstance(header, LostState)
                and header.client == self._clients[name]
                and (header.base, header.token) == self._bases.get(name)
            ):
                raise lost(name, header)  # A late one speaks of another state.
            if isinstance(header, Refusal):
                self.left_out[name] = header.reason
            elif not isinstance(header, kind):
                self.left_out[name] = f"a reply of another kind ({type(header).__name__})"
            elif getattr(header, "client", None) != self._clients[name]:
                self.left_out[name] = "a reply of another client"
            else:
                heard.add(name)
                self.left_out.pop(name, None)
                yield Reply(name, header, tensors)
        for name in self._clients.keys() - heard - self.left_out.keys():
            self.left_out[name] = "no reply"

    def exchanges(
        self, t: int, stage: Stage, attempt: int, form: Any
    ) -> Iterator[Reply[ExchangeReply]]:
        """Yield the replies of an exchange that have the right round and form."""
        expected = tree.leaves(form)
        for reply in self.of(ExchangeReply):
            reason = _fault(reply, (t, stage, attempt), expected)
            if reason:
                self.left_out[reply.site] = reason
            else:
                yield reply


def _fault(
    reply: Reply[ExchangeReply], wanted: tuple[int, Stage, int], expected: Sequence[Tensor]
) -> str:
    """Return what is wrong with a reply, or ""."""
    header = reply.header
    if (header.t, header.stage, header.attempt) != wanted:
        return f"a reply of round {header.t + 1}, {header.stage}, attempt {header.attempt}"
    try:
        require_form("A reply", reply.tensors, expected)
    except MessageError as error:
        return str(error)
    return ""


def census_of(
    transport: SiteTransport, names: Sequence[str], experiment: str, seconds: float = math.inf
) -> list[SiteCensus]:
    """Return the censuses of these sites; raise one sentence if a site does not fit."""
    request = encode(SiteMessage(CensusRequest(experiment=experiment)))
    found: dict[str, SiteCensus] = {}
    for name, data in transport.ask(dict.fromkeys(names, request), seconds=seconds):
        header = decode(data).header
        if isinstance(header, Refusal):
            raise UndriftError(header.reason)
        if not isinstance(header, SiteCensus) or header.site != name:
            raise UndriftError(f"Site {name} needs to answer with its own census, got another.")
        if header.version != code_digest():
            raise UndriftError(
                f"Site {name} needs the version of undrift that the centre has, got another; "
                "install the same one."
            )
        found[name] = header
    missing = [name for name in names if name not in found]
    if missing:
        raise UndriftError(f"A census needs an answer of every site, got none of {missing}.")
    return list(found.values())


def lost(name: str, header: LostState) -> UndriftError:
    """Return the error for a site that does not have the state that belongs to the model."""
    got = "another one" if header.base in header.held else str(header.held)
    return UndriftError(
        f"Site {name} needs its state of version {header.base}, got {got} on its disk; "
        "restore its folder from a backup, or let it go on as a newcomer."
    )
