"""Evaluation of the model by the sites: sums over their own samples, validated before they count.

A site that does not answer, or whose sums cannot be those of the samples that it has announced, is
left out with its reason, and the means are those over the samples of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.core import Vector
from undrift.federation.members import Ledger, Member
from undrift.federation.messages import EvaluationReply, EvaluationRequest, SiteMessage, encode
from undrift.federation.replies import Replies
from undrift.federation.transport import SiteTransport
from undrift.results.metrics import over_clients


class SiteScore(NamedTuple):
    """Holds what one site found when it evaluated the model."""

    loss: float
    accuracy: float | None
    samples: int

    @classmethod
    def of(cls, reply: EvaluationReply) -> SiteScore:
        """Return the means of a site's sums."""
        accuracy = None if reply.hits is None else reply.hits / reply.samples
        return cls(reply.loss / reply.samples, accuracy, reply.samples)


@dataclass(frozen=True)
class SiteEvaluation:
    """Holds what the sites found, and which of them were left out with what reason."""

    replies: Mapping[str, EvaluationReply]
    left_out: Mapping[str, str]

    @property
    def scores(self) -> dict[str, SiteScore]:
        """Return the means of each site."""
        return {name: SiteScore.of(reply) for name, reply in self.replies.items()}

    @property
    def loss(self) -> float | None:
        """Return the mean loss over the samples of all sites that count."""
        return self._mean([reply.loss for reply in self.replies.values()])

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy over the samples of all sites that count, None without labels."""
        hits = [reply.hits for reply in self.replies.values() if reply.hits is not None]
        return self._mean(hits) if len(hits) == len(self.replies) else None

    def fields(self) -> dict[str, Any]:
        """Return the record's fields of this evaluation."""
        scores, tested = self.scores, [reply.tested for reply in self.replies.values()]
        which = "test" if all(tested) else "own" if any(tested) else "training"
        return {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "client_metrics": self._spreads() if scores else None,
            "client_samples": which if scores else None,
            "site_scores": {name: score._asdict() for name, score in scores.items()},
            "untested": dict(self.left_out) or None,
        }

    def _spreads(self) -> dict[str, dict[str, float]]:
        """Return by metric how it spreads over the sites, as records of other runs have it."""
        scores = list(self.scores.values())
        found = {"loss": over_clients([score.loss for score in scores], lower=True)}
        hits = [score.accuracy for score in scores if score.accuracy is not None]
        if hits:
            found["accuracy"] = over_clients(hits, lower=False)
        return found

    def _mean(self, sums: list[float]) -> float | None:
        samples = sum(reply.samples for reply in self.replies.values())
        return math.fsum(sums) / samples if samples else None


def evaluate(
    transport: SiteTransport, experiment: str, ledger: Ledger, t: int, x: Vector
) -> SiteEvaluation:
    """Return what the sites that are present in round t find about a model."""
    clients = {ledger.members[i].name: i for i in ledger.present(t)}
    requests = {
        name: encode(SiteMessage(EvaluationRequest(experiment=experiment, client=i, t=t), [x]))
        for name, i in clients.items()
    }
    replies = Replies(transport.ask(requests), clients)
    found: dict[str, EvaluationReply] = {}
    for name, header, _ in replies.of(EvaluationReply):
        fault = _fault(header, t, ledger.members[clients[name]])
        if fault:
            replies.left_out[name] = fault
        else:
            found[name] = header
    # All sites have targets of one form, so all of them have hits or none has.
    usual = Counter(reply.hits is None for reply in found.values()).most_common(1)
    for name, header in list(found.items()):
        if (header.hits is None) != usual[0][0]:
            replies.left_out[name] = "hits, or none, where most sites are otherwise"
            del found[name]
    return SiteEvaluation(found, replies.repeated | replies.left_out)


def _fault(reply: EvaluationReply, t: int, member: Member) -> str:
    """Return why the sums of a site cannot be right, or ""."""
    samples = member.test_samples or member.samples
    if reply.t != t:
        return f"an evaluation of round {reply.t + 1}"
    if (reply.samples, reply.tested) != (samples, member.test_samples > 0):
        return f"sums over {reply.samples} samples, where {samples} were announced"
    if reply.hits is not None and reply.hits > reply.samples * (1 + 1e-6):
        return f"{reply.hits:g} hits among {reply.samples} samples"
    return "" if math.isfinite(reply.loss) else "a loss that is NaN or infinite"
