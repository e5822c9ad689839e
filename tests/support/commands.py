"""What the command line runs and prints."""

from __future__ import annotations

import sys
import warnings

import pytest

import undrift as ud
from undrift.cli import main as cli
from undrift.config.experiment import Experiment
from undrift.runs.build import build_run

# Several commands in one launch, as most of a short one's time is starting Python.
PROGRAM = """
import json, sys
from undrift.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def built_run(method: dict[str, object], seed: int = 0, **sections: dict[str, object]) -> ud.Run:
    """Return the run that the command line would build."""
    experiment = Experiment.of({"methods": [method], **sections})
    return build_run(experiment, experiment.methods[0], seed)


def undrift(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Run the command and return its exit code, its output and its errors."""
    monkeypatch.setattr(sys, "argv", ["undrift", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which main replaces
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err
