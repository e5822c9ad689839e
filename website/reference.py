"""Make the pages of reference: Python from docstrings, commands, the experiment file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from typer.main import get_command

ROOT = Path(__file__).parents[1]
PANEL = "Options"
LATER = "---\nsearch:\n  boost: 0.5\n---\n\n"  # a search shows what explains first
EXAMPLES = re.compile(r"Examples?: (.+)", re.DOTALL)
WITHOUT_PAGE = {"comm", "optim"}  # packages whose names are public by themselves
# A page for each subject: its title, what it is for, and the names of `undrift` or of one of its
# packages that it documents. A package in brackets stands for all of its public names.
API: dict[str, tuple[str, str, str]] = {
    "simulate": (
        "Running",
        "One run, an experiment of many, and a comparison.",
        "simulate Run run compare Experiment ExperimentResult EvaluationOptions ExecutionOptions "
        "ExecutionRecord EarlyStopping Record PeerRecord Totals Upload",
    ),
    "methods": (
        "Methods",
        "Every method as a class; `undrift.ALGORITHMS` lists them. "
        "[Their pages](../methods.md) have the papers' boxes.",
        "ALGORITHMS Accelerated Compressed",
    ),
    "contract": (
        "The contract",
        "What a method of your own inherits from and is handed, and the checks it must pass.",
        "Federated Prelude Peer Gossip AllReduce Merge Objective Loop Comm Cohort Vector "
        "testing.check_algorithm",
    ),
    "data": (
        "Data and work",
        "Data sets, their partition among clients, and the work of each client.",
        "Clients Dataset Epochs Steps GaussianSteps UniformSteps Deadline Replaced Resampled Spans "
        "[data]",
    ),
    "models": (
        "Models",
        "Models by name, and the conversion of BatchNorm.",
        "group_norm SavedModel models.build models.huggingface.HuggingFace",
    ),
    "tasks": (
        "Tasks and metrics",
        "What a model is trained for and measured by.",
        "Metric [tasks]",
    ),
    "metrics": ("Curves", "Numbers that are read off a run's records.", "[metrics]"),
    "optim": (
        "Rules and schedules",
        "Update rules of local steps, and hyper-parameters that change with the round.",
        "SGD Momentum Adam AdamW Schedule cosine exponential piecewise staircase warmup",
    ),
    "participation": (
        "Who takes part",
        "Draws of the clients of a round.",
        "Bernoulli Cohorts FixedSize WithReplacement",
    ),
    "fleet": (
        "Simulated fleet",
        "Speed, connections and failures of clients.",
        "Device Fleet [fleet]",
    ),
    "robustness": (
        "Bad clients",
        "Rules that bear attackers, and attacks to try them.",
        "[robust] [attacks]",
    ),
    "topology": ("Topologies", "Who is linked with whom in gossip.", "[topology]"),
    "comm": ("Compression", "Codecs of uploads.", "QSGD ScaledSign TopK"),
    "outer": ("Outer loop", "Methods as optimisers in a loop of your own.", "Outer Seconds"),
    "ddp": ("DDP hooks", "One-bit gradients under DistributedDataParallel.", "[ddp]"),
    "federation": ("Federation", "A centre, and sites that keep their data.", "[federation]"),
    "drift": ("Drift", "How far the clients' models are apart.", "Drift"),
    "theory": ("Theory", "Theorems as functions.", "[theory]"),
    "cost": ("Cost", "Seconds of a round before it is run.", "[cost]"),
    "errors": (
        "Errors",
        "What is raised; a bad argument is a ValueError.",
        "UndriftError CheckpointError DataError DivergenceError WorkerError "
        "StallWarning TaskWarning",
    ),
}


@cache
def pages() -> dict[str, str]:
    """Return every page of reference by its address."""
    import undrift

    made = {f"api/{name}.md": _api(*API[name]) for name in API}
    listed = {
        word.strip("[]").split(".")[0] for _, _, names in API.values() for word in names.split()
    }
    methods = {cls.__name__ for cls in undrift.ALGORITHMS}
    others = sorted(set(undrift.__all__) - listed - methods - WITHOUT_PAGE)
    if others:  # names that nobody has put under a subject yet
        made["api/others.md"] = _api("Other names", "Names without a page.", " ".join(others))
    return made | {"commands.md": _commands(), "experiment-file.md": _experiment_file()}


def _api(title: str, purpose: str, names: str) -> str:
    """Return the page of some names, whose docstrings mkdocstrings reads."""
    places: dict[str, str] = {}
    for name in names.split():
        for public, place in _places(name):
            places.setdefault(place, public)
    modules = {place for place in places if any(p.startswith(f"{place}.") for p in places)}
    directives = [
        f"::: {place}\n    options:\n      heading: {public}\n      toc_label: {public}"
        for place, public in places.items()
        if place not in modules  # whose names are there one by one
    ]
    return LATER + "\n\n".join([f"# {title}", purpose, *directives]) + "\n"


def _places(name: str) -> list[tuple[str, str]]:
    """Return the public names behind a name of API, and where each is defined."""
    import undrift

    if name.startswith("["):
        package = getattr(undrift, name[1:-1])
        public = getattr(package, "__all__", None) or _own_names(package)
        return [(f"{name[1:-1]}.{each}", _place(package, each)) for each in public]
    if name == "ALGORITHMS":
        return [(cls.__name__, f"{cls.__module__}.{cls.__name__}") for cls in undrift.ALGORITHMS]
    module, _, last = name.rpartition(".")
    return [(name, _place(import_module(f"undrift.{module}") if module else undrift, last))]


def _own_names(module: Any) -> list[str]:
    """Return the names that a module without `__all__` defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _place(module: Any, name: str) -> str:
    """Return the dotted name where an object is defined, which is where its docstring is."""
    value = getattr(module, name)
    if isinstance(value, ModuleType):
        return value.__name__
    home = getattr(value, "__module__", None)
    if isinstance(home, str) and home.startswith("undrift") and hasattr(value, "__qualname__"):
        return f"{home}.{value.__qualname__}"
    homes = getattr(module, "_HOMES", {})  # of packages that import their names when first used
    return ".".join(filter(None, (module.__name__, homes.get(name), name)))


