"""The results of a paper at a scale, kept in one small file: what each trial measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from undrift.config.experiment import Data
from undrift.errors import UndriftError
from undrift.papers.catalogue import PaperEntry
from undrift.papers.curves import thin_curves
from undrift.papers.file import Paper
from undrift.papers.measure import measure
from undrift.papers.quantity import Quantity, Value
from undrift.papers.scales import PanelRun, part
from undrift.results.record import STRICT, from_fields
from undrift.results.strictjson import dumps, loads
from undrift.results.trial import Trial, write_result
from undrift.results.tuning import Tuning
from undrift.runs.build import data_counts

SHIPPED = "results"  # the folder beside a document's files that holds results of ours
_VERSION = 1


@dataclass(frozen=True)
class StoredTrial:
    """Holds what one method measured with one seed in one cell of a grid."""

    __pydantic_config__: ClassVar[Any] = STRICT

    panel: str
    method: str
    seed: int
    status: str
    values: dict[str, float | str]  # by the text of the document's quantity
    cell: dict[str, Any] = field(default_factory=dict)  # of the grid
    validation: float | None = None  # mean accuracy of the last ten rounds on validation data
    # Seconds are those of training and of evaluation, and None in older files.
    seconds: float | None = field(default=None, compare=False)
    curves: dict[str, list[list[float]]] = field(default_factory=dict)  # rounds and values

    def value(self, quantity: Quantity) -> Value | None:
        """Return the value of a quantity, or None if it was not measured."""
        found = self.values.get(replace(quantity, relative_to=None).text)
        return None if found is None else Value.of(found)


@dataclass(frozen=True)
class StoredPanel:
    """Says how a panel was run."""

    __pydantic_config__: ClassVar[Any] = STRICT

    panel: str
    data: str
    model: str
    rounds: int
    same: bool  # whether data, network and rounds are the document's
    stand_in: str | None = None  # why other data were taken
    seconds: float = 0.0  # of all its trials
    samples: int | None = None  # training samples that were there; None in older files


@dataclass(frozen=True)
class StoredCell:
    """Says what tuning found of one cell."""

    __pydantic_config__: ClassVar[Any] = STRICT

    panel: str
    method: str
    cell: str  # such as "lr=0.1"
    accuracy: float | None  # on validation samples; None if it diverged
    outcome: str  # such as "chosen", or no text


@dataclass(frozen=True)
class StoredPaper:
    """Holds the results of a paper at a scale."""

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str
    item: str
    scale: str
    fingerprint: str  # of what the file says is run
    undrift: str  # the version
    date: str
    panels: list[StoredPanel]
    trials: list[StoredTrial]
    planned: int = 0  # trials, finished or not
    machine: str = ""
    tuned: bool = False  # whether each method ran at its tuned step size
    tried: list[StoredCell] = field(default_factory=list)  # by tuning
    sentences: list[str] = field(default_factory=list)  # on the choice
    code: str = ""  # digest of the package's modules; none in older files
    tuning_seconds: float | None = None  # of the cells that were tried; None in older files
    source: str = field(default="", compare=False)  # where the results were read

    @property
    def seeds(self) -> list[int]:
        """Return the seeds that some trial had."""
        return sorted({trial.seed for trial in self.trials})

    @property
    def seconds(self) -> float:
        """Return the seconds of all trials and of tuning.

        In older files they are those of training alone, and without tuning.
        """
        timed = [trial.seconds for trial in self.trials if trial.seconds is not None]
        whole = len(timed) == len(self.trials)
        own = sum(timed) if whole else sum(panel.seconds for panel in self.panels)
        return own + (self.tuning_seconds or 0.0)

    def write(self, path: Path) -> None:
        """Write the results as JSON, a line for each trial and each cell."""
        head = {"version": _VERSION, **asdict(self)}
        del head["source"]
        lists = {name: head.pop(name) for name in ("tried", "trials")}
        text = dumps(head, indent=1).removesuffix("\n}")
        for name, rows in lists.items():
            lines = ",\n  ".join(dumps(row) for row in rows)
            text += f',\n "{name}": [\n  {lines}\n ]'
        write_result(path, text + "\n}\n")


def fingerprint(paper: Paper, scale: str, *, tuned: bool = False) -> str:
    """Return a hash of everything in the file that decides what a scale runs.

    Numbers, claims and readings of the document are not in it, so they can be corrected.
    """
    names = {"experiment", "panels"} | ({"small", "stand_in"} if scale != "full" else set())
    names |= {"tune"} if tuned else set()
    values = paper.model_dump(mode="json", include=names, exclude_unset=True)
    for each in _explained(values):
        each.pop("why", None)
        each.pop("hours", None)
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _explained(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of a file that hold reasons and estimates beside what is run."""
    small = values.get("small") or {}
    return [small, *small.get("left_out", ()), *values.get("stand_in", {}).values()]


def quantities(paper: Paper, panel: str) -> list[Quantity]:
    """Return what is read off the runs of a panel: what is published or claimed of it."""
    published = [cell.quantity for cell in paper.cells if cell.panel == panel]
    shares = [cell.quantity for cell in paper.cells if cell.quantity.metric == "share"]
    claimed = [claim.quantity for claim in paper.claims]
    plain = [_measured(each) for each in (*published, *shares, *claimed)]
    return list(dict.fromkeys(canonical(each, paper, panel) for each in plain))


