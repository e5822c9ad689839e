"""The sections of an experiment that all its methods share.

The descriptions of the fields say what they hold; `undrift init` writes them into a file. Types are
strict: neither the text "10" nor true is a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from undrift import models
from undrift.aggregation import attacks, robust
from undrift.check import nearest, require
from undrift.config.shorthand import parse_availability, parse_model, parse_slowdown
from undrift.data import NAMES, partition
from undrift.data.tables.files import as_decimal, as_separator, column_names
from undrift.data.work import parse_work
from undrift.tasks import named_loss, named_metric, task_kind
from undrift.usercode.load import may_import
from undrift.usercode.names import OWN, is_code, listed

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
FilePath = Annotated[Path, Field(strict=False)]  # text is how TOML has it
Names = Annotated[tuple[str, ...], Field(strict=False)]  # a list is how TOML has it
_SOURCE = (
    "name folder path target client task drop categorical missing missing_target transformer "
    "separator decimal columns here"
)


def parsed_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator of text that `parse` must be able to read; the text stays as it is."""

    def validate(text: str) -> str:
        if may_import() or not is_code(text):  # whoever only reads imports no code
            parse(text)
        return text

    return AfterValidator(validate)


def _check_kernels(value: Any) -> Any:
    """Return the value, or refuse it in one sentence; pydantic has one for each type."""
    valid = isinstance(value, bool) or value in ("always", "require")
    require(valid, "kernels", 'true, false, "always" or "require"', value)
    return value


WorkForm = Annotated[str, parsed_by(parse_work)]
SlowdownForm = Annotated[str, parsed_by(parse_slowdown)]
PartitionForm = Annotated[str, parsed_by(partition.validate_shorthand)]
AvailabilityForm = Annotated[str, parsed_by(lambda text: parse_availability(text, seed=0))]


AggregationForm = Annotated[str, parsed_by(robust.parse)]
AttackForm = Annotated[str, parsed_by(attacks.parse)]


