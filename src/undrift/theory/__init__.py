"""Theorems of the documents as functions: conditions, bounds, orders, recommended parameters.

One module a system: `fedspeed`, `fedacg`, `fedagrac`, `marsit`, `netfleet`; and closed forms of
`fedavg`, `scaffold`, `fednova`, `dsgd`, `ldsgd`. `estimate` measures the constants of a problem.
docs/theory.md has a row for every theorem, and what differs from the print.
"""

from undrift.theory import (
    dsgd,
    fedacg,
    fedagrac,
    fedavg,
    fednova,
    fedspeed,
    ldsgd,
    marsit,
    netfleet,
    scaffold,
)
from undrift.theory.judgement import (
    Advice,
    Bound,
    Condition,
    Constants,
    Order,
    Verdict,
    violated,
)
from undrift.theory.measure import Estimate, Measurement, estimate
from undrift.theory.noise import floor

__all__ = [
    "Advice",
    "Bound",
    "Condition",
    "Constants",
    "Estimate",
    "Measurement",
    "Order",
    "Verdict",
    "dsgd",
    "estimate",
    "fedacg",
    "fedagrac",
    "fedavg",
    "fednova",
    "fedspeed",
    "floor",
    "ldsgd",
    "marsit",
    "netfleet",
    "scaffold",
    "violated",
]
