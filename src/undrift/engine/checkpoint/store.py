"""Checkpoints as safetensors and a manifest with SHA-256, written atomically, checked when read.

A run needs nothing but its state to go on, since all randomness is keyed by the round. A checkpoint
is a folder `round-00000012` that appears by one rename and disappears by one; a kill at any moment
leaves the previous ones. The last two are kept, and a damaged one is passed over for the one before
it. Folders of other names are nobody's business here. States of clients are in the folder `states`,
a store of which a checkpoint names a version, so that a save writes only those that have changed.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from undrift import tree
from undrift.core import Vector
from undrift.data.clients import Clients
from undrift.engine.checkpoint.client_states import StoredStates
from undrift.engine.checkpoint.manifest import checked_manifest
from undrift.engine.plan import Planner
from undrift.engine.settings import BestModel, ExecutionRecord
from undrift.errors import CheckpointError
from undrift.files import atomic_folder, remove_folder, seal, unseal
from undrift.gradients.task import Task
from undrift.models.layout import raw_bytes
from undrift.results.record import Record, Totals, from_fields
from undrift.results.strictjson import dumps_exactly, loads
from undrift.states.manifest import Segment
from undrift.states.store import SegmentStore

FORMAT = 3
KEPT = 2
STATES = "states"  # the folder of the clients' states
_NAME = re.compile(r"round-(\d{8})")


@dataclass(frozen=True)
class Snapshot:
    """Holds all that a run needs to go on."""

    round: int  # rounds completed
    x0: Vector
    server: Any
    clients: Mapping[int, Any]
    totals: Totals
    record: Record | None  # of that round: a kill may come before the caller has seen it
    settings: dict[str, str]  # what must be the same when the run goes on
    execution: ExecutionRecord | None = None
    best: BestModel | None = None  # so far, where a run stops early
    sizes: dict[str, list[float]] = field(default_factory=dict)  # of uploads, `UsualSizes`


def settings_of(
    algorithm: object, task: Task, planner: Planner, clients: Clients
) -> dict[str, str]:
    """Return what decides a run's numbers, as text; rounds may grow and the mode may change."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (clients.inputs, clients.targets):
        digest.update(raw_bytes(tensor))
    digest.update(clients.index.tobytes() + clients.held.tobytes())
    fixed = hashlib.blake2b(repr(task.model).encode(), digest_size=16)
    for name, tensor in (*task.model.named_parameters(), *task.model.named_buffers()):
        if name not in task.layout.names:  # what is trained comes from the checkpoint
            fixed.update(raw_bytes(tensor))
    settings = {
        "algorithm": repr(algorithm),
        "model": f"{task.layout.names} {task.layout.shapes} {task.layout.dtype}",
        "model's structure, frozen parameters and buffers": fixed.hexdigest(),
        "loss": getattr(task.loss, "__qualname__", type(task.loss).__qualname__),
        "data": digest.hexdigest(),
        "weights": hashlib.blake2b(planner.population.tobytes(), digest_size=16).hexdigest(),
        "preparation": repr(clients.prepare),
        "participation": repr(planner.participation),
        "availability": repr(clients.availability),
        "work": repr(planner.work),
        "fleet": "None" if planner.fleet is None else planner.fleet.digest(),
        "batch_size": repr(planner.batch_size),
        "weight_decay": repr(task.weight_decay),
        "clip": repr(task.clip),
        "seed": repr(planner.seed),
    }
    if clients.rank_census is not None:
        holders = clients.rank_census.ranks.tobytes()
        settings["clients of each rank"] = hashlib.blake2b(holders, digest_size=16).hexdigest()
    return without_addresses(settings)


