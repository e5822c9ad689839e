"""`undrift check module:Class`: the contract's checks on a method of one's own."""

import json
import traceback
from typing import Annotated

import typer

from undrift.cli.options import JsonOption


def check(
    target: Annotated[str, typer.Argument(help="module:Class, file.py:Class, or a name.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter, e.g. --set lr=0.01")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a method against the contract, as the library's own are checked.

    Example: undrift check examples/own_algorithm.py:Heavy
    """
    from rich.console import Console
    from rich.markup import escape

    from undrift import testing
    from undrift.config.experiment import from_text
    from undrift.config.hyperparameters import build, method_class

    cls = method_class(target)
    hyper_parameters = {}
    for text in set_ or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set needs NAME=VALUE, got {text!r}.")
        hyper_parameters[name.strip()] = from_text(value.strip())
    if "lr" in getattr(cls, "__dataclass_fields__", {}):
        hyper_parameters.setdefault("lr", 0.05)
    algorithm = build(cls, hyper_parameters)
    console = Console(stderr=as_json)
    plain = "utf" not in console.encoding.lower()
    tick, cross = ("ok", "fails") if plain else ("✓", "✗")
    try:
        testing.finish(testing.start(algorithm, rounds=1))
    except Exception as error:  # Every check would fail with the same error.
        where = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        console.print(f"[red]{cross}[/red] one round: {escape(why)}", highlight=False)
        if as_json:
            print(json.dumps({"method": cls.__name__, "failed": {"one round": why}}))
        raise typer.Exit(1) from None
    checks, failed = testing.checks_for(algorithm), {}
    for verify in checks:
        name = verify.__name__.removeprefix("check_").replace("_", " ")
        try:
            verify(algorithm)
        except Exception as error:  # A user's method may raise anything.
            failed[name] = str(error) or type(error).__name__
            console.print(f"[red]{cross}[/red] {name}: {escape(failed[name])}", highlight=False)
        else:
            console.print(f"[green]{tick}[/green] {name}", highlight=False)
    held = len(checks) - len(failed)
    console.print(f"{cls.__name__}: {held} of {len(checks)} checks hold.", highlight=False)
    if as_json:
        print(json.dumps({"method": cls.__name__, "failed": failed}))
    raise typer.Exit(1 if failed else 0)
