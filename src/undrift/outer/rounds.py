"""The rounds of one rank: local steps one at a time, then a meeting with the others."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from undrift.core import Federated, Peer
from undrift.engine.participation import Participation
from undrift.engine.world import World
from undrift.optim.schedules import resolve
from undrift.outer import agreement
from undrift.outer.agreement import Report
from undrift.outer.attendance import Attendance, Quorum
from undrift.outer.blocked_round import BlockedRound
from undrift.outer.gradients import StepGradients
from undrift.outer.inner import InnerOptimizer, with_rule
from undrift.outer.local_round import Ask, ResumedLoop
from undrift.outer.meeting import Meeting, RoundPlan
from undrift.outer.parameters import Parameters
from undrift.outer.peers import PeerRole
from undrift.outer.rates import lr_of, with_lr
from undrift.outer.servers import ServerRole
from undrift.outer.steps import next_counts
from undrift.outer.tally import Tally

Method = Federated[Any, Any, Any, Any] | Peer[Any]
Role = ServerRole | PeerRole


class Rounds:
    """Takes a rank through the rounds of a method; `t` of them are over."""

    def __init__(
        self,
        method: Method,
        every: Any,
        counts: Sequence[int],
        *,
        parameters: Parameters,
        world: World,
        shares: Sequence[float],
        make_role: Callable[[Method], Role],
        inner: InnerOptimizer | None,
        participation: Participation | None,
        patience: float | None,
        seed: int,
    ) -> None:
        self._method, self._every, self.counts = method, every, tuple(counts)
        self._parameters, self._world, self._shares = parameters, world, shares
        self._inner, self._participation, self._seed = inner, participation, seed
        self._attendance = Attendance(world, patience)
        self.role = make_role(self._with_inner(resolve(method, 0)))
        self.t = 0
        self.steps = 0  # that have succeeded
        self.metrics: dict[str, float] = {}
        self._sent_before = world.sent
        self._forget_round()

    def _forget_round(self) -> None:
        self._round: BlockedRound | None = None
        self._plan: RoundPlan | None = None
        self._lr: float | None = None  # of the round, once it has begun
        self._idle = 0  # steps of the round that this rank has left out
        self._tally = Tally()

    @property
    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent since the first round began."""
        return self._world.sent - self._sent_before

    @property
    def between(self) -> bool:
        """Return whether the last round is over and the next has not begun."""
        return self._lr is None

    @property
    def plan(self) -> RoundPlan:
        """Return the plan of the current round, which is made when it is first asked for."""
        if self._plan is None:
            self._plan = RoundPlan.draw(
                self.t, self._shares, self.counts, self._participation, self._seed
            )
        return self._plan

    @property
    def active(self) -> bool:
        """Return whether this rank takes part in the current round."""
        return self._world.rank in self.plan.ranks

    def begin(self, lr: float) -> float:
        """Begin a round with the learning rate that a scheduler has set; return the method's."""
        self._lr = lr
        return float(lr_of(self._now()) or 0.0)

    def _now(self) -> Any:
        """Return the method of this round: schedules are numbers, lr is that of its beginning.

        With an inner optimiser a scheduler changes that one's rate, and the method's own stays.
        """
        method = self._method
        if self._inner is None and self._lr is not None:
            method = with_lr(method, self._lr)
        return self._with_inner(resolve(method, self.t))

    def _with_inner(self, method: Method) -> Method:
        return method if self._inner is None else with_rule(method, self._inner)

    # Local steps

    def start_node(self, source: StepGradients) -> None:
        """Make the first state of a node, which may need a gradient."""
        if isinstance(self.role, PeerRole):
            try:
                self.role.start(Ask(source.gradient, -1, 0))
            finally:
                self._parameters.move(self.role.x)

    def take_step(self, source: StepGradients) -> None:
        """Take one local step, and meet the others if it was the last.

        Without its success the model is that of the last meeting, and the round is as it was. A
        step that is interrupted while it writes, and a meeting that fails, end the round: model and
        states are those of the last one.
        """
        if self._round is None:
            self._round = self._enter_round()
        round = self._round
        try:
            round.take(source)
        except BaseException:
            if round.torn:
                self._drop_round()
            else:
                self._parameters.move(self.role.x)
            raise
        self.steps += 1
        self._tally.count(source)
        if round.pass_is_over:
            self._tally.end()
            with self._dropping_the_round_on_failure():
                round.leave_pass()
                if round.ended:
                    self._meet(round.outcome)
                    return
        round.settle()

    def leave_out_step(self) -> None:
        """Count a step of a round without this rank, and meet the others after the last."""
        self.steps += 1
        self._idle += 1
        if self._idle >= self.plan.counts[self._world.rank]:
            self._tally.end()
            with self._dropping_the_round_on_failure():
                self._meet(None)

    def _enter_round(self, saved: Mapping[str, Any] | None = None) -> BlockedRound:
        plan, rank = self.plan, self._world.rank
        if self._inner is not None and saved is None:
            self._inner.keep()
        loop = ResumedLoop(
            t=self.t,
            rank=rank,
            seed=self._seed,
            count=plan.counts[rank],
            mean_count=plan.mean_count,
            sizes=self._parameters.layout.sizes,
            like=self._parameters.point,
        )
        program = self.role.program(self._now())
        return BlockedRound(
            program,
            loop,
            self.role.comm(self.t),
            saved,
            parameters=self._parameters,
            inner=self._inner,
        )

    @contextlib.contextmanager
    def _dropping_the_round_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._drop_round()
            raise

    def _drop_round(self) -> None:
        if self._inner is not None and self._round is not None:
            self._inner.go_back()
        self._leave_round()

    def _leave_round(self) -> None:
        self._forget_round()
        self.role.leave_round()
        self._parameters.move(self.role.x)

    # Meetings

    def _meet(self, outcome: Any) -> None:
        """Join the ranks that are there; `outcome` is None on a rank that brings nothing."""
        with self._world.failure_scope():
            decision = self._attendance.settle()
            if self._world.rank not in decision.present:
                self._catch_up()
                return
        plan, meeting, now = self.plan, Meeting(self._world, decision.present), self._now()
        fine = outcome is None or self.role.is_finite(now, outcome)
        lr, tally = float(lr_of(now) or 0.0), self._tally
        own = Report(self.t, lr, tally.loss, fine, tally.seconds_a_step)
        reports = agreement.exchange_reports(meeting, own)
        with self._world.failure_scope():
            self.role.conclude(now, outcome, meeting, plan)
            self.t += 1
            seconds = [reports[r].seconds if r in reports else 0.0 for r in range(len(plan.counts))]
            self.counts = next_counts(self._every, plan.counts, seconds, self._method)
            if decision.back:
                self._exchange_state(decision)
        weights = plan.weights(meeting.present)
        self.metrics = {
            "round": self.t,
            "loss": sum(weight * reports[rank].loss for rank, weight in weights.items()),
            "lr": lr if self._inner is None else self._inner.lr,
            "gradients": tally.gradients,
            "steps": tally.steps,
            "ranks": len(weights),
            "bytes_sent": self.bytes_sent,
            "local_seconds": tally.local_seconds,
            "meeting_seconds": time.perf_counter() - tally.ended,
        }
        self._leave_round()

    def _catch_up(self) -> None:
        """Wait for the next meeting, drop this round and go on from the server's new state."""
        missed = self.t + 1
        self._exchange_state(self._attendance.come_back())
        self._drop_round()
        warnings.warn(
            f"Rank {self._world.rank} came too late to the meeting of round {missed} and was left "
            f"out; it goes on with round {self.t + 1}. Raise patience, or lower its number in "
            "every.",
            stacklevel=2,
        )

    def _exchange_state(self, decision: Quorum) -> None:
        """Send the server's state from the first rank that is there to those that come back."""
        first = decision.present[0]
        receivers = (*decision.back, first)
        if self._world.rank in receivers:
            numbers = torch.tensor([self.t, *self.counts], dtype=torch.int64)
            label = "state for ranks that come back"
            values = self._world.trees((self.role.state, numbers), label, [first], receivers)
            self.role.state, numbers = values[0]
            self.t, *counts = map(int, numbers.tolist())
            self.counts = tuple(counts)

    # Checkpoints

    def saved(self) -> dict[str, Any]:
        """Return all that the rounds go on from, also in the middle of one."""
        return {
            "counts": list(self.counts),
            "t": self.t,
            "steps": self.steps,
            "idle": self._idle,
            "lr": self._lr,
            "role": self.role.saved(),
            "inner": None if self._inner is None else self._inner.saved(),
            "round": None if self._round is None else self._round.saved(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned, and put the model where it was."""
        self.role.restore(saved["role"])
        if self._inner is not None:
            self._inner.restore(saved["inner"])
        self._forget_round()
        self.t, self.steps, self._lr = saved["t"], saved["steps"], saved["lr"]
        self.counts, self._idle = tuple(saved["counts"]), saved["idle"]
        self._parameters.restore()
        if saved["round"] is None:
            self._parameters.move(self.role.x)
            return
        self._round = self._enter_round(saved["round"])
        self._round.settle()