def without_addresses(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings without memory addresses, which differ from process to process."""
    return {name: re.sub(r" at 0x[0-9a-f]+", "", value) for name, value in settings.items()}


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Save a snapshot atomically; on failure the earlier checkpoints are as they were."""
    final, states = _path(folder, snapshot.round), snapshot.clients
    if not isinstance(states, StoredStates):
        states = StoredStates.of(folder / STATES, states)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        version = states.commit()
        payload = save(_flatten(snapshot))
        # No other process writes to this folder, so every part in it was left by a kill.
        with atomic_folder(final, stale=0) as part:
            (part / "state.safetensors").write_bytes(payload)
            (part / "manifest.json").write_bytes(_manifest(snapshot, payload, version))
        # Later rounds are damaged or of a run that was stopped; this one will write them again.
        earlier = [round for round in saved_rounds(folder) if round < snapshot.round]
        for round in earlier[KEPT - 1 :]:
            remove_folder(_path(folder, round))
        states.forget(keep=_versions(folder))
    except OSError as error:
        raise unwritable(folder, error) from error
    return final


def states_in(
    folder: Path, version: int | None, template: Callable[[], Any], device: torch.device
) -> StoredStates:
    """Return the states of clients in a folder of checkpoints, at a version of their store."""
    return StoredStates(SegmentStore(folder / STATES, version), template, device)


def _versions(folder: Path) -> set[int]:
    """Return the versions of the clients' states that the checkpoints of a folder need."""
    versions = set()
    for round in saved_rounds(folder):
        with suppress(OSError, ValueError, LookupError, TypeError, ArithmeticError):
            versions.add(int(_read_manifest(_path(folder, round))["states"]))
    return versions


def unwritable(folder: Path, error: OSError) -> CheckpointError:
    """Return the error for a folder that cannot be written."""
    return CheckpointError(
        f"A checkpoint needs a writable folder with room, got {error.strerror or error} at "
        f"{folder}; earlier checkpoints are intact."
    )


def saved_rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, the newest first."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("round-*"))
    return sorted((int(match[1]) for match in names if match is not None), reverse=True)


def sound_rounds(folder: Path) -> list[int]:
    """Return the rounds whose checkpoint is as it was written, the newest first."""
    rounds, segments = [], set[Segment]()
    for round in saved_rounds(folder):
        path = _path(folder, round)
        try:
            manifest, _ = _verified(path)
            if manifest["states"] is not None:
                SegmentStore.verify(folder / STATES, manifest["states"], segments)
        except (OSError, ValueError, KeyError, SafetensorError, CheckpointError) as error:
            warnings.warn(
                f"Checkpoint {path.name} is damaged ({error}); trying the one before.", stacklevel=2
            )
        else:
            rounds.append(round)
    return rounds


def recorded_execution(folder: Path) -> ExecutionRecord | None:
    """Return how the run was executed that saved here; None where no sound manifest tells."""
    for round in saved_rounds(folder):
        with suppress(OSError, ValueError):
            path = _path(folder, round)
            fields = checked_manifest(_read_manifest(path), path.name, FORMAT)["execution"]
            if fields:
                return ExecutionRecord.from_dict(fields)
    return None


def read(
    folder: Path,
    round: int,
    *,
    settings: dict[str, str],
    force: bool = False,
    templates: Callable[[Vector], tuple[Any, Any]],
    record_type: type[Record],
    device: torch.device,
) -> Snapshot:
    """Return the checkpoint of a round; `templates(x0)` gives empty server and client states."""
    manifest, tensors = _verified(_path(folder, round))
    _compare_settings(manifest["settings"], settings, force=force)
    return _restore(folder, manifest, tensors, templates, record_type, device)


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:08d}"


def _flatten(snapshot: Snapshot) -> dict[str, Tensor]:
    named = {"x0": snapshot.x0}
    named |= {f"server/{k}": v for k, v in tree.named_leaves(snapshot.server).items()}
    if snapshot.best is not None:
        named["best"] = snapshot.best.x
    # Clones, because safetensors refuses tensors that share memory, as equal states may.
    return {name: leaf.detach().cpu().clone().contiguous() for name, leaf in named.items()}


