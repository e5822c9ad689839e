"""Sites and centre are killed at every kind of moment and end with the hash of the whole run.

A kill is an exception that nothing catches; afterwards every object is made anew from its files.
Kills of real processes are in `test_processes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.federation import NAMES, experiment, simulated, sites
from undrift.federation import Centre, InProcess, sealed
from undrift.federation.messages import ExchangeRequest, decode
from undrift.federation.transport import Arrived

METHODS = {
    "scaffold": ud.Scaffold(lr=0.1),
    "fedlin": ud.FedLin(lr=0.1),
    "fedspeed": ud.FedSpeed(lr=0.1),
    "fedagrac": ud.FedaGrac(lr=0.1, start="full"),
    "compressed": ud.Compressed(ud.Scaffold(lr=0.1), ud.ScaledSign(), error_feedback=True),
}
MOMENTS = ("site before its write", "site inside its write", "site after its write")
CENTRE = ("centre before its checkpoint", "centre inside its checkpoint", "centre after it")
POINTS = [(t, moment) for t in (0, 1, 3) for moment in (*MOMENTS, *CENTRE)]


class Killed(BaseException):
    """Ends everything, as a kill does."""


class KillOnce:
    """Kills at one moment of one round, the first time that it comes."""

    def __init__(self, t: int, moment: str) -> None:
        self.t, self.moment, self.armed = t, moment, True

    def at(self, moment: str, t: int) -> None:
        """Raise if this is the moment."""
        if self.armed and (moment, t) == (self.moment, self.t):
            self.armed = False
            raise Killed


class KillingTransport(InProcess):
    """Knows in which round a site is, and kills it before or after its work."""

    def __init__(self, inner: list[Any], kill: KillOnce) -> None:
        super().__init__(inner)
        self.kill, self.t = kill, -1

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        for name, data in requests.items():
            request = decode(data).header
            ours = isinstance(request, ExchangeRequest) and name == NAMES[1]
            self.t = request.t if isinstance(request, ExchangeRequest) and ours else -1
            self.kill.at(MOMENTS[0], self.t)
            replies = list(super().ask({name: data}))
            self.kill.at(MOMENTS[2], self.t)
            self.t = -1
            yield from replies


@cache
def expected(name: str) -> str:
    return simulated(METHODS[name]).model_sha256


@pytest.mark.wide(daily=lambda params: params["name"] in ("scaffold", "fedlin"))
@pytest.mark.parametrize(("t", "moment"), POINTS)
@pytest.mark.parametrize("name", METHODS)
def test_a_kill_at_any_moment_ends_with_the_same_hash(
    name: str, t: int, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, kill = experiment(METHODS[name]), KillOnce(t, moment)
    folder, starts = tmp_path / "centre", 0
    write = sealed.write_atomic
    current: dict[str, Any] = {}

    def write_or_die(path: Path, content: bytes) -> None:
        if path.name.startswith("state-"):
            kill.at(MOMENTS[1], current["transport"].t)
        else:
            kill.at(CENTRE[0], current["centre"].round - 1)
            if kill.armed and (kill.moment, kill.t) == (CENTRE[1], current["centre"].round - 1):
                path.with_name(f".{path.name}.1-00000000.part").write_bytes(content[:100])
            kill.at(CENTRE[1], current["centre"].round - 1)
        write(path, content)

    monkeypatch.setattr(sealed, "write_atomic", write_or_die)
    while True:
        starts += 1
        assert starts < 4
        try:
            transport = KillingTransport(sites(described, tmp_path), kill)
            current["transport"] = transport
            saved = folder.is_dir() and any(folder.glob("centre-*"))
            centre = Centre(described, transport, checkpoint=folder, resume=saved)
            current["centre"] = centre
            for record in centre:
                kill.at(CENTRE[2], record.round - 1)
            break
        except Killed:
            continue
    assert starts == 2
    assert centre.model_sha256 == expected(name)


@pytest.mark.parametrize("name", METHODS)
def test_a_centre_that_goes_back_two_checkpoints_finds_the_states(
    name: str, tmp_path: Path
) -> None:
    described, folder = experiment(METHODS[name]), tmp_path / "centre"
    centre = Centre(described, InProcess(sites(described, tmp_path)), checkpoint=folder)
    for _ in range(3):
        next(centre)
    newest = max(folder.iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged"):
        again = Centre(
            described, InProcess(sites(described, tmp_path)), checkpoint=folder, resume=True
        )
    assert again.round == 2
    list(again)
    assert again.model_sha256 == expected(name)


def test_a_resume_of_another_experiment_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "centre"
    described = experiment(ud.FedAvg(lr=0.1), rounds=1)
    list(Centre(described, InProcess(sites(described, tmp_path)), checkpoint=folder))
    other = experiment(ud.FedAvg(lr=0.2), rounds=2)
    make: Callable[..., Centre] = Centre
    with pytest.raises(ud.errors.CheckpointError, match="resume needs the experiment"):
        make(other, InProcess(sites(other, tmp_path)), checkpoint=folder, resume=True)
    with pytest.raises(ValueError, match="checkpoint needs an empty folder"):
        make(described, InProcess(sites(described, tmp_path)), checkpoint=folder)
