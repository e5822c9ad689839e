"""Control of what glibc does with freed memory, which takes longer than arithmetic on big vectors.

A block of more than 32 MB goes back to the system when it is freed, and the system clears every
page of the next block that is allocated. The same happens to smaller blocks when a thread frees the
last of its memory. A step makes several such vectors and activations. If the process keeps freed
memory, an update of 11 million parameters takes a third of the time, and a gradient of a small
convolutional net a tenth less.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

LARGE_BYTES = 2**20  # that a step must allocate to make keeping them worth it
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # mallopt's numbers of its options
_KEPT = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1))
# glibc adjusts these by itself until mallopt is called; it would end at these values.
_USUAL = ((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**26))
# The end of an object is noticed at any time, also while a thread holds the lock.
_lock, _active = threading.RLock(), 0


def _function(name: str) -> Any:
    """Return a function of glibc, or None where the C library is another."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


_MALLOPT, _MALLOC_TRIM = _function("mallopt"), _function("malloc_trim")


@contextmanager
def retain_freed_memory(nbytes: int) -> Iterator[None]:
    """Keep freed memory in the process while steps allocate and free so many bytes."""
    if _MALLOPT is None or nbytes < LARGE_BYTES:
        yield
        return
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def retain_freed_memory_for(owner: object, nbytes: int) -> None:
    """Keep freed memory in the process while an object lives whose steps allocate so many bytes."""
    stack = ExitStack()
    stack.enter_context(retain_freed_memory(nbytes))
    weakref.finalize(owner, stack.close)


def _change(by: int) -> None:
    """Count the active contexts; the first keeps freed memory, the last restores the usual."""
    global _active
    with _lock:
        _active += by
        told = None
        # Another change may come in between, where the collector finds the end of an object.
        while told is not (wanted := _KEPT if _active else _USUAL):
            for name, value in wanted:
                _MALLOPT(name, value)
            told = wanted


def trim_memory() -> None:
    """Return freed memory to the system."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)
