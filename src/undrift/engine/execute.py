"""Running a cohort, one client at a time or stacked under `vmap`; uploads are summed as they come.

Both modes run the same `Loop` over the same minibatches and masks and give the same result up to
the order of float sums. `loop` suits big models; `stacked` replaces many small operations by few
large ones and suits models bound by overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from undrift import tree
from undrift.core import Loop
from undrift.engine.local import Group, LocalLoop, Meter
from undrift.engine.plan import Plan, Planner
from undrift.errors import DivergenceError
from undrift.objective import Task

Mode = Literal["loop", "stacked"]
Call = Callable[[Any, Any, Loop], tuple[Any, Any]]  # (down, client, steps) -> (wire, client)
Unpack = Callable[[Any], Any]  # wire -> upload


class Upload(NamedTuple):
    """What a tap sees: one client's upload of one round."""

    round: int  # from 1
    client: int
    weight: float  # in the mean
    upload: Any


Tap = Callable[[Upload], None]


@dataclass(frozen=True)
class Executor:
    task: Task
    planner: Planner
    pool: tuple[Tensor, Tensor]
    mode: Mode
    chunk: int
    row_cost: float = 0.0  # of a client in a stacked step, see `groups_of_like_work`

    def samples(self, clients: int) -> int:
        """How many samples one operation works on in a round of so many clients."""
        batch = self.planner.batch_size or int(self.planner.clients.sizes.max())
        return batch * (min(self.chunk, clients) if self.mode == "stacked" else 1)

    def exchange(
        self,
        call: Call,
        unpack: Unpack,
        down: Any,
        plan: Plan,
        state_of: Callable[[int], Any],
        meter: Meter,
        tap: Tap | None = None,
    ) -> tuple[Any, dict[int, Any]]:
        """Every client of the plan calls; returns the weighted mean and the new client states."""
        meter.bytes_down += tree.nbytes(down) * len(plan.ids)
        meter.exchanges += 1
        total: Any = None
        states: dict[int, Any] = {}
        stacked = self.mode == "stacked"
        run = self._stacked if stacked else self._alone
        groups = plan.groups_of_like_work(self.chunk, self.row_cost) if stacked else plan.groups(1)
        for positions in groups:
            group = Group(
                self.task, self.planner, plan, positions, self.pool, meter, stacked=stacked
            )
            held = [state_of(int(i)) for i in group.ids]
            uploads, new = run(call, unpack, down, held, group)
            self._refuse_non_finite(uploads, group)
            if tap is not None:
                for row, i in enumerate(group.ids):
                    upload = tree.row(uploads, row)
                    tap(Upload(plan.t + 1, int(i), float(group.weights[row]), upload))
            total = _add(total, group.weights, uploads)
            states.update(zip(map(int, group.ids), new, strict=True))
            del uploads  # before the next group makes its own
        return total, states

    def _alone(
        self, call: Call, unpack: Unpack, down: Any, held: list[Any], group: Group
    ) -> tuple[Any, list[Any]]:
        row = torch.zeros(1, dtype=torch.int64, device=group.device)
        wire, state = call(down, held[0], LocalLoop(group, row))
        group.meter.bytes_up += tree.nbytes(wire)
        return tree.map(lambda leaf: leaf[None], unpack(wire)), [state]

    def _stacked(
        self, call: Call, unpack: Unpack, down: Any, held: list[Any], group: Group
    ) -> tuple[Any, list[Any]]:
        def one(client: Any, row: Tensor) -> tuple[Any, Any]:
            return call(down, client, LocalLoop(group, row))

        rows = torch.arange(len(held), device=group.device)[:, None]
        wires, states = vmap(one)(tree.stack(held), rows)
        group.meter.bytes_up += tree.nbytes(wires)
        return vmap(unpack)(wires), [tree.row(states, i) for i in range(len(held))]

    def _refuse_non_finite(self, uploads: Any, group: Group) -> None:
        finite = torch.ones(len(group.ids), dtype=torch.bool, device=group.device)
        for leaf in tree.leaves(uploads):
            if leaf.is_floating_point():
                finite &= finite_rows(leaf)
        if not finite.all():
            bad = sorted(int(i) for i, fine in zip(group.ids, finite, strict=True) if not fine)
            raise DivergenceError.of(bad, group.plan.t + 1, "updates")


def _add(total: Any, weights: Tensor, uploads: Any) -> Any:
    """total + sum_i w_i upload_i, leaf by leaf."""
    mean = tree.map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, 1), uploads)
    return mean if total is None else tree.map(Tensor.add_, total, mean)


def finite_rows(leaf: Tensor) -> Tensor:
    """(clients,) whether every entry of a client's row is finite."""
    rows = leaf.reshape(len(leaf), -1)
    # One reduction as a rule: a sum is not finite where an entry is not, or where it overflows.
    finite = rows.sum(1).isfinite()
    return finite if finite.all() else rows.isfinite().all(1)
