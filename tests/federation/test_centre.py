"""Centre and sites give the bits of the simulator, and a round is the one without bad replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.bad_replies import BAD, Change
from tests.support.federation import (
    NAMES,
    OPTIONS,
    SITES,
    clients,
    experiment,
    federation,
    own,
    simulated,
    sites,
)
from tests.support.methods import DEFAULTS, VARIANTS
from undrift.core import Federated, Prelude
from undrift.errors import UndriftError
from undrift.federation import Centre, InProcess, Site
from undrift.federation.messages import ExchangeReply, ExchangeRequest, SiteMessage, decode, encode
from undrift.federation.transport import Arrived

WRAPPED = [
    ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=8)),
    ud.Compressed(ud.FedAvg(lr=0.1), ud.QSGD(bits=8, bucket="tensor")),
    ud.Compressed(ud.Scaffold(lr=0.1), ud.ScaledSign(), error_feedback=True),
    ud.Accelerated(ud.FedAvg(lr=0.1)),
    ud.FedAvg(lr=ud.exponential(0.1, 0.9)),
]
METHODS = [each for each in [*DEFAULTS, *VARIANTS, *WRAPPED] if isinstance(each, Federated)]


@pytest.mark.wide(daily=lambda params: params["share"] == 0.6)
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_a_federation_has_the_bits_of_the_simulator(
    algorithm: Any, share: float, tmp_path: Path
) -> None:
    expected = simulated(algorithm, participation=share, rounds=3)
    described = experiment(algorithm, participation=share, rounds=3)
    centre = federation(described, tmp_path, checkpoint=tmp_path / "centre")
    records = list(centre)
    assert torch.equal(centre.x, expected.state.x)
    assert sum(each.bytes_up for each in records) == expected.totals.bytes_up
    assert sum(each.gradients for each in records) == expected.totals.gradients
    assert centre.left_out == {}


def test_evaluation_is_the_mean_over_the_samples_of_all_sites(tmp_path: Path) -> None:
    algorithm = ud.FedAvg(lr=0.1)
    centre = federation(experiment(algorithm, rounds=2), tmp_path)
    last = list(centre)[-1]
    pool = clients()
    trained = ud.Clients([pool[i] for i in range(SITES)], prepare=pool.prepare)
    run = ud.simulate(algorithm, centre.model, trained, **{**OPTIONS, "rounds": 0})
    score = run.evaluate()
    assert last.loss == pytest.approx(score.loss, rel=1e-6)
    assert last.accuracy == pytest.approx(score.accuracy, rel=1e-6)
    assert list(centre.site_scores) == NAMES
    assert sum(each.samples for each in centre.site_scores.values()) == int(pool.sizes.sum())


@dataclass
class Tampered:
    """Is a transport that changes what one site sends in one round."""

    inner: InProcess
    change: Change
    site: str = NAMES[1]
    t: int = 1
    stage: str = "upload"
    seen: list[str] = field(default_factory=list)

    def sites(self) -> list[str]:
        return self.inner.sites()

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        for name, data in self.inner.ask(requests):
            request = decode(requests[name]).header
            if (
                name == self.site
                and isinstance(request, ExchangeRequest)
                and (request.t, request.stage) == (self.t, self.stage)
            ):
                self.seen.append(name)
                for changed in self.change(request, data):
                    yield Arrived(name, changed)
            else:
                yield Arrived(name, data)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("algorithm", [ud.Scaffold(lr=0.1), ud.FedLin(lr=0.1)], ids=repr)
def test_a_bad_reply_is_left_out_and_the_round_is_the_one_without_it(
    algorithm: Any, name: str, tmp_path: Path
) -> None:
    change, reason = BAD[name]
    described = experiment(algorithm, rounds=3, work=ud.Steps(3))
    transport = Tampered(InProcess(sites(described, tmp_path)), change)
    centre = Centre(described, transport)
    next(centre)
    record = next(centre)
    assert record.clients == SITES - 1
    assert record.missed == 1
    assert list(centre.left_out) == [NAMES[1]]
    assert reason in centre.left_out[NAMES[1]]
    everybody = list(range(SITES))
    cohorts = [everybody, [i for i in everybody if i != 1], everybody]
    expected = simulated(algorithm, rounds=3, work=ud.Steps(3), participation=cohorts)
    next(centre)
    assert torch.equal(centre.x, expected.state.x)


def test_a_second_reply_is_not_counted(tmp_path: Path) -> None:
    described = experiment(ud.Scaffold(lr=0.1))
    transport = Tampered(InProcess(sites(described, tmp_path)), lambda request, data: [data, data])
    centre = Centre(described, transport)
    records = list(centre)
    assert transport.seen
    assert torch.equal(centre.x, simulated(ud.Scaffold(lr=0.1)).state.x)
    named = {NAMES[1]: "a second reply, which does not count"}
    assert [record.dropped for record in records] == [None, named, None, None]
    assert [record.clients for record in records] == [SITES] * 4


@pytest.mark.parametrize("quorum", [0, 0.0, 1.5, -1, True, float("nan")])
def test_a_quorum_that_is_none_is_refused(quorum: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"A federation needs quorum as a share in \(0, 1\]"):
        Centre(experiment(ud.FedAvg(lr=0.1)), InProcess([]), quorum=quorum)


class LosesOne(InProcess):
    """Brings the uploads of all sites but the first that is asked."""

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        exchange = isinstance(decode(next(iter(requests.values()))).header, ExchangeRequest)
        yield from list(super().ask(requests))[int(exchange) :]


@pytest.mark.parametrize(("quorum", "counted"), [(2, 0), (1, 1), (0.5, 1), (1.0, 0)])
def test_a_quorum_counts_those_drawn_as_the_simulator_does(
    quorum: float, counted: int, tmp_path: Path
) -> None:
    """Two of four sites are drawn; a number of sites is no share of all of them."""
    described = experiment(ud.FedAvg(lr=0.1), participation=0.5, rounds=1)
    centre = Centre(described, LosesOne(sites(described, tmp_path, 4)), quorum=quorum)
    record = next(centre)
    assert record.missed == 2 - counted
    assert record.clients == counted


def test_below_the_quorum_the_model_stays(tmp_path: Path) -> None:
    described = experiment(ud.Scaffold(lr=0.1), rounds=2)
    transport = Tampered(InProcess(sites(described, tmp_path)), lambda request, data: [])
    centre = Centre(described, transport, quorum=1.0)
    next(centre)
    before, ledger = centre.x.clone(), centre.ledger
    record = next(centre)
    assert record.clients == 0
    assert torch.equal(centre.x, before)
    assert centre.ledger == ledger


def test_a_site_that_answers_after_a_void_round_goes_on_from_the_counted_state(
    tmp_path: Path,
) -> None:
    """The site has stored the state of the void round, which belongs to no model."""
    described = experiment(ud.Scaffold(lr=0.1), rounds=3, work=ud.Steps(3))
    transport = Tampered(InProcess(sites(described, tmp_path)), lambda request, data: [])
    centre = Centre(described, transport, checkpoint=tmp_path / "centre")
    list(centre)
    everybody = list(range(SITES))
    cohorts = [everybody, [0, 2, 3, 4], everybody]
    options = {"rounds": 3, "work": ud.Steps(3), "participation": cohorts}
    assert torch.equal(centre.x, simulated(ud.Scaffold(lr=0.1), **options).state.x)


def test_sites_choose_their_own_steps(tmp_path: Path) -> None:
    algorithm = ud.FedaGrac(lr=0.1)
    described = experiment(algorithm, rounds=2)
    own_steps = [2, 3, 4, 5, 6]
    own_sites = [
        Site(described, own(i), tmp_path / NAMES[i], name=NAMES[i], steps=own_steps[i])
        for i in range(SITES)
    ]
    centre = Centre(described, InProcess(own_sites))
    list(centre)
    expected = simulated(algorithm, rounds=2, work=ud.Steps(own_steps))
    assert torch.equal(centre.x, expected.state.x)


def test_a_budget_of_seconds_becomes_steps(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1), rounds=2)
    site = Site(described, own(0), tmp_path, name="site0", seconds=1e-9)
    centre = Centre(described, InProcess([site]))
    list(centre)
    assert centre.ledger.steps == {0: 1}


@pytest.mark.parametrize("algorithm", [ud.Scaffold(lr=0.1), ud.FedDyn(lr=0.1)], ids=repr)
def test_newcomers_and_leavers_are_those_of_the_simulator(algorithm: Any, tmp_path: Path) -> None:
    described = experiment(algorithm, rounds=5, work=ud.Steps(3))
    all_sites = sites(described, tmp_path)
    transport = InProcess(all_sites[:3])
    centre = Centre(described, transport)
    next(centre)
    next(centre)
    transport.connect(all_sites[3])
    assert centre.enrol() == [NAMES[3]]
    next(centre)
    centre.leave(NAMES[0])
    list(centre)
    spans = ud.data.Spans([(0, 3), (0, None), (0, None), (2, None)])
    pool = clients()
    some = ud.Clients([pool[i] for i in range(4)], prepare=pool.prepare, availability=spans)
    options = {**OPTIONS, "rounds": 5, "work": ud.Steps(3)}
    run = ud.simulate(algorithm, described.model, some, mode="loop", kernels=False, **options)
    list(run)
    torch.testing.assert_close(centre.x, run.state.x, rtol=0, atol=1e-7)


def test_a_lost_state_is_said_and_never_becomes_zero(tmp_path: Path) -> None:
    described = experiment(ud.Scaffold(lr=0.1))
    centre = federation(described, tmp_path)
    next(centre)
    for file in (tmp_path / NAMES[2]).iterdir():
        file.unlink()
    with pytest.raises(UndriftError, match=r"Site site2 needs its state of version 1, got \[\]"):
        next(centre)
    centre.renew(NAMES[2])
    assert len(centre.ledger) == SITES + 1
    list(centre)
    assert centre.round == 4


def test_a_damaged_state_is_lost(tmp_path: Path) -> None:
    described = experiment(ud.Scaffold(lr=0.1))
    centre = federation(described, tmp_path)
    next(centre)
    (file,) = (tmp_path / NAMES[2]).iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(UndriftError, match="needs its state of version 1"):
        next(centre)


def test_sites_refuse_what_they_have_not_accepted(tmp_path: Path) -> None:
    accepted = experiment(ud.FedAvg(lr=0.1))
    other = experiment(ud.FedAvg(lr=0.2))
    with pytest.raises(UndriftError, match="which its operator has accepted"):
        Centre(other, InProcess(sites(accepted, tmp_path)))


def test_a_site_with_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("undrift.federation.site.code_digest", lambda: "another")
    described = experiment(ud.FedAvg(lr=0.1))
    with pytest.raises(UndriftError, match="Site site0 needs the version of undrift"):
        Centre(described, InProcess(sites(described, tmp_path, 1)))


def test_samples_of_another_form_are_refused(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1))
    inputs, targets = clients()[1]
    floats = ud.Clients([(inputs.double(), targets)], prepare=clients().prepare)
    odd = Site(described, floats, tmp_path / "odd", name="site1")
    usual = Site(described, own(0), tmp_path / "usual", name="site0")
    with pytest.raises(UndriftError, match="Site site1 needs samples of the form"):
        Centre(described, InProcess([usual, odd]))


def test_two_sites_with_one_name_are_refused(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1))
    both = [Site(described, own(i), tmp_path / str(i), name="site0") for i in range(2)]
    with pytest.raises(UndriftError, match="different names"):
        InProcess(both)


def test_states_of_stateless_methods_are_not_written(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1))
    list(federation(described, tmp_path))
    assert not list((tmp_path / NAMES[0]).iterdir())


def test_what_nobody_can_ask_for_is_removed(tmp_path: Path) -> None:
    described = experiment(ud.Scaffold(lr=0.1), rounds=6)
    list(federation(described, tmp_path, checkpoint=tmp_path / "centre"))
    assert len(list((tmp_path / NAMES[0]).iterdir())) <= 3
    assert len(list((tmp_path / "centre").iterdir())) == 2


def test_a_census_has_no_hash_of_samples(tmp_path: Path) -> None:
    """Two sites whose samples differ, but not in number, answer alike but for their names."""
    described = experiment(ud.FedAvg(lr=0.1))
    inputs, targets = clients()[0]
    prepare = clients().prepare
    one = Site(described, ud.Clients([(inputs, targets)], prepare=prepare), tmp_path, name="a")
    swapped = ud.Clients([(inputs.flip(0), targets)], prepare=prepare)
    other = Site(described, swapped, tmp_path / "other", name="a")
    assert one.census() == other.census()


def test_a_prelude_asks_again_when_somebody_is_left_out_after_its_answer(tmp_path: Path) -> None:
    described = experiment(ud.FedLin(lr=0.1), rounds=2)
    assert isinstance(described.algorithm, Prelude)
    transport = Tampered(InProcess(sites(described, tmp_path)), lambda request, data: [])
    centre = Centre(described, transport)
    next(centre)
    record = next(centre)
    assert record.clients == SITES - 1
    assert record.gradients > 0


def test_replies_are_typed() -> None:
    reply = ExchangeReply(
        client=0, t=0, stage="upload", attempt=0, gradients=1, samples=1, seconds=0.1
    )
    header, tensors = decode(encode(SiteMessage(reply, [torch.zeros(3, dtype=torch.bfloat16)])))
    assert header == reply
    assert tensors[0].dtype == torch.bfloat16
