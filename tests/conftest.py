"""One torch thread per test worker: the tensors are tiny and the workers many."""

import os
from itertools import groupby

import pytest
import torch

torch.set_num_threads(1)
# Rules of thumb decide how clients are run, not what else this machine is doing.
os.environ.setdefault("UNDRIFT_CALIBRATE", "0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a wide table of cases every third is quick, the others are for the long suite."""
    wide = [item for item in items if item.get_closest_marker("wide")]
    for _, cases in groupby(wide, key=lambda item: item.nodeid.partition("[")[0]):
        for number, case in enumerate(cases):
            if number % 3:
                case.add_marker(pytest.mark.long)
