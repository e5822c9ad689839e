"""How fast clients are, and how many seconds a round takes them.

A client's round takes

    8 up / rate_up + 8 down / rate_down + messages * latency  +  factor * flops / speed

seconds: bytes over its link, one-way trips, and floating-point operations, slowed down by this
round's random factor. Nothing here knows what is trained; docs/devices.md has the whole model.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import is_whole, require, require_nonnegative, require_positive
from undrift.devices.trace import Trace

Ids = NDArray[np.int64]

# Above 2^53 a float no longer counts single steps; no deadline asks for so many.
MOST_STEPS = 2**53


@dataclass(frozen=True)
class Device:
    """A kind of machine and its link."""

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
    """1 and 1.0 are the same device: they must have one digest."""
    for name in names:
        object.__setattr__(frozen, name, float(getattr(frozen, name)))


def _is_probability(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


@dataclass(frozen=True)
class Stragglers:
    """In each round a client is slow with probability p: computing takes `factor` times as long."""

    p: float
    factor: float

    def __post_init__(self) -> None:
        require(_is_probability(self.p), "Stragglers", "a probability p in [0, 1]", self.p)
        require_positive("Stragglers", factor=self.factor)
        require(self.factor >= 1, "Stragglers", "factor >= 1", self.factor, "1 slows nobody down")
        _make_floats(self, "p", "factor")

    def factor_of(self, seed: int, t: int, client: int) -> float:
        slow = keyed.generator(seed, "device-slowdown", t, client).random() < self.p
        return self.factor if slow else 1.0


@dataclass(frozen=True)
class Jitter:
    """In each round computing takes exp(N(0, sigma^2)) times as long; the median is 1."""

    sigma: float

    def __post_init__(self) -> None:
        require_nonnegative("Jitter", sigma=self.sigma)
        _make_floats(self, "sigma")

    def factor_of(self, seed: int, t: int, client: int) -> float:
        draw = keyed.generator(seed, "device-slowdown", t, client).standard_normal()
        return math.exp(self.sigma * draw)


@dataclass(frozen=True)
class Fleet:
    """One device for each client, and what happens to them; every draw is keyed by the seed."""

    devices: tuple[Device, ...]
    slowdown: Stragglers | Jitter | None = None
    dropout: float = 0.0  # probability that a client fails in a round after it was chosen
    trace: Trace | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        several = isinstance(self.devices, list | tuple)
        require(several, "Fleet", "a list of devices, one for each client", self.devices)
        object.__setattr__(self, "devices", tuple(self.devices))
        require(len(self.devices) >= 1, "Fleet", "at least one device", 0)
        for device in self.devices:
            require(isinstance(device, Device), "Fleet", "devices", device)
        law = self.slowdown is None or isinstance(self.slowdown, Stragglers | Jitter)
        require(law, "Fleet", "slowdown to be Stragglers, Jitter or None", self.slowdown)
        require(_is_probability(self.dropout), "Fleet", "dropout in [0, 1]", self.dropout)
        _make_floats(self, "dropout")
        traced = self.trace is None or isinstance(self.trace, Trace)
        require(traced, "Fleet", "trace to be a Trace or None", self.trace, "see Trace.read")
        require(is_whole(self.seed), "Fleet", "a whole seed", self.seed)

    def check(self, population: int) -> None:
        """Refuse what does not fit this many clients, before any work."""
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
        """Seconds this client computes for, with round t's slowdown."""
        require_nonnegative("compute_seconds", flops=flops)
        return _compute(flops, self._device(client).speed, self._factor(client, t))

    def exchange_seconds(self, client: int, up: float, down: float, messages: int = 2) -> float:
        """Seconds for these bytes sent and received in so many one-way trips."""
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
        """The most local steps K that end in time, 0 if none does.

        In time means `exchange + compute_seconds(client, t, fixed_flops + K * step_flops)
        <= deadline`, as floats: K steps really fit, and K + 1 do not.
        """
        require_positive("steps_within", deadline=deadline, step_flops=step_flops)
        require_nonnegative("steps_within", exchange=exchange, fixed_flops=fixed_flops)
        speed, factor = self._device(client).speed, self._factor(client, t)

        def fits(k: int) -> bool:
            return exchange + _compute(fixed_flops + k * step_flops, speed, factor) <= deadline

        # Bisection, because rounding is monotone while a division may be off by a step.
        fit, unfit = 0, MOST_STEPS
        while unfit - fit > 1:
            middle = (fit + unfit) // 2
            fit, unfit = (middle, unfit) if fits(middle) else (fit, middle)
        return fit

    def drops(self, t: int, client: int) -> bool:
        """Whether this client fails in round t after it was chosen."""
        self._device(client)
        if self.dropout == 0:  # as a rule: no generator for each client and round
            return False
        draw = keyed.generator(self.seed, "device-dropout", t, client).random()
        return bool(draw < self.dropout)

    def digest(self) -> str:
        """What a checkpoint keeps, so that a run is not resumed on other devices."""
        trace = "" if self.trace is None else self.trace.digest()
        content = repr((self.devices, self.slowdown, self.dropout, trace, self.seed))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _compute(flops: float, speed: float, factor: float) -> float:
    return factor * flops / speed


def spread(device: Device, n: int, sigma: float, seed: int) -> tuple[Device, ...]:
    """n devices of this kind that differ: speed, up and down each times its own exp(N(0, sigma^2)).

    Number i depends on the seed, the device's name and i alone.
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
