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

P = ParamSpec("P")
R = TypeVar("R")


def require(condition: bool, who: str, expected: str, got: Any, remedy: str = "") -> None:
    """Raise `ValueError("<who> needs <expected>, got <got>; <remedy>.")` unless condition."""
    if not condition:
        raise ValueError(f"{who} needs {expected}, got {_shown(got)}{remedy and '; ' + remedy}.")


def _shown(got: Any) -> str:
    """Return what came as it stands in a sentence, where nothing at all is none."""
    if getattr(type(got), "__repr__", None) is object.__repr__:  # which shows an address
        return f"an object of {type(got).__name__}"
    return "none" if got is None or (isinstance(got, str) and got == "none") else repr(got)


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


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause that names the nearest known name, or "" when none is near."""
    given, names = str(name).lower(), list(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    near = near or [each for each in names if given and each.startswith(f"{given}_")]
    return f"; the nearest is {near[0]!r}" if near else ""


# Keywords that other libraries have, and what undrift has for them.
_EPOCHS, _STEPS = 'local epochs are work="epochs:5"', 'local steps are work="steps:10"'
_RULE = "a local optimiser is a rule of the method, such as FedAvg(lr=0.1, rule=Momentum(0.9))"
REMEDIES = {
    "learning_rate": "the learning rate is lr, of the method: FedAvg(lr=0.1)",
    "lr": "the learning rate belongs to the method: FedAvg(lr=0.1)",
    "local_lr": "the clients' learning rate is lr, of the method: FedAvg(lr=0.1)",
    "epochs": _EPOCHS,
    "local_epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "local_steps": _STEPS,
    "steps": _STEPS,
    "num_rounds": "communication rounds are rounds=50",
    "n_rounds": "communication rounds are rounds=50",
    "global_rounds": "communication rounds are rounds=50",
    "fraction": "the share of clients in a round is participation=0.1",
    "fraction_fit": "the share of clients in a round is participation=0.1",
    "criterion": "the loss is loss=nn.CrossEntropyLoss()",
    "loss_fn": "the loss is loss=nn.CrossEntropyLoss()",
    "optimizer": _RULE,
    "optimiser": _RULE,
    "momentum": _RULE,
    "dataset": "the data are clients, such as undrift.data.load('mnist').split('iid', 20)",
    "num_clients": "the number of clients is that of the parts: data.split('iid', 20)",
    "devices": "simulated devices are fleet='phone'",
    "evaluate_every": "evaluation=EvaluationOptions(every=10) says how often models are tested",
    "eval_every": "evaluation=EvaluationOptions(every=10) says how often models are tested",
    "verbose": "progress=True shows a bar, logging.basicConfig(level='INFO') lines",
    "random_state": "the seed is seed=0",
    "callbacks": "a run is an iterator: say for record in run: print(record)",
    "callback": "a run is an iterator: say for record in run: print(record)",
    "patience": "early_stopping=10 stops after so many tests without a better one",
}


REQUIRED = {  # keywords that have no default -> what to say
    "work": 'local work of a round is work="epochs:5" or work="steps:10"',
    "rounds": "communication rounds are rounds=50",
}


def refuse_unknown(who: str, known: list[str], name: str) -> TypeError:
    """Return the error for a keyword that is not known, with what is meant or the nearest name."""
    remedy = REMEDIES.get(name)
    if "experiment" in known:  # `run`, whose experiment has everything
        remedy = (
            "the experiment says it: run({'methods': [{'name': 'fedavg'}]}); objects go to compare"
        )
        remedy = "" if difflib.get_close_matches(name, known, n=1, cutoff=0.75) else remedy
    meant = f"; {remedy}" if remedy and name not in known else nearest(name, known)
    return TypeError(f"{who} has no {name!r}{meant or '; it has ' + ', '.join(known)}.")


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


def _unknown_field(who: str, known: list[str], name: str) -> TypeError:
    """Return the error for a field that a method does not have."""
    rates = "lr" in known and name in ("learning_rate", "local_lr", "eta", "step_size")
    if rates:
        return TypeError(f"{who} has no {name!r}; the learning rate is lr.")
    if name in ("epochs", "local_epochs", "local_steps", "steps", "batch_size", "rounds"):
        word = {"batch_size": "batch_size", "rounds": "rounds"}.get(name, "work")
        return TypeError(f"{who} has no {name!r}; simulate has it: simulate(..., {word}=...).")
    if name in ("momentum", "optimizer", "optimiser") and "rule" in known:
        return TypeError(f"{who} has no {name!r}; say rule=Momentum(0.9) or rule=AdamW().")
    return TypeError(
        f"{who} has no {name!r}{nearest(name, known) or '; it has ' + ', '.join(known)}."
    )
