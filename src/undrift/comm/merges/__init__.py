"""Merges combine vectors in an all-reduce: exactly, as sums of signs, cascading, or by one bit.

Signs are bits: 1 for v >= 0, so that sign(0) = +1. A share or result is of one piece of the vector;
the routes of `routes.py` decide which pieces travel where.
"""

from undrift.comm.merges.exact import Largest, Mean
from undrift.comm.merges.onebit import OneBit
from undrift.comm.merges.scaled import Cascade, Norm, OwnNorm, euclidean, norm_of, require_norm
from undrift.comm.merges.signs import Code, SignSum, require_code

__all__ = [
    "Cascade",
    "Code",
    "Largest",
    "Mean",
    "Norm",
    "OneBit",
    "OwnNorm",
    "SignSum",
    "euclidean",
    "norm_of",
    "require_code",
    "require_norm",
]
