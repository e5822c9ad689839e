"""The jobs of an experiment: every method with every seed, in every cell of its sweep.

A search tries some cells only; it writes them into `search.json` of its folder, method by method.
Tuning does so with `tuned.json`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undrift.check import nearest, require
from undrift.config.experiment import FAMILIES, Experiment, Method, Sweep, is_named
from undrift.config.hyperparameters import build
from undrift.core import Federated
from undrift.errors import UndriftError
from undrift.results.filenames import SEARCH, TUNED
from undrift.results.strictjson import dumps_exactly, loads
from undrift.results.trial import write_result

ONLY_JOB = "records"  # the name of the job of an experiment that has one

LONGEST = 120  # A file's name has at most so many characters.
Cell = Mapping[str, Any]  # field -> value


@dataclass(frozen=True)
class Job:
    """Says what one trial runs: one method with one seed, in one cell of a sweep."""

    label: str  # its name in tables, the same for all seeds
    name: str  # its name in files
    experiment: Experiment  # the experiment with the cell's values and without the sweep
    method: Method
    seed: int
    cell: Cell  # the values that the sweep has set


def kind_of(job: Job) -> str:
    """Return a text that jobs share if they differ in seed, label or the method's numbers alone.

    A rate or a weight changes what a run computes; a rule, a word or a codec also how.
    """
    common = job.experiment.model_dump_json(exclude={"methods", "seeds", "title"})
    method = job.method
    algorithm = build(method.cls, method.settings)
    words = {
        name: value
        for name, value in method.settings.items()
        if isinstance(getattr(algorithm, name), bool)
        or not isinstance(getattr(algorithm, name), int | float)
    }
    fields = method.model_dump(include=set(Method.model_fields) - {"label"})
    return f"{common} {fields} {words}"


@dataclass(frozen=True)
class Choice:
    """Holds the cells that a search or tuning has chosen for each method, in their order."""

    count: int  # how many cells each method is to have
    cells: Mapping[str, Sequence[Cell]]  # by the method's title

    def write(self, folder: Path, name: str = SEARCH) -> None:
        """Write the cells into the folder, into `search.json` or `tuned.json`."""
        write_result(folder / name, dumps_exactly(asdict(self), indent=1) + "\n")


def read_choice(folder: Path, name: str = SEARCH) -> Choice | None:
    """Return what a search, or tuning, has chosen so far, or None if the folder holds none."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        values = loads(path.read_text(encoding="utf-8"))
        cells = {title: [dict(cell) for cell in each] for title, each in values["cells"].items()}
        return Choice(int(values["count"]), cells)
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UndriftError(
            f"{path} needs to list the cells of a search and is damaged ({error}); search anew."
        ) from error


def cell_key(cell: Cell) -> str:
    """Return a text that is the same for the same cells; 1 and 1.0 are different."""
    return repr([(path, str(value)) for path, value in cell.items()])


