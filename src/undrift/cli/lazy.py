"""Commands that need torch only when they are called, not for their help.

A group made here knows its commands by name and a line of help, and loads the one that is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command


def group(
    lines: Mapping[str, str], load: Callable[[str], Callable[..., Any]], **options: Any
) -> typer.Typer:
    """Commands by their lines of help; `load` gives the function of a name."""

    class Lazy(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, _, rest = super().resolve_command(ctx, args)
            return name, None if name is None else _alone(name, load(name)), rest

    app = typer.Typer(cls=Lazy, **options)
    for name, line in lines.items():
        app.command(name, help=line)(_nothing)
    return app


def _alone(name: str, function: Callable[..., Any]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name)(telling(function))
    return get_command(app)


def _nothing() -> None:
    """What stands for a command until it is loaded."""


def telling(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that may fail on one process alone, after it has joined others: they are told."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        from undrift.engine.processes.rendezvous import propagate_failure

        return propagate_failure(function)(*args, **kwargs)

    return command
