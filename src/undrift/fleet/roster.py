"""Assignment of devices to clients by name, by proportions, or by a user's table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from undrift.check import is_whole, nearest, require
from undrift.data.stored import damaged
from undrift.fleet.fleet import Device, spread
from undrift.fleet.presets import MIXES, PRESETS, preset
from undrift.fleet.table import Row, RowTable, read_rows

_WHO = "fleet"

# A column of a user's table has SI units, unless its name says another unit.
_UNITS: dict[str, dict[str, float]] = {
    "speed": {"speed": 1.0, "speed_gflops": 1e9},
    "up": {"up": 1.0, "up_mbps": 1e6},
    "down": {"down": 1.0, "down_mbps": 1e6},
    "latency": {"latency": 1.0, "latency_ms": 1e-3},
}
_COLUMNS = ("name", *(column for units in _UNITS.values() for column in units), "weight")
_SHARES = "phone~0.3:9,gpu-node:1"


def parse(text: str, clients: int, *, seed: int = 0) -> tuple[Device, ...]:
    """Return one device for each client, from a text as on the command line.

    `phone` gives one to every client; `phone:9,gpu-node:1` distributes devices by weight in this
    order, so that the first clients have phones; `phone~0.3:9,gpu-node` lets the phones differ by
    that sigma (see `spread`); `gpu-node@0.25` computes at a quarter of its speed; `thesis-jetson`
    is a mix, and `thesis-jetson@0.25` slows down its fast device; a path names a CSV file.
    """
    require(is_whole(clients) and clients >= 1, "parse", "at least one client", clients)
    require(isinstance(text, str), _WHO, "words such as phone:9,gpu-node:1", text)
    text = text.strip()
    name, _, _ = text.partition("@")
    if name in MIXES:
        mix = MIXES[name]
        fast, slow = mix.counts(clients)
        return (_throttled(mix.fast, text),) * fast + (preset(mix.slow),) * slow
    if text.lower().endswith(".csv") or (text not in PRESETS and Path(text).is_file()):
        return _from_table(Path(text), clients)
    return _from_shares(text, clients, seed)


def apportion(weights: Sequence[float], n: int) -> list[int]:
    """Divide n by weight into whole shares; the rest goes to the largest remainders."""
    for weight in weights:
        sound = math.isfinite(weight) and weight > 0
        require(sound, "apportion", "weights > 0, finite numbers", weight)
    exact = [Fraction(str(weight)) for weight in weights]  # 0.1 is a tenth, not its nearest float
    quotas = [n * weight / sum(exact) for weight in exact]
    shares = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - quotas[i])
    for i in by_remainder[: n - sum(shares)]:
        shares[i] += 1
    return shares


def _from_shares(text: str, clients: int, seed: int) -> tuple[Device, ...]:
    """Return devices by proportions such as phone:9,gpu-node:1."""
    names, sigmas, weights = [], [], []
    for part in text.split(","):
        kind, colon, weight = part.partition(":")
        name, tilde, sigma = kind.partition("~")
        plain = name.partition("@")[0].strip()
        if plain not in PRESETS:
            raise ValueError(_unknown(plain))
        names.append(name.strip())
        sigmas.append(_number(text, sigma) if tilde else 0.0)
        weights.append(_number(text, weight) if colon else 1.0)
        require(weights[-1] > 0, _WHO, f"weights > 0 such as in {_SHARES}", text)
    devices: list[Device] = []
    for name, spreading, count in zip(names, sigmas, apportion(weights, clients), strict=True):
        one = _throttled(name.partition("@")[0], name)
        devices += spread(one, count, spreading, seed) if spreading else (one,) * count
    return tuple(devices)


def _throttled(name: str, text: str) -> Device:
    """Return a preset, slowed down to the share of its speed after an @ in the text."""
    one = preset(name.strip())
    _, at, share = text.partition("@")
    if not at:
        return one
    part = _number(text, share)
    require(0 < part <= 1, _WHO, "a share of the speed in (0, 1] after @, as in phone@0.5", text)
    return replace(one, name=f"{one.name}@{part:g}", speed=part * one.speed)


def _unknown(name: str) -> str:
    choices = [*PRESETS, *MIXES]
    near = nearest(name, choices)
    if name.partition(":")[0] in ("auto", "cpu", "cuda", "gpu", "mps"):
        near = f"; the device that computes is device={name!r} (--device {name})"
    return (
        f"{_WHO} needs one of {', '.join(choices)}, proportions such as phone:9,gpu-node:1, or "
        f"the path of a CSV file, got {name!r}{near}."
    )


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    sound = math.isfinite(value) and value >= 0
    require(sound, _WHO, f"finite numbers >= 0 after : and ~ as in {_SHARES}", text)
    return value


def _from_table(path: Path, clients: int) -> tuple[Device, ...]:
    """Return devices from a CSV file with one line per client or with weights."""
    table = read_rows(path, _COLUMNS)
    table.require_column("name")
    used = {quantity: table.require_column(*units) for quantity, units in _UNITS.items()}
    devices = [_device(row, used) for row in table.rows]
    if "weight" not in table.header:
        if len(devices) != clients:
            remedy = "add or remove lines, or add a column weight to share them out"
            raise damaged(
                str(path), f"one line for each of {clients} clients", len(devices), remedy
            )
        return tuple(devices)
    counts = apportion(_weights(table), clients)
    pairs = zip(devices, counts, strict=True)
    return tuple(device for device, count in pairs for _ in range(count))


def _device(row: Row, used: dict[str, str]) -> Device:
    """Return the device of one line, in SI units."""
    values = {}
    for quantity, column in used.items():
        value = row.number(column)
        least = ">= 0" if quantity == "latency" else "> 0"
        sound = value >= 0 if quantity == "latency" else value > 0
        if not (sound and math.isfinite(value)):
            raise row.fault(f"{column} {least}, a finite number", row.cells[column], "correct it")
        values[quantity] = value * _UNITS[quantity][column]
    if not row.cells["name"]:
        raise row.fault("a name", "an empty one", "name the device")
    return Device(row.cells["name"], **values)


def _weights(table: RowTable) -> list[float]:
    weights = []
    for row in table.rows:
        weight = row.number("weight")
        if not (math.isfinite(weight) and weight > 0):
            raise row.fault("weight > 0, a finite number", row.cells["weight"], "correct it")
        weights.append(weight)
    return weights
