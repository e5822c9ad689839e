"""Numbers as text for readers."""

from __future__ import annotations

import math

from undrift.results.metrics import Spread

THIN = "\u202f"  # between thousands; does not break
NONE = "\u2013"
PLUS_MINUS = "\u00a0\u00b1\u00a0"  # does not break either


def grouped(value: float, digits: int = 0) -> str:
    """Return 1234567.8 as 1 234 568, with thin spaces."""
    return f"{value:,.{digits}f}".replace(",", THIN) if math.isfinite(value) else NONE


def amount(value: float) -> str:
    """Return a number with about three digits, or with all digits before the point."""
    if not math.isfinite(value):
        return NONE
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e9):
        return f"{value:.2e}"
    digits = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return grouped(value, digits)


def percent(value: float) -> str:
    """Return a share in percent, without the sign, which the head of the column has."""
    return f"{100 * value:.2f}" if math.isfinite(value) else NONE


def spread_percent(value: Spread) -> str:
    """Return mean and deviation in percent."""
    if not math.isfinite(value.mean):
        return NONE
    return percent(value.mean) + ("" if value.std is None else f"{PLUS_MINUS}{100 * value.std:.2f}")


def spread_amount(value: Spread) -> str:
    """Return mean and deviation with about three digits."""
    if not math.isfinite(value.mean):
        return NONE
    return amount(value.mean) + ("" if value.std is None else f"{PLUS_MINUS}{amount(value.std)}")


def target(value: float) -> str:
    """Return a target accuracy with the percent sign."""
    return f"{100 * value:g}\u00a0%"
