"""The default of how often models are evaluated, and on how many samples.

Evaluation should stay below a fifth of a run's work. Both are counted in forward passes of one
sample; a gradient is three of them. Counts and not times decide, so equal calls evaluate alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from undrift.core import AllReduce, Peer
from undrift.engine.plan import Plan, Planner
from undrift.engine.settings import EvaluationOptions, SimulationRequest
from undrift.engine.tuning.probe import Facts

GRADIENT = 3  # forward passes that a gradient takes the time of
SHARE = 0.2  # of the work that evaluation may be
FREE_ELEMENTS = 2**20  # numbers that an evaluation may work on in every round, about a millisecond
FEWEST_SAMPLES = 1000  # on which an accuracy is still worth something
SHARPNESS_PASSES = 50_000  # forward passes that the sharpness takes, about
ROUNDS_SEEN = 3  # whose plans are counted; later ones are like them


@dataclass(frozen=True, kw_only=True)
class RunCounts:
    """Counts the work of a run: samples of its gradients, and of one evaluation."""

    rounds: int
    trained: int  # samples of all local steps, as if each took one gradient
    tested: int  # samples of the test set, or without one of all clients
    besides: int = 0  # further forward passes of an evaluation, such as those for a validation set
    nodes: int = 0  # models that are tested besides their mean
    elements: int = 1  # numbers that a forward pass of one sample reads and writes

    def passes(self, samples: int, node_samples: int) -> int:
        """Return the forward passes of an evaluation on so many samples."""
        return self.besides + min(samples, self.tested) + self.nodes * node_samples

    @property
    def shared(self) -> int:
        """Return the samples of each node if the nodes share those of the test."""
        return -(-self.tested // max(1, self.nodes))

    @property
    def budget(self) -> float:
        """Return the forward passes that all evaluations of the run may take."""
        return self.trained * GRADIENT * SHARE / (1 - SHARE)


def count_run(request: SimulationRequest, planner: Planner, facts: Facts) -> RunCounts:
    """Return the counts of a run that was asked for."""
    clients, evaluation = request.clients, request.evaluation
    seen = [_samples(planner, planner.plan(t)) for t in range(min(request.rounds, ROUNDS_SEEN))]
    held = int(clients.sizes[planner.population > 0].sum())
    besides = sum(clients.counts("validation"))
    besides += held * evaluation.train_loss + GRADIENT * held * evaluation.gradient_norm
    besides += SHARPNESS_PASSES * evaluation.sharpness
    if evaluation.client_metrics:
        which = clients.samples_for_clients
        all_samples = (int(clients.sizes.sum()),)
        besides += sum(all_samples if which == "training" else clients.counts(which))
    gossips = isinstance(request.algorithm, Peer) and not isinstance(request.algorithm, AllReduce)
    return RunCounts(
        rounds=request.rounds,
        trained=request.rounds * sum(seen) // max(1, len(seen)),
        tested=held if clients.test is None else sum(clients.counts("test")),
        besides=besides,
        nodes=len(clients) if gossips and evaluation.node_accuracy is not False else 0,
        elements=facts.activations + clients.inputs[0].numel(),
    )


def _samples(planner: Planner, plan: Plan) -> int:
    """Return the samples that the local steps of a round see."""
    sizes = planner.census.sizes[plan.ids]
    widths = sizes if planner.batch_size is None else np.minimum(sizes, planner.batch_size)
    return int((plan.counts * widths).sum())


def settle(options: EvaluationOptions, runs: Sequence[RunCounts]) -> EvaluationOptions:
    """Return the options with what they leave open decided for these runs, the same for all.

    Methods that are compared are thus tested in the same rounds on the same samples. `samples` and
    `node_samples` stay None where they are all.
    """
    if options.node_accuracy is False:
        runs = [replace(run, nodes=0) for run in runs]
    if options.every is None:
        chosen = _chosen(options, runs)
    else:
        chosen = replace(options, first=bool(options.first))
        if _nodes_open(options, runs) and not _free(options, runs, shared=False):
            chosen = _nodes_share(chosen, runs)
    return replace(chosen, node_accuracy=chosen.node_accuracy is not False)


def _nodes_open(options: EvaluationOptions, runs: Sequence[RunCounts]) -> bool:
    """Return whether it is open on how many samples the nodes' own models are tested."""
    left = options.node_accuracy is None and options.node_samples is None
    return left and any(run.nodes for run in runs)


