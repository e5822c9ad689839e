"""Messages of a federation as Flower's records: their bytes are one array, sent in pieces."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict


def wrap(data: bytes, **facts: float) -> RecordDict:
    """Return bytes and some numbers as Flower sends them."""
    array = Array(np.frombuffer(data, dtype=np.uint8))
    return RecordDict(
        {"message": ArrayRecord({"bytes": array}), "facts": ConfigRecord(dict(facts))}
    )


def unwrap(content: RecordDict) -> bytes:
    """Return the bytes that `wrap` was given; raise `ValueError` for anything else."""
    try:
        array = content["message"]["bytes"].numpy()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("a message of another app") from error
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError("a message of another form")
    data: bytes = array.tobytes()
    return data
