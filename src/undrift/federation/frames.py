"""Frames on a stream socket: eight bytes of length, then so many bytes.

It needs nothing but the standard library, so that a relay can use it without importing torch.
"""

from __future__ import annotations

import socket

LARGEST = 2**34  # bytes of one frame
_CHUNK = 2**20


class FrameError(ConnectionError):
    """Says that a connection ended inside a frame, or that a frame is too long."""


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send one frame."""
    connection.sendall(len(data).to_bytes(8, "little"))
    connection.sendall(data)


def receive_frame(connection: socket.socket, largest: int = LARGEST) -> bytes:
    """Return the next frame; its length is checked before any of it is read."""
    length = int.from_bytes(_exactly(connection, 8), "little")
    if length > largest:
        raise FrameError(f"A frame needs at most {largest} bytes, got one of {length}.")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes; memory grows with what has come, not with what was announced."""
    parts = []
    while count:
        part = connection.recv(min(count, _CHUNK))
        if not part:
            raise FrameError("A frame needs all of its bytes, got the end of the connection.")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
