"""Options that other libraries have: the answer names the one that undrift has for it."""

from __future__ import annotations

import difflib
import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from undrift.foreign import meaning_of

REMEDIES = {  # words of the shell alone
    "--client": "a table's column of clients is named beside its file: --data patients.csv:target="
    "died,client=site",
}
_COMMANDS = {  # words for commands that other tools have
    **dict.fromkeys(
        ("train", "fit", "start", "simulate", "method"),
        "training is run: undrift run fedavg --lr 0.1",
    ),
    **dict.fromkeys(("tune", "search", "optimize"), "values are tried by sweep, or compare --tune"),
    **dict.fromkeys(
        ("plot", "show", "results", "table", "evaluate", "test", "eval"),
        "results are shown by report: undrift report runs/fedavg-1",
    ),
    **dict.fromkeys(("resume", "continue"), "a run goes on by undrift run --resume FOLDER"),
    **dict.fromkeys(("methods", "algorithms"), "methods are shown by undrift list"),
    **dict.fromkeys(
        ("new", "create", "config"), "a file is written by undrift init experiment.toml"
    ),
    **dict.fromkeys(("score", "infer"), "rows are scored by undrift predict FOLDER rows.csv"),
    **dict.fromkeys(("datasets", "download"), "data sets are shown by undrift data list"),
}


class PlainFlags:
    """Shows flags in help without the type that typer has for them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, of which flags need no type, since they take no value."""
        parameters: list[Any] = list(super().get_params(ctx))  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(PlainFlags, TyperCommand):
    """Is a command whose help shows flags as such."""


class CommandGroup(PlainFlags, TyperGroup):
    """Is a group of commands whose help shows flags as such and that knows other tools' words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command of the first word, or raise `ValueError` with what is meant."""
        name = args[0]
        own = self.list_commands(ctx)
        if name not in own and not name.startswith("-"):
            words = [*own, *(_COMMANDS if ctx.parent is None else ())]
            near = difflib.get_close_matches(name.lower(), words, n=1, cutoff=0.7)
            remedy = f"the nearest is {near[0]!r}" if near else f"there are {', '.join(own)}"
            remedy = remedy if not near or near[0] in own else _COMMANDS[near[0]]
            raise ValueError(f"{ctx.command_path} has no command {name!r}; {remedy}.")
        resolved: tuple[str | None, Any, list[str]] = super().resolve_command(ctx, args)
        return resolved


class MethodCommand(Command):
    """Answers an option of another library with undrift's own; methods may have it themselves."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, or raise `ValueError` with the option that is meant."""
        own = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in own and (remedy := _meant(name, own)):
                raise ValueError(f"{ctx.command_path} has no {name}; {remedy}.")
        return super().parse_args(ctx, args)


def _meant(name: str, own: set[str]) -> str:
    """Return which of a command's own options is meant by one that it does not have, or ""."""
    spelt = name.lower().replace("_", "-")
    if spelt in own:
        return f"it is spelt {spelt}"
    remedy = REMEDIES.get(name, "") or meaning_of(name, "shell")
    options = re.findall(r"--[a-z][a-z-]*", remedy)
    if options and not own.intersection(options):  # as of a command that reads a file
        remedy = meaning_of(name, "file")
        return f"{remedy}, in the file" if remedy else ""
    return remedy
