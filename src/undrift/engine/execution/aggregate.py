"""The uploads of a cohort on their way to the server: the one place that sees each of them.

Uploads arrive group by group in the order of the plan. Where a bad one stops the run, they are
added at once, so memory holds one sum and one group. Where bad ones are dropped, or a rule other
than the mean combines them, all are held until the last has come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from undrift import keyed, tree
from undrift.aggregation.policy import UploadPolicy
from undrift.aggregation.uploads import CohortUploads, Findings, combined
from undrift.aggregation.validation import Fault, Norms
from undrift.engine.execution.wires import PackedUploads
from undrift.engine.plan import Plan
from undrift.engine.world import World
from undrift.errors import DivergenceError

Positions = NDArray[np.int64]


class ExchangeResult(NamedTuple):
    """Holds what the server gets of an exchange."""

    mean: Any  # None if too few uploads were sound
    plan: Plan  # of the clients whose uploads are in it
    dropped: dict[int, str]  # the others, with the reason


class UploadSum:
    """Validates the uploads of a plan and makes their mean.

    `form` makes zeros in the form of an upload. Several processes add up their sums; where uploads
    are `packed` these travel instead.
    """

    def __init__(
        self,
        plan: Plan,
        world: World,
        policy: UploadPolicy,
        form: Callable[[], Any],
        seed: int = 0,
        packed: PackedUploads | None = None,
    ) -> None:
        self._plan, self._world, self._policy, self._seed = plan, world, policy, seed
        self._packed = packed
        self._form = form
        # Ranks could not add up sums of different forms, which none of them sees on its own.
        self._uploads = CohortUploads(
            plan.ids, plan.weights, hold=policy.holds, form=form, required=world.size > 1
        )
        self._before_attack: list[tuple[Positions, Any]] = []

    def add(self, positions: Positions, uploads: Any) -> bool:
        """Take the uploads of a group; return False if there is no use in running the others.

        `uploads` is a tree whose leaves have a leading axis over the clients.
        """
        if self._policy.attack is not None:
            self._before_attack.append((positions, uploads))
            return True
        sound = self._uploads.add(self._plan.ids[positions], uploads)
        return sound or self._policy.on_bad == "drop"

    def conclude(
        self,
        groups_of: Callable[[Plan], list[Positions]],
        *,
        oversized: Callable[[Norms], list[int]],
        needed: int,
        population: int,
    ) -> ExchangeResult:
        """Return the mean over all processes, or raise on all of them if a bad upload stops a run.

        `groups_of` returns the groups in which this process runs a plan. `oversized` returns the
        uploads whose norms are too large, `needed` is how many uploads there must be, and
        `population` the number of all clients.
        """
        if self._before_attack:
            self._attack(population)
        faults = self._faults(oversized)
        plan, policy = self._plan, self._policy
        bad = np.flatnonzero(faults)
        if len(bad) and policy.on_bad == "stop":
            raise _stopped(plan, bad, faults)
        dropped = {int(plan.ids[i]): Fault(faults[i]).reason for i in bad}
        kept = np.flatnonzero(faults == 0)
        if len(kept) < needed:
            return ExchangeResult(None, plan.part(kept[:0]), dropped)
        part = plan.part(kept)
        groups = [kept[group] for group in groups_of(part)] if dropped else None
        return ExchangeResult(self._combined(kept, part, groups), part, dropped)

    def _faults(self, oversized: Callable[[Norms], list[int]]) -> NDArray[np.int64]:
        """Return what is wrong with each upload, as all processes together know."""
        faults, norms = _of_all(self._uploads, self._world, self._form)
        if self._policy.on_bad == "stop" and ((faults != 0) & (faults != Fault.MISSING)).any():
            faults[faults == Fault.MISSING] = 0  # Nobody has waited for the others.
        else:
            faults[oversized(norms)] = Fault.NORM
        return faults

    def _combined(
        self,
        kept: Positions,
        part: Plan,
        groups: list[Positions] | None,
    ) -> Any:
        """Return the mean of the uploads at the positions `kept`, which are a plan of their own."""
        world, uploads, rule = self._world, self._uploads, self._policy.aggregation
        if self._packed is not None:
            travelled = self._packed.exchange(self._plan, kept)
            if rule is not None:
                return combined(rule, tree.stack(list(travelled)))
            return tree.weighted_sum(travelled, part.weights)
        if rule is not None:
            own = uploads.form()
            table = uploads.stacked(kept, self._form() if own is None else own)
            return combined(rule, world.sum(table))  # Others have zeros in this process's rows.
        total = uploads.total
        if self._policy.holds:
            weights = np.zeros(len(self._plan.ids))
            weights[kept] = part.weights
            total = uploads.weighted_sum(weights, groups)
        if world.size == 1:
            return total
        return world.sum(self._form() if total is None else total)

    def _attack(self, population: int) -> None:
        """Replace the uploads of attackers by what they upload, and take all of them."""
        attack, plan = self._policy.attack, self._plan
        assert attack is not None
        groups, self._before_attack = self._before_attack, []
        evil = set(attack.attackers(population, self._seed).tolist())
        flat = [
            torch.cat([leaf.reshape(len(leaf), -1) for leaf in tree.leaves(uploads)], dim=1)
            for _, uploads in groups
        ]
        rows = torch.cat(flat)
        attacks = [int(i) in evil for positions, _ in groups for i in plan.ids[positions]]
        mask = torch.tensor(attacks, device=rows.device)
        if mask.any():
            rng = keyed.generator(self._seed, "attack", plan.t)
            rows[mask] = attack.forged(rows[mask], rows[~mask], rng)
        parts = torch.split(rows, [len(positions) for positions, _ in groups])
        for (positions, uploads), part in zip(groups, parts, strict=True):
            leaves = tree.leaves(uploads)
            pieces = torch.split(part, [leaf[0].numel() for leaf in leaves], dim=1)
            forged = [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
            self._uploads.add(plan.ids[positions], tree.with_leaves(uploads, forged))


def _of_all(uploads: CohortUploads, world: World, form: Callable[[], Any]) -> Findings:
    """Return the findings of all processes; each has those of its own clients."""
    if world.size == 1:
        return uploads.findings()
    own = uploads.findings()
    if not own.norms.size:
        floating = [leaf for leaf in tree.leaves(form()) if leaf.is_floating_point()]
        own = uploads.findings(len(floating))
    bits = np.where(np.isnan(own.norms), -1.0, own.norms).view(np.int64)
    # What this process has not seen is another's, so that it must not count here.
    faults = np.where(own.faults == Fault.MISSING, 0, own.faults)
    seen = (own.faults != Fault.MISSING).astype(np.int64)
    rows = world.gather([*seen.tolist(), *faults.tolist(), *bits.ravel().tolist()])
    count = len(faults)
    norms = rows[:, 2 * count :].view(np.float64).reshape(len(rows), *own.norms.shape).max(0)
    missing = rows[:, :count].sum(0) == 0
    found = np.where(missing, int(Fault.MISSING), rows[:, count : 2 * count].max(0))
    return Findings(found, np.where(norms < 0, np.nan, norms))


def _stopped(plan: Plan, bad: Positions, faults: NDArray[np.int64]) -> DivergenceError:
    """Return the error that names the clients whose uploads are bad."""
    clients = [int(i) for i in plan.ids[bad]]
    kinds = {Fault(faults[i]) for i in bad}
    if kinds == {Fault.NOT_FINITE}:
        return DivergenceError.of(clients, plan.t + 1, "updates", everywhere=True)
    who = f"client {clients[0]}" if len(clients) == 1 else f"clients {clients}"
    what = " or ".join(sorted(kind.reason for kind in kinds))
    return DivergenceError(
        f"Training needs updates of like size and form, got {what} from {who} in round "
        f"{plan.t + 1}; look at its data, lower lr, or drop bad updates with on_bad='drop' "
        "(--on-bad drop). The last good state is kept.",
        round=plan.t + 1,
        clients=clients,
        everywhere=True,
    )


def norm_of(x: torch.Tensor) -> float:
    """Return the norm of a model, infinite where squares overflow."""
    value = float(torch.linalg.vector_norm(x))
    return value if math.isfinite(value) else math.inf
