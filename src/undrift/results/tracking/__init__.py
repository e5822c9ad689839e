"""Trackers, which take a trial's records besides its JSON lines.

A tracker is any class with `begin`, `add` and `end`. On the command line a user's own tracker is
`module:Class`; it is made with the folder of the results. When a trial is resumed, `begin` gets the
records (or totals) of the rounds before.
"""

from undrift.results.tracking.choose import NAMED, Trackers, parse
from undrift.results.tracking.plain import CSV, Tracker, name_of
from undrift.results.tracking.services import MLflow, TensorBoard, WandB

__all__ = [
    "CSV",
    "NAMED",
    "MLflow",
    "TensorBoard",
    "Tracker",
    "Trackers",
    "WandB",
    "name_of",
    "parse",
]