def _nodes_share(options: EvaluationOptions, runs: Sequence[RunCounts]) -> EvaluationOptions:
    """Return the options with the samples of a test shared among the nodes."""
    return replace(options, node_samples=max(run.shared for run in runs if run.nodes))


def _free(options: EvaluationOptions, runs: Sequence[RunCounts], *, shared: bool) -> bool:
    """Return whether an evaluation is too little work to be saved."""
    return all(
        run.elements * run.passes(_most(options, run), run.shared if shared else run.tested)
        <= FREE_ELEMENTS
        for run in runs
    )


def _most(options: EvaluationOptions, run: RunCounts) -> int:
    return run.tested if options.samples is None else options.samples


def _chosen(options: EvaluationOptions, runs: Sequence[RunCounts]) -> EvaluationOptions:
    """Return the options with the smallest `every` that keeps evaluation below its share."""
    chosen = replace(options, first=options.first is not False)
    opened = _nodes_open(options, runs)
    if _free(options, runs, shared=False):
        return replace(chosen, every=1)
    if opened:
        chosen = _nodes_share(chosen, runs)
    if opened and _free(options, runs, shared=True):
        return replace(chosen, every=1)
    rounds = max(run.rounds for run in runs)
    for every in (*_round_numbers(rounds), max(1, rounds)):
        chosen = replace(chosen, every=every)
        if _excess(chosen, runs) <= 0:
            return chosen
    if opened:
        chosen = _fewer_node_samples(chosen, runs)
    return _fewer_samples(chosen, runs) if options.samples is None else chosen


def _round_numbers(below: int) -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on, so that different runs are tested in the same rounds."""
    power = 1
    while power < below:
        yield from (digit * power for digit in (1, 2, 5) if digit * power < below)
        power *= 10


def evaluations(options: EvaluationOptions, rounds: int) -> int:
    """Return how many rounds of so many are evaluated."""
    every = options.every or 1
    count = -(-rounds // every)
    return count + (bool(options.first) and every > 1 and rounds > 1)


def _excess(options: EvaluationOptions, runs: Sequence[RunCounts]) -> float:
    """Return by how many forward passes all evaluations are above what they may take."""
    return all_passes(options, runs) - sum(run.budget for run in runs)


def all_passes(options: EvaluationOptions, runs: Sequence[RunCounts]) -> int:
    """Return the forward passes of single samples that all evaluations of the runs take."""
    return sum(
        evaluations(options, run.rounds) * run.passes(_most(options, run), _own(options, run))
        for run in runs
    )


def _own(options: EvaluationOptions, run: RunCounts) -> int:
    """Return the samples of each node's own model."""
    most = _most(options, run)
    return most if options.node_samples is None else min(most, options.node_samples)


def _fewer_node_samples(options: EvaluationOptions, runs: Sequence[RunCounts]) -> EvaluationOptions:
    """Return the options with as few samples of nodes as it takes, not below a useful number."""
    models = sum(evaluations(options, run.rounds) * run.nodes for run in runs)
    fewest = max(-(-min(FEWEST_SAMPLES, run.tested) // max(1, run.nodes)) for run in runs)
    fewer = int((options.node_samples or 0) - _excess(options, runs) / models)
    return replace(options, node_samples=min(options.node_samples or 0, max(fewest, fewer)))


def _fewer_samples(options: EvaluationOptions, runs: Sequence[RunCounts]) -> EvaluationOptions:
    """Return the options with as few samples as it takes, not below a useful number."""
    excess, tested = _excess(options, runs), max(run.tested for run in runs)
    if excess <= 0:
        return options
    tests = sum(evaluations(options, run.rounds) for run in runs)
    samples = max(FEWEST_SAMPLES, int(tested - excess / max(1, tests)))
    return replace(options, samples=samples) if samples < tested else options


def describe(options: EvaluationOptions, runs: Sequence[RunCounts]) -> str:
    """Return in words how often and on how many samples runs are evaluated, and its share."""
    (run, *_) = runs
    often = "in every round" if options.every == 1 else f"every {options.every} rounds"
    if options.every != 1 and (options.every or 1) >= run.rounds:
        often = "in the first and the last round" if options.first else "in the last round"
    samples = min(_most(options, run), run.tested)
    nodes = f", each node on {_own(options, run)}" if run.nodes else ""
    passes, trained = all_passes(options, runs), sum(GRADIENT * run.trained for run in runs)
    share = f"{100 * passes / max(1, passes + trained):.0f} % of the work by counts"
    return f"{often} on {samples} of {run.tested} samples{nodes}, {share}"
