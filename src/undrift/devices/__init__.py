"""System heterogeneity: speed and connections of clients, stragglers, failures and presence."""

from undrift.devices.fleet import Device, Fleet, Jitter, Stragglers, spread
from undrift.devices.presets import EFFICIENCY, MIXES, PRESETS, Connection, Mix, Preset, preset
from undrift.devices.roster import apportion, parse
from undrift.devices.trace import Trace

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
