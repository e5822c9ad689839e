"""Pickles of plain arrays, read without running any of their code.

Python's `pickle.load` may run any code. The unpickler here knows only the opcodes of plain data and
builds stand-ins for NumPy's arrays and types, so that nothing that a file names is ever imported or
called.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.data.stored import damaged


class _Inert:
    """A stand-in that keeps the arguments and the state of a pickle, and does nothing."""

    def __init__(self, *arguments: object) -> None:
        self.arguments, self.state = arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, tuple) else ()


class PickledArray(_Inert):
    """Stands for numpy.ndarray: `_reconstruct(type, shape, code)` with its content in the state."""

    def content(self) -> tuple[Any, Any, Any, Any]:
        """Return shape, dtype, whether the order is Fortran's, and bytes."""
        return self.state[1:] if len(self.state) == 5 else (None, None, None, None)

    def rows(self, width: int) -> NDArray[np.uint8] | None:
        """Return the array as rows of so many bytes, or None if it is something else."""
        shape, dtype, fortran, data = self.content()
        if not isinstance(dtype, _Type) or not dtype.arguments or fortran not in (False, True):
            return None
        count = len(data) // width if isinstance(data, (bytes, bytearray)) else 0
        if dtype.arguments[0] not in ("u1", b"u1") or count < 1:
            return None
        if shape != (count, width) or len(data) != count * width:
            return None
        order: Literal["F", "C"] = "F" if fortran else "C"
        return np.frombuffer(data, np.uint8).reshape(shape, order=order)


class _Buffer(PickledArray):
    """Stands for `_frombuffer(bytes, dtype, shape, order)`, which protocol 5 uses."""

    def content(self) -> tuple[Any, Any, Any, Any]:
        if len(self.arguments) != 4:
            return None, None, None, None
        data, dtype, shape, order = self.arguments
        return shape, dtype, order in ("F", b"F"), data


class _Type(_Inert):
    """Stands for numpy.dtype."""


class _Encoded(_Inert):
    """Stands for `_codecs.encode(text, "latin1")`, by which Python 3 writes bytes in protocol 2."""

    def __new__(cls, *arguments: Any) -> Any:
        text, encoding = arguments
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError(f"text encoded as {encoding!r}")
        return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], type[_Inert]] = {
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Encoded,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", PickledArray),
            ("numeric", "_frombuffer", _Buffer),
        )
    },
}
# fmt: off
_OPCODES = (  # of the protocols 2 to 5
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE,
    pickle.NEWFALSE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET,
    pickle.LONG_BINGET, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1,
    pickle.BINFLOAT, pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINUNICODE,
    pickle.SHORT_BINUNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8,
    pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_TUPLE, pickle.TUPLE,
    pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_DICT, pickle.SETITEM,
    pickle.SETITEMS, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD,
)
# fmt: on


class _PlainUnpickler(pickle._Unpickler):
    """Reads plain data only.

    It is the one in Python, because the one in C allocates whatever a damaged file claims.
    """

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in _OPCODES
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the name {module}.{name}") from None

    def load_setitem(self) -> None:
        self._require_text([self.stack[-2]])  # type: ignore[attr-defined]
        super().load_setitem()  # type: ignore[misc]

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        self._require_text(self.stack[::2])  # type: ignore[attr-defined]
        super().load_setitems()  # type: ignore[misc]

    dispatch[pickle.SETITEMS[0]] = load_setitems

    @staticmethod
    def _require_text(keys: list[Any]) -> None:
        """Raise for other keys: tuples that hold each other twice take for ever to be hashed."""
        if not all(isinstance(key, str | bytes) for key in keys):
            raise pickle.UnpicklingError("a key that is not text")

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        # The inherited method would allocate as much memory as the file claims before reading.
        self.append(bytearray(self.read(min(size, sys.maxsize))))  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def unpickled(path: Path, data: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle, or raise `DataError`."""
    try:
        content = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises errors of every kind
        got = f"an unknown opcode {error}" if isinstance(error, KeyError) else str(error)
        remedy = "fetch it again; nothing in it was run"
        raise damaged(path, "a pickle of plain arrays and lists", got or "less", remedy) from error
    if not isinstance(content, dict):
        raise damaged(path, "a dictionary", type(content).__name__, "fetch it again")
    return {as_text(key): value for key, value in content.items()}


def as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
