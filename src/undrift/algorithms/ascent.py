"""The length of the ascent step in sharpness-aware methods (FedSpeed, FedSAM, MoFedSAM, FedGamma).

    normalise, the default      rho g / ||g||           of length rho
    normalise=False             rho g                   of length rho ||g||
    relative=True               rho ||y|| g / ||g||     of length rho ||y||, the norm of the weights

With a minibatch's gradient the first lowers F(y) + rho E ||g||, the second F(y) + rho / 2 E ||g||^2
to first order in rho. docs/perturbation.md has what that does to a net at its start.
"""

from __future__ import annotations

from torch import Tensor

from undrift.check import require
from undrift.core import Vector


def ascent_divisor(y: Vector, g: Vector, *, normalise: bool, relative: bool) -> Tensor | float:
    """Return what rho g is divided by in the ascent from y; 1e-7 guards against a zero gradient."""
    if not normalise:
        return 1.0
    size: Tensor = g.norm() + 1e-7
    return size / y.norm() if relative else size


def require_one_length(who: str, *, normalise: bool, relative: bool) -> None:
    """Raise a ValueError if the ascent step is to have two lengths."""
    expected = "normalise=True where relative=True, since each sets the length of the ascent step"
    require(normalise or not relative, who, expected, normalise, "leave one of them out")


def ascent_stall_cause(rho: float) -> str:
    """Return why an ascent step of this rho may keep a net at its start; "" without an ascent."""
    remedy = "try a tenth of it, a schedule that raises it, or normalise=False"
    return f"rho = {rho:g} is too large for this net ({remedy})" if rho > 0 else ""
