"""Devices of clients, and the seconds that a round takes on them.

A client's round takes

    8 up / rate_up + 8 down / rate_down + messages * latency  +  factor * flops / speed

seconds: bytes over its link, one-way trips, and floating-point operations, slowed down by a random
factor of the round. This module knows nothing of models; docs/fleet.md explains all terms.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import (
    is_probability,
    is_whole,
    require,
    require_nonnegative,
    require_positive,
)
from undrift.fleet.trace import Trace

Ids = NDArray[np.int64]

# A float cannot count single steps above 2^53; no deadline leaves time for so many.
MOST_STEPS = 2**53


@dataclass(frozen=True)
class Device:
    """A kind of machine that computes and communicates at fixed rates."""

    name: str
    speed: float  # FLOP/s sustained in training
    up: float  # bit/s it sends at
    down: float  # bit/s it receives at
    latency: float  # seconds one way

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and self.name != ""
        require(named, "Device", "a name", self.name)
        who = f"Device {self.name}"
        require_positive(who, speed=self.speed, up=self.up, down=self.down)
        require_nonnegative(who, latency=self.latency)
        _make_floats(self, "speed", "up", "down", "latency")


def _make_floats(frozen: object, *names: str) -> None:
    """Convert fields to floats, because 1 and 1.0 must have the same digest."""
    for name in names:
        object.__setattr__(frozen, name, float(getattr(frozen, name)))


@dataclass(frozen=True)
class Stragglers:
    """Makes a client compute `factor` times as long with probability p in each round."""

    p: float
    factor: float

    def __post_init__(self) -> None:
        require(is_probability(self.p), "Stragglers", "a probability p in [0, 1]", self.p)
        require_positive("Stragglers", factor=self.factor)
        require(self.factor >= 1, "Stragglers", "factor >= 1", self.factor, "1 slows nobody down")
        _make_floats(self, "p", "factor")

    def factor_of(self, seed: int, t: int, client: int) -> float:
        """Return how many times longer this client computes in round t."""
        slow = keyed.generator(seed, "device-slowdown", t, client).random() < self.p
        return self.factor if slow else 1.0


@dataclass(frozen=True)
class Jitter:
    """Makes computing take exp(N(0, sigma^2)) times as long in each round; the median is 1."""

    sigma: float

    def __post_init__(self) -> None:
        require_nonnegative("Jitter", sigma=self.sigma)
        _make_floats(self, "sigma")

    def factor_of(self, seed: int, t: int, client: int) -> float:
        """Return how many times longer this client computes in round t."""
        draw = keyed.generator(seed, "device-slowdown", t, client).standard_normal()
        return math.exp(self.sigma * draw)


@dataclass(frozen=True)
class Fleet:
    """Holds one device for each client and what happens to it; every draw is keyed by the seed."""

    devices: tuple[Device, ...]
    slowdown: Stragglers | Jitter | None = None
    dropout: float = 0.0  # probability that a client fails in a round after it was chosen
    trace: Trace | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        listed = isinstance(self.devices, list | tuple)
        require(listed, "Fleet", "a list of devices, one for each client", self.devices)
        object.__setattr__(self, "devices", tuple(self.devices))
        require(len(self.devices) >= 1, "Fleet", "at least one device", 0)
        for device in self.devices:
            require(isinstance(device, Device), "Fleet", "devices", device)
        law = self.slowdown is None or isinstance(self.slowdown, Stragglers | Jitter)
        require(law, "Fleet", "slowdown to be Stragglers, Jitter or None", self.slowdown)
        require(is_probability(self.dropout), "Fleet", "dropout in [0, 1]", self.dropout)
        _make_floats(self, "dropout")
        traced = self.trace is None or isinstance(self.trace, Trace)
        require(traced, "Fleet", "trace to be a Trace or None", self.trace, "see Trace.read")
        require(is_whole(self.seed), "Fleet", "a whole seed", self.seed)

    def check(self, population: int) -> None:
        """Raise `ValueError` for a fleet that does not fit this many clients, before any work."""
        expected = f"one device for each of {population} clients"
        require(len(self.devices) == population, "Fleet", expected, len(self.devices))
        if self.trace is not None:
            self.trace.check(population)

    def _device(self, client: int) -> Device:
        last = len(self.devices) - 1
        require(0 <= client <= last, "Fleet", f"a client among 0...{last}", client)
        return self.devices[client]

    def _factor(self, client: int, t: int) -> float:
        return 1.0 if self.slowdown is None else self.slowdown.factor_of(self.seed, t, client)

    def compute_seconds(self, client: int, t: int, flops: float) -> float:
        """Return the seconds that this client computes for, with round t's slowdown."""
        require_nonnegative("compute_seconds", flops=flops)
        return _compute(flops, self._device(client).speed, self._factor(client, t))

    def exchange_seconds(self, client: int, up: float, down: float, messages: int = 2) -> float:
        """Return the seconds for these bytes sent and received in so many one-way trips."""
        require_nonnegative("exchange_seconds", up=up, down=down, messages=messages)
        device = self._device(client)
        return 8 * up / device.up + 8 * down / device.down + messages * device.latency

    def steps_within(
        self,
        client: int,
        t: int,
        deadline: float,
        *,
        exchange: float,
        fixed_flops: float,
        step_flops: float,
    ) -> int:
        """Return the largest number K of local steps that end in time, or 0.

        In time means `exchange + compute_seconds(client, t, fixed_flops + K * step_flops)
        <= deadline`, as floats: K steps really fit, and K + 1 do not.
        """
        require_positive("steps_within", deadline=deadline, step_flops=step_flops)
        require_nonnegative("steps_within", exchange=exchange, fixed_flops=fixed_flops)
        speed, factor = self._device(client).speed, self._factor(client, t)

        def fits(k: int) -> bool:
            return exchange + _compute(fixed_flops + k * step_flops, speed, factor) <= deadline

        # Bisection is exact, because rounding is monotone; a division may be off by one step.
        fit, unfit = 0, MOST_STEPS
        while unfit - fit > 1:
            middle = (fit + unfit) // 2
            fit, unfit = (middle, unfit) if fits(middle) else (fit, middle)
        return fit

    def drops(self, t: int, client: int) -> bool:
        """Return whether this client fails in round t after it was chosen."""
        self._device(client)
        if self.dropout == 0:  # the usual case needs no generator
            return False
        draw = keyed.generator(self.seed, "device-dropout", t, client).random()
        return bool(draw < self.dropout)

    def digest(self) -> str:
        """Return a hash for a checkpoint, so that no run is resumed on other devices."""
        trace = "" if self.trace is None else self.trace.digest()
        content = repr((self.devices, self.slowdown, self.dropout, trace, self.seed))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _compute(flops: float, speed: float, factor: float) -> float:
    return factor * flops / speed


def spread(device: Device, n: int, sigma: float, seed: int) -> tuple[Device, ...]:
    """Return n devices whose speed, up and down are multiplied by exp(N(0, sigma^2)) each.

    Device i depends only on the seed, the name of the device and i.
    """
    require(is_whole(n) and n >= 0, "spread", "a whole number n >= 0", n)
    require_nonnegative("spread", sigma=sigma)
    require(is_whole(seed), "spread", "a whole seed", seed)

    def one(i: int) -> Device:
        draws = keyed.generator(seed, f"device-spread/{device.name}", i).standard_normal(3)
        speed, up, down = (math.exp(sigma * float(draw)) for draw in draws)
        return replace(
            device, speed=speed * device.speed, up=up * device.up, down=down * device.down
        )

    return tuple(one(i) for i in range(n))