def _commands() -> str:
    """Return the page of all commands, from the commands themselves."""
    from undrift.cli.main import app

    group: Any = get_command(app)
    context = group.make_context("undrift", [], resilient_parsing=True)
    parts = [
        "# Command line",
        "Made from the commands; `undrift COMMAND --help` says the same. "
        "Exit codes: [in scripts](experiments.md#in-scripts).",
    ]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if name == "run":
            parts += _run_commands(command, context)
        elif hasattr(command, "list_commands"):
            parts += [f"## undrift {name}", *_help(command)]
            for sub in command.list_commands(context):
                parts += _command(f"undrift {name} {sub}", command.get_command(context, sub), 3)
        else:
            parts += _command(f"undrift {name}", command, 2)
    return "\n\n".join(parts) + "\n"


def _run_commands(group: Any, context: Any) -> list[str]:
    """Return the parts about `undrift run`, whose options are the same for every method."""
    _, method, _ = group.resolve_command(context, ["fedavg"])
    _, file, _ = group.resolve_command(context, ["file"])
    own = (
        "Hyper-parameters of a method are options, too; [each method's page](methods.md) has them."
    )
    method.params = [each for each in method.params if not _panel(each).startswith("FedAvg")]
    method.help = f"Train with one method. {own}"
    return [
        "## undrift run",
        *_help(group),
        *_command("undrift run METHOD", method, 3),
        *_command("undrift run FILE", file, 3),
    ]


