"""`Drift` measures how far the clients of a round drift apart, from their local models y_i.

    drift = Drift()
    run = simulate(..., tap=drift)

Only a few sums over the clients are kept, so that a round costs three vectors in double precision,
whatever the size of its cohort. With u_i = y_i - x and w_i the weights,

    distance    sum_i w_i ||y_i - mean||^2, updated client by client (Welford)
    cosine      mean over pairs of <u_i, u_j> / ||u_i|| ||u_j||  =  (||s||^2 - n) / n (n - 1)
    alignment   mean over clients of <u_i, u> / ||u_i|| ||u||    =  <s, u> / n ||u||

where s is the sum of the n directions u_i / ||u_i|| and u = sum_i w_i u_i. Linear CKA is a cosine
as well, of centred Gram matrices, and is summed alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from undrift.analysis.cka import LayerGrams, clipped
from undrift.analysis.cka import cka as cka
from undrift.check import require, require_choice
from undrift.core import Vector
from undrift.engine.execution.cohort import Upload
from undrift.errors import UndriftError

Origin = Literal["server", "start"]


@dataclass(frozen=True)
class RoundDrift:
    """Holds the drift of one round; an undefined value, such as one client's cosine, is None."""

    round: int
    clients: int  # with a weight
    divergence: float | None  # distance relative to ||u||^2, the squared mean update
    distance: float  # weighted mean of ||y_i - mean y||^2
    cosine: float | None  # mean over pairs of clients of the cosine of their updates
    alignment: float | None  # mean over clients of the cosine of their update and the mean one
    cka: Mapping[str, float] | None = None  # by layer, mean over pairs of clients; on request


class Drift:
    """Measures the drift of every round, as a tap of `simulate`.

    since: updates count from the "server" model x, or from where the client's first step "start"ed,
        which differs where clients begin elsewhere: at a look-ahead (FedACG) or at their own model.
    cka: `(model, inputs)` compares what the layers of the clients' models make of these inputs, as
        the model takes them. It keeps a matrix of len(inputs)^2 numbers for each layer. The mean
        over layers that have parameters is the field `cka` of the run's records.
    cka_in: says of a round whether layers are compared in it; by default in all.
    """

    def __init__(
        self,
        *,
        since: Origin = "server",
        cka: tuple[nn.Module, Tensor] | None = None,
        cka_in: Callable[[int], bool] = lambda round: True,
    ) -> None:
        require_choice("Drift", "since", since, ("server", "start"))
        pair = cka is None or (isinstance(cka, tuple) and len(cka) == 2)
        require(pair, "Drift", "cka as (model, inputs)", cka)
        self._since = since
        self._layers = None if cka is None else LayerGrams(*cka)
        self._cka_in = cka_in
        self._done: list[RoundDrift] = []
        self._open: _Sums | None = None

    def __call__(self, upload: Upload) -> None:
        if upload.weight <= 0:
            return
        start = upload.x if self._since == "server" else upload.start
        if upload.y is None or start is None:
            raise UndriftError(
                f"Drift needs clients that move a model by local steps, got client {upload.client} "
                f"of round {upload.round} without; this method's drift cannot be measured."
            )
        sums = self._sums_of(upload)
        sums.add(upload.client, upload.weight, upload.y, start)
        if self._layers is not None and self._cka_in(upload.round):
            for layer, gram in self._layers(upload.y).items():
                sums.layers.setdefault(layer, _Directions(torch.zeros_like(gram))).add(gram)

    def _sums_of(self, upload: Upload) -> _Sums:
        """Return the sums that an upload belongs to, and close those of the round before."""
        now = self._open
        if now is not None and now.round == upload.round and now.goes_on(upload):
            return now
        if now is not None and now.round != upload.round:  # an equal round is played again
            self._done.append(now.result())
        before = self._done[-1].round if self._done else 0
        remedy = "give every run a Drift of its own"
        expected = f"a round after {before}, the last it has seen"
        self._open = None
        require(upload.round > before, "Drift", expected, upload.round, remedy)
        with_layers = self._layers is not None and self._cka_in(upload.round)
        self._open = _Sums(upload.round, upload.x, with_layers=with_layers)
        return self._open

    @property
    def rounds(self) -> list[RoundDrift]:
        """Return all rounds in order; the last is that of the clients that have reported so far."""
        return [*self._done, *([] if self._open is None else [self._open.result()])]

    def of(self, round: int) -> RoundDrift:
        """Return the drift of one round, or raise `ValueError`."""
        rounds = self.rounds
        for each in rounds:
            if each.round == round:
                return each
        known = (
            f"a round from {rounds[0].round} to {rounds[-1].round}"
            if rounds
            else "a run with rounds"
        )
        raise ValueError(
            f"Drift.of needs {known}, got {round!r}; a round without clients has none."
        )

    def record_fields(self, round: int) -> Mapping[str, float | None]:
        """Return the record's field `cka`, the mean over layers with parameters, if compared."""
        now = self._open
        if now is None or now.round != round or not now.layers:
            return {}
        layers = now.result().cka or {}
        # A layer without parameters before the first with some is the same in all models.
        values = [v for name, v in layers.items() if self._layers and self._layers.learns(name)]
        return {"cka": math.fsum(values) / len(values) if values else None}

    def __repr__(self) -> str:
        return f"Drift({len(self.rounds)} rounds)"


