"""Which package may import which; and the page on design shows the tree as it is.

`ALLOWED` is the architecture. An edge that is not in it is a decision: add it here, with a reason
in the commit, or move what you need to where it belongs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.system import ROOT

PACKAGE = ROOT / "src" / "undrift"
# Modules of the root that anyone may import.
BASE = "builder check core errors field_help files foreign keyed tree untrusted usercode"
ENGINE_BASE = "participation plan world"  # the bottom of engine/: who, how much, on which rank

ALLOWED = {
    "base": "",
    "topology": "base",
    "optim": "base",
    "models": "base",
    "data": "base",
    "fleet": "base data",
    "comm": "base optim topology",
    "cost": "base comm",
    "aggregation": "base",
    "dry": "base",
    "tasks": "base",
    "algorithms": "base comm dry models optim",
    "gradients": "base data models tasks",
    "results": "base models",
    "states": "base",
    "config": "base aggregation algorithms comm data fleet models optim tasks",
    "engine.base": "base data fleet",
    "engine.processes": "base engine.base",
    "engine.collectives": "base comm topology engine.base engine.processes",
    "engine.execution": "base aggregation data dry gradients engine.base engine.collectives",
    "engine.settings": (
        "base aggregation comm data fleet tasks topology engine.base engine.execution"
    ),
    "engine.checkpoint": (
        "base aggregation data gradients models results states engine.base "
        "engine.processes engine.settings"
    ),
    "engine.tuning": (
        "base comm data gradients optim tasks topology engine.base engine.collectives "
        "engine.execution engine.settings"
    ),
    "engine": (
        "base aggregation comm data fleet dry gradients models optim results tasks topology "
        "engine.base "
        "engine.processes engine.collectives engine.execution engine.settings engine.checkpoint "
        "engine.tuning"
    ),
    "testing": "base data optim topology engine engine.base engine.execution engine.settings",
    "analysis": "base data models engine engine.execution",
    "theory": ("base algorithms data gradients models engine engine.settings"),
    "report": "base algorithms config data results testing",
    "runs": (
        "base analysis config data fleet models optim report results tasks topology engine "
        "engine.base engine.checkpoint engine.processes engine.settings engine.tuning"
    ),
    "papers": "base config data engine.processes optim report results runs undrift",
    "deployment": (
        "base config data federation models results runs tasks engine.base engine.processes "
        "engine.settings undrift"
    ),
    "cli": (
        "base algorithms config data deployment fleet models papers report results runs testing "
        "engine.processes undrift outer topology"
    ),
    "ddp": "base comm engine.collectives engine.processes",
    "federation": (
        "base aggregation data dry gradients models optim results tasks engine engine.base "
        "engine.execution engine.processes engine.settings engine.tuning"
    ),
    "outer": (
        "base comm dry gradients models optim topology engine engine.base engine.collectives "
        "engine.execution engine.processes"
    ),
    "__main__": "cli",
    "undrift": "",
}
# Imports inside functions that would close a circle: a run draws itself with report's tools, a file
# that is written names the version of the package, and a rank that declares its clients meets the
# others.
EXCEPTIONS = {("engine", "report"), ("results", "undrift"), ("data", "engine.processes")}

MODULES = {
    ".".join(("undrift", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def package_of(module: str) -> str:
    """Return the node of the table that a module belongs to."""
    parts = module.split(".")[1:]
    if not parts:
        return "undrift"
    if parts[0] in BASE.split():
        return "base"
    if parts[0] == "engine" and len(parts) > 1:
        if parts[1] in ENGINE_BASE.split():
            return "engine.base"
        folder = (PACKAGE / "engine" / parts[1]).is_dir()
        return f"engine.{parts[1]}" if folder or parts[1] == "settings" else "engine"
    return parts[0]


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports, those for type checkers aside."""
    tree = ast.parse(path.read_text())
    typed = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        and isinstance(block.test, ast.Name)
        and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typed:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "undrift":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def edges() -> set[tuple[str, str]]:
    pairs = {
        (package_of(module), package_of(target))
        for module, path in MODULES.items()
        for target in imports(path)
    }
    return {(source, target) for source, target in pairs if source != target} - EXCEPTIONS


def test_packages_import_only_what_the_table_allows() -> None:
    allowed = {(source, target) for source, row in ALLOWED.items() for target in row.split()}
    assert not edges() - allowed, "edges that the table does not allow"
    assert not allowed - edges(), "edges of the table that nobody uses"


def test_the_table_has_no_circle() -> None:
    graph = {source: row.split() for source, row in ALLOWED.items()}
    TopologicalSorter(graph).prepare()


def test_modules_import_each_other_without_a_circle() -> None:
    """Imports at the head of files, which run when a module is loaded."""
    graph = {}
    for module, path in MODULES.items():
        heads = ast.parse(path.read_text())
        heads.body = [n for n in heads.body if isinstance(n, ast.Import | ast.ImportFrom)]
        targets = set()
        for node in heads.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undrift"):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= {name if name in MODULES else str(node.module) for name in full}
        graph[module] = targets - {module, "undrift"}
    TopologicalSorter(graph).prepare()


def test_the_root_holds_the_contract_and_few_modules() -> None:
    modules = [path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "core")]
    assert len(modules) <= 12


def test_no_test_module_imports_another() -> None:
    """Fixtures belong into a conftest.py, helpers and tables into modules without tests."""
    guilty = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_names(node)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    assert guilty == []


def imported_names(node: ast.AST) -> list[str]:
    """Return the full names of what an import statement may load as a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        head = "tests." * bool(node.level) + str(node.module)
        return [f"{head}.{alias.name}" for alias in node.names]
    return []


LAYOUT = re.compile(r"## Layout\n.*?```text\n(.*?)```", re.DOTALL)


def shown_folders() -> list[str]:
    """Return the folders of the tree in docs/design.md, as paths."""
    found = LAYOUT.search((ROOT / "docs" / "design.md").read_text())
    assert found is not None, "docs/design.md needs a tree under its heading Layout"
    folders: list[str] = []
    parents: list[str] = []
    for line in found.group(1).splitlines():
        name = line.split()[0] if line.strip() else ""
        if name.endswith("/"):
            depth = (len(line) - len(line.lstrip())) // 2
            parents = [*parents[:depth], name.rstrip("/")]
            folders.append("/".join(parents))
            assert len(line.split()) > 3, f"{name} needs a line that says what it holds"
    return folders


def test_the_layout_on_the_page_is_the_file_system() -> None:
    real = {str(path.parent.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("__init__.py")}
    shown = shown_folders()
    assert len(shown) == len(set(shown))
    assert set(shown) == real


def test_simulate_is_readable_in_one_sitting() -> None:
    """Its body, without signature and docstring, stays below 80 lines, its keywords below 33."""
    tree = ast.parse((PACKAGE / "engine" / "simulate.py").read_text())
    (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "simulate")
    body = function.body[1:]
    assert (body[-1].end_lineno or 0) - body[0].lineno < 80
    assert len(function.args.kwonlyargs) <= 32
