"""The three scales of a paper: `full` is the document's own, `small` is for two cores.

`small` changes the network, the rounds, the evaluation and the list of cells, and nothing else.
Either of them may also be run with every method's step size tuned.
`glance` has two rounds of one step, to see that a file runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undrift.check import require, require_choice
from undrift.config.experiment import Data, Experiment
from undrift.config.sweep import Sweep
from undrift.core import AllReduce, Federated
from undrift.data.places import PLACES, find
from undrift.papers.file import Paper, with_methods
from undrift.papers.parts import SmallPanel, StandIn
from undrift.papers.quantity import Quantity
from undrift.papers.tune import tuned_experiment
from undrift.runs.load import load_dataset

SCALES = ("full", "small", "glance")
VALIDATION = 0.1  # the share of a client's samples on which a grid's cell is chosen
MOST_WORKERS = 4  # of all-reduce at a glance, because each worker holds a copy of the model
WHOLE = {"tiny-imagenet": 100_000}  # training samples of data sets that may be there in part


@dataclass(frozen=True)
class PanelRun:
    """Says what is run for one entry of a paper's panels."""

    panel: str
    folder: str  # its name in files
    experiment: Experiment  # at the scale
    full: Experiment  # as the document has it
    stand_in: StandIn | None = None  # the data that take the place of the document's

    @property
    def same(self) -> bool:
        """Return whether data, network, rounds, work and targets are the document's."""
        ours, theirs = self.experiment, self.full
        alike = ours.model == theirs.model and ours.training == theirs.training
        targets = ours.evaluation.target == theirs.evaluation.target
        return alike and targets and self.stand_in is None

    def locate(self, quantity: Quantity) -> Quantity:
        """Return where a quantity of the document is read off this run.

        A round moves in proportion to the rounds, a target to the scale's target at its position.
        """
        at, target = quantity.at, quantity.target
        if at is not None:
            at = max(1, round(at * self.experiment.training.rounds / self.full.training.rounds))
        theirs, ours = self.full.evaluation.target, self.experiment.evaluation.target
        if target in theirs and theirs.index(target) < len(ours):
            target = ours[theirs.index(target)]
        return replace(quantity, at=at, target=target)


def lack(data: Data) -> str | None:
    """Return what is wrong with a data set on this machine, or None if it can be used.

    It is not here, or it has fewer natural clients than are asked for.
    """
    if data.name not in PLACES:
        return None
    if find(data.name, data.folder) is None:
        return "not here"
    if data.partition != "natural" or data.clients is None:
        return None
    have = load_dataset(data).natural_clients or 0
    return None if have >= data.clients else f"{have:,} of {data.clients:,} natural clients here"


def is_at_hand(data: Data) -> bool:
    """Return whether a data set is on this machine, with as many natural clients as asked for."""
    return lack(data) is None


def part(name: str, samples: int) -> str | None:
    """Return a sentence if so many training samples are only a part of a data set."""
    whole = WHOLE.get(name, 0)
    return None if samples >= whole else f"{samples:,} of {whole:,} training samples were at hand"


def plan(
    paper: Paper,
    scale: str,
    seeds: int | Sequence[int] | None = None,
    at_hand: Callable[[Data], bool] = is_at_hand,
    *,
    tune: bool = False,
) -> list[PanelRun]:
    """Return what is run at a scale, panel by panel.

    `seeds` are the number of repetitions or the seeds themselves, in place of those of the file.
    With `tune` every method's step size is tuned, and nothing else differs.
    """
    require_choice("papers", "--scale", scale, SCALES)
    lasts = not tune or scale != "glance"
    require(lasts, "--tune", "--scale full or small", scale)
    whole = not isinstance(seeds, int) or seeds >= 1
    require(whole, "papers", "--seeds >= 1", seeds)
    axis = f"{paper.item}, whose methods are step sizes"
    remedy = "run it without --tune"
    require(not (tune and paper.tune.axis), "--tune", "methods with a step to tune", axis, remedy)
    runs: list[PanelRun] = []
    for entry, full in paper.panel_experiments:
        experiment = full if scale == "full" else _small(paper, entry.name, full)
        if experiment is None:
            continue
        stand_in = None
        if scale != "full" and not at_hand(experiment.data):
            stand_in = paper.stand_in.get(experiment.data.name)
        if stand_in is not None:
            experiment = experiment.changed(stand_in.changes)
        if tune:
            wanted = paper.tune.panels is None or entry.name in paper.tune.panels
            experiment = tuned_experiment(experiment, paper.tune) if wanted else None
            if experiment is None:
                continue
        experiment = _glance(experiment) if scale == "glance" else _without_models(experiment)
        if seeds is not None and scale != "glance":
            own = range(seeds) if isinstance(seeds, int) else seeds
            experiment = experiment.changed({"seeds": list(own)})
        title = f"{paper.item}, {entry.name}" + ("" if scale == "full" else f" ({scale})")
        title += ", tuned" if tune else ""
        experiment = experiment.model_copy(update={"title": title})
        name = _unique(_slug(entry.name), [run.folder for run in runs])
        runs.append(PanelRun(entry.name, name, experiment, full, stand_in))
    return runs


