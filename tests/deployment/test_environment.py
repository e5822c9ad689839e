"""What runs in Flower's environment needs nothing else, and the environment a Python that fits."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.system import ROOT
from undrift.deployment.serve import write_app

FLOWER = {"flwr", "numpy", "cryptography", "httpx", "uvicorn", "starlette"}  # what pip installs


def imported(path: Path) -> Iterator[str]:
    """Yield the packages that a source imports, in functions, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield str(node.module).partition(".")[0]


def test_relays_import_neither_torch_nor_undrift(tmp_path: Path) -> None:
    """Flower starts a process for each message, and importing torch takes longer than its claim."""
    app = write_app(tmp_path)
    deployment = ROOT / "src" / "undrift" / "deployment"
    sources = [*app.rglob("*.py"), deployment / "gate.py", deployment / "certificates.py"]
    names = {path.name for path in sources}
    assert names >= {"client_app.py", "server_app.py", "frames.py", "parcels.py"}
    known = {*sys.stdlib_module_names, *FLOWER, "undrift_relay"}
    for path in sources:
        assert set(imported(path)) <= known, path


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("version", "taken"), [((3, 10), False), ((3, 11), True), (None, False)])
def test_the_systems_python_is_taken_if_flower_can_be_installed_there(
    version: tuple[int, int] | None, taken: bool, tmp_path: Path
) -> None:
    system = tmp_path / "python3"
    if version is not None:
        code = f'import sys; sys.version_info = {version}; exec(\\"\\"\\"$2\\"\\"\\")'
        system.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
        system.chmod(0o755)
    rule = "show: ; @echo $(FLOWER_PYTHON)"
    command = ["make", "-s", "--eval", rule, "show", f"SYSTEM_PYTHON={system}", "PYTHON=mine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (str(system) if taken else "mine")
