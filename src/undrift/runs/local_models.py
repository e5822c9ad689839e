"""Measures of the clients' local models that a job is asked for: drift, CKA, and a loss surface.

They see local models through the tap of a run with a server; runs of peers have none of them.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from undrift import keyed
from undrift.analysis.drift import Drift
from undrift.analysis.loss_surface import Surface, surface
from undrift.analysis.taps import JointTap, ThreeModels
from undrift.core import Federated
from undrift.data.clients import Clients
from undrift.engine.run import Run
from undrift.report.plots import plot_surface
from undrift.report.style import can_draw
from undrift.results.filenames import DRIFT, SURFACE, SURFACE_PICTURE
from undrift.results.strictjson import dumps_exactly, loads
from undrift.results.trial import Trial, write_result
from undrift.runs.build import build_clients, build_model, evaluation_options
from undrift.runs.jobs import Job

CKA_SAMPLES = 256  # of the test set, on which the features of local models are compared
GRID = 25  # points along each side of the surface


class LocalModels:
    """Holds what measures the local models of one job."""

    def __init__(self, job: Job) -> None:
        evaluation, rounds = job.experiment.evaluation, job.experiment.training.rounds
        self.drift: Drift | None = None
        if evaluation.cka:
            options = evaluation_options(job.experiment)

            def evaluated(round: int) -> bool:
                return options.due(round, rounds)

            self.drift = Drift(cka=_model_and_inputs(job), cka_in=evaluated)
        elif evaluation.drift:
            self.drift = Drift()
        self._last = ThreeModels(rounds) if evaluation.surface else None

    @property
    def tap(self) -> JointTap:
        """Return the tap of the run."""
        return JointTap([tap for tap in (self.drift, self._last) if tap is not None])

    def write_surface(self, run: Run, prefix: Path, title: str) -> None:
        """Write the loss on the plane through three local models of the last round, if asked for.

        A round without three models that span a plane is told by a warning, since the results of
        the run are whole without the surface.
        """
        if self._last is None:
            return
        evaluator = run.sample_evaluator()

        def loss(x: Tensor) -> float:
            return evaluator.score(x, on_training_data=True).loss

        try:
            plane = surface(self._last.models, loss, size=GRID)
        except ValueError as error:
            message = f"evaluation.surface could not be computed in round {run.round}: {error}"
            warnings.warn(message, stacklevel=2)
            return
        fields = {"round": run.round, "clients": self._last.clients, **_lists(plane)}
        write_result(Path(f"{prefix}{SURFACE}"), dumps_exactly(fields) + "\n")
        if can_draw():
            plot_surface(plane, f"{prefix}{SURFACE_PICTURE}", title)


def local_models(job: Job) -> LocalModels | None:
    """Return what measures the local models of a job, or None if nothing is asked of them."""
    evaluation = job.experiment.evaluation
    asked = evaluation.drift or evaluation.cka or evaluation.surface
    return LocalModels(job) if asked and issubclass(job.method.cls, Federated) else None


def _model_and_inputs(job: Job) -> tuple[nn.Module, Tensor]:
    """Return the model and the inputs on which CKA compares the features of local models."""
    data, seed = job.experiment.data, job.seed
    training = job.experiment.training
    model = build_model(job.experiment.model, data, seed, training.task, training.loss)
    dtype = next(model.parameters()).dtype
    return model, _inputs(build_clients(data, seed), seed, dtype)


def _inputs(clients: Clients, seed: int, dtype: torch.dtype) -> Tensor:
    """Return samples of the test set, or without one of the training data, as the model has them.

    They are drawn by the seed without replacement, or are all where there are no more.
    """
    held = len(clients.index) if clients.test is None else len(clients.test[0])
    count = min(CKA_SAMPLES, held)
    drawn = keyed.generator(seed, "features").choice(held, count, replace=False)
    if clients.test is None:
        some = clients.inputs[torch.from_numpy(clients.index[drawn])]
    else:
        some = clients.test[0][torch.from_numpy(drawn)]
    return some if clients.prepare is None else clients.prepare(some, dtype, None)


def _lists(plane: Surface) -> dict[str, Any]:
    return {name: value.tolist() for name, value in asdict(plane).items()}


class DriftLog:
    """Writes the drift of each round as a line of a file, or keeps it in memory."""

    def __init__(self, drift: Drift, path: Path | None) -> None:
        self._drift, self._path = drift, path
        self._rounds: list[dict[str, Any]] = []

    def begin(self, trial: Trial) -> None:
        """Keep the lines of the rounds that the trial has already."""
        done = trial.records[-1].round if trial.records else 0
        if self._path is not None and self._path.is_file():
            lines = [loads(line) for line in self._path.read_text().splitlines()]
            self._rounds = [line for line in lines if line["round"] <= done]
        self._write()

    def add(self) -> None:
        """Add the line of the round whose clients have reported last."""
        self._rounds.append(asdict(self._drift.rounds[-1]))
        self._write()

    def recent(self) -> dict[str, float]:
        """Return the means over the last ten rounds of what could be measured."""
        means = {}
        for name in ("divergence", "cosine", "alignment"):
            values = [line[name] for line in self._rounds if line[name] is not None][-10:]
            if values:
                means[name] = sum(values) / len(values)
        return means

    def _write(self) -> None:
        if self._path is not None:
            write_result(self._path, "".join(dumps_exactly(line) + "\n" for line in self._rounds))


def drift_log(local: LocalModels | None, prefix: Path | None) -> DriftLog | None:
    """Return what writes the drift of a job, or None if no drift is measured."""
    if local is None or local.drift is None:
        return None
    return DriftLog(local.drift, None if prefix is None else Path(f"{prefix}{DRIFT}"))
