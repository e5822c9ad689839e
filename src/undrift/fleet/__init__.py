"""System heterogeneity: speed and connections of clients, stragglers, failures and presence."""

from undrift.fleet.fleet import Device, Fleet, Jitter, Stragglers, spread
from undrift.fleet.presets import EFFICIENCY, MIXES, PRESETS, Connection, Mix, Preset, preset
from undrift.fleet.roster import apportion, parse
from undrift.fleet.trace import Trace

__all__ = [
    "EFFICIENCY",
    "MIXES",
    "PRESETS",
    "Connection",
    "Device",
    "Fleet",
    "Jitter",
    "Mix",
    "Preset",
    "Stragglers",
    "Trace",
    "apportion",
    "parse",
    "preset",
    "spread",
]
