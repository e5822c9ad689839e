"""Trackers of other programs: TensorBoard, MLflow, Weights & Biases.

Nothing leaves the machine unless the user asks for it.
"""

from __future__ import annotations

import os
import time
import warnings
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from undrift.check import require_choice
from undrift.errors import import_or_none, optional
from undrift.results.record import Record, Totals
from undrift.results.tracking.plain import name_of
from undrift.results.trial import Trial

PROJECT = "undrift"  # what MLflow calls the experiment and W&B the project
Online = Literal["offline", "online"]


class _Scalars:
    """Gives the numbers of each record, and their sums so far under `total/`."""

    def __init__(self, trial: Trial) -> None:
        before: dict[str, Any] = {each.name: trial.total(each.name) for each in fields(Totals)}
        self._totals = Totals(**before)

    def of(self, record: Record) -> dict[str, float]:
        """Return the scalars of the next record by name."""
        self._totals.add(record)
        values: dict[str, Any] = record.flat()
        del values["round"]  # which is the axis
        sums = {f"total/{name}": value for name, value in vars(self._totals).items()}
        if record.simulated_seconds is None:
            del sums["total/simulated_seconds"]
        sums["total/bytes"] = self._totals.bytes_up + self._totals.bytes_down
        return {name: value for name, value in (values | sums).items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _settings(trial: Trial) -> dict[str, Any]:
    """Return what a trial was started with."""
    return {"method": trial.method, "seed": trial.seed, "rounds": trial.rounds, **trial.settings}


def _outcome(trial: Trial) -> dict[str, str]:
    """Return how a trial ended."""
    outcome = {"status": trial.status, "reason": trial.reason, "model_sha256": trial.model_sha256}
    return {name: value for name, value in outcome.items() if value}


class TensorBoard:
    """Writes event files to `<folder>/<trial>`, for `tensorboard --logdir <folder>`.

    Events are written at once, because nobody would see a failure of tensorboardX's own thread.
    """

    def __init__(self, folder: str | Path) -> None:
        self._files = optional(
            "tensorboardX.record_writer", "Tracking with tensorboard", "tensorboard"
        )
        self._proto = optional(
            "tensorboardX.proto.event_pb2", "Tracking with tensorboard", "tensorboard"
        )
        self._summary = optional("tensorboardX.summary", "Tracking with tensorboard", "tensorboard")
        self._folder = Path(folder)
        self._writer: Any = None

    def begin(self, trial: Trial) -> None:
        """Begin a trial."""
        self._trial, self._scalars, self._round = trial, _Scalars(trial), 0
        self._writer = None  # until the first round is known

    def add(self, record: Record) -> None:
        """Write the scalars of one round."""
        if self._writer is None:
            self._open(record.round)
        try:
            for name, value in self._scalars.of(record).items():
                self._event(record.round, summary=self._summary.scalar(name, value))
            self._writer.flush()
        except OSError:
            with suppress(OSError):  # closing writes the rest once more, and fails again
                self._writer.close()
            raise
        self._round = record.round

    def end(self, trial: Trial) -> None:
        """Write how the trial ended, and close it."""
        if self._writer is not None:
            self._text("end", _outcome(trial), self._round)
            self._writer.close()
            self._writer = None

    def _open(self, first: int) -> None:
        """Open an event file for the rounds from `first` on."""
        goal = self._folder / name_of(self._trial)
        goal.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, which begin with a time in seconds.
        # The round follows, because two files may begin in the same second.
        name = f"events.out.tfevents.{int(time.time()):010d}.{first:08d}"
        self._writer = self._files.RecordWriter(str(goal / name))
        self._event(0, file_version="brain.Event:2")
        if first > 1:  # TensorBoard then ignores what an earlier file has from this round on
            log = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._event(first, session_log=log)
        self._text("settings", _settings(self._trial), first)

    def _text(self, name: str, values: dict[str, Any], step: int) -> None:
        """Write names and values as a table."""
        lines = (
            f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in values.items()
        )
        table = "\n".join(("| name | value |", "|---|---|", *lines))
        self._event(step, summary=self._summary.text(name, table))

    def _event(self, step: int, **what: Any) -> None:
        event = self._proto.Event(wall_time=time.time(), step=step, **what)
        self._writer.write(event.SerializeToString())


class MLflow:
    """Makes one MLflow run per trial at `uri`, MLFLOW_TRACKING_URI or `<folder>/mlflow`.

    That folder has a database, or plain files where sqlalchemy is not installed.
    """

    _ENDINGS: ClassVar = {"finished": "FINISHED", "diverged": "FAILED", "stopped": "KILLED"}

    def __init__(self, folder: str | Path, uri: str | None = None) -> None:
        # mlflow reads these when it is imported; by default it sends statistics of its use.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        self._mlflow = optional("mlflow", "Tracking with mlflow", "mlflow")
        self._entities = optional("mlflow.entities", "Tracking with mlflow", "mlflow")
        self._folder = Path(folder).resolve() / "mlflow"
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client: Any = None

    def begin(self, trial: Trial) -> None:
        """Begin a trial."""
        if self._client is None:
            self._client, self._experiment = self._connect()
        self._scalars = _Scalars(trial)
        tags = {"label": trial.label}
        run = self._client.create_run(self._experiment, run_name=name_of(trial), tags=tags)
        self._run = run.info.run_id
        settings = _settings(trial).items()
        params = [self._entities.Param(name, str(value)) for name, value in settings]
        self._client.log_batch(self._run, params=params)

    def add(self, record: Record) -> None:
        """Write the scalars of one round."""
        now, step = int(time.time() * 1000), record.round
        values = self._scalars.of(record).items()
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, trial: Trial) -> None:
        """Write how the trial ended, and close it."""
        for name, value in _outcome(trial).items():
            self._client.set_tag(self._run, name, value)
        self._client.set_terminated(self._run, self._ENDINGS[trial.status])

    def _connect(self) -> tuple[Any, str]:
        """Return the client and the experiment's id."""
        uri, artifacts = self._uri, None
        if uri is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            database = all(map(import_or_none, ("sqlalchemy", "alembic")))
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = f"sqlite:///{self._folder / 'mlflow.db'}" if database else self._folder.as_uri()
            artifacts = (self._folder / "artifacts").as_uri()
        with warnings.catch_warnings():  # sqlalchemy warns about mlflow's use of it
            warnings.simplefilter("ignore")
            client = self._mlflow.MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(PROJECT)
            if experiment is not None:
                return client, experiment.experiment_id
            return client, client.create_experiment(PROJECT, artifact_location=artifacts)


class WandB:
    """Makes one W&B run per trial, offline in `<folder>/wandb` unless `mode` is "online"."""

    def __init__(self, folder: str | Path, mode: Online = "offline") -> None:
        require_choice("WandB", "mode", mode, get_args(Online))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        self._wandb = optional("wandb", "Tracking with wandb", "wandb")
        self._folder, self._mode = Path(folder), mode

    def begin(self, trial: Trial) -> None:
        """Begin a trial."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._scalars = _Scalars(trial)
        # W&B would also send terminal output, code, git state, packages and machine statistics.
        settings = self._wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = self._wandb.init(
            project=PROJECT,
            name=name_of(trial),
            group=trial.label,
            dir=str(self._folder),
            config=_settings(trial),
            mode=self._mode,
            reinit="create_new",
            settings=settings,
        )

    def add(self, record: Record) -> None:
        """Write the scalars of one round."""
        self._run.log(self._scalars.of(record), step=record.round)

    def end(self, trial: Trial) -> None:
        """Write how the trial ended, and close it."""
        self._run.summary.update(_outcome(trial))
        self._run.finish(exit_code=0 if trial.status == "finished" else 1)
