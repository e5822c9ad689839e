"""The simulated clock: what a round's gradients and bytes would take on the clients' devices.

Nothing here touches an algorithm. Before the first round a trial of one client measures what the
method asks of a client; after every round the clock turns what was really computed and sent into
seconds. All draws are keyed, so a resumed run has the same clock.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from undrift.core import Federated
from undrift.data.clients import Clients
from undrift.data.work import Deadline, Work
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.execution.cohort import FederatedExecutor
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.round import federated_round
from undrift.engine.plan import Plan
from undrift.fleet import Fleet
from undrift.gradients.task import Task
from undrift.optim.schedules import resolve

MOST_STEPS = 100_000  # a fast device and a small model would otherwise run for days


class Lap(NamedTuple):
    """Says how long a round took on the simulated clock and how busy its clients were."""

    seconds: float
    utilisation: float  # mean over the clients of the share of the round they computed in


def gradient_flops(task: Task, clients: Clients) -> float:
    """Return the floating-point operations of one sample's gradient, as torch counts them."""
    one = torch.from_numpy(clients.index[:1])
    x = task.layout.gather(task.model).requires_grad_()
    inputs, targets = task.prepared(clients.inputs[one]), task.cast(clients.targets[one])
    counted = FlopCounterMode(display=False)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), _without_onednn(), counted:
        torch.autograd.grad(task.loss(task.forward(x, inputs), targets), x)
    # Torch counts products of matrices; of a model without any take two a parameter and pass.
    return float(counted.get_total_flops() or 6 * task.layout.size)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Switch oneDNN off, with which torch would not count the products of a recurrent layer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32")  # about graphics cards, even without one
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@dataclass(frozen=True)
class Clock:
    """Computes how long a round takes on the devices of a fleet."""

    fleet: Fleet
    flops: float  # of one sample's gradient
    deadline: float | None = None

    def with_server(self, plan: Plan, meter: Meter) -> Lap:
        """Return the time of a round whose server waits for the slowest client.

        It waits to the deadline for clients that never answer.
        """
        up, down = (total / max(1, len(plan.ids)) for total in (meter.bytes_up, meter.bytes_down))
        computing = self._computing(plan, meter)
        exchanging = [
            self.fleet.exchange_seconds(int(i), up, down, 2 * meter.exchanges) for i in plan.ids
        ]
        waiting = self.deadline if plan.missed and self.deadline is not None else 0.0
        seconds = max([waiting, *(a + b for a, b in zip(computing, exchanging, strict=True))])
        return _lap(seconds, computing)

    def of_peers(self, plan: Plan, meter: Meter, traffic: Traffic) -> Lap:
        """Return the time of a round in which nodes compute and then exchange, hop after hop."""
        computing = self._computing(plan, meter)
        devices = self.fleet.devices
        sent, got = traffic.links[:-1].sum(1), traffic.links[:, :-1].sum(0)
        links = zip(devices, sent.tolist(), got.tolist(), strict=True)
        carrying = max(max(8 * out / d.up, 8 * back / d.down) for d, out, back in links)
        travelling = traffic.hops * max(device.latency for device in devices)
        return _lap(max(computing) + carrying + travelling, computing)

    def _computing(self, plan: Plan, meter: Meter) -> list[float]:
        return [
            self.fleet.compute_seconds(int(i), plan.t, self.flops * int(samples))
            for i, samples in zip(plan.ids, meter.samples_of, strict=True)
        ]


def _lap(seconds: float, computing: list[float]) -> Lap:
    busy = [each / seconds for each in computing] if seconds > 0 else []
    return Lap(seconds, sum(busy) / len(busy) if busy else 0.0)


@dataclass(frozen=True)
class Bill:
    """Says what a method asks of a client in a round of K steps."""

    up: int  # bytes
    down: int
    exchanges: int
    passes: float  # over the client's own data, whatever K
    gradients: float  # per step


def measure(
    algorithm: Federated[Any, Any, Any, Any], executor: FederatedExecutor, population: int
) -> Bill:
    """Return what a round of one client costs; it is run twice, the second with one step more."""
    first, second = (_trial(algorithm, executor, population, steps) for steps in (1, 2))
    gradients = second.gradients - first.gradients
    planner = executor.planner
    n = int(planner.census.sizes[executor.pool.clients.mine[0]])
    epoch = 1 if planner.batch_size is None else math.ceil(n / planner.batch_size)
    passes = (first.gradients - gradients) / epoch
    return Bill(first.bytes_up, first.bytes_down, first.exchanges, passes, gradients)


def _trial(
    algorithm: Federated[Any, Any, Any, Any],
    executor: FederatedExecutor,
    population: int,
    steps: int,
) -> Meter:
    now, x0 = resolve(algorithm, 0), executor.task.layout.gather(executor.task.model)
    meter = Meter(1)
    plan = Plan.equal(executor.pool.clients.mine[:1], steps, population)
    with torch.no_grad():
        federated_round(now, executor, plan, server=now.init(x0), clients={}, x0=x0, meter=meter)
    return meter


@dataclass(frozen=True)
class Paced:
    """Turns a deadline into work: K_i is what a client's device can do in time, maybe 0."""

    law: Deadline
    fleet: Fleet
    bill: Bill
    flops: float
    sizes: NDArray[np.int64]
    batch_size: int | None

    def steps(self, *, client: int, epoch: float, t: int, seed: int) -> int:
        n, bill = int(self.sizes[client]), self.bill
        batch = n if self.batch_size is None else min(self.batch_size, n)
        fits = self.fleet.steps_within(
            client,
            t,
            self.law.seconds,
            exchange=self.fleet.exchange_seconds(client, bill.up, bill.down, 2 * bill.exchanges),
            fixed_flops=bill.passes * n * self.flops,
            step_flops=bill.gradients * batch * self.flops,
        )
        if self.law.at_most is None:
            return fits
        return min(fits, self.law.at_most.steps(client=client, epoch=epoch, t=t, seed=seed))

    def check(self, population: int) -> None:
        self.law.check(population)

    def __repr__(self) -> str:  # what a checkpoint compares; the fleet is compared beside it
        return repr(self.law)


def pace(law: Deadline, clock: Clock, bill: Bill, clients: Clients, batch_size: int | None) -> Work:
    """Return the deadline as steps; raise if no device has time for one, or one for too many."""
    fleet = replace(clock.fleet, slowdown=None)  # as a rule; in a bad round all may miss it
    usual = Paced(law, fleet, bill, clock.flops, clients.sizes, batch_size)
    kinds = zip(fleet.devices, clients.sizes.tolist(), strict=True)
    clients_of = {kind: i for i, kind in enumerate(kinds)}  # one for each device and size
    steps = {i: usual.steps(client=i, epoch=1, t=0, seed=0) for i in clients_of.values()}
    fastest = max(steps, key=lambda i: steps[i])
    if steps[fastest] == 0:
        raise ValueError(
            f"Deadline needs time for at least one step on one device, got {law.seconds:g} s, too "
            "short for all of them; raise it, or send less."
        )
    if law.at_most is None and steps[fastest] > MOST_STEPS:
        raise ValueError(
            f"Deadline needs clients to run at most {MOST_STEPS} steps in a round, got "
            f"{steps[fastest]} for client {fastest}; lower its {law.seconds:g} s, or let the fast "
            "stop after some epochs: Deadline(s, Epochs(5)), or deadline:s:5."
        )
    return replace(usual, fleet=clock.fleet)
