"""The transport of a federation: who is connected, and how a message reaches a site.

A transport knows no method and no state. What it brings back may be late, twice or damaged; the
centre decides what counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from undrift.errors import UndriftError
from undrift.federation.messages import SiteMessage, decode, encode


class Arrived(NamedTuple):
    """Holds bytes that came from a site."""

    site: str
    data: bytes


class Answering(Protocol):
    """Answers requests, as a site does."""

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to a request."""
        ...


class SiteTransport(Protocol):
    """Carries requests to sites and brings their replies."""

    def sites(self) -> list[str]:
        """Return the names of the sites that are connected."""
        ...

    def ask(self, requests: Mapping[str, bytes], *, seconds: float = math.inf) -> Iterable[Arrived]:
        """Send a request to each named site and yield what comes back until all or time is over.

        The time is the transport's own deadline, or `seconds` if they are fewer.
        """
        ...


class AnySite(Answering, Protocol):
    """Is a site with a name, by which a transport knows it."""

    name: str


class InProcess:
    """Calls sites of the same process, one after the other; every message is encoded as if sent."""

    def __init__(self, sites: Iterable[AnySite]) -> None:
        self._sites: dict[str, AnySite] = {}
        for site in sites:
            self.connect(site)

    def connect(self, site: AnySite) -> None:
        """Add a site, which the centre may enrol."""
        if site.name in self._sites:
            raise UndriftError(
                f"A federation needs sites with different names, got two named {site.name!r}; "
                "rename one."
            )
        self._sites[site.name] = site

    def sites(self) -> list[str]:
        """Return the names of the sites."""
        return sorted(self._sites)

    def ask(self, requests: Mapping[str, bytes], *, seconds: float = math.inf) -> Iterator[Arrived]:
        """Yield the reply of each site."""
        for name, data in requests.items():
            if name in self._sites:
                yield Arrived(name, answer(self._sites[name], data))


def answer(site: Answering, data: bytes) -> bytes:
    """Return the reply of a site to the bytes of a request."""
    return encode(site.answer(decode(data)))
