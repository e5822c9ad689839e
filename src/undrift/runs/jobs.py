"""What an experiment consists of: every method with every seed, in every cell of its sweep.

A search tries some cells only; it notes them in `search.json` of its folder, method by method.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from undrift.check import require
from undrift.errors import UndriftError
from undrift.config.experiment import FAMILIES, Experiment, Method, Sweep, is_named
from undrift.results.trial import write_result
from undrift.results.strictjson import dumps_exactly, loads

ALONE = "records"  # the name of an experiment's only job
SEARCH = "search.json"
LONGEST = 120  # characters of a file's name that say what is in it
Cell = Mapping[str, Any]  # field -> value


@dataclass(frozen=True)
class Job:
    """One method with one seed, in one cell of a sweep."""

    label: str  # what tables call it; the same for all seeds
    name: str  # of its files
    experiment: Experiment  # of its cell, without the sweep
    method: Method
    seed: int
    cell: Cell  # what the sweep has set


@dataclass(frozen=True)
class Choice:
    """The cells that a search has chosen for each method, in their order."""

    count: int  # how many were asked for, for each method
    cells: Mapping[str, Sequence[Cell]]  # by the method's title

    def write(self, folder: Path) -> None:
        write_result(folder / SEARCH, dumps_exactly(asdict(self), indent=1) + "\n")


def read_choice(folder: Path) -> Choice | None:
    """What a search has chosen so far; None where there was none."""
    path = folder / SEARCH
    if not path.is_file():
        return None
    try:
        told = loads(path.read_text(encoding="utf-8"))
        return Choice(
            int(told["count"]), {t: [dict(c) for c in v] for t, v in told["cells"].items()}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UndriftError(
            f"{path} needs to list the cells of a search and is damaged ({error}); search anew."
        ) from error


def axes(sweep: Sweep) -> list[list[Cell]]:
    """The sweep's independent choices, each a list of what it may set."""
    for path, values in sweep.ranges.items():
        raise ValueError(
            f"sweep.grid needs a list of values to try them all, got the range {values.low} to "
            f"{values.high} for {path!r}; search it with --search 20."
        )
    lists: list[list[Cell]] = [
        [{path: value} for value in values]
        for path, values in sweep.grid.items()
        if isinstance(values, list)
    ]
    for table in sweep.together:
        rows = zip(*table.values(), strict=True)
        lists.append([dict(zip(table, row, strict=True)) for row in rows])
    return lists


def merged(parts: Sequence[Cell]) -> dict[str, Any]:
    """One of each axis as one cell."""
    return {path: value for part in parts for path, value in part.items()}


def cells(sweep: Sweep) -> list[dict[str, Any]]:
    """Every combination of the grid's values and of the rows of values that go together."""
    return [merged(combination) for combination in itertools.product(*axes(sweep))]


def jobs(experiment: Experiment, choice: Choice | None = None) -> list[Job]:
    """All of them, or those that a search has chosen: methods first, then cells, then seeds."""
    every = cells(experiment.sweep) if choice is None else []
    planner = Planner(experiment)
    for path in experiment.sweep.paths:
        used = any(_concerns(path, i, experiment) for i in range(len(experiment.methods)))
        remedy = "leave it out, or the method's own value that overrules it"
        require(used, "A sweep", "fields that change a method", path, remedy)
    planned = [
        job
        for position, method in enumerate(experiment.methods)
        for cell in (every if choice is None else choice.cells.get(method.title, ()))
        for job in planner.jobs(position, cell)
    ]
    if len(planned) == 1 and choice is None:  # of which nobody needs to be told apart
        (only,) = planned
        return [Job(only.label, ALONE, only.experiment, only.method, only.seed, only.cell)]
    return planned


class Planner:
    """Makes jobs, each once, with names that no other job has."""

    def __init__(self, experiment: Experiment) -> None:
        self._whole = experiment
        self._alone = experiment.model_copy(update={"sweep": Sweep()})
        self._owners: dict[str, int] = {}  # label -> the method that has it
        self._made: set[tuple[str, int]] = set()
        self._names: set[str] = set()

    def own(self, position: int, cell: Cell) -> dict[str, Any]:
        """What of a cell changes this method."""
        whole = self._whole
        return {path: value for path, value in cell.items() if _concerns(path, position, whole)}

    def jobs(self, position: int, cell: Cell) -> list[Job]:
        """A method in a cell, with every seed; none if an earlier cell is the same for it."""
        own = self.own(position, cell)
        changed = self._alone.changed({_narrowed(p, position): v for p, v in own.items()})
        label = self._label(position, own)
        planned = []
        for seed in changed.seeds:
            if (label, seed) not in self._made:
                self._made.add((label, seed))
                name = self._name(label, seed)
                planned.append(Job(label, name, changed, changed.methods[position], seed, own))
        return planned

    def _label(self, position: int, own: Cell) -> str:
        title, paths = self._whole.methods[position].title, self._whole.sweep.paths
        shorts = [_short(path) for path in paths]
        said = {p: _short(p) if shorts.count(_short(p)) < 2 else p for p in own}
        label = " ".join([title, *(f"{said[path]}={value}" for path, value in own.items())])
        alone = self._owners.setdefault(label, position) == position
        remedy = "give the methods other labels"
        require(alone, "A sweep", "labels that tell its runs apart", label, remedy)
        return label

    def _name(self, label: str, seed: int) -> str:
        name = f"{_plain(label)}-seed{seed}"
        if name in self._names or len(name) > LONGEST:
            mark = hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            name = f"{_plain(label)[: LONGEST - 40]}-{mark}-seed{seed}"
        self._names.add(name)
        return name


def _concerns(path: str, position: int, experiment: Experiment) -> bool:
    """Whether a sweep's field changes this method: common ones do, another method's do not."""
    section, _, name = path.rpartition(".")
    method = experiment.methods[position]
    if section == "training" and name in FAMILIES:
        return issubclass(method.cls, FAMILIES[name][0])
    if path == "training.work" and method.work is not None:
        return False
    common = section in ("", "method", "methods", *Experiment.model_fields)
    return common or is_named(method, section) or section == f"methods[{position}]"


def _narrowed(path: str, position: int) -> str:
    """A field of all methods as one of this method: what it is for the others may not fit them."""
    section, _, name = path.rpartition(".")
    return f"methods[{position}].{name}" if section in ("method", "methods") else path


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _plain(label: str) -> str:
    """As file names have it: letters without accents, digits and little else, no capitals."""
    text = label.lower().replace("=", "").replace(" ", "-")
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-.+") else "_" for c in text)
    return safe.lstrip("-.") or "_"
