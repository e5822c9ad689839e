"""Any method as an optimiser in the user's own loop, over ranks that meet every few steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from undrift.check import require
from undrift.comm.routes import Route
from undrift.core import Federated, Peer, Vector
from undrift.engine.participation import AnyParticipation
from undrift.engine.processes.rendezvous import TIMEOUT
from undrift.outer import agreement, checkpoints
from undrift.outer.gradients import Closure, StepGradients, require_closure
from undrift.outer.peers import PeerRole
from undrift.outer.rates import lr_of, require_one_schedule
from undrift.outer.rounds import Method, Role, Rounds
from undrift.outer.servers import ServerRole, mean_over_ranks
from undrift.outer.steps import Seconds
from undrift.outer.validation import Wishes, prepare
from undrift.topology import Links


class Outer(torch.optim.Optimizer):
    """Runs a method on this rank's own batches and meets the other ranks every few steps.

        outer = Outer(model, FedSpeed(lr=0.1), every=50)
        for inputs, targets in loader:  # this rank's own

            def closure():
                loss = cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            outer.step(closure)

    A closure computes a loss and its gradients on one batch, may be called several times for it and
    needs no `zero_grad`. Methods that ask for one gradient a step where the model is
    (`needs_closure` is "") also take `loss.backward(); outer.step()`. After a meeting the model is
    the method's, the same on all ranks of a method with a server; between meetings it is this
    rank's local iterate. The method owns the parameters: nobody else may change them.

    Args:
        model: a module with plain parameters and no running statistics. Rank 0's values are taken.
        method: any method that asks for gradients of minibatches only.
        every: local steps between two meetings, one number for each rank, or `Seconds(60)`.
        inner: a torch optimiser of the model's parameters that takes the local steps, for methods
            with a field `rule`. Its state stays on this rank; schedulers change its lr at every
            step, since `param_groups` are its own.
        participation: how many ranks take part in a round, as in `simulate`: a count, a fraction or
            a law. The others leave out that round's steps.
        patience: seconds after which a rank that has not come to a meeting is left out of it. By
            default all wait for all.
        weight: of this rank in the mean, relative to the others; for methods with a server.
        topology: links between the ranks, for gossip methods.
        allreduce: route of an all-reduce method: "ring", "torus", "tree" or "server".
        seed: of what the method draws.
        timeout: seconds after which a rank that does not answer is named, for a group that Outer
            itself connects; a group of the script's own has its own timeout.
    """

    # So GradScaler tells `step` of itself instead of skipping steps on single ranks.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        every: int | Sequence[int] | Seconds,
        *,
        inner: torch.optim.Optimizer | None = None,
        participation: AnyParticipation | None = None,
        patience: float | None = None,
        weight: float = 1.0,
        topology: Links | None = None,
        allreduce: str | Route | None = None,
        seed: int = 0,
        timeout: float = TIMEOUT,
    ) -> None:
        self._world = agreement.world_of(timeout)
        self._method, self._seed, self._every = method, seed, every
        given = (model, method, every, inner, participation, patience, topology, allreduce)
        wishes, size = Wishes(*given, seed, timeout), self._world.size
        setup = agreement.require_on_all_ranks(self._world, lambda: prepare(wishes, size))
        self._parameters, self._inner = setup.parameters, setup.inner
        self._counts, self._links, self._habits = setup.counts, setup.links, setup.habits
        agreement.require_same_everywhere(
            self._world,
            method,
            every=list(self._counts) if not isinstance(every, Seconds) else every,
            topology=topology,
            allreduce=allreduce,
            inner=self._inner and self._inner.description,
            participation="a function" if callable(participation) else participation,
            patience=patience,
            seed=seed,
            **agreement.described(model),
        )
        self._shares = agreement.shares_of(self._world, weight, isinstance(method, Peer))
        with self._world.failure_scope():
            self._world.share_model(model)
        self._parameters.unite()
        self._rounds = Rounds(
            method,
            every,
            self._counts,
            parameters=self._parameters,
            world=self._world,
            shares=self._shares,
            make_role=self._make_role,
            inner=self._inner,
            participation=setup.participation,
            patience=patience,
            seed=seed,
        )
        self._ready = False
        self._shown_lr = float(lr_of(method) or 0.0)
        super().__init__(self._parameters.tensors, {"lr": self._shown_lr})
        self._ready = True
        self._share_groups()

    def _make_role(self, first: Method) -> Role:
        x0, world = self._parameters.point, self._world
        if isinstance(first, Federated):
            return ServerRole(first, x0, world)
        return PeerRole(first, x0, world, *self._links, self._seed)

    def _share_groups(self) -> None:
        """Take the inner optimiser's groups as one's own, so that schedulers of either reach it."""
        if self._inner is not None:
            self.param_groups = self._inner.optimizer.param_groups

    # What the script reads

    @property
    def needs_closure(self) -> str:
        """Return why the method needs a closure, or "" if it needs none."""
        if self._habits.at_start:
            return "asks for a gradient before its first round"
        return self._habits.needs_closure

    @property
    def t(self) -> int:
        """Return the number of rounds so far."""
        return self._rounds.t

    @property
    def steps(self) -> int:
        """Return the calls of `step` that have succeeded, for a loader that is keyed by them."""
        return self._rounds.steps

    @property
    def metrics(self) -> dict[str, float]:
        """Return what the last meeting has found."""
        return self._rounds.metrics

    @property
    def server(self) -> Any:
        """Return the server's state after the last meeting, or this rank's node's."""
        return self._rounds.role.state

    @property
    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent at meetings since Outer was made."""
        return self._rounds.bytes_sent

    @property
    def active(self) -> bool:
        """Return whether this rank takes part in the current round."""
        return self._rounds.active

    def average(self) -> Vector:
        """Return the mean of all ranks' models after the last meeting; all ranks must ask."""
        role = self._rounds.role
        if isinstance(role, ServerRole):
            return role.x.clone()
        with self._world.failure_scope():
            return mean_over_ranks(self._world, role.x)

    # Steps

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one local step, and meet the other ranks if it was the round's last.

        Return the loss at the first gradient of the step; None without a closure, and on a rank
        that takes no part in this round.
        """
        with self._world.absence_scope():
            return self._step(closure)

    def _step(self, closure: Closure | None) -> Any:
        self._refuse_grad_scaler()
        require_closure(closure, self._method, self.needs_closure)
        self._parameters.require_untouched()
        source = StepGradients(self._parameters, closure)
        if not self._rounds.role.started:
            self._rounds.start_node(source)
            if self._habits.at_start:  # which took the batch
                return source.loss
        if self._rounds.between:
            self._begin_round()
        try:
            if self.active:
                self._rounds.take_step(source)
            else:
                self._rounds.leave_out_step()
        finally:
            self._share_groups()
        return source.loss

    def _begin_round(self) -> None:
        """Begin a round with the learning rate in the groups, and show the method's own there."""
        lr = float(self.param_groups[0]["lr"])
        if self._inner is None:
            require_one_schedule(self._method, lr, self._shown_lr)
        own = self._rounds.begin(lr)
        if self._inner is None:
            self._shown_lr = self.param_groups[0]["lr"] = own

    def _refuse_grad_scaler(self) -> None:
        if hasattr(self, "grad_scale") or hasattr(self, "found_inf"):
            vars(self).pop("grad_scale", None)
            vars(self).pop("found_inf", None)
            raise ValueError(
                "Outer needs gradients without a GradScaler, which skips steps on single ranks, "
                "got one; use autocast with bfloat16, which needs none, and call outer.step()."
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse further parameters, since Outer moves all trainable ones of its model."""
        require(not self._ready, "Outer", "all parameters of its model at once", "another group")
        super().add_param_group(param_group)

    # Checkpoints

    def save(self, folder: str | Path, **extra: Any) -> None:
        """Save this rank's state after a meeting, and what else the script wants to find again.

        The generator of torch's random numbers is saved, too. Files of the last two meetings stay.
        """
        if not self._rounds.between:
            raise ValueError(
                "Outer.save needs a meeting, so that all ranks save the same round, got the middle "
                "of one; call it when outer.t has grown, or save state_dict() yourself."
            )
        state = {"outer": self.state_dict(), "generator": torch.get_rng_state(), "extra": extra}
        checkpoints.save(Path(folder), self._world, self.t, state)

    def resume(self, folder: str | Path) -> dict[str, Any] | None:
        """Load the newest meeting that all ranks have saved; return its `extra`.

        Return None if nothing was saved. All ranks must call it.
        """
        saved = checkpoints.newest(Path(folder), self._world)
        if saved is None:
            return None
        with checkpoints.content_of(Path(folder)):
            self.load_state_dict(saved["outer"])
            torch.set_rng_state(saved["generator"])
            return dict(saved["extra"])

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, also in the middle of a round; each rank saves its own."""
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups
        ]
        return {"state": {}, "param_groups": groups, **self._identity(), **self._rounds.saved()}

    def _identity(self) -> dict[str, Any]:
        """Return what a state must share with the Outer that loads it."""
        return {
            "method": repr(self._method),
            "rank": self._world.rank,
            "world_size": self._world.size,
            "every": str(self._every) if isinstance(self._every, Seconds) else list(self._counts),
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the `state_dict` of the same rank, and put the model where it was."""
        with self._world.absence_scope():
            self._load(state_dict)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        who = "Outer.load_state_dict"
        known = isinstance(state_dict, Mapping) and "role" in state_dict
        require(known, who, "what Outer.state_dict() returned", type(state_dict).__name__)
        for name, value in self._identity().items():
            require(state_dict[name] == value, who, f"a state of {name} {value}", state_dict[name])
        fits = (self._inner is None) == (state_dict["inner"] is None)
        require(fits, who, "a state with an inner optimiser, or without one, as here", "the other")
        self._rounds.restore(state_dict)
        if self._inner is None:
            for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
                group.update(saved)
            self._shown_lr = float(self.param_groups[0]["lr"])
        self._share_groups()
