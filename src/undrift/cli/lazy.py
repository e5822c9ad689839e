"""Commands that are loaded when they are called, so that help does not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.main import get_command

from undrift.cli.foreign import CommandGroup, MethodCommand


def lazy_group(
    summaries: Mapping[str, str], load: Callable[[str], Callable[..., Any]], **options: Any
) -> typer.Typer:
    """Return a group of commands by their lines of help; `load` gives the function of a name."""

    class LazyGroup(CommandGroup):
        """Loads the command that is called."""

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name: str | None
            if ":" in args[0]:  # a method of one's own, file.py:Class
                name, rest = args[0], args[1:]
            else:
                name, _, rest = super().resolve_command(ctx, args)
            if name is None:
                return None, None, rest
            loaded = typer.Typer(add_completion=False)
            loaded.command(name, cls=MethodCommand)(load(name))
            return name, get_command(loaded), rest

    group = typer.Typer(cls=LazyGroup, **options)
    for name, summary in summaries.items():
        group.command(name, help=summary)(_placeholder)
    return group


def _placeholder() -> None:
    """Stand for a command until it is loaded."""
