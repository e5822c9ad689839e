"""The manifest of a checkpoint, checked field by field: a seal finds damage, not other values."""

from __future__ import annotations

from typing import Any

from undrift.aggregation.validation import sizes_of
from undrift.results.record import Totals, from_fields, record_of

MODES = ("loop", "threads", "stacked")


def checked_manifest(values: Any, folder: str, form: int) -> dict[str, Any]:
    """Return a manifest whose fields have their types, or raise `ValueError`.

    `folder` is the name of its folder, which ends with the round, and `form` the known format.
    """
    if not isinstance(values, dict):
        raise ValueError("its manifest is no object")
    if values.get("format") != form:
        raise ValueError(f"its format is {values.get('format')!r}, this version reads {form}")
    if type(values.get("round")) is not int or folder != f"round-{values['round']:08d}":
        raise ValueError(f"its manifest is of round {values.get('round')!r}")
    settings, execution, states = (values.get(n) for n in ("settings", "execution", "states"))
    texts = isinstance(settings, dict) and all(isinstance(v, str) for v in settings.values())
    if not texts:
        raise ValueError("its settings are not texts by name")
    if execution is not None and not _is_execution(execution):
        raise ValueError("its execution is none that a run has")
    if states is not None and not (type(states) is int and states >= 0):
        raise ValueError(f"its clients' states are of version {states!r}")
    if values.get("best") is not None and not _is_best(values["best"]):
        raise ValueError("its best test is none that a run has")
    if not isinstance(values.get("sha256"), str):
        raise ValueError("it has no hash of its state")
    from_fields(Totals, values.get("totals"))
    if values.get("record") is not None:
        record_of(values["record"])
    known = {"record": None, "execution": None, "best": None, "states": None, **values}
    return {**known, "sizes": sizes_of(values.get("sizes"))}


def _is_best(best: Any) -> bool:
    types = {"round": int, "metric": str, "value": float, "stale": int}
    named = isinstance(best, dict) and best.keys() == types.keys()
    return named and all(type(best[name]) is kind for name, kind in types.items())


def _is_execution(execution: Any) -> bool:
    return isinstance(execution, dict) and execution.get("mode") in MODES
