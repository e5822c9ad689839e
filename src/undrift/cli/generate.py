"""Write what is known about methods where it cannot be read from their classes: `make names`.

names.json feeds help and completion, template.json and schema.json feed `undrift init`, `schema`;
none of them may wait for torch. README.md counts the methods, docs/methods.md lists them, and each
page of docs/algorithms its method's parameters, between markers. A method without a page gets one.
"""

from __future__ import annotations

import json
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from torch import nn

from undrift import data, fleet, models, topology
from undrift.algorithms import ALGORITHMS
from undrift.cli.init import SCHEMA, TEMPLATE
from undrift.config.hyperparameters import (
    DEFAULT_LR,
    METHODS,
    Parameter,
    as_text,
    parameters_of,
    summary_of,
)
from undrift.config.schema import json_schema
from undrift.config.template import method_lines, section_lines
from undrift.core import Federated, Gossip
from undrift.outer import Outer
from undrift.report.catalogue import citation, entries

NAMES = Path(__file__).with_name("names.json")
ROOT = Path(__file__).parents[3]  # of the checkout
DOCUMENTS = ("FedSpeed", "FedACG", "FedaGrac", "NetFleet", "Marsit")  # bold in the README
HOOKS = ("Marsit", "SignSGD", "EFSignSGD", "SSDM")  # that have a hook for DDP
BEGIN, END = "<!-- made by `make names` -->", "<!-- end -->"


def names_json() -> str:
    """Return the content of names.json as it must be for the classes of today."""
    content = {
        "data_sets": list(data.NAMES),
        "models": list(models.MODELS),
        "fleets": [*fleet.PRESETS, *fleet.MIXES],
        "methods": {name: _method(cls) for name, cls in METHODS.items()},
    }
    return json.dumps(content, indent=1) + "\n"


def written_files() -> dict[Path, str]:
    """Return the text of every file that commands read instead of the classes."""
    template = {
        "sections": {
            "server": section_lines(server=True),
            "peers": section_lines(server=False),
        },
        "methods": {name: method_lines(name) for name in METHODS},
    }
    texts = {TEMPLATE: template, SCHEMA: json_schema()}
    return {NAMES: names_json()} | {
        path: json.dumps(content, indent=1) + "\n" for path, content in texts.items()
    }


def _method(cls: Any) -> dict[str, Any]:
    """Return the entry of one method in names.json."""
    return {
        "class": cls.__name__,
        "family": cls.family,
        "summary": summary_of(cls),
        "parameters": [_parameter(parameter) for parameter in parameters_of(cls)],
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    """Return the entry of one hyper-parameter; a required one has the command line's default."""
    default = DEFAULT_LR if parameter.default is MISSING else as_text(parameter.default)
    return {**parameter._asdict(), "default": default}


def pages() -> dict[Path, str]:
    """Return the text of every page that has a generated part, with that part as it must be."""
    docs = ROOT / "docs"
    parts = {ROOT / "README.md": _families(), docs / "methods.md": _index()}
    texts = {path: _replaced(path, path.read_text(encoding="utf-8"), parts[path]) for path in parts}
    for name, cls in METHODS.items():
        path = docs / "algorithms" / f"{name}.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else _new_page(cls)
        texts[path] = _replaced(path, text, _table(cls))
    return texts


def _new_page(cls: type) -> str:
    """Return a page to begin with, for a method that has none."""
    return f"# {cls.__name__}\n\n{citation(cls)}. {summary_of(cls)}\n\n{BEGIN}\n{END}\n"


def _replaced(path: Path, text: str, part: str) -> str:
    """Return the text of a page with another part between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} needs the lines {BEGIN!r} and {END!r}, got a page without them.")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def _table(cls: type) -> str:
    """Return the table of a method's parameters."""
    rows = ["| parameter | default | meaning |", "|---|---|---|"]
    for parameter in parameters_of(cls):
        default = "-" if parameter.default is MISSING else f"`{parameter.default!r}`"
        meaning = parameter.help.replace("|", r"\|")
        rows.append(f"| `{parameter.name}` | {default} | {meaning} |")
    return "\n".join(rows)


def _index() -> str:
    """Return the tables of all methods: what they do, and what they cost and where they run."""
    rows = ["| method | family | what it does | paper |", "|---|---|---|---|"]
    methods: dict[str, Any] = METHODS
    for name, cls in methods.items():
        link = f"[{cls.__name__}](algorithms/{name}.md)"
        rows.append(f"| {link} | {cls.family} | {summary_of(cls)} | {citation(cls)} |")
    return "\n".join([*rows, "", "## What they cost, and where they run", "", *_costs()])


def _costs() -> list[str]:
    """Return the lines of the table of traffic, gradients, states and engines, as measured."""
    head = (
        "method",
        "traffic / FedAvg",
        "gradients / step",
        "client state",
        "server state",
        "`simulate`, processes",
        "`Outer`",
        "sites",
        "DDP hook",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cls, entry in zip(ALGORITHMS, entries(ALGORITHMS), strict=True):
        states = (_code(entry.client_state), _code(entry.server_state))
        engines = (True, _runs_in_outer(cls), issubclass(cls, Federated), cls.__name__ in HOOKS)
        words = [cls.__name__, f"{entry.traffic:.2g}", f"{entry.gradients:.2g}", *states]
        lines.append(f"| {' | '.join([*words, *('yes' if e else '' for e in engines)])} |")
    return lines


def _code(names: str) -> str:
    """Return names of vectors as code, words as they are."""
    return ", ".join(n if n in ("-", "1 vector") else f"`{n}`" for n in names.split(", "))


def _runs_in_outer(cls: Any) -> bool:
    """Return whether `Outer` takes the method, which it finds out when it is made."""
    links = topology.isolated(1) if issubclass(cls, Gossip) else None
    try:
        Outer(nn.Linear(2, 2), cls(lr=0.1), 2, topology=links)
    except ValueError:
        return False
    return True


def _families() -> str:
    """Return the table of the README: how many methods each family has, and where they run."""
    rows = [
        "| [methods](docs/methods.md) | simulator | [machines](docs/distributed.md) "
        "| [own loop](docs/outer.md) | [DDP hook](docs/ddp.md) |",
        "|---|---|---|---|---|",
    ]
    methods: tuple[Any, ...] = ALGORITHMS
    for family, title in (
        ("federated", "with a server"),
        ("gossip", "for gossip"),
        ("all-reduce", "for all-reduce"),
    ):
        members = [cls for cls in methods if cls.family == family]
        own = ", ".join(f"**{cls.__name__}**" for cls in members if cls.__name__ in DOCUMENTS)
        outer = _share([_runs_in_outer(cls) for cls in members])
        hooks = _share([cls.__name__ in HOOKS for cls in members])
        rows.append(f"| {len(members)} {title}: {own} ... | yes | yes | {outer} | {hooks} |")
    return "\n".join(rows)


def _share(which: list[bool]) -> str:
    """Return how many of some methods run somewhere."""
    return "yes" if all(which) else f"{sum(which)} of {len(which)}" if any(which) else ""


def main() -> None:
    """Write what commands read instead of the classes, and the generated parts of the pages."""
    for path, text in {**written_files(), **pages()}.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
