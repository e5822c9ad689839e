"""`undrift list`: all methods, and what each costs."""

import json

from undrift.cli.options import JsonOption


def list_methods(as_json: JsonOption = False) -> None:
    """List all methods: paper, traffic and gradients as measured by a dry run, and state."""
    from rich.table import Table

    from undrift.algorithms import ALGORITHMS
    from undrift.report import catalogue
    from undrift.report.terminal import wide_console

    entries = catalogue.entries(ALGORITHMS)
    console = wide_console(stderr=as_json)
    shown = Table(title="Methods")
    shown.add_column("name", no_wrap=True)
    shown.add_column("family", no_wrap=True)
    shown.add_column("paper")
    for column in ("traffic / FedAvg", "gradients / step"):
        shown.add_column(column, justify="right")
    for column in ("client state", "server state"):
        shown.add_column(column)
    for e in entries:
        cost = f"{e.traffic:.3g}", f"{e.gradients:.3g}"
        shown.add_row(e.name, e.family, e.paper, *cost, e.client_state, e.server_state)
    console.print(shown)
    console.print(
        "Traffic of peers: one exchange on a ring of four.\n"
        "Hyper-parameters: undrift run NAME --help",
        style="dim",
    )
    if as_json:
        print(json.dumps([vars(e) for e in entries]))