def _manifest(snapshot: Snapshot, payload: bytes, states: int | None) -> bytes:
    body = {
        "format": FORMAT,
        "round": snapshot.round,
        "totals": asdict(snapshot.totals),
        "record": snapshot.record and snapshot.record.to_dict(),
        "settings": snapshot.settings,
        "execution": snapshot.execution and snapshot.execution.to_dict(),
        "best": snapshot.best and snapshot.best.facts(),
        "sizes": snapshot.sizes,
        "states": states,
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return seal(dumps_exactly(body, indent=1, sort_keys=True).encode())


def _read_manifest(path: Path) -> Any:
    return loads(unseal((path / "manifest.json").read_bytes(), "its manifest"))


def _verified(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    manifest = checked_manifest(_read_manifest(path), path.name, FORMAT)
    payload = (path / "state.safetensors").read_bytes()
    if hashlib.sha256(payload).hexdigest() != manifest["sha256"]:
        raise ValueError("its state does not match its hash")
    tensors = load(payload)
    if "x0" not in tensors:
        raise ValueError("its state has no first model")
    return manifest, tensors


def _compare_settings(saved: dict[str, str], current: dict[str, str], *, force: bool) -> None:
    """Raise `CheckpointError` where settings differ; with `force`, warn of each difference."""
    for name in sorted(saved.keys() | current.keys()):
        if saved.get(name) == current.get(name):
            continue
        difference = f"got {name} = {current.get(name)} where the checkpoint has {saved.get(name)}"
        if not force:
            raise CheckpointError(
                f"resume needs the run it was saved from, {difference}; use the same, start anew, "
                "or accept it with --force (force_resume=True of ExecutionOptions)."
            )
        warnings.warn(f"Going on with another run's checkpoint: {difference}.", stacklevel=2)


def _leaf(named: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return a tensor of a checkpoint, which must have the form that the method gives it."""
    leaf = named.get(name)
    # Peers give one node's state as (1, ...), and a checkpoint has a row for each node.
    rows = leaf is not None and like.ndim > 0 and like.shape[0] == 1 and leaf.ndim == like.ndim
    skipped = 1 if rows else 0
    if leaf is None or leaf.shape[skipped:] != like.shape[skipped:] or leaf.dtype != like.dtype:
        expected = f"{name} as {tuple(like.shape)} {like.dtype}"
        got = "none" if leaf is None else f"{tuple(leaf.shape)} {leaf.dtype}"
        raise CheckpointError(
            f"A checkpoint needs {expected}, got {got}; it is of another method or was changed."
        )
    return leaf


def _restore(
    folder: Path,
    manifest: dict[str, Any],
    tensors: dict[str, Tensor],
    templates: Callable[[Vector], tuple[Any, Any]],
    record_type: type[Record],
    device: torch.device,
) -> Snapshot:
    named = {name: leaf.to(device) for name, leaf in tensors.items()}
    x0, best = named.pop("x0"), manifest["best"]
    if best is not None:
        best = BestModel(x=_leaf(named, "best", x0), **best)
        del named["best"]
    server, client = templates(x0)
    expected = {f"server/{path}": like for path, like in tree.named_leaves(server).items()}
    if named.keys() != expected.keys():
        raise CheckpointError(
            f"resume needs a state with {', '.join(expected)}, got {', '.join(sorted(named))}; it "
            "is of another method."
        )
    leaves = [_leaf(named, path, like) for path, like in expected.items()]
    return Snapshot(
        manifest["round"],
        x0,
        tree.with_leaves(server, leaves),
        states_in(folder, manifest["states"], lambda: client, device),
        from_fields(Totals, manifest["totals"]),
        from_fields(record_type, manifest["record"]) if manifest["record"] else None,
        manifest["settings"],
        ExecutionRecord.from_dict(manifest["execution"] or {}),
        best,
        manifest["sizes"],
    )
