"""Docstrings begin with a verb, and a class name stands for one thing."""

from __future__ import annotations

import ast
from collections import Counter

from tests.support.system import ROOT

SOURCES = sorted((ROOT / "src" / "undrift").rglob("*.py"))
VERBS = frozenset(
    """
    Accept Add Append Apply Ask Begin Build Call Check Choose Claim Close Collect Compare Compute
    Convert Copy Count Create Crop Cut Declare Decode Describe Divide Do Download Draw Drop End
    Escape Evaluate Exit Fill Find Flush Give Group Grow Hand Hear Join Keep Leave Let Link List
    Load Make Mark Merge Move Open Pass Plan Print Put Raise Read Reduce Refuse Remove
    Replace Reset Resize Restore Return Run Save Say Seed Send Serve Set Show Silence Sort Stand
    Start Stop Sum Supervise Switch Take Tell Trace Train Try Tune Update Use Wait Write Yield
    """.split()  # noqa: SIM905 -- a list would take a line for each
)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """A new verb is welcome here; a fragment such as "The folder of ..." is not."""
    others = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "Return").split()
                if words[0].strip(".,:`") not in VERBS:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    others.append(f"{place} {node.name}: {' '.join(words[:8])}")
    assert not others


def test_docstrings_of_modules_are_no_questions() -> None:
    """A module says what it does; "How a run ..." and "What ..." are fragments without a verb."""
    fragments = []
    for path in SOURCES:
        words = (ast.get_docstring(ast.parse(path.read_text())) or "The").split()
        if words[0] in ("By", "How", "Of", "What", "Where", "Whether", "Which", "Who", "With"):
            fragments.append(f"{path.relative_to(ROOT)}: {' '.join(words[:8])}")
    assert not fragments


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
