"""The benchmark that shows each defect on the code before its repair can run every one of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from benchmarks.faults import ERRORS, FAULTS, ROOT, Fault, failed_for, unpack


def has_history() -> bool:
    """Return whether the repository has the commits of the repairs, as a full clone has."""
    commit = f"{FAULTS[1].repair}^{{commit}}"
    command = ["git", "cat-file", "-e", commit]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_every_defect_has_the_error_that_it_makes() -> None:
    assert FAULTS.keys() == ERRORS.keys()
    for error in ERRORS.values():
        re.compile(error)


@pytest.mark.skipif(not has_history(), reason="the history of the repository is not here")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=map(str, FAULTS))
def test_the_edits_of_a_defect_apply_and_its_tests_are_there(fault: Fault, tmp_path: Path) -> None:
    unpack(fault.repair, tmp_path, "tests")
    for edit in fault.edits:
        edit.apply(tmp_path)
    for test in fault.tests:
        file, *_, name = test.partition("[")[0].split("::")
        assert f"def {name}(" in (tmp_path / file).read_text()


def test_a_failure_for_another_reason_does_not_count() -> None:
    line = "FAILED tests/a.py::test_b - assert 3 == 5"
    assert failed_for("assert 3 == 5", line)
    assert not failed_for("DID NOT WARN", line)
    assert not failed_for("assert 3 == 5", line.replace("FAILED", "PASSED"))
