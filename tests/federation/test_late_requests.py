"""Requests and replies that come late or twice change nothing that was counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.federation import NAMES, SITES, experiment, own, simulated, sites
from undrift.federation import Centre, InProcess, Site
from undrift.federation.messages import (
    ExchangeReply,
    ExchangeRequest,
    LostState,
    SiteMessage,
    StateName,
    decode,
    encode,
)
from undrift.federation.states import StateStore
from undrift.federation.transport import Arrived, answer
from undrift.models.layout import Layout

METHODS = {
    "fedagrac": ud.FedaGrac(lr=0.1, start="full"),
    "fedlin": ud.FedLin(lr=0.1),
    "scaffold": ud.Scaffold(lr=0.1),
    "compressed": ud.Compressed(ud.Scaffold(lr=0.1), ud.ScaledSign(), error_feedback=True),
}
ROUNDS = 3


class Late(InProcess):
    """Loses one upload of round 1, and brings all earlier requests again before each exchange."""

    def __init__(self, inner: list[Site]) -> None:
        super().__init__(inner)
        self.old: list[tuple[str, bytes]] = []

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        header = decode(next(iter(requests.values()))).header
        if isinstance(header, ExchangeRequest):
            for name, data in reversed(self.old):
                list(super().ask({name: data}))
            self.old += requests.items()
        first = {"t": 0, "stage": "upload", "attempt": 0}
        losing = first == header.model_dump(include=set(first))
        for name, data in super().ask(requests):
            if not (losing and name == NAMES[1]):
                yield Arrived(name, data)


@pytest.mark.parametrize("name", METHODS)
def test_copies_of_all_earlier_requests_change_no_bit(name: str, tmp_path: Path) -> None:
    """The first attempt at round 1 fails, so its copies are of an exchange that is counted."""
    described = experiment(METHODS[name], rounds=ROUNDS, work=ud.Steps(3))
    transport = Late(sites(described, tmp_path))
    centre = Centre(described, transport, checkpoint=tmp_path / "centre")
    records = list(centre)
    assert [record.clients for record in records] == [SITES - 1, SITES, SITES]
    everybody = list(range(SITES))
    cohorts = [[0, 2, 3, 4], everybody, everybody]
    options: dict[str, Any] = {"rounds": ROUNDS, "work": ud.Steps(3), "participation": cohorts}
    assert torch.equal(centre.x, simulated(METHODS[name], **options).state.x)


def exchange(site: Site, scale: float, t: int, base: StateName) -> bytes:
    """Return a request for an upload of SCAFFOLD, with a model that is scaled."""
    vector = scale * Layout.of(site.experiment.model).gather(site.experiment.model)
    header = ExchangeRequest(
        experiment=site.experiment.digest,
        client=0,
        t=t,
        stage="upload",
        attempt=0,
        base=base.version,
        token=base.token,
        keep=base.version,
        steps=1,
        mean_count=1.0,
        width=20,
    )
    return encode(SiteMessage(header, [vector] * (3 if base.version < 0 else 2)))


def test_a_newcomers_request_of_a_later_round_overwrites_no_state(tmp_path: Path) -> None:
    site = Site(experiment(ud.Scaffold(lr=0.1)), own(0), tmp_path, name=NAMES[0])
    base, store = StateName(), StateStore(tmp_path)
    for t in range(2):
        header = decode(answer(site, exchange(site, 1.0, t, base))).header
        assert isinstance(header, ExchangeReply)
        base = StateName(2 * t + 1, header.token)
    counted = store.get(base)
    other = decode(answer(site, exchange(site, 5.0, 1, StateName()))).header
    assert isinstance(other, ExchangeReply)
    assert counted is not None
    for before, after in zip(counted, store.get(base) or (), strict=True):
        assert torch.equal(before, after)
    assert other.token != base.token
    names = store.names()
    assert [name.version for name in names] == [1, 3, 3]


class Mistaken(InProcess):
    """Brings a site's late reply about a state that was lost, beside the reply that is due."""

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        header = decode(next(iter(requests.values()))).header
        if isinstance(header, ExchangeRequest) and header.t == 1:
            late = LostState(client=1, base=1, token="0" * 16, held=[])
            yield Arrived(NAMES[1], encode(SiteMessage(late)))
        yield from super().ask(requests)


def test_a_late_reply_about_another_state_does_not_stop_a_run(tmp_path: Path) -> None:
    described = experiment(ud.Scaffold(lr=0.1))
    centre = Centre(described, Mistaken(sites(described, tmp_path)))
    list(centre)
    assert torch.equal(centre.x, simulated(ud.Scaffold(lr=0.1)).state.x)
