"""An experiment as one typed object: methods, data, training, fleet, evaluation, engine.

    experiment = Experiment.read("experiment.toml")
    experiment = experiment.changed({"training.rounds": 5, "fedspeed.lam": 10})
    experiment.to_toml()

Python object, TOML file and command line have the same names and the same checks; a value that does
not fit is answered with its field, what is expected there, and the nearest name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, Self, get_args

from pydantic import Field, ValidationError, model_validator

from undrift.check import meant, nearest, require
from undrift.config.federation import Federation
from undrift.config.hyperparameters import can_be_none, require_names
from undrift.config.messages import describe_validation_error, unknown_name
from undrift.config.methods import Method
from undrift.config.sections import Data, Engine, Evaluation, FleetOptions, Model, Part, Training
from undrift.config.sweep import VALUES, Range, Seed, Sweep
from undrift.core import AllReduce, Federated, Gossip
from undrift.data.tables.read import TASKS as TABLE_TASKS
from undrift.tasks import task_kind
from undrift.untrusted import LONGEST_TOML, parse_toml
from undrift.usercode.load import may_import, only_code_of
from undrift.usercode.names import (
    Trust,
    absolute_name,
    code_fields,
    code_in,
    listed,
    require_trust,
)

SUFFIX = ".toml"
FAMILIES = {  # the options of training that concern one family of methods only
    "topology": (Gossip, "a gossip method such as netfleet"),
    "allreduce": (AllReduce, "an all-reduce method such as marsit"),
    **dict.fromkeys(
        ("participation", "on_bad", "quorum", "aggregation", "attack"),
        (Federated, "a method with a server"),
    ),
}


class Experiment(Part):
    """Holds everything that decides what a run computes."""

    title: str = Field("", description="Of tables and the report.")
    seeds: list[Seed] = Field([0], description="One repetition each, the same for all methods.")
    methods: list[Method] = Field(description="What is compared.")
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    fleet: FleetOptions = FleetOptions()
    evaluation: Evaluation = Evaluation()
    engine: Engine = Engine()
    federation: Federation = Federation()
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        """Let the task of training be that by which a table is read."""
        task, read = self.training.task, self.data.task
        if self.data.path is None or task is None:
            return self
        kind, remedy = task_kind(task).name, "say it once"
        require(kind in TABLE_TASKS, "A table's task", " or ".join(TABLE_TASKS), kind)
        require(read in (None, kind), "training.task", f"the data's task, {read}", kind, remedy)
        if read is None:
            # The object is being made, so that nobody has seen it without its task yet.
            object.__setattr__(self, "data", self.data.model_copy(update={"task": kind}))
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        require(bool(self.methods), "methods", "at least one method", [])
        distinct = len(set(self.seeds)) == len(self.seeds) > 0
        require(distinct, "seeds", "different seeds, at least one", self.seeds)
        titles = [method.title for method in self.methods]
        twice = next((title for title in titles if titles.count(title) > 1), None)
        remedy = "give them labels, such as label = 'FedAvg, 5 epochs'"
        require(twice is None, "methods", "different names", twice, remedy)
        self._check_families()
        if not self.sweep.empty:
            values = self.values()
            for path in self.sweep.paths:
                self._places(path, values)
        if self.sweep.tune:
            self._check_tuning()
        return self

    def _check_tuning(self) -> None:
        """Raise if a comparison after tuning would be of something else than methods."""
        self.sweep.seeds_beside(self.seeds)
        share, remedy = self.data.validation, "leave it out, sweep.validation is for tuning alone"
        require(share is None, "sweep.tune", "no data.validation", share, remedy)
        for path in self.sweep.paths:
            section = path.rpartition(".")[0]
            task = section in ("", *_sections()) and section != "training"
            fits = not task and path != "training.rounds"
            remedy = "the task is the same for all methods; sweep it without tune"
            require(fits, "sweep.tune", "fields of methods or of training", path, remedy)

    def _check_families(self) -> None:
        """Raise if an option concerns none of the methods."""
        if not all(method.known for method in self.methods):
            return
        classes = [method.cls for method in self.methods]
        for option, (family, kind) in FAMILIES.items():
            given = getattr(self.training, option) != Training.model_fields[option].default
            if given and not any(issubclass(cls, family) for cls in classes):
                names = ", ".join(cls.__name__ for cls in classes)
                raise ValueError(f"training.{option} needs {kind}, got {names}; leave it out.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment of nested dictionaries, as TOML gives them."""
        nested, remedy = isinstance(values, Mapping), "files go to Experiment.read"
        require(nested, "Experiment.of", "nested dictionaries", values, remedy)
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ValueError(describe_validation_error(error, cls)) from None

    @classmethod
    def read(cls, path: str | Path, *, trust: Trust = False) -> Experiment:
        """Return the experiment of a TOML file.

        Code that it names, such as `mine.py:Net`, is refused without `trust`, which is True or the
        places whose code may be run.
        """
        path = Path(path)
        if not path.is_file():
            got = f"the folder {str(path)!r}" if path.is_dir() else repr(str(path))
            raise ValueError(
                f"An experiment needs a file that is there, got {got}; `undrift init` writes one."
            )
        try:
            if path.stat().st_size > LONGEST_TOML:
                raise ValueError(f"more than {LONGEST_TOML:,} bytes")
            values = parse_toml(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} needs to be text in UTF-8, got byte 0x{error.object[error.start]:02x} at "
                f"position {error.start}; save it as UTF-8."
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} needs to be TOML, got an error: {error}.") from None
        _resolve_paths(values, path.parent)
        names = code_in(values)
        if may_import():
            require_trust(names, trust, path)
        try:
            with only_code_of(names, path):
                return cls.of(values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def code(self) -> list[str]:
        """Return the names of the code that the experiment runs, such as `mine.py:Net`."""
        return code_in(self.values())

    def values(self) -> dict[str, Any]:
        """Return nested dictionaries of TOML's types, without what is None."""
        plain: dict[str, Any] = _plain(self.model_dump(exclude_none=True))
        unnamed = self.federation.sites and self.data.name == Data.model_fields["name"].default
        if "path" in plain["data"] or unnamed:
            del plain["data"]["name"]  # A table, or what sites have, stands in its place.
        return plain

    def to_toml(self) -> str:
        """Return the experiment as the text of a TOML file."""
        import tomli_w

        return tomli_w.dumps(self.values())

    def changed(self, changes: Mapping[str, Any]) -> Experiment:
        """Return the experiment with other values, by dotted names.

        Names are `training.rounds`, `fedspeed.lam`, `methods[0].lr`, and `method.lr` for all.
        None takes a field back to its default; a hyper-parameter that can be none becomes none.
        """
        values = self.values()
        for path, value in changes.items():
            for place in self._places(path, values):
                is_none = value is None or (place.nullable and str(value).lower() == "none")
                new = place.none if is_none else value
                if new is None:
                    place.owner.pop(place.name, None)
                else:
                    place.owner[place.name] = new
        return Experiment.of(values)

    def _places(self, path: str, values: dict[str, Any]) -> list[_Place]:
        """Return where a dotted name is in these values: one place, or one in each method."""
        section, dot, name = path.rpartition(".")  # The section may be a class with dots.
        if not dot:
            if path in ("title", "seeds"):
                return [_Place(values, path)]
            there = [each for each in _paths() if each.endswith(f".{path}")]
            clause = f"; it is {' or '.join(there)}" if there else meant(path, _paths(), "file")
            raise ValueError(f"A field needs SECTION.NAME, got {path!r}{clause}.")
        kinds = _sections()
        if section in kinds and (section != "sweep" or name in _TUNING):
            known = kinds[section].model_fields
            if name not in known and section != "model":
                raise ValueError(unknown_name(section, name, known, Experiment))
            nullable = name in known and _takes_none(known[name].annotation)
            return [_Place(values.setdefault(section, {}), name, nullable=nullable)]
        every = section in ("method", "methods")
        places = [
            _place(method, owner, name)
            for i, (method, owner) in enumerate(zip(self.methods, values["methods"], strict=True))
            if every or section == f"methods[{i}]" or is_named(method, section)
        ]
        if not places:
            names = [*kinds, "method", *(method.name for method in self.methods)]
            names.remove("sweep")
            raise ValueError(
                f"{path!r} needs a section or a method of the experiment before its dot, got "
                f"{section!r}{nearest(section, names)}; there are {', '.join(names)}."
            )
        return places


class _Place(NamedTuple):
    """Says where a field of an experiment is written."""

    owner: dict[str, Any]  # the table that has the field
    name: str
    none: str | None = None  # the text of None; without it None removes the field
    nullable: bool = False  # whether the text "none" removes the field, too


def _place(method: Method, owner: dict[str, Any], name: str) -> _Place:
    if name in Method.model_fields:
        nullable = _takes_none(Method.model_fields[name].annotation)
        return _Place(owner, name, nullable=nullable)
    if not method.known:
        return _Place(owner, name)
    require_names(method.cls, [name])
    return _Place(owner, name, "none" if can_be_none(method.cls, name) else None)


def _resolve_paths(values: dict[str, Any], folder: Path) -> None:
    """Make the paths of what may lie beside an experiment's file absolute."""
    for table, field in code_fields(values):
        table[field] = absolute_name(table[field], folder)
    evaluation = values.get("evaluation")
    metrics = evaluation.get("metrics") if isinstance(evaluation, dict) else None
    metrics = listed(metrics) if isinstance(metrics, str) else metrics
    if isinstance(evaluation, dict) and isinstance(metrics, list):
        evaluation["metrics"] = [
            absolute_name(name, folder) if isinstance(name, str) else name for name in metrics
        ]
    for section, name in (("data", "path"), ("federation", "columns")):
        table = values.get(section)
        if isinstance(table, dict) and isinstance(table.get(name), str):
            table[name] = str((folder / table[name]).absolute())


def _takes_none(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def is_named(method: Method, text: str) -> bool:
    """Return whether a field's section names this method."""
    return text.lower() in (method.name.lower(), method.title.lower())


_TUNING = tuple(name for name in Sweep.model_fields if name not in VALUES)


def _sections() -> dict[str, type[Part]]:
    kinds = {name: field.annotation for name, field in Experiment.model_fields.items()}
    return {n: k for n, k in kinds.items() if isinstance(k, type) and issubclass(k, Part)}


def _paths() -> list[str]:
    return [
        f"{section}.{name}" for section, kind in _sections().items() for name in kind.model_fields
    ]


def _plain(values: Any) -> Any:
    """Return values as TOML has them, without empty tables and lists."""
    if isinstance(values, dict):
        plain = {key: _plain(value) for key, value in values.items()}
        return {key: value for key, value in plain.items() if value not in ({}, [])}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    return str(values) if isinstance(values, Path) else values


def from_text(text: str) -> Any:
    """Return a value as TOML reads it; text that TOML does not know is text."""
    try:
        (value,) = parse_toml(f"value = {text}").values()
    except ValueError:  # Several lines may hold several values.
        return None if text.lower() == "none" else text
    return value


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return texts such as `a.b=1`, as `--set` has them, as a dictionary."""
    changes: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not (equals and path.strip()):
            raise ValueError(f"--set needs SECTION.NAME=VALUE, got {text!r}.")
        changes[path.strip()] = from_text(value.strip())
    return changes


__all__ = [
    "FAMILIES",
    "SUFFIX",
    "Data",
    "Engine",
    "Evaluation",
    "Experiment",
    "Federation",
    "FleetOptions",
    "Method",
    "Model",
    "Part",
    "Range",
    "Sweep",
    "Training",
    "from_text",
    "is_named",
    "parse_changes",
]
