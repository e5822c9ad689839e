"""`examples/outer_gpt.py` under torchrun, with all of its methods."""

from __future__ import annotations

import math
import re

import pytest
from examples.outer_gpt import METHODS, read_plays

from tests.support.system import ROOT, torchrun


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", METHODS)
def test_ranks_meet_and_know_more_than_nothing(name: str, size: int) -> None:
    script = ROOT / "examples" / "outer_gpt.py"
    printed = torchrun(size, script, env={"METHOD": name, "ROUNDS": "1", "TEXT": ""})
    said = re.findall(r"([\w-]+), rank (\d): loss (\S+) after 1 meetings", printed)
    assert sorted((method, int(rank)) for method, rank, _ in said) == [
        (name, r) for r in range(size)
    ]
    (loss,) = {loss for *_, loss in said}  # the same model on all ranks
    letters = len(set(map(int, read_plays(None)[0])))
    assert float(loss) < math.log(letters)
