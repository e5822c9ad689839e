"""Trackers: where a trial's records go besides its JSON lines.

A tracker is any class with `begin`, `add` and `end`; on the command line one of your own is
`module:Class`, made with the folder of the results. Of a trial that goes on, `begin` is given the
records (or totals) that come before the first one added.
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
