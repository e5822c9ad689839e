"""A run is saved here after its rounds, and goes on from what was saved."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from undrift import tree
from undrift.aggregation.validation import UsualSizes
from undrift.check import require
from undrift.core import Vector
from undrift.data.clients import Clients
from undrift.engine.checkpoint import shards, store, trial
from undrift.engine.checkpoint.client_states import StoredStates
from undrift.engine.checkpoint.due import SaveTimes
from undrift.engine.checkpoint.lock import FolderLock
from undrift.engine.plan import Planner
from undrift.engine.processes.rendezvous import code_digest, restarted
from undrift.engine.settings import BestModel, ExecutionRecord, RunSettings
from undrift.engine.world import TogetherError, World
from undrift.gradients.task import Task
from undrift.results.record import Record, Totals


class Resumable(ABC):
    """Saves the state of a run to a folder and restores it from one."""

    record_type: ClassVar[type[Record]]
    algorithm: Any
    rounds: int
    round: int
    totals: Totals
    record: Record | None
    state: Any
    client_states: MutableMapping[int, Any]
    execution: ExecutionRecord
    world: World
    _settings: RunSettings
    _task: Task
    _planner: Planner
    _clients: Clients
    _x0: Vector
    _checkpoint: Path | None = None  # the folder to save to
    _lock: FolderLock | None = None  # of the part of it that this process writes
    _save_times: SaveTimes
    _caller_settings: dict[str, str]  # settings that only the caller knows
    _force = False  # whether to go on from another run's checkpoint
    _saved_best: BestModel | None = None  # that the checkpoint had, with early stopping
    _torn: bool  # whether the state is being replaced at this moment

    @property
    @abstractmethod
    def best(self) -> BestModel | None:
        """Return the best model so far; None without early stopping."""

    @abstractmethod
    def _templates(self, x0: Vector) -> tuple[Any, Any]:
        """Return states of the right structure for a checkpoint to fill."""

    @abstractmethod
    def _own_part(self, parts: list[store.Snapshot]) -> store.Snapshot:
        """Return what this process holds of a checkpoint whose parts are all given."""

    @property
    def _saved_state(self) -> Any:
        """Return the part of the state that this process saves."""
        return self.state

    @property
    def _usual_sizes(self) -> UsualSizes:
        """Return what is known of the sizes of uploads, which decides who is dropped."""
        return UsualSizes()

    def use_checkpoints(
        self,
        checkpoint: str | Path | None,
        resume: str | Path | None,
        *,
        force: bool = False,
        **settings: str,
    ) -> None:
        """Save to one folder and resume from another, whose `settings` must be the same.

        `force` accepts others, with a warning.
        """
        self._force = force
        if checkpoint is None and resume is None and self.world.size == 1:
            return
        self._caller_settings = settings
        if self.world.size > 1:
            common = self._saved_settings | self._common_settings()
            if self._clients.rank_census is not None:
                del common["data"]  # Every rank has its own, and resumes with its own.
            self.world.require_same(common)
        target = None if checkpoint is None else Path(checkpoint)
        source = None if resume is None else Path(resume)
        if target is None and source is not None:
            self._load(source)
            self.client_states = dict(self.client_states)  # The folder may change meanwhile.
        elif target is not None:
            try:
                self._save_to(target, source)
            except BaseException:
                self.release_folder()
                raise

    def _save_to(self, target: Path, source: Path | None) -> None:
        """Load what there is to load, and save to a folder that holds no other run's rounds."""
        own = shards.own_folder(target, self.world)
        if own.is_dir():  # It is locked before it is read, and not made if nothing can be read.
            self._lock_folder(own)
        again = shards.restarted_here(target, self.world)
        if again and shards.must_resume(target, self.world):
            source = target
        if source is not None:
            self._load(source)
        goes_on = again or (source is not None and source.resolve() == target.resolve())
        if not goes_on and shards.hold_checkpoints(target, self.world):
            raise ValueError(
                f"checkpoint needs an empty folder, got {str(target)!r} with checkpoints of an "
                "earlier run; pass it as resume too, or choose another."
            )
        if self._lock is None:
            self._lock_folder(own)
        shards.claim(target, self.world)
        self._keep_states_in(own)
        self._checkpoint = target

    def _keep_states_in(self, folder: Path) -> None:
        """Keep the states of clients in the folder's store, where those of this run may be."""
        states = self.client_states
        if isinstance(states, StoredStates) and states.folder == folder / store.STATES:
            return
        device = self._x0.device
        template = cache(lambda: self._templates(self._x0)[1])
        self.client_states = store.states_in(folder, None, template, device)
        for client in states:
            self.client_states[client] = states[client]

    @cached_property
    def _saved_settings(self) -> dict[str, str]:
        """Return what decides the numbers of this run.

        It takes a hash of all data, which a run that is not saved does without.
        """
        own = store.settings_of(self.algorithm, self._task, self._planner, self._clients)
        code = {"the code of undrift": code_digest(), "torch": torch.__version__}
        return own | code | store.without_addresses(self._caller_settings)

    def _lock_folder(self, folder: Path) -> None:
        try:
            self._lock = FolderLock(folder, again=restarted())
        except OSError as error:
            raise store.unwritable(folder, error) from error

    def release_folder(self) -> None:
        """Let other runs save to this run's folder of checkpoints."""
        if self._lock is not None:
            self._lock.close()

    def discard_checkpoints(self) -> None:
        """Remove what this process has saved by time; there is nothing left to do with it."""
        if self._checkpoint is not None and self._save_times.by_time:
            self.release_folder()
            shards.remove(self._checkpoint, self.world)
            self._checkpoint = None

    def _common_settings(self) -> dict[str, str]:
        """Return what processes must have in common besides the saved settings."""
        settings = self._settings
        return {
            "rounds": repr(self.rounds),
            "evaluation.every": repr((settings.evaluation.every, settings.evaluation.first)),
            "evaluation.batch_size": repr(settings.evaluation.batch_size),
            "checkpoint_every": repr(settings.checkpoint_every),
            "mode": self.execution.mode,
            "kernels": repr(self.execution.kernels),
            "loops": repr(self.execution.loops),
        }

    def save(self) -> bool:
        """Save the state after the last whole round now; return whether it could be.

        There is nothing to save without a folder of checkpoints, and before the first round. All
        processes of a run must save together.
        """
        if self._checkpoint is None or self.round == 0 or self._torn:
            return False
        self._write(self._checkpoint)
        return True

    def _write(self, folder: Path) -> None:
        """Save the state as it is."""
        snapshot = store.Snapshot(
            round=self.round,
            x0=self._x0,
            server=self._saved_state,
            clients=self.client_states,
            totals=self.totals,
            record=self.record,
            settings=self._saved_settings,
            execution=self.execution,
            best=self.best,
            sizes=self._usual_sizes.largest,
        )
        with self._save_times.saving(self._bytes_to_save):
            store.write(shards.own_folder(folder, self.world), snapshot)

    def _save_is_due(self) -> bool:
        """Return whether this process would save after this round."""
        times = self._save_times
        if self._checkpoint is None or not times.waited(self.round, self.rounds):
            return False
        if times.by_time and not times.cost_is_known:
            self._try_saving(shards.own_folder(self._checkpoint, self.world))
        return times.affordable(self._bytes_to_save)

    @property
    def _bytes_to_save(self) -> int:
        """Return about how many bytes a checkpoint would write now."""
        states = self.client_states
        new = states.bytes_to_commit if isinstance(states, StoredStates) else 0
        return self._x0.nbytes + tree.nbytes(self._saved_state) + new

    def _try_saving(self, folder: Path) -> None:
        """Count what a part of a checkpoint costs, where the whole of it may be expensive."""
        states = self.client_states
        if isinstance(states, StoredStates) and trial.needed(self._bytes_to_save, states.new):
            sample = trial.sample(self._x0, states)
            # Where the disk is full, the checkpoint itself says so.
            with suppress(OSError), self._save_times.trying(trial.nbytes(sample)):
                trial.write(folder, sample)

    def _load(self, folder: Path) -> None:
        """Restore the state of the newest round in the folder."""

        def read(path: Path, round: int) -> store.Snapshot:
            return store.read(
                path,
                round,
                settings=self._saved_settings,
                force=self._force,
                templates=self._templates,
                record_type=self.record_type,
                device=self._x0.device,
            )

        parts, all_parts = shards.read(folder, self.world, read)
        if parts[0].x0.shape != self._x0.shape or parts[0].x0.dtype != self._x0.dtype:
            raise TogetherError(
                f"resume needs a checkpoint of this model, {self._x0.numel()} parameters of "
                f"{self._x0.dtype}, got {parts[0].x0.numel()} of {parts[0].x0.dtype}; force does "
                "not change that."
            )
        saved = self._own_part(parts) if all_parts else parts[0]
        self._compare_execution(saved.execution)
        expected = f"rounds >= {saved.round}, those already done"
        require(saved.round <= self.rounds, "resume", expected, self.rounds)
        self.round, self._x0, self.totals = saved.round, saved.x0, saved.totals
        self.state, self.record, self._saved_best = saved.server, saved.record, saved.best
        self._usual_sizes.largest = saved.sizes
        own = saved.clients
        self.client_states = own if isinstance(own, StoredStates) else dict(own)

    def _compare_execution(self, saved: ExecutionRecord | None) -> None:
        """Say where the run goes on in another way than it began, since its bits then differ."""
        if saved is None or saved == self.execution or not self.world.head:
            return
        names = ("mode", "kernels", "loops", "channels_last")
        pairs = [(name, getattr(self.execution, name), getattr(saved, name)) for name in names]
        changes = [f"{name} = {now} where it had {old}" for name, now, old in pairs if now != old]
        warnings.warn(
            f"This run goes on with {', '.join(changes)}; it will not end with the same bits as a "
            "run that was not stopped, only with the same up to rounding.",
            stacklevel=2,
        )
