"""States of clients on disk, keyed by client and versioned; a commit costs what was put since.

`store` is the whole: put, get, commit a version, open one, verify, compact. `segments` has the
append-only files, `encoding` a state as bytes, `manifest` the list of segments of a version.
"""

from undrift.states.store import SegmentStore

__all__ = ["SegmentStore"]