def _small(paper: Paper, panel: str, full: Experiment) -> Experiment | None:
    """Return a panel's experiment at the small scale, or None if all of it is left out."""
    small = paper.small
    if small is None:
        raise ValueError(f"{paper.item} has no small scale; run it with --scale full.")
    gone: set[str] = set()
    grid = True
    for each in small.left_out:
        if each.panel not in (None, panel):
            continue
        if each.grid:
            grid = False
        else:
            gone |= set(each.methods or [method.title for method in full.methods])
    titles = [method.title for method in full.methods if method.title not in gone]
    if not titles:
        return None
    kept = with_methods(full, titles)
    kept = kept if grid else kept.model_copy(update={"sweep": Sweep()})
    return _rescaled(kept, small, small.panel.get(panel, SmallPanel()))


def _rescaled(experiment: Experiment, small: SmallPanel, own: SmallPanel) -> Experiment:
    """Return the experiment with the network, rounds and evaluation of a scale."""
    values = experiment.values()
    model = own.model or small.model
    if model is not None:
        values["model"] = model
    rounds = small.rounds if own.rounds is None else own.rounds
    if rounds is not None:
        whole = experiment.training.rounds
        values["training"]["rounds"] = (
            min(rounds, whole) if isinstance(rounds, int) else max(1, round(rounds * whole))
        )
    values["evaluation"] = {**values.get("evaluation", {}), **small.evaluation, **own.evaluation}
    return Experiment.of(values)


def _without_models(experiment: Experiment) -> Experiment:
    """Return the experiment without models, and with validation data if a grid is searched."""
    engine = experiment.engine.model_copy(update={"save_models": False})
    update: dict[str, Any] = {"engine": engine}
    if not experiment.sweep.empty and not experiment.sweep.tune:
        update["data"] = experiment.data.model_copy(update={"validation": VALIDATION})
    return experiment.model_copy(update=update)


def _glance(experiment: Experiment) -> Experiment:
    """Return the experiment with two rounds of one step, and the first cell of its sweep alone."""
    values = experiment.values()
    values.pop("sweep", None)
    values["seeds"] = [0]
    for method in values["methods"]:
        method.pop("work", None)
    training, data = values.setdefault("training", {}), values.setdefault("data", {})
    training |= {"rounds": 2, "work": "steps:1"}
    data["test_samples"] = 20
    # The training loss is that of all samples, which takes longer than the two rounds.
    values["evaluation"] = {**values.get("evaluation", {}), "every": 2, "train_loss": False}
    values["engine"] = {"mode": "loop", "kernels": False, "save_models": False}
    classes = [method.cls for method in experiment.methods]
    if any(issubclass(cls, Federated) for cls in classes):
        training["participation"] = 2
    if any(issubclass(cls, AllReduce) for cls in classes):
        data["clients"] = min(MOST_WORKERS, experiment.data.clients or MOST_WORKERS)
        if training.get("allreduce", "ring").startswith("torus"):
            training["allreduce"] = "torus:2x2"
    if experiment.data.partition == "natural":
        data.pop("clients", None)
    return Experiment.of(values)


def _slug(name: str) -> str:
    """Return a panel's name as that of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "panel"


def _unique(name: str, taken: Sequence[str]) -> str:
    names = (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3)))
    return next(each for each in names if each not in taken)
