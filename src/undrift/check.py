"""Argument checks that say what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from undrift.foreign import Place, meaning_of

P = ParamSpec("P")
R = TypeVar("R")


def require(condition: bool, who: str, expected: str, got: Any, remedy: str = "") -> None:
    """Raise `ValueError("<who> needs <expected>, got <got>; <remedy>.")` unless condition."""
    if not condition:
        raise ValueError(f"{who} needs {expected}, got {_shown(got)}{remedy and '; ' + remedy}.")


_LONGEST = 120  # characters of a value in a sentence


def _shown(got: Any) -> str:
    """Return what came as it stands in a sentence, in one line; nothing at all is none."""
    if got is None or (isinstance(got, str) and got == "none"):
        return "none"
    kind, shape = type(got).__name__, getattr(got, "shape", None)
    if shape and not isinstance(got, type):
        return f"a {kind} of shape {tuple(shape)}"
    text = "" if getattr(type(got), "__repr__", None) is object.__repr__ else repr(got)
    short = bool(text) and "\n" not in text and len(text) <= _LONGEST
    if short or isinstance(got, str):
        return text
    if isinstance(got, list | tuple) and len(got) < 4:
        return f"a {kind} of {', '.join(type(each).__name__ for each in got)}"
    return f"an object of {kind}"  # whose text is an address, or more than a sentence has


def require_positive(who: str, **values: float) -> None:
    for name, value in values.items():
        positive = is_finite(value) and value > 0
        require(positive, who, f"{name} > 0, a finite number", value, _unquoted(value))


def require_nonnegative(who: str, **values: float) -> None:
    for name, value in values.items():
        nonnegative = is_finite(value) and value >= 0
        require(nonnegative, who, f"{name} >= 0, a finite number", value, _unquoted(value))


_TORCH_SCHEDULES = {
    "StepLR": "staircase(0.1, 0.5, 10)",
    "MultiStepLR": "piecewise(0.1, {20: 0.01})",
    "ExponentialLR": "exponential(0.1, 0.99)",
    "LinearLR": "warmup(0.1, 5)",
}


def _unquoted(value: Any) -> str:
    """Return the remedy for text, or torch's schedule, in the place of a number or a schedule."""
    if type(value).__module__.startswith("torch.optim"):
        name = _TORCH_SCHEDULES.get(type(value).__name__, "cosine(0.1, 50)")
        return f"write a number or a schedule of rounds, such as undrift.{name}"
    if not isinstance(value, str):
        return ""
    called = re.fullmatch(r"(exponential|piecewise|cosine|staircase|warmup)\(.*\)", value.strip())
    return f"write undrift.{value.strip()}" if called else "write a number without quotes"


