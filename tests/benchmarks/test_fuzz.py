"""The targets of the fuzzer: sound inputs are read, changed ones raise typed errors alone."""

from __future__ import annotations

import base64
import sys
from importlib.util import find_spec

import pytest
from benchmarks.fuzz.targets import EXPERIMENT, TARGETS
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


FOUND = [  # inputs at which a target failed, with their targets
    (  # a member without a name: "archive" raised an IndexError
        "archive",
        "UEsDBBQAAAAIAAMvc106UDQrCQAAAAcAAAALAAAAYS+BAAAAYS+BAAAAcy50eHTLMzBUyDMwAgBQSwECFAMUAAAACAAD"
        "L3NdOlA0KwkAAAAHAAAACwAAAAAAAAAAAAAAgAEAAAAAYS93bmlkcy50eHRQSwUGAAAAAAEAAQA5AAAAMgAAAAAAAAAA"
        "cy50eHTLMzBUyDMwAgBQSwECFAMUAAAACAADL3NdOlA0KwkAAAAHAAAACwD/HwAAAAAAAAAAgAErCQAAAAcAAAALAP8f"
        "eHRQSwUGAAAAAAEAAQA5AAAAMgAAAAAA",
    ),
    ("stored", "ImN1cnZlcyI="),  # a text alone: "stored" raised an AttributeError
]


@pytest.mark.parametrize(("name", "text"), FOUND)
def test_an_input_that_was_found_raises_typed_errors_alone(name: str, text: str) -> None:
    TARGETS[name](base64.b64decode(text))


def test_a_choice_without_a_field_of_the_grid_is_refused() -> None:
    (sound,) = TARGETS["tuning"].seeds()
    with pytest.raises(UndriftError, match="needs the cells of its experiment's grid"):
        TARGETS["tuning"].strict(sound.replace(b'[{"method.lr": 0.3}]', b"[{}]"))


def test_code_that_a_fuzzed_experiment_names_is_not_imported() -> None:
    assert "antigravity" not in sys.modules
    text = EXPERIMENT.replace(b'"fedspeed"', b'"antigravity:Method"')
    with pytest.raises(ValueError, match="needs your trust before its code is run"):
        TARGETS["experiment"].strict(text)
    assert "antigravity" not in sys.modules


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
