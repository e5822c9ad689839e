"""Keyed generators are NumPy's own under a hashed key."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from undrift import keyed


@pytest.mark.parametrize("place", [(), (3,), (0, 1, 2)], ids=str)
def test_a_generator_is_numpys_philox_with_that_key(place: tuple[int, ...]) -> None:
    text = "5/purpose/" + "/".join(map(str, place))
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    theirs = np.random.Generator(np.random.Philox(key=key))
    ours = keyed.generator(5, "purpose", *place)
    assert str(ours.bit_generator.state) == str(theirs.bit_generator.state)
    assert (
        ours.integers(0, 2**64, 99, np.uint64).tolist()
        == theirs.integers(0, 2**64, 99, np.uint64).tolist()
    )
    assert pickle.loads(pickle.dumps(ours)).random() == theirs.random()