class Part(BaseModel):
    """A section of an experiment, which refuses unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Column(Part):
    """Declares a column of a table, so that none is fitted to its rows."""

    name: str = Field(description="The column, or the target.")
    categories: Names = Field(
        (), description="Its words; others are none of them. A target's classes."
    )
    mean: Annotated[float, Field(allow_inf_nan=False)] = Field(0.0, description="Of its numbers.")
    scale: Positive = Field(1.0, description="By which numbers are divided.")
    fill: float | str | None = Field(None, description="For empty cells.")


class Data(Part):
    """Selects the data set and splits it among clients."""

    name: str = Field(
        "digits",
        description="Data set; `undrift data list` shows all. Or code, such as mine.py:load.",
    )
    path: FilePath | None = Field(
        None, description="A table of your own instead: CSV or Parquet, by undrift[tables]."
    )
    target: str | None = Field(None, description="The table's column that is predicted.")
    client: str | None = Field(None, description="Its column that says who holds a row.")
    task: Literal["classification", "regression"] | None = Field(
        None, description="Of the table; where left out, numbers are regression, text is classes."
    )
    drop: Names = Field((), description="Columns of the table that are left out.")
    categorical: Names = Field((), description="Columns of numbers that are categories.")
    missing: Literal["refuse", "impute"] = Field(
        "refuse", description="Empty cells: refuse, or impute the mean or most frequent value."
    )
    missing_target: Literal["refuse", "drop"] = Field(
        "refuse", description="Rows without a target: refuse, or drop them."
    )
    transformer: str | None = Field(
        None, description="Of its columns, instead: mine.py:make returns scikit-learn's."
    )
    separator: Annotated[str, AfterValidator(as_separator)] | None = Field(
        None,
        description="Of the table's cells: comma, semicolon, tab, pipe or a character; found if "
        "left out.",
    )
    decimal: Annotated[Literal["point", "comma", ".", ","], AfterValidator(as_decimal)] = Field(
        ".", description="Decimal point of the table's numbers: point or comma."
    )
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Share of a table's rows that are held out for tests."
    )
    columns: Annotated[tuple[Column, ...], Field(strict=False)] = Field(
        (), description="Of a table, as [[data.columns]]; where left out, they are fitted."
    )
    here: bool = Field(
        False,
        description="Under torchrun: every rank has its own table, with {rank} in its path.",
    )
    folder: FilePath | None = Field(None, description="Where data sets are looked for first.")
    clients: Count | None = Field(
        None, description="How many; 20, or all of a natural partition, where left out."
    )
    partition: PartitionForm = Field(
        "dirichlet:0.3",
        description="iid, dirichlet:0.3, dirichlet-sequential:0.3, dirichlet-per-class:0.3, "
        "shards:2, shards:2x200, classes:5, classes-uneven:5, quantity:0.5, natural or replicated.",
    )
    availability: AvailabilityForm | None = Field(
        None, description="Who is there: resampled:250:100 or replaced:250:100:0.5."
    )
    augment: bool = Field(True, description="Crop and flip images where their documents do so.")
    train_samples: Count | None = Field(
        None, description="Deal so many training samples, drawn by the seed, not all."
    )
    test_samples: Count | None = Field(None, description="Test on so many, not on all.")
    validation: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Share of each client's samples to choose by, not trained on."
    )

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if name not in NAMES and not name.startswith(OWN) and not is_code(name):
            near = nearest(name, NAMES)
            own = 'code such as mine.py:load, or path = "table.csv"'
            raise ValueError(f"name needs one of {', '.join(NAMES)}, {own}, got {name!r}{near}.")
        return name

    @model_validator(mode="before")
    @classmethod
    def _dealt(cls, values: Any) -> Any:
        """Return the values with a partition for a table: by its client column, or evenly."""
        if not isinstance(values, Mapping) or not values.get("path"):
            return values
        named = isinstance(column := values.get("clients"), str) and not column.isdecimal()
        remedy = f'the column of clients is client = "{column}" (client={column} in the shell)'
        require(not named, "data.clients", "a whole number", column, remedy)
        if "partition" not in values:
            return {**values, "partition": "natural" if values.get("client") else "iid"}
        return values

    @model_validator(mode="after")
    def _table(self) -> Self:
        of_tables = ("target", "client", "task", "drop", "categorical", "transformer", "separator")
        for name in (*of_tables, "columns", "here"):
            value = getattr(self, name)
            remedy = 'say path = "table.csv"'
            require(not value or self.path is not None, f"data.{name}", "a table", value, remedy)
        code = self.transformer is None or is_code(self.transformer)
        require(code, "data.transformer", "code such as mine.py:make", self.transformer)
        if self.path is not None:
            there = [] if self.target else column_names(self.path)
            remedy = 'say target = "column" (--data table.csv:target=column)'
            more = f" and {len(there) - 20} more" if len(there) > 20 else ""
            remedy += f"; the columns are {', '.join(there[:20])}{more}" if there else ""
            require(self.target is not None, "data.path", "the column to predict", "none", remedy)
        names = [column.name for column in self.columns]
        if names:
            once = len(set(names)) == len(names) and self.target in names and len(names) > 1
            expected = "every column once, the target among them"
            require(once, "data.columns", expected, ", ".join(names))
        return self

    @property
    def title(self) -> str:
        """Return what the data are called: their name, or that of their file."""
        if self.path is not None:
            return self.path.stem
        return self.name.rpartition(":")[2] if is_code(self.name) else self.name

    @property
    def source(self) -> Data:
        """Return what says where the data are from, without how they are dealt."""
        fields = {name: getattr(self, name) for name in [*_SOURCE.split(), "test_fraction"]}
        return Data.model_construct(**fields, partition="", clients=None)


class Model(Part):
    """Selects the network."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = Field("mlp", description="Network; options stand beside it, such as stem = 7.")

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name.startswith(OWN) or (is_code(self.name) and not may_import()):
            return self
        if self.name not in models.MODELS and not is_code(self.name):
            near, known = nearest(self.name, models.MODELS), ", ".join(models.MODELS)
            own = "or code such as mine.py:Net"
            with suppress(ValueError):
                name, options = parse_model(self.name)
                beside = "".join(f", {key} = {value!r}" for key, value in options.items())
                near = f'; options stand beside the name: name = "{name}"{beside}'
            raise ValueError(f"model.name needs one of {known}, {own}, got {self.name!r}{near}.")
        names = models.option_names(self.name)
        free = models.takes_any_option(self.name)
        for name, value in (self.model_extra or {}).items():
            if name not in names and not free:
                has = f"; it has {', '.join(names)}" if names else ""
                has += ", and shape and classes are the data's" if is_code(self.name) else ""
                raise ValueError(
                    f"The model {self.name} has no {name!r}{nearest(name, names)}{has}."
                )
            plain = isinstance(value, int | float | str) and "," not in str(value)
            require(plain, f"model.{name}", "a number, or text without commas", value)
        parse_model(self.text)
        return self

    @property
    def text(self) -> str:
        """Return the model as the command line has it, such as `resnet18-gn:stem=7`."""
        options = ",".join(f"{name}={value}" for name, value in (self.model_extra or {}).items())
        return f"{self.name}:{options}" if options else self.name


