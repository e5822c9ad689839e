"""Methods as optimisers in a script's own loop; ranks meet every few steps, see docs/outer.md."""

from undrift.outer.optimizer import Outer

__all__ = ["Outer"]
