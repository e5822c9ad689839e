"""A run evaluates its models here, on test, validation and training data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from undrift.core import Vector
from undrift.data.clients import Clients
from undrift.engine.evaluate import ALL_AT_ONCE, ClientValues, Evaluator, Score, batch_for
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.plan import Planner
from undrift.engine.settings import RunSettings
from undrift.engine.sharpness import SAMPLES, sampled, sharpness
from undrift.engine.world import World
from undrift.errors import UndriftError
from undrift.gradients.task import Task
from undrift.results.metrics import over_clients


class Scored(ABC):
    """Evaluates the models of a run as its settings say."""

    round: int
    rounds: int
    world: World
    _settings: RunSettings
    _task: Task
    _planner: Planner
    _clients: Clients
    _threads: int
    _tell_workers: Callable[[str], None]
    _client_values: ClientValues | None = None  # of the last test, where it is asked for

    @abstractmethod
    def _mean(self) -> Vector:
        """Return the one model that stands for the run."""

    @property
    def _evaluation_due(self) -> bool:
        return self._settings.evaluation.due(self.round, self.rounds)

    def evaluate(self) -> Score:
        """Return loss and accuracy of the current model, for peers of their mean."""
        if self.world.open:
            self._tell_workers("evaluate")
        with self.world.failure_scope():
            return self.score(self._mean())

    def _train_loss(self, x: Vector) -> dict[str, Any]:
        """Return the record's field of the training objective, where it is asked for."""
        if not self._settings.evaluation.train_loss or not self._evaluation_due:
            return {}
        return {"train_loss": self.score(x, on_training_data=True).loss}

    def _validation(self, x: Vector) -> dict[str, Any]:
        """Return the record's fields of the validation samples, where there are some."""
        if self._clients.validation is None:
            return {}
        if not self._evaluation_due:
            return self._metric_fields("validation_metrics", {})
        score, found = self.evaluator().measure(x, held_out="validation")
        measured = self._metric_fields("validation_metrics", found)
        return {"validation_loss": score.loss, "validation_accuracy": score.accuracy, **measured}

    def _over_clients(self, x: Vector) -> dict[str, Any]:
        """Return the record's fields of how the model does on each client's own samples.

        Every process computes all of it, so that all have the same numbers; ranks with data of
        their own tell each other those of their clients.
        """
        if not self._settings.evaluation.client_metrics or not self._evaluation_due:
            return {}
        self._client_values = found = self.evaluator().by_client(x)
        lower = ["loss", *self._settings.metrics.lower]
        spreads = {
            name: over_clients(v.tolist(), lower=name in lower) for name, v in found.values.items()
        }
        return {"client_metrics": spreads, "client_samples": found.which}

    @property
    def client_values(self) -> dict[str, dict[str, float]]:
        """Return by name each client's number, samples and metrics in the last test.

        It is empty unless `client_metrics` asks for such tests. Clients of a table or of a natural
        partition have its names, others their numbers.
        """
        found, names = self._client_values, self._clients.names
        if found is None:
            return {}
        return {
            (names[who] if names else str(who)): {
                "client": who,
                "samples": int(found.samples[i]),
                **{name: float(column[i]) for name, column in found.values.items()},
            }
            for i, who in enumerate(found.clients)
        }

    def _sharpness(self, x: Vector) -> dict[str, Any]:
        """Return the record's fields of the loss around x, where they are asked for.

        Every process computes all of it, so that all have the same numbers.
        """
        if not self._settings.evaluation.sharpness or not self._evaluation_due:
            return {}
        evaluator = self.sample_evaluator()
        with intra_op_threads(min(evaluator.batch, SAMPLES) * evaluator.elements):
            found = sharpness(evaluator, x, self._planner.seed)
        return {"sharpness": found.rise, "hessian": found.hessian}

    def sample_evaluator(self) -> Evaluator:
        """Return what evaluates vectors on the fixed sample of the training data, alone."""
        return sampled(self.evaluator(alone=True), self._planner.seed)

    def score(
        self,
        x: Vector,
        *,
        alone: bool = False,
        on_training_data: bool = False,
        most: int | None = None,
    ) -> Score:
        """Evaluate x by all processes together, or by this one `alone`, on at most so many."""
        evaluator = self.evaluator(alone=alone)
        return evaluator.score(x, on_training_data=on_training_data, most=most)

    def _tested(self, x: Vector) -> dict[str, Any]:
        """Return the record's fields of the test, on as many samples as were settled."""
        if not self._evaluation_due:
            return {"loss": None, "accuracy": None, **self._test_metrics({})}
        score, found = self.evaluator().measure(x, most=self._settings.evaluation.samples)
        measured = self._test_metrics(found)
        return {"loss": score.loss, "accuracy": score.accuracy, **measured}

    def _test_metrics(self, found: dict[str, float]) -> dict[str, Any]:
        """Return the record's fields of the metrics of a test, and of which less is better."""
        fields = self._metric_fields("metrics", found)
        return fields | ({"lower": self._settings.metrics.lower} if fields else {})

    def _metric_fields(self, field: str, found: dict[str, float]) -> dict[str, Any]:
        """Return the record's fields of the metrics, nothing for a run without any.

        A metric that was not measured or is not defined is None.
        """
        metrics = self._settings.metrics
        values = {name: found.get(name, math.nan) for name in metrics.names}
        plain = {name: None if math.isnan(value) else value for name, value in values.items()}
        return {field: plain} if plain else {}

    def _test(self, x: Vector) -> Score:
        """Return loss and accuracy as a round's record has them."""
        return self.score(x, most=self._settings.evaluation.samples)

    def evaluator(self, *, alone: bool = False) -> Evaluator:
        """Return what evaluates vectors on the data of the run."""
        settings, task = self._settings, self._task
        if self._clients.rank_census is not None and (alone or not self.world.open):
            raise UndriftError(
                "An evaluation needs all ranks, which have samples of their own, got this one "
                "alone; evaluate on every rank before the run is closed."
            )
        elements = self._clients.inputs[0].numel()
        elements += settings.facts.activations if settings.forward is None else 0
        batch = settings.evaluation.batch_size or batch_for(task.layout.size, elements)
        return Evaluator(
            task=task,
            clients=self._clients,
            population=self._planner.population,
            # A loss that is not a mean over samples must see all of them at once.
            batch=batch if settings.facts.separable else ALL_AT_ONCE,
            elements=elements,
            kernel=settings.forward,
            metrics=settings.metrics,
            # Torch's generator gives its numbers to one thread after the other.
            threads=1 if settings.facts.randomness == "other" else self._threads,
            world=World() if alone or not self.world.open else self.world,
        )
