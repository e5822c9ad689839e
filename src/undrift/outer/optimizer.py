"""Any method as an optimiser in the user's own loop, over ranks that meet every few steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from undrift.check import is_whole, require, require_positive
from undrift.comm.routes import Route
from undrift.core import Federated, Peer, Vector
from undrift.engine.processes.rendezvous import TIMEOUT
from undrift.engine.validate import connections
from undrift.optim.schedules import resolve
from undrift.outer import agreement
from undrift.outer.agreement import Report
from undrift.outer.gradients import Closure, StepGradients
from undrift.outer.local_round import Ask, LocalRound, ResumedLoop
from undrift.outer.parameters import Parameters
from undrift.outer.peers import PeerRole
from undrift.outer.rates import lr_of, with_lr
from undrift.outer.rehearsal import rehearse
from undrift.outer.servers import ServerRole, mean_over_ranks
from undrift.topology import Links

Method = Federated[Any, Any, Any, Any] | Peer[Any]


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
        every: local steps between two meetings, or one number for each rank.
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
        every: int | Sequence[int],
        *,
        weight: float = 1.0,
        topology: Links | None = None,
        allreduce: str | Route | None = None,
        seed: int = 0,
        timeout: float = TIMEOUT,
    ) -> None:
        self._world = agreement.world_of(timeout)
        self._method, self._seed = method, seed

        def check() -> None:
            self._check(model, every, topology, allreduce)
            require_positive("Outer", timeout=timeout)

        agreement.require_on_all_ranks(self._world, check)
        layout = self._parameters.layout
        agreement.require_same_everywhere(
            self._world,
            method=repr(method),
            every=list(self._counts),
            model=f"{layout.dtype} {list(layout.sizes)}",
            topology=topology,
            allreduce=allreduce,
            seed=seed,
        )
        self._shares = agreement.shares_of(self._world, weight, isinstance(method, Peer))
        with self._world.failure_scope():
            self._world.share_model(model)
        self._parameters.unite()
        self._role = self._make_role()
        self._round: LocalRound | None = None
        self.t = 0  # rounds so far
        self.steps = (
            0  # calls of `step` that have succeeded, for loaders that go on after a restart
        )
        self.metrics: dict[str, float] = {}
        self._begin_metrics()
        self._ready = False
        super().__init__(self._parameters.tensors, {"lr": float(lr_of(method) or 0.0)})
        self._ready = True
        self._sent_before = self._world.sent

    def _check(
        self,
        model: nn.Module,
        every: Any,
        topology: Links | None,
        allreduce: str | Route | None,
    ) -> None:
        """Raise for what does not fit on this rank, and take the model over."""
        method = self._method
        known = isinstance(method, Federated | Peer)
        require(known, "Outer", "a method object such as FedAvg(lr=0.1)", method)
        require(is_whole(self._seed), "Outer", "a whole number as seed", self._seed)
        self._counts = agreement.counts_of(every, self._world.size)
        agreement.check_counts(method, self._counts)
        self._links: tuple[Links | None, Route | None] = (None, None)
        if isinstance(method, Peer):
            self._links = connections(method, topology, allreduce, self._world.size, "rank")
        else:
            name = type(method).__name__
            require(topology is None, name, "no topology, it has a server", topology)
            require(allreduce is None, name, "no allreduce, it has a server", allreduce)
        self._parameters = Parameters(model)
        method.check(model)
        self._habits = rehearse(resolve(method, 0), self._parameters.point)

    def _make_role(self) -> ServerRole | PeerRole:
        x0, first = self._parameters.point, resolve(self._method, 0)
        if isinstance(first, Federated):
            return ServerRole(first, x0, self._world, self._shares)
        return PeerRole(first, x0, self._world, *self._links, self._seed)

    # What the script reads

    @property
    def needs_closure(self) -> str:
        """Return why the method needs a closure, or "" if it needs none."""
        if self._habits.at_start:
            return "asks for a gradient before its first round"
        return self._habits.needs_closure

    @property
    def server(self) -> Any:
        """Return the server's state after the last meeting, or this rank's node's."""
        return self._role.state

    @property
    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent at meetings since Outer was made."""
        return self._world.sent - self._sent_before

    def average(self) -> Vector:
        """Return the mean of all ranks' models after the last meeting; all ranks must ask."""
        if isinstance(self._role, ServerRole):
            return self._role.x.clone()
        with self._world.failure_scope():
            return mean_over_ranks(self._world, self._role.x)

    # Steps

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one local step, and meet the other ranks if it was the round's last.

        Return the loss at the first gradient of the step, None without a closure.
        """
        self._refuse_grad_scaler()
        if closure is None and self.needs_closure:
            raise ValueError(
                f"Outer.step needs a closure for {type(self._method).__name__}, which "
                f"{self.needs_closure}; pass one that computes the loss, calls backward and "
                "returns the loss."
            )
        self._parameters.require_untouched()
        source = StepGradients(self._parameters, closure)
        if not self._role.started:
            self._start_node(source)
            if self._habits.at_start:  # the batch was that of the start
                return source.loss
        if self._round is None:
            self._round = self._enter_round()
        try:
            self._round.take_step(Ask(source.gradient, self.t, self._round.k))
        except BaseException:
            self._parameters.move(self._role.x)
            raise
        self.steps += 1
        self._count_step(source)
        self._finish_step(self._round)
        return source.loss

    def _start_node(self, source: StepGradients) -> None:
        role = self._role
        if isinstance(role, PeerRole):
            try:
                role.start(Ask(source.gradient, -1, 0))
            finally:
                self._parameters.move(role.x)

    def _finish_step(self, round: LocalRound) -> None:
        """Start the next pass or the meeting, and put the model where the next step begins.

        A meeting that fails ends the round: the model and all states are those of the last one.
        """
        try:
            if round.pass_is_over:
                round.leave_pass()
            if round.ended:
                self._meet(round)
        except BaseException:
            self._leave_round()
            raise
        if not round.ended:
            self._parameters.move(round.next_point())

    def _meet(self, round: LocalRound) -> None:
        began = time.perf_counter()
        now, outcome = self._now(), round.outcome
        fine = self._role.is_finite(now, outcome)
        lr = float(lr_of(now) or 0.0)
        report = Report(self.t, lr, float(self._loss) / max(1, self._losses), fine)
        reports = agreement.exchange_reports(self._world, report)
        with self._world.failure_scope():
            self._role.conclude(now, outcome, self.t)
        self.t += 1
        losses = zip(self._shares, (each.loss for each in reports), strict=True)
        self.metrics = {
            "round": self.t,
            "loss": sum(share * loss for share, loss in losses),
            "lr": lr,
            "gradients": self._gradients,
            "bytes_sent": self.bytes_sent,
            "local_seconds": began - self._began,
            "meeting_seconds": time.perf_counter() - began,
        }
        self._leave_round()

    def _leave_round(self) -> None:
        self._round = None
        self._role.leave_round()
        self._parameters.move(self._role.x)
        self._begin_metrics()

    def _enter_round(self, saved: Mapping[str, Any] | None = None) -> LocalRound:
        layout, rank = self._parameters.layout, self._world.rank
        if saved is None:
            self._lr = float(self.param_groups[0]["lr"])
        now = self._now()
        self.param_groups[0]["lr"] = float(lr_of(now) or 0.0)
        shares = zip(self._shares, self._counts, strict=True)
        loop = ResumedLoop(
            t=self.t,
            rank=rank,
            seed=self._seed,
            count=self._counts[rank],
            mean_count=sum(share * count for share, count in shares),
            sizes=layout.sizes,
            like=self._parameters.point,
        )
        return LocalRound(self._role.program(now), loop, self._role.comm(self.t), saved)

    def _now(self) -> Any:
        """Return the method of this round: schedules are numbers, lr is that of the round's start.

        A torch scheduler changes `param_groups[0]["lr"]`; what it says when a round begins counts.
        """
        return resolve(with_lr(self._method, self._lr), self.t)

    def _begin_metrics(self) -> None:
        self._loss: Any = 0.0
        self._losses = self._gradients = 0
        self._began = time.perf_counter()

    def _count_step(self, source: StepGradients) -> None:
        self._gradients += source.asked
        if isinstance(source.loss, Tensor):
            self._loss = self._loss + source.loss.detach()  # without a wait for the device
            self._losses += 1

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

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, also in the middle of a round; each rank saves its own."""
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups
        ]
        return {
            "state": {},
            "param_groups": groups,
            "method": repr(self._method),
            "rank": self._world.rank,
            "world_size": self._world.size,
            "every": list(self._counts),
            "t": self.t,
            "steps": self.steps,
            "lr": self._lr if self._round is not None else None,
            "role": self._role.saved(),
            "round": None if self._round is None else self._round.saved(),
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the `state_dict` of the same rank, and put the model where it was."""
        who = "Outer.load_state_dict"
        known = isinstance(state_dict, Mapping) and "role" in state_dict
        require(known, who, "what Outer.state_dict() returned", type(state_dict).__name__)
        expected = {
            "method": repr(self._method),
            "rank": self._world.rank,
            "world_size": self._world.size,
            "every": list(self._counts),
        }
        for name, value in expected.items():
            require(state_dict[name] == value, who, f"a state of {name} {value}", state_dict[name])
        self._role.restore(state_dict["role"])
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)
        self.t, self.steps = state_dict["t"], state_dict["steps"]
        self._round = None
        self._begin_metrics()
        self._parameters.restore()
        if state_dict["round"] is None:
            self._parameters.move(self._role.x)
            return
        self._lr = state_dict["lr"]
        self._round = self._enter_round(state_dict["round"])
        self._parameters.move(self._round.next_point())
