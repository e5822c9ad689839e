"""The uploads of one cohort: each is validated when it comes, and added up or held.

Their round, sender and weight need no check here: in a simulation the plan says them, and a
federation reads them from messages, which it checks before (`federation/replies.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import tree
from undrift.aggregation.robust import Aggregation
from undrift.aggregation.validation import Fault, Norms, norms_of_rows, signature

Positions = NDArray[np.int64]


class Findings(NamedTuple):
    """Holds what the checks of single uploads found, by position in the cohort."""

    faults: NDArray[np.int64]
    norms: Norms  # (leaves, clients), NaN where none came


class _Group(NamedTuple):
    positions: Positions
    rows: Any  # a tree whose leaves have a leading axis over the positions
    signature: tuple[Any, ...]


class CohortUploads:
    """Takes the uploads of a cohort; memory holds their sum, or all of them with `hold`.

    `weights` are those of the mean. Uploads of different forms cannot be summed: right is the one
    that `form` makes, a tree in the form of one upload, and else the one that most have. `form` is
    called only where forms differ, or always with `required`.
    """

    def __init__(
        self,
        ids: Sequence[int] | NDArray[np.int64],
        weights: NDArray[np.float64],
        *,
        hold: bool,
        form: Callable[[], Any] | None = None,
        required: bool = False,
    ) -> None:
        self._position = {int(i): position for position, i in enumerate(ids)}
        self._weights, self._hold = weights, hold
        self._known_form, self._required = form, required
        self._faults = np.full(len(weights), int(Fault.MISSING), dtype=np.int64)
        self._signatures: dict[tuple[Any, ...], int] = {}  # -> their numbers
        self._form_of = np.full(len(weights), -1, dtype=np.int64)  # which of them, by position
        self._norms: list[Norms] = []  # of all positions, for each of them
        self._expected: tuple[Any, ...] | None = None
        self._groups: list[_Group] = []
        self._total: Any = None

    @property
    def total(self) -> Any:
        """Return the weighted sum of all uploads, None if none has come; not with `hold`."""
        return self._total

    def add(self, ids: Sequence[int] | NDArray[np.int64], uploads: Any) -> bool:
        """Take the uploads of clients of the cohort; return whether each is sound by itself.

        Leaves of `uploads` have a leading axis over the clients.
        """
        positions = np.array([self._position[int(i)] for i in ids], dtype=np.int64)
        form, norms = signature(uploads), norms_of_rows(uploads)
        faults = np.zeros(len(positions), dtype=np.int64)
        if norms.size:
            faults[np.isnan(norms).any(0)] = Fault.NOT_FINITE
        self._faults[positions] = faults
        number = self._signatures.setdefault(form, len(self._signatures))
        if number == len(self._norms):
            self._norms.append(np.full((len(norms), len(self._faults)), np.nan))
        # What is kept of an upload goes into arrays that are there: small pieces of memory between
        # the large ones of the uploads would keep these from being used again.
        self._norms[number][:, positions] = norms
        self._form_of[positions] = number
        sound = not faults.any() and len(self._signatures) == 1
        if self._hold:
            self._groups.append(_Group(positions, uploads, form))
        elif sound:
            self._add_up(uploads, self._weights[positions])
        return sound

    def findings(self, leaves: int = 0) -> Findings:
        """Return what was found; `leaves` is how many norms an upload has if none has come."""
        self._judge_forms()
        number = None if self._expected is None else self._signatures.get(self._expected)
        if number is None:
            return Findings(self._faults.copy(), np.full((leaves, len(self._faults)), np.nan))
        return Findings(self._faults.copy(), self._norms[number].copy())

    def _judge_forms(self) -> None:
        """Find uploads of another form than the known one, or than most have."""
        forms = self._signatures
        if not forms:
            return
        self._expected = max(forms, key=lambda form: int((self._form_of == forms[form]).sum()))
        if self._known_form is not None and (self._required or len(forms) > 1):
            known = signature(self._known_form(), stacked=False)
            if self._required or known in forms:
                self._expected = known
        right = forms.get(self._expected, len(forms))
        self._faults[(self._form_of >= 0) & (self._form_of != right)] = Fault.FORM

    def _add_up(self, rows: Any, weights: NDArray[np.float64]) -> None:
        part = tree.map(lambda leaf: torch.tensordot(_as(weights, leaf), leaf, 1), rows)
        self._total = part if self._total is None else tree.map(Tensor.add_, self._total, part)

    def weighted_sum(
        self, weights: NDArray[np.float64], groups: Sequence[Positions] | None = None
    ) -> Any:
        """Return the sum with these weights, by position, of the uploads that are held.

        It is over all of them as they came, or over `groups` of positions, so that the bits are
        those of a sum in which the others have never been. It is None without an upload.
        """
        self._total = None
        if groups is None:
            for group in self._groups:
                self._add_up(group.rows, weights[group.positions])
            return self._total
        place = {
            int(position): (group, row)
            for group in self._groups
            for row, position in enumerate(group.positions)
        }
        for positions in groups:
            held = [place[int(position)] for position in positions]
            rows = [tree.map(lambda leaf, row=row: leaf[row], group.rows) for group, row in held]
            self._add_up(tree.stack(rows), weights[positions])
        return self._total

    def stacked(self, kept: Positions, form: Any) -> Any:
        """Return a tree with a row for each position of `kept`, zeros where this has no upload."""
        place = {int(position): row for row, position in enumerate(kept)}
        table = tree.map(lambda leaf: leaf.new_zeros((len(kept), *leaf.shape)), form)
        for group in self._groups:
            rows = [row for row, position in enumerate(group.positions) if int(position) in place]
            if rows:
                to = [place[int(group.positions[row])] for row in rows]
                for target, leaf in zip(
                    tree.leaves(table), tree.leaves(_rows(group.rows, rows)), strict=True
                ):
                    target[torch.tensor(to, device=target.device)] = leaf
        return table

    def form(self) -> Any:
        """Return zeros in the form of an upload, None if none has come."""
        group = next((g for g in self._groups if g.signature == self._expected), None)
        return (
            None if group is None else tree.map(lambda leaf: torch.zeros_like(leaf[0]), group.rows)
        )


def combined(rule: Aggregation, table: Any) -> Any:
    """Return what a rule makes of a stacked tree; distances are those of whole uploads."""
    leaves = tree.leaves(table)
    flat = torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], dim=1)
    pieces = torch.split(rule(flat), [leaf[0].numel() for leaf in leaves])
    return tree.with_leaves(
        table, [piece.reshape(leaf.shape[1:]) for piece, leaf in zip(pieces, leaves, strict=True)]
    )


def _rows(uploads: Any, rows: list[int]) -> Any:
    def chosen(leaf: Tensor) -> Tensor:
        return leaf[torch.tensor(rows, device=leaf.device)]

    return tree.map(chosen, uploads)


def _as(weights: NDArray[np.float64], leaf: Tensor) -> Tensor:
    return torch.tensor(weights, dtype=leaf.dtype, device=leaf.device)