def _command(name: str, command: Any, level: int) -> list[str]:
    """Return the parts about one command: its help, arguments and options."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    words = [_argument(each) for each in arguments if _name(each).upper() not in name]
    usage = " ".join([name, *words, "[OPTIONS]" if options else ""]).strip()
    parts = [f"{'#' * level} {name}", *_help(command), f"```text\n{usage}\n```"]
    if any(getattr(each, "help", None) for each in arguments):
        rows = [(f"`{_name(each)}`", each.help or "", "") for each in arguments]
        parts.append(_table(("argument", "meaning"), [row[:2] for row in rows]))
    for panel in dict.fromkeys(map(_panel, options)):
        rows = [_option(each) for each in options if _panel(each) == panel and not each.hidden]
        parts.append(f"**{panel}**")
        parts.append(_table(("option", "default", "meaning"), rows))
    return [part for part in parts if part]


def _help(command: Any) -> list[str]:
    """Return the help of a command, with its examples as a block."""
    text = (command.help or "").replace("\b", "").strip()
    found = EXAMPLES.search(text)
    if found is None:
        return [text]
    lines = " ".join(found.group(1).split()).split("; ")
    return [text[: found.start()].strip(), "```sh\n" + "\n".join(lines) + "\n```"]


def _panel(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or PANEL


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name)


def _argument(parameter: Any) -> str:
    """Return an argument as a line of usage shows it."""
    name = _name(parameter).upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> tuple[str, str, str]:
    """Return the row of one option."""
    flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    plain = default is None or default is False or callable(default) or default in ((), [], "")
    return flags, "" if plain else f"`{default}`", parameter.help or ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = (
        " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in row) for row in lines
    )
    return "\n".join(f"| {row} |" for row in cells)


def _experiment_file() -> str:
    """Return the page of the experiment file, from its JSON Schema."""
    from undrift.cli.init import SCHEMA

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    parts = [
        "# Experiment file",
        "Made from the schema that `undrift schema` prints and editors read. "
        "[Experiments](experiments.md) explains it with examples; `undrift init` writes a file "
        "with everything in comments.",
        "## Top level",
        _fields(_with_links(schema)),
    ]
    for name, field in schema["properties"].items():
        section = _section(field, schema["$defs"])
        if section and "properties" in section:
            title = f"[[{name}]]" if field.get("type") == "array" else f"[{name}]"
            parts += [
                f"## `{title}`",
                section.get("description", ""),
                _fields(section["properties"]),
            ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(field: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the table that a field of the top level stands for, if it stands for one."""
    for each in (field, field.get("items", {}), *field.get("anyOf", []), *field.get("allOf", [])):
        if "$ref" in each:
            found: dict[str, Any] = defs[each["$ref"].rsplit("/", 1)[1]]
            return found
    return None


def _with_links(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the top level, where tables say what they are for and link to it."""
    found = {}
    for name, field in schema["properties"].items():
        section = _section(field, schema["$defs"]) or {}
        text = field.get("description") or section.get("description", "").split(". ")[0]
        link = f"[Its fields](#{name})." if "properties" in section else ""
        said = f"{text.rstrip('.')}. {link}" if text else link
        found[name] = field | {"description": said.strip()}
    return found


def _fields(properties: dict[str, Any]) -> str:
    """Return the table of some fields."""
    rows = []
    for name, field in properties.items():
        default = field.get("default")
        written = "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"
        rows.append((f"`{name}`", _kind(field), written, field.get("description", "")))
    return _table(("field", "value", "default", "meaning"), rows)


def _kind(field: dict[str, Any]) -> str:
    """Return in words what a field may hold."""
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        return "table"
    kinds = [_kind(each) for each in field.get("anyOf", []) if each.get("type") != "null"]
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    if field.get("type") == "array":
        items = field.get("items", {})
        several = f"{_kind(items).removesuffix(_range(items))}s{_range(items)}"
        return f"list of {several}".removesuffix(" of values")
    words = {
        "string": "text",
        "integer": "whole number",
        "boolean": "true, false",
        "object": "table",
    }
    kind = str(field.get("type", "value"))
    return f"{words.get(kind, kind)}{_range(field)}"


def _range(field: dict[str, Any]) -> str:
    """Return the limits of a number in signs."""
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = [
        f"{sign} {field[name]:g}"
        for name, sign in signs.items()
        if name in field and abs(field[name]) < 2**53  # beyond, a limit of the representation
    ]
    return f" {', '.join(limits)}" if limits else ""