class Training(Part):
    """Sets what all methods have in common."""

    task: Annotated[str, parsed_by(task_kind)] | None = Field(
        None,
        description="classification, multi-label, regression or language-modelling; what the "
        "targets are where left out.",
    )
    loss: Annotated[str, parsed_by(named_loss)] | None = Field(
        None,
        description="cross_entropy, bce, mse, mae, huber, smooth_l1, or file.py:function of "
        "outputs and targets; the task's where left out.",
    )
    rounds: Annotated[int, Field(ge=1)] = Field(50, description="Communication rounds.")
    work: WorkForm | None = Field(
        None,
        description="Local steps between communications: steps:10, epochs:5, gaussian:20:100, "
        "uniform:5:30, deadline:60:5; the documents' where left out.",
    )
    early_stopping: Count | None = Field(
        None, description="Tests without a better one after which a run stops; the best is kept."
    )
    batch_size: Annotated[int, Field(ge=0)] = Field(20, description="0: the whole local data.")
    participation: int | float | None = Field(
        None, description="Fraction (1.0 is all) or count (1 is one) of clients a round; 0.5."
    )
    weighting: Literal["size", "uniform"] | None = Field(
        None, description="size, or uniform; peers are always uniform."
    )
    on_bad: Literal["stop", "drop"] = Field(
        "stop", description="What a bad update does: stop the run, or be dropped and recorded."
    )
    quorum: int | float | None = Field(
        None, description="Clients that a round needs: fraction or count; half with drop."
    )
    aggregation: AggregationForm | None = Field(
        None,
        description="mean, median, trimmed-mean:2, geometric-median, krum:2, multi-krum:2 or "
        "centered-clipping.",
    )
    attack: AttackForm | None = Field(
        None,
        description="Of a share of the clients: sign-flip:0.2, gaussian, alie, inner-product, "
        "scaling or label-flip.",
    )
    weight_decay: Amount = Field(0.0, description="Of the data gradient, after the clip.")
    clip: Amount = Field(0.0, description="Limit of the gradient's norm; 0: none.")
    topology: str | None = Field(None, description="Links of gossip methods: erdos-renyi:0.5, ...")
    allreduce: str | None = Field(None, description="Route of all-reduce methods: ring, torus:2x4")

    @field_validator("participation", "quorum")
    @classmethod
    def _someone(cls, share: int | float | None, info: ValidationInfo) -> int | float | None:
        if share is not None:
            valid = share >= 1 if isinstance(share, int) else 0 < share <= 1
            expected = "a fraction in (0, 1] such as 0.5 or a count such as 10"
            require(valid, str(info.field_name), expected, share)
        return share


