"""The targets of the fuzzer: sound inputs are read, changed ones raise typed errors alone."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from benchmarks.fuzz.targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.errors import UndriftError

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
WITH_PACKAGES = [name for name in TARGETS if name != "parquet" or find_spec("pyarrow")]


@pytest.mark.parametrize("name", WITH_PACKAGES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_sound_input_is_read(name: str) -> None:
    read = 0
    for seed in TARGETS[name].seeds():
        try:
            TARGETS[name].strict(seed)
            read += 1
        except (UndriftError, ValueError):
            assert name == "records"  # where a file of another kind is no trial
    assert read


@st.composite
def changed(draw: st.DrawFn, name: str) -> bytes:
    """Return a sound input with some bytes replaced, doubled, removed or added."""
    data = bytearray(draw(st.sampled_from(TARGETS[name].seeds())))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8))
        kind = draw(st.sampled_from(["replace", "double", "remove", "cut"]))
        if kind == "replace":
            data[start : start + length] = draw(st.binary(max_size=8))
        elif kind == "double":
            data[start:start] = data[start : start + length] * draw(st.integers(1, 300))
        elif kind == "remove":
            del data[start : start + length]
        else:
            del data[start:]
    return bytes(data)


@pytest.mark.parametrize("name", WITH_PACKAGES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_changed_input_raises_typed_errors_alone(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(changed(name)))
