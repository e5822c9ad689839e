"""What starting costs: who asks for help does not wait for torch, nor anyone for what is not used.

Times depend on the machine; what is imported does not.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import undrift as ud
from undrift import data, fleet, models
from undrift.cli import generate, names, shared
from undrift.cli.names import FILE_SUMMARY, SUMMARIES, flags_of
from undrift.cli.run import command, run_file
from undrift.config.experiment import Experiment
from undrift.config.hyperparameters import DEFAULT_LR, METHODS, without_none
from undrift.engine.processes import rendezvous
from undrift.field_help import field_help
from undrift.optim.rules import RULES

OPTIONAL = {"matplotlib", "optuna", "transformers", "datasets", "sklearn", "pandas", "jinja2"}
UNASKED = {"networkx", "pydantic", "typer", "rich", "PIL"} | OPTIONAL
HEAVY = {"torch", "numpy"} | UNASKED
TORCH = {"torch", "numpy", "networkx"} | OPTIONAL

CALLS = "import sys; sys.argv[:] = ['undrift', *{arguments!r}]\nfrom undrift.cli.main import main\n"
ENDS = "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
COMMANDS = (
    "run",
    "compare",
    "sweep",
    "papers",
    "federation",
    "report",
    "init",
    "list",
    "data",
    "check",
    "export",
    "predict",
    "schema",
)


def imported(code: str, **environment: str) -> tuple[set[str], str]:
    """Top-level modules that a fresh interpreter has after this code, and what it prints."""
    report = (
        "\nimport json, sys\nprint(json.dumps(sorted({n.partition('.')[0] for n in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    return set(json.loads(last)), "\n".join(lines)


def called(*arguments: str, **environment: str) -> tuple[set[str], str]:
    return imported(CALLS.format(arguments=arguments) + ENDS, **environment)


def test_import_undrift_imports_nothing_heavy() -> None:
    assert not imported("import undrift")[0] & HEAVY


def test_a_simulation_imports_nothing_that_it_does_not_use() -> None:
    code = "import undrift as ud\nud.simulate, ud.FedAvg, ud.topology, ud.data, ud.models, ud.cost"
    modules, _ = imported(f"{code}\nud.data.digits()")
    assert "torch" in modules
    assert not modules & UNASKED


def test_who_wants_a_graph_gets_networkx() -> None:
    modules, out = imported(
        "import undrift as ud\nprint(ud.topology.ring(8).graph.number_of_edges())"
    )
    assert "networkx" in modules
    assert out == "8"


def test_help_imports_neither_torch_nor_pydantic() -> None:
    modules, out = called("--help")
    assert not modules & (TORCH | {"pydantic"})
    assert all(f" {name} " in out for name in COMMANDS)


def test_version() -> None:
    modules, out = called("--version")
    assert not modules & (TORCH | {"pydantic"})
    assert out == ud.__version__


def test_help_of_commands_does_not_import_torch() -> None:
    nested = (["data", "show"], ["run", "fedspeed"], ["run", "marsit"], ["run", "file"])
    each = (*([name] for name in COMMANDS), *nested)
    calls = [CALLS.format(arguments=[*names, "--help"]) + ENDS for names in each]
    modules, out = imported("\n".join(calls))
    assert not modules & TORCH
    assert all(f"Usage: undrift {' '.join(names)} " in out for names in each)
    assert all(f" {name} " in out for name in METHODS)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("undrift ", set(COMMANDS)),
        ("undrift run fedad", {"fedadam", "fedadagrad", "fedadmm"}),
        ("undrift compare --se", {"--seeds", "--set"}),
        ("undrift run scaffold --se", {"--seed", "--seeds", "--server-lr"}),
    ],
    ids=["command", "method", "option", "hyper-parameter"],
)
def test_completion_does_not_import_torch(typed: str, expected: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    modules, out = called(_UNDRIFT_COMPLETE="complete_bash", **words)
    assert not modules & TORCH
    assert set(out.split()) == expected


def test_every_name_is_there() -> None:
    for name in ud.__all__:
        assert getattr(ud, name) is not None
    assert set(ud.__all__) <= set(dir(ud))
    assert len(set(ud.__all__)) == len(ud.__all__)


def test_names_are_where_type_checkers_look_for_them() -> None:
    tree = ast.parse(Path(inspect.getfile(ud)).read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    seen = []
    for line in block.body:
        assert isinstance(line, ast.ImportFrom)
        module = importlib.import_module(str(line.module))
        names = [alias.name for alias in line.names]
        if names == ["*"]:
            names = [name for name in vars(module) if not name[0].islower() and name[0] != "_"]
        for name in names:
            seen.append(name)
            assert getattr(ud, name) is getattr(module, name)
    assert sorted(seen) == sorted(ud.__all__)


def test_a_star_and_other_modules_work_too() -> None:
    code = "from undrift import *\nimport undrift\nprint(FedAvg.__name__, undrift.testing.__name__)"
    assert imported(code)[1] == "FedAvg undrift.testing"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FedAvgg", "undrift has no 'FedAvgg'; the nearest is 'FedAvg'."),
        ("scaffold", "undrift has no 'scaffold'; the nearest is 'Scaffold'."),
        ("topologi", "undrift has no 'topologi'; the nearest is 'topology'."),
        ("xyzzy", "undrift has no 'xyzzy'."),
        ("_xyzzy", "undrift has no '_xyzzy'."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(ud, name)
    assert str(error.value) == message
    assert error.value.name == name


def test_a_module_that_lacks_another_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking.py").write_text("import not_installed_anywhere\n")
    monkeypatch.setattr(ud, "__path__", [*ud.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        _ = ud.lacking


def test_files_that_commands_read_are_made_from_the_classes() -> None:
    for path, text in generate.written_files().items():
        fresh = path.is_file() and path.read_text(encoding="utf-8") == text
        assert fresh, f"{path} is stale; run `make names`"


@pytest.mark.parametrize(
    "arguments", [["init"], ["schema"], ["data", "list"]], ids=lambda words: " ".join(words)
)
def test_commands_that_need_no_torch_do_not_import_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modules, out = called(*arguments, UNDRIFT_CACHE=str(tmp_path))
    assert not modules & TORCH
    assert out or (tmp_path / "experiment.toml").is_file()


def test_docs_tables_are_made_from_the_classes() -> None:
    for path, text in generate.pages().items():
        fresh = path.is_file() and path.read_text(encoding="utf-8") == text
        assert fresh, f"{path} is stale; run `make names`"


def test_lines_of_help_are_the_classes_own() -> None:
    first = {name: (inspect.getdoc(cls) or "").splitlines()[0] for name, cls in METHODS.items()}
    assert first == SUMMARIES
    assert list(SUMMARIES) == list(METHODS)
    assert (inspect.getdoc(run_file) or "").splitlines()[0] == FILE_SUMMARY


@pytest.mark.parametrize("method", METHODS)
def test_flags_are_the_class_s_fields(method: str) -> None:
    cls = METHODS[method]
    hints, flags = get_type_hints(cls), {flag.name: flag for flag in flags_of(method)}
    assert list(flags) == [field.name for field in fields(cls)]
    for field in fields(cls):
        default = DEFAULT_LR if field.default is MISSING else field.default
        flag, (kind, option) = flags[field.name], get_args(flags[field.name].annotation)
        assert option.help == field_help(cls)[field.name]
        assert option.rich_help_panel == f"{cls.__name__}'s hyper-parameters"
        if hints[field.name] is bool:
            assert (kind, flag.default, option.metavar) == (bool, default, None)
            continue
        assert kind is str
        assert flag.default == ("none" if default is None else str(default))
        hint, optional = without_none(hints[field.name])
        words = "|".join(get_args(hint)) or "|".join(RULES)  # a choice, or a rule
        shown = "NUMBER" if hint in (float, int) else words
        assert option.metavar == shown + ("|none" if optional else "")


def test_names_in_the_help_are_the_library_s() -> None:
    assert names.DATA_SETS.split(", ") == list(data.NAMES)
    assert names.MODELS.split(", ") == list(models.MODELS)
    assert names.FLEETS.split(", ") == [*fleet.PRESETS, *fleet.MIXES]


def test_defaults_of_options_are_those_of_the_experiment() -> None:
    """They stand in the sections; help repeats them, because it must not wait for pydantic."""
    parameters = inspect.signature(shared.experiment_options).parameters
    assert set(shared.FIELDS) == set(parameters) - {"dirichlet", "epochs"}
    experiment = Experiment.of({"methods": [{"name": "fedavg"}]})
    for option, field in shared.FIELDS.items():
        section, _, name = field.partition(".")
        default = getattr(getattr(experiment, section), name)
        shown = parameters[option].default
        if option == "partition":
            assert default == f"{shown}:0.3"
        elif option == "target":
            assert default == [float(shown)]
        else:
            assert shown == default, option
    restarts = inspect.signature(command("fedavg")).parameters["max_restarts"]
    assert restarts.default == experiment.engine.max_restarts
    assert experiment.engine.timeout == rendezvous.TIMEOUT