def sweep_axes(sweep: Sweep) -> list[list[Cell]]:
    """Return the sweep's independent choices, each a list of the cells that it may set."""
    for path, values in sweep.ranges.items():
        raise ValueError(
            f"sweep.grid needs a list of values to try them all, got the range {values.low} to "
            f"{values.high} for {path!r}; search it with search=20 (--search 20)."
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
    """Return the parts, one of each axis, as one cell."""
    return {path: value for part in parts for path, value in part.items()}


def cells(axes: Sequence[Sequence[Cell]]) -> list[dict[str, Any]]:
    """Return every combination of one part of each axis, those of the last axis fastest."""
    return [merged(combination) for combination in itertools.product(*axes)]


def jobs(experiment: Experiment, choice: Choice | None = None) -> list[Job]:
    """Return all jobs, or those that a search has chosen: by method, then cell, then seed."""
    axes = sweep_axes(experiment.sweep) if choice is None else []
    planner = JobPlanner(experiment)
    for path in experiment.sweep.paths:
        used = any(_concerns(path, i, experiment) for i in range(len(experiment.methods)))
        remedy = "leave it out, or the method's own value that overrules it"
        require(used, "A sweep", "fields that change a method", path, remedy)
    planned = []
    for position, method in enumerate(experiment.methods):
        # Only the axes that concern a method are combined; all together may be millions of cells.
        own = cells(planner.own_axes(position, axes))
        for cell in own if choice is None else choice.cells.get(method.title, ()):
            planned += planner.jobs(position, cell)
    if len(planned) == 1 and choice is None:  # A single job needs no name of its own.
        (only,) = planned
        return [Job(only.label, ONLY_JOB, only.experiment, only.method, only.seed, only.cell)]
    return planned


def jobs_in(folder: Path, experiment: Experiment) -> list[Job]:
    """Return the jobs of a folder of results: those of its cells if these were chosen."""
    choice = read_choice(folder) or read_choice(folder, TUNED)
    if choice is None and experiment.sweep.tune:
        choice = Choice(0, {})  # Tuning goes on.
    return jobs(experiment, choice)


def positions(experiment: Experiment, only: Sequence[str]) -> list[int]:
    """Return the places of the methods of these names or labels, or of all without any."""
    methods = experiment.methods
    for text in only:
        if not any(is_named(method, text) for method in methods):
            names = [method.name for method in methods]
            raise ValueError(
                f"only needs a method of the experiment, got {text!r}{nearest(text, names)}; there "
                f"are {', '.join(method.title for method in methods)}."
            )
    return [
        i
        for i, method in enumerate(methods)
        if not only or any(is_named(method, text) for text in only)
    ]


class JobPlanner:
    """Makes each job once, with a name that no other job has."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._unswept = experiment.model_copy(update={"sweep": Sweep()})
        self._owners: dict[str, int] = {}  # label -> the method that has it
        self._planned: set[tuple[str, int]] = set()  # label and seed
        self._names: set[str] = set()

    def own(self, position: int, cell: Cell) -> dict[str, Any]:
        """Return the part of a cell that changes the method at this position."""
        experiment = self._experiment
        return {path: v for path, v in cell.items() if _concerns(path, position, experiment)}

    def own_axes(self, position: int, axes: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
        """Return the axes that change the method, each with its different parts in their order."""
        projected = [[self.own(position, part) for part in axis] for axis in axes]
        different: list[list[Cell]] = [
            list({repr(part): part for part in axis}.values()) for axis in projected
        ]
        return [axis for axis in different if axis != [{}]]

    def jobs(self, position: int, cell: Cell) -> list[Job]:
        """Return a method's jobs in a cell, none if an earlier cell is the same for the method."""
        own = self.own(position, cell)
        changed = self._unswept.changed({_narrowed(p, position): v for p, v in own.items()})
        label = self._label(position, own)
        planned = []
        for seed in changed.seeds:
            if (label, seed) not in self._planned:
                self._planned.add((label, seed))
                name = self._name(label, seed)
                planned.append(Job(label, name, changed, changed.methods[position], seed, own))
        return planned

    def _label(self, position: int, own: Cell) -> str:
        experiment = self._experiment
        shorts = [_short(path) for path in experiment.sweep.paths]
        names = {p: _short(p) if shorts.count(_short(p)) < 2 else p for p in own}
        values = (f"{names[path]}={value}" for path, value in own.items())
        label = " ".join([experiment.methods[position].title, *values])
        unique = self._owners.setdefault(label, position) == position
        remedy = "give the methods other labels"
        require(unique, "A sweep", "labels that tell its runs apart", label, remedy)
        return label

    def _name(self, label: str, seed: int) -> str:
        name = f"{_plain(label)}-seed{seed}"
        if name in self._names or len(name) > LONGEST:
            mark = hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            name = f"{_plain(label)[: LONGEST - 40]}-{mark}-seed{seed}"
        self._names.add(name)
        return name


def _concerns(path: str, position: int, experiment: Experiment) -> bool:
    """Return whether a sweep's field changes this method; another method's field does not."""
    section, _, name = path.rpartition(".")
    method = experiment.methods[position]
    if section == "training" and name in FAMILIES:
        # A method that may not be imported counts as one with a server, as most are.
        return issubclass(method.cls if method.known else Federated, FAMILIES[name][0])
    if path == "training.work" and method.work is not None:
        return False
    common = section in ("", "method", "methods", *Experiment.model_fields)
    return common or is_named(method, section) or section == f"methods[{position}]"


def _narrowed(path: str, position: int) -> str:
    """Return a field of all methods as this method's own; its value may not fit the others."""
    section, _, name = path.rpartition(".")
    return f"methods[{position}].{name}" if section in ("method", "methods") else path


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _plain(label: str) -> str:
    """Return a label in characters that every file system takes: a-z, digits, -, . and +."""
    text = label.lower().replace("=", "").replace(" ", "-")
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-.+") else "_" for c in text)
    return safe.lstrip("-.") or "_"