def _measured(quantity: Quantity) -> Quantity:
    """Return what a trial measures for a quantity that is made from several trials."""
    if quantity.metric == "share":
        return Quantity("rounds", target=quantity.target)
    return replace(quantity, relative_to=None)


def canonical(quantity: Quantity, paper: Paper, panel: str) -> Quantity:
    """Return the quantity as a panel has it.

    A round that is the panel's last is left out, and a target of the experiment that the panel has
    replaced is the panel's target at its position.
    """
    if paper.experiment is None or quantity.metric == "share":
        return quantity
    entry = next(each for each in paper.panels if each.name == panel)
    at, target = quantity.at, quantity.target
    if at == entry.set.get("training.rounds", paper.experiment.training.rounds):
        at = None
    theirs = paper.experiment.evaluation.target
    own = entry.set.get("evaluation.target", theirs)
    own = own if isinstance(own, list) else [own]
    if target in theirs and target not in own and theirs.index(target) < len(own):
        target = own[theirs.index(target)]
    return replace(quantity, at=at, target=target)


def stored_trials(paper: Paper, run: PanelRun, trials: Iterable[Trial]) -> list[StoredTrial]:
    """Return what the trials of a panel measured of the document's quantities."""
    smoothing = run.experiment.evaluation.smoothing
    kept = []
    for trial in trials:
        if not trial.ended:
            continue
        measured = {
            each.text: value.plain
            for each in quantities(paper, run.panel)
            if (value := measure(trial, run.locate(each), smoothing)) is not None
        }
        kept.append(
            StoredTrial(
                run.panel,
                str(trial.facts["title"]),
                trial.seed,
                trial.status,
                measured,
                dict(trial.facts.get("cell") or {}),
                trial.recent("validation_accuracy"),
                round(trial.total("seconds") + trial.total("evaluation_seconds"), 1),
                thin_curves(paper, trial, smoothing),
            )
        )
    return kept


def stored_cells(run: PanelRun, tuning: Tuning | None) -> list[StoredCell]:
    """Return every cell that tuning tried in a panel."""
    tried = () if tuning is None else tuning.tried
    return [
        StoredCell(run.panel, each.method, each.text, each.accuracy, each.outcome) for each in tried
    ]


def lost_trials(paper: Paper, run: PanelRun, tuning: Tuning | None) -> list[StoredTrial]:
    """Return a trial that diverged for every seed of a method that diverged in all its cells."""
    values = {each.text: "diverges" for each in quantities(paper, run.panel)}
    return [
        StoredTrial(run.panel, method, seed, "diverged", dict(values))
        for method in (() if tuning is None else tuning.diverged)
        for seed in run.experiment.seeds
    ]


def stored_panel(run: PanelRun, trials: Sequence[Trial]) -> StoredPanel:
    """Return how a panel was run, with the data that its trials had and not those of now."""
    data = run.experiment.data
    samples = _training_samples(data, trials)
    lacking = part(data.name, samples)
    return StoredPanel(
        run.panel,
        data.name,
        run.experiment.model.text,
        run.experiment.training.rounds,
        run.same and lacking is None,
        lacking if run.stand_in is None else run.stand_in.why,
        sum(trial.total("seconds") for trial in trials),
        samples,
    )


def _training_samples(data: Data, trials: Sequence[Trial]) -> int:
    """Return the training samples of the data set when the trials were run.

    Trials that were written without this number are taken to have had what is here now.
    """
    recorded = [int(t.facts["data"]["train"]) for t in trials if "data" in t.facts]
    return min(recorded) if recorded else data_counts(data)["train"]


def read_stored(path: Path) -> StoredPaper:
    """Return the results of a file."""
    try:
        values = loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or values.pop("version", None) != _VERSION:
            raise ValueError("another version of the format")
        return from_fields(StoredPaper, values)
    except (OSError, ValueError) as error:
        raise UndriftError(
            f"{path} needs to hold results of a paper and is damaged ({error}); run it again."
        ) from error


def kind_of(scale: str, *, tuned: bool) -> str:
    """Return the scale as names of folders and files have it, such as "small.tuned"."""
    return f"{scale}.tuned" if tuned else scale


def shipped(entry: PaperEntry, scale: str, *, tuned: bool = False) -> Path:
    """Return where the package keeps our results of a paper at a scale."""
    name = f"{entry.path.stem}.{kind_of(scale, tuned=tuned)}.json"
    return entry.path.parent / SHIPPED / name


def is_current(stored: StoredPaper, paper: Paper) -> bool:
    """Return whether results were made with this version of the file."""
    return stored.fingerprint == fingerprint(paper, stored.scale, tuned=stored.tuned)


def require_same_version(stored: StoredPaper, paper: Paper, path: Path) -> None:
    """Raise if results were made with another version of the file."""
    if not is_current(stored, paper):
        raise ValueError(
            f"papers show needs results of this version of {stored.name}, got those of another in "
            f"{path}; run it again with undrift papers run {stored.name} --scale {stored.scale}"
            f"{' --tune' * stored.tuned}."
        )