def is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_probability(value: Any) -> bool:
    """Return whether the value is a number in [0, 1]."""
    return is_finite(value) and 0 <= value <= 1


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_choice(who: str, name: str, value: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        raise ValueError(
            f"{who} needs {name} to be one of {', '.join(known)}, got {value!r}"
            f"{nearest(value, known)}."
        )


_NEAR = 0.66  # two letters of three alike; below, other words would be proposed, too


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause that names the nearest known name, or "" when none is near."""
    given, names = str(name).lower(), {each.lower(): each for each in known}
    near = difflib.get_close_matches(given, names, n=1, cutoff=_NEAR)
    near = near or [each for each in names if given and each.startswith(f"{given}_")]
    return f"; the nearest is {names[near[0]]!r}" if near else ""


def meant(name: str, known: Iterable[str], place: Place = "python", owner: str = "") -> str:
    """Return a clause that says what a name that is not known means, or which is nearest.

    `owner` is whose the names are, for the clause that says where to read of many of them.
    """
    names = list(known)
    if name not in names and (remedy := meaning_of(name, place)):
        return f"; {remedy}"
    near = nearest(name, names)
    if near or not owner:
        return near
    many = len(names) > _LISTED
    return f"; help({owner}) says which it has" if many else f"; it has {', '.join(names)}"


_LISTED = 12  # names that a sentence may list

REQUIRED = {  # keywords that have no default -> what to say
    "work": 'local work of a round is work="epochs:5" or work="steps:10"',
    "rounds": "communication rounds are rounds=50",
}


def refuse_unknown(who: str, known: list[str], name: str) -> TypeError:
    """Return the error for a keyword that is not known, with what is meant or the nearest name."""
    if "experiment" in known:  # `run`, whose experiment has everything
        clause = nearest(name, known) or (
            "; the experiment says it: run({'methods': [{'name': 'fedavg'}]}); objects go to "
            "compare"
        )
    elif name == "lr" and "tune" in known:  # `compare`
        clause = "; a rate is of a method, FedAvg(lr=0.1), and several are tune={'lr': [0.1, 0.3]}"
    elif name in OF_SIMULATE and "changes" in known:
        clause = f"; {meaning_of(name, 'file')}, a field of the experiment: changes={{...}}"
    else:
        clause = meant(name, known, owner=f"undrift.{who}")
    return TypeError(f"{who} has no {name!r}{clause}.")


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, which refuses a keyword that it does not have with a remedy."""
    signature = inspect.signature(function).parameters
    parameters, by_name = list(signature), inspect.Parameter.KEYWORD_ONLY
    without = [n for n, p in signature.items() if p.default is p.empty]
    positional = [n for n, p in signature.items() if p.kind is not by_name]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                raise refuse_unknown(function.__name__, parameters, name)
        given = {*positional[: len(args)], *kwargs}
        for name in without:
            if name not in given:
                meant = f"; {REQUIRED[name]}" if name in REQUIRED else ""
                raise TypeError(f"{function.__name__} needs {name}, got none{meant}.")
        return function(*args, **kwargs)

    return called


def known_fields(cls: Any) -> Any:
    """Let a dataclass refuse a field that it does not have with a remedy; return the class."""
    known = [name for name, each in cls.__dataclass_fields__.items() if each.init]
    required = (each for each in cls.__dataclass_fields__.values() if each.init)
    needed = [f.name for f in required if f.default is MISSING and f.default_factory is MISSING]
    plain = cls.__init__

    @functools.wraps(plain)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise _unknown_field(type(self).__name__, known, name)
        given = {*known[: len(args)], *kwargs}
        lacking = [name for name in needed if name not in given]
        if lacking or len(args) > len(known):
            raise _wrong_count(type(self).__name__, known, lacking, len(args))
        plain(self, *args, **kwargs)

    cls.__init__ = initialise
    return cls


def _wrong_count(who: str, known: list[str], lacking: list[str], count: int) -> TypeError:
    """Return the error for fields without a value, or for values without a field."""
    if lacking:
        rate = "; say lr=0.1, the learning rate" if lacking == ["lr"] else ""
        return TypeError(f"{who} needs {' and '.join(lacking)}, got none{rate}.")
    names = ", ".join(known)
    return TypeError(f"{who} needs at most {len(known)} values ({names}), got {count}; name them.")


# Keywords of `simulate` that users look for in a method.
OF_SIMULATE = (
    *("rounds", "work", "batch_size", "participation", "weighting", "weight_decay", "clip", "loss"),
    *("seed", "device", "precision", "metrics", "aggregation", "attack", "early_stopping"),
)


def _unknown_field(who: str, known: list[str], name: str) -> TypeError:
    """Return the error for a field that a method does not have."""
    if name in OF_SIMULATE:
        return TypeError(f"{who} has no {name!r}; simulate has it: simulate(..., {name}=...).")
    remedy = meaning_of(name, "python")
    if remedy.startswith(("local epochs", "local steps")):
        return TypeError(f"{who} has no {name!r}; simulate has it: simulate(..., work=...).")
    return TypeError(f"{who} has no {name!r}{meant(name, known, owner=f'undrift.{who}')}.")
