"""Sums that sites send of their own samples count if they can be right; others are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.federation import NAMES, SITES, experiment, federation, sites
from undrift.federation import Centre, InProcess
from undrift.federation.messages import EvaluationReply, SiteMessage, decode, encode
from undrift.federation.transport import Arrived

ODD = NAMES[1]


@dataclass
class ChangedSums:
    """Is a transport that changes what one site sends of an evaluation."""

    inner: InProcess
    change: Callable[[EvaluationReply], list[bytes]]

    def sites(self) -> list[str]:
        return self.inner.sites()

    def ask(self, requests: Mapping[str, bytes], **limits: float) -> Iterator[Arrived]:
        for name, data in self.inner.ask(requests):
            header = decode(data).header
            if name == ODD and isinstance(header, EvaluationReply):
                yield from (Arrived(name, each) for each in self.change(header))
            else:
                yield Arrived(name, data)


def other(**fields: Any) -> Callable[[EvaluationReply], list[bytes]]:
    return lambda reply: [encode(SiteMessage(reply.model_copy(update=fields)))]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(other(t=99), "an evaluation of round 100", id="round"),
        pytest.param(other(hits=1e6), "1e+06 hits among", id="hits"),
        pytest.param(other(samples=10**6), "sums over 1000000 samples, where", id="samples"),
        pytest.param(other(tested=True), "samples, where", id="tested"),
        pytest.param(other(loss=float("nan")), "a loss that is NaN or infinite", id="nan"),
        pytest.param(other(loss=float("inf")), "a loss that is NaN or infinite", id="inf"),
        pytest.param(other(hits=None), "hits, or none, where most", id="no hits"),
        pytest.param(other(client=0), "a reply of another client", id="client"),
        pytest.param(lambda reply: [], "no reply", id="silent"),
        pytest.param(lambda reply: [b"\x00" * 100], "needs a safetensors header", id="garbage"),
    ],
)
def test_sums_that_cannot_be_right_are_left_out_by_name(
    change: Callable[[EvaluationReply], list[bytes]], reason: str, tmp_path: Path
) -> None:
    described = experiment(ud.FedAvg(lr=0.1), rounds=1)
    centre = Centre(described, ChangedSums(InProcess(sites(described, tmp_path)), change))
    (record,) = centre
    assert list(record.untested or {}) == [ODD]
    assert reason in (record.untested or {})[ODD]
    assert centre.untested == record.untested
    assert record.dropped is None
    assert record.clients == SITES
    scores = dict(centre.site_scores)
    assert sorted(scores) == [name for name in NAMES if name != ODD]
    samples = sum(score.samples for score in scores.values())
    mean = sum(score.loss * score.samples for score in scores.values()) / samples
    hits = sum((score.accuracy or 0) * score.samples for score in scores.values())
    assert record.loss == pytest.approx(mean)
    assert record.accuracy == pytest.approx(hits / samples)


def test_a_second_evaluation_is_named(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1), rounds=1)
    twice = ChangedSums(
        InProcess(sites(described, tmp_path)), lambda reply: [encode(SiteMessage(reply))] * 2
    )
    (record,) = Centre(described, twice)
    assert record.untested == {ODD: "a second reply, which does not count"}
    assert sorted(record.site_scores or {}) == NAMES


def test_records_have_the_scores_of_each_site(tmp_path: Path) -> None:
    centre = federation(experiment(ud.FedAvg(lr=0.1), rounds=3, evaluate_every=2), tmp_path)
    first, second, third = centre
    assert first.site_scores is None
    assert first.client_metrics is None
    for record in (second, third):
        assert sorted(record.site_scores or {}) == NAMES
        assert record.untested is None
        assert record.client_samples == "training"
    found = {name: score._asdict() for name, score in centre.site_scores.items()}
    assert third.site_scores == found
    accuracies = [score["accuracy"] for score in found.values()]
    spread = (third.client_metrics or {})["accuracy"]
    assert spread["clients"] == SITES
    assert spread["worst"] == min(accuracies)
    assert spread["mean"] == pytest.approx(sum(accuracies) / SITES)
    assert second.site_scores != third.site_scores