class FleetOptions(Part):
    """Describes the simulated devices of clients, for a simulated clock."""

    kind: str | None = Field(
        None, description="phone, gpu-node, ...; phone:9,gpu-node:1; or a CSV file."
    )
    slowdown: SlowdownForm | None = Field(None, description="stragglers:0.1:5 or jitter:0.3.")
    failures: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Probability that a client fails in a round."
    )
    trace: FilePath | None = Field(None, description="CSV of client,start,end: when who is there.")
    trace_period: Positive | None = Field(
        None, description="Seconds after which the trace repeats."
    )

    @model_validator(mode="after")
    def _needed(self) -> Self:
        """Raise if something is said of devices and none are named."""
        remedy = "say fleet.kind = 'phone' (--fleet phone)"
        for name in ("slowdown", "failures", "trace"):
            value = getattr(self, name)
            lacks_kind = bool(value) and self.kind is None
            require(not lacks_kind, f"fleet.{name}", "the kind of devices", str(value), remedy)
        lacks_trace = self.trace_period is not None and self.trace is None
        require(not lacks_trace, "fleet.trace_period", "a trace beside it", self.trace_period)
        return self


class Evaluation(Part):
    """Says what is measured, and when."""

    every: Count | None = Field(
        None,
        description="Rounds between tests; the last is always tested. Where left out, tests take "
        "less than a fifth of the work.",
    )
    first: bool | None = Field(
        None, description="Test the first round, too; yes where every is left out."
    )
    samples: Count | None = Field(
        None, description="Samples of a test; all, but fewer in very short runs."
    )
    target: Annotated[list[Share], Field(min_length=1)] = Field(
        [0.8], description="Accuracies to be reached."
    )
    smoothing: Literal["raw", "ema", "window", "best"] = Field(
        "raw",
        description="Of accuracies, also against the target: raw, ema (0.9), window (10), best.",
    )
    metrics: list[Annotated[str, parsed_by(named_metric)]] | None = Field(
        None,
        description="auroc, f1_macro, rmse, ..., or file.py:function of outputs and targets; the "
        "task's where left out.",
    )
    train_loss: bool = Field(False, description="The objective on all training data, too.")
    node_accuracy: bool | None = Field(
        None,
        description="Peers: test each node's own model, too, on all samples; where left out, the "
        "nodes share the samples.",
    )
    node_samples: Count | None = Field(
        None, description="Peers: samples on which each node's own model is tested."
    )
    gradient_norm: bool = Field(False, description="Peers: gradient of the mean model, all data.")
    sharpness: bool = Field(
        False, description="Rise of the loss one ascent step away, and largest Hessian eigenvalue."
    )
    client_metrics: bool = Field(
        False, description="Each client's own figures: their spread and the worst tenth."
    )
    drift: bool = Field(False, description="Divergence and cosines of the clients' local models.")
    cka: bool = Field(
        False, description="Drift, and likeness (CKA) of the local models' features, when tested."
    )
    surface: bool = Field(
        False, description="Training loss on the plane of three local models of the last round."
    )

    @field_validator("metrics", mode="before")
    @classmethod
    def _names(cls, names: Any) -> Any:
        return listed(names) if isinstance(names, str) else names

    @field_validator("target", mode="before")
    @classmethod
    def _as_list(cls, targets: Any) -> Any:
        return list(targets) if isinstance(targets, list | tuple) else [targets]


class Engine(Part):
    """Says how runs are executed; results depend on it only by the rounding of sums."""

    mode: Literal["auto", "loop", "threads", "stacked"] = Field(
        "auto", description="auto, loop, threads or stacked."
    )
    threads: Count | None = Field(None, description="Clients side by side in the mode threads.")
    compile: bool = Field(False, description="Gradients by torch.compile, for long runs.")
    kernels: Annotated[bool | Literal["always", "require"], BeforeValidator(_check_kernels)] = (
        Field(True, description="Compiled gradients of small nets: true, false, always or require.")
    )
    device: str | None = Field(
        None, description="auto, cpu, cuda:0 or mps: the hardware that computes; cpu."
    )
    precision: Literal["fp32", "bf16"] | None = Field(
        None, description="bf16: forward and backward passes in bfloat16."
    )
    processes: Count = Field(1, description="Processes of this machine that share the clients.")
    max_restarts: Annotated[int, Field(ge=0)] = Field(3, description="When a process is lost.")
    timeout: Positive = Field(
        1800.0, description="Seconds without an answer after which a process counts as hung."
    )
    checkpoint_every: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Rounds between checkpoints in the run's folder; 0: none; every minute where "
        "left out.",
    )
    save_models: bool | None = Field(
        None, description="Keep trained models; where left out, that of a single run."
    )
