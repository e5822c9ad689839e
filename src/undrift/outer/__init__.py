"""Methods as optimisers in a script's own loop; ranks meet every few steps, see docs/outer.md."""

from undrift.outer.optimizer import Outer
from undrift.outer.steps import Seconds

__all__ = ["Outer", "Seconds"]