@dataclass
class _Directions:
    """Sums vectors scaled to length one."""

    total: Tensor
    count: int = 0

    def add(self, v: Tensor) -> None:
        length = torch.linalg.vector_norm(v)
        if length > 0:
            self.count += 1
            self.total += v / length

    @property
    def cosine(self) -> float | None:
        """Return the mean over pairs of the cosine between them."""
        n = self.count
        return clipped((float(self.total.square().sum()) - n) / (n * (n - 1))) if n > 1 else None


class _Sums:
    """Holds the sums of a round over the clients that have reported."""

    def __init__(self, round: int, x: Vector, *, with_layers: bool) -> None:
        self.round, self._x, self._with_layers = round, x, with_layers
        self._clients: set[int] = set()
        self._weight, self._scatter = 0.0, 0.0  # sum_i w_i ||y_i - mean||^2
        self._mean = torch.zeros_like(x, dtype=torch.float64)  # of y_i - x
        self._update = torch.zeros_like(self._mean)  # of y_i - start
        self._directions = _Directions(torch.zeros_like(self._mean))
        self.layers: dict[str, _Directions] = {}

    def goes_on(self, upload: Upload) -> bool:
        """Return whether an upload is of the same attempt, not of one after a failure."""
        return upload.x is self._x and upload.client not in self._clients

    def add(self, client: int, weight: float, y: Vector, start: Vector) -> None:
        """Add one client's local model."""
        self._clients.add(client)
        self._weight += weight
        share = weight / self._weight
        moved = y.double() - self._x.double()
        apart = moved - self._mean
        self._scatter += weight * (1 - share) * float(apart.square().sum())
        self._mean += share * apart
        u = moved if start is self._x else y.double() - start.double()
        self._update += share * (u - self._update)
        self._directions.add(u)

    def result(self) -> RoundDrift:
        """Return the drift of the clients so far."""
        distance = self._scatter / self._weight
        length = float(torch.linalg.vector_norm(self._update))
        cosines = {layer: each.cosine for layer, each in self.layers.items()}
        return RoundDrift(
            self.round,
            len(self._clients),
            distance / length**2 if length > 0 else None,
            distance,
            self._directions.cosine,
            self._alignment(length),
            {k: v for k, v in cosines.items() if v is not None} if self._with_layers else None,
        )

    def _alignment(self, length: float) -> float | None:
        count = self._directions.count
        if count == 0 or length == 0:
            return None
        return clipped(float(self._directions.total @ self._update) / (count * length))
