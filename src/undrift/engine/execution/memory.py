"""What glibc does with freed memory, which for big vectors takes longer than the arithmetic.

A block of more than 32 MB goes back to the system when it is freed, and when the next one is asked
for the system clears every page of it anew; so do smaller ones where threads free the last of what
they have. A step makes several such vectors and activations; with the memory kept an update of 11
million parameters takes a third of the time, and a gradient of a small convolutional net a tenth
less.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LARGE_BYTES = 2**20  # of what a step makes that are worth it
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # mallopt's names for them
_KEPT = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1))
# Where glibc's own adjustment ends after a while; it stops adjusting once it has been told.
_USUAL = ((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**26))
_lock, _inside = threading.Lock(), 0


def _function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):  # not glibc
        return None


_MALLOPT, _MALLOC_TRIM = _function("mallopt"), _function("malloc_trim")


@contextmanager
def retain_freed_memory(nbytes: int) -> Iterator[None]:
    """Freed memory stays with the process while steps make and free so many bytes."""
    if _MALLOPT is None or nbytes < LARGE_BYTES:
        yield
        return
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def _change(by: int) -> None:
    """Several runs may be at work; the last to leave restores it."""
    global _inside
    with _lock:
        _inside += by
        for name, value in _KEPT if _inside else _USUAL:
            _MALLOPT(name, value)


def trim_memory() -> None:
    """Return freed memory to the system."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)
