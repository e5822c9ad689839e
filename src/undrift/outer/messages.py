"""Messages between peers in a round that is taken step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from undrift import tree
from undrift.core import Comm, Merge, Vector

T = TypeVar("T")


class MessageWanted(BaseException):
    """Leaves a step at the point where it wants to hear from other ranks."""


class Alone:
    """Is the `Comm` of a method with a server, whose clients ask each other nothing."""

    size = 1

    def mix(self, tree_: T) -> T:
        """Return what is given."""
        return tree_

    def reduce(self, v: Vector, how: Merge) -> Vector:
        """Return what is given."""
        return v


class Messages:
    """Is the `Comm` of a rank.

    What a method hears outside of its steps is kept, because it runs from its beginning again after
    each pass and must hear the same. Inside a step it is part of the carry.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.heard: list[Any] = []
        self._read = 0
        self._in_step = False
        self._held_back = False

    @property
    def size(self) -> int:
        """Return the number of peers."""
        return self._comm.size

    def mix(self, tree_: T) -> T:
        """Return sum_j W_ij v_j over the neighbours j and i itself, leaf by leaf."""
        return self._hear(lambda: self._comm.mix(tree_), tree_)

    def reduce(self, v: Vector, how: Merge) -> Vector:
        """Return the ranks' vectors combined by `how`."""
        return self._hear(lambda: self._comm.reduce(v, how), v)

    def _hear(self, listen: Callable[[], T], like: T) -> T:
        if self._held_back:
            raise MessageWanted
        if self._in_step:
            return listen()
        if self._read == len(self.heard):
            self.heard.append(tree.leaves(listen()))
        self._read += 1
        return tree.with_leaves(like, self.heard[self._read - 1])

    def rewind(self) -> None:
        """Begin again with what was heard first in the round."""
        self._read = 0

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Hear in the body what belongs to a step."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Raise `MessageWanted` in the body instead of sending anything."""
        self._held_back = True
        try:
            yield
        finally:
            self._held_back = False
