"""The forms of what a centre and its sites send and keep, found without anybody's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from undrift import dry, tree
from undrift.core import Federated, Prelude, Vector
from undrift.federation.messages import NO_VERSION, ExchangeRequest, MessageError, Stage


class RequestContent(NamedTuple):
    """Holds what a request brings to a client."""

    down: Any  # what the server says
    new_state: Any  # of a newcomer, None for a client that has one


def state_form(algorithm: Federated[Any, Any, Any, Any], x0: Vector, version: int) -> Any:
    """Return zeros in the form of a client's state of a version: even ones are after an answer."""
    if version % 2 == 0 and isinstance(algorithm, Prelude):
        return dry.answered_form(algorithm, x0)
    return dry.client_form(algorithm, x0)


def reply_form(
    algorithm: Federated[Any, Any, Any, Any], x0: Vector, stage: Stage, sizes: tuple[int, ...]
) -> Any:
    """Return zeros in the form of what a client sends in a stage."""
    if stage == "answer" and isinstance(algorithm, Prelude):
        return dry.answer_form(algorithm, x0)
    return dry.wire_form(algorithm, x0, sizes)


def pack_request(
    down: Any, first_down: Any, x0: Vector, stage: Stage, *, new: bool
) -> list[Tensor]:
    """Return the tensors of a request; `read_request` is the other end."""
    if not new:
        return tree.leaves(down)
    first = tree.leaves(first_down) if stage == "answer" else []
    return [x0, *first, *tree.leaves(down)]


def read_request(
    algorithm: Federated[Any, Any, Any, Any],
    zeros: Vector,
    header: ExchangeRequest,
    tensors: Sequence[Tensor],
) -> RequestContent:
    """Return what a request brings; raise `MessageError` if its tensors do not have the form."""
    server = algorithm.init(zeros)
    broadcast = algorithm.broadcast(server)
    asked = isinstance(algorithm, Prelude) and header.stage == "answer"
    message = algorithm.ask(server) if isinstance(algorithm, Prelude) and asked else broadcast
    new = header.base == NO_VERSION
    expected = pack_request(message, broadcast, zeros, header.stage, new=new)
    require_form("A request", tensors, expected)
    if not new:
        return RequestContent(tree.with_leaves(message, tensors), None)
    x0, rest = tensors[0], tensors[1:]
    count = len(tree.leaves(broadcast)) if header.stage == "answer" else 0
    down = tree.with_leaves(message, rest[count:])
    first_down = tree.with_leaves(broadcast, rest[:count]) if count else down
    return RequestContent(down, algorithm.init_client(x0, first_down))


def require_form(who: str, got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise `MessageError` unless tensors have the expected number, shapes and dtypes."""
    if len(got) != len(expected):
        raise MessageError(f"{who} needs {len(expected)} tensors, got {len(got)}.")
    for tensor, like in zip(got, expected, strict=True):
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise MessageError(
                f"{who} needs {tuple(like.shape)} {like.dtype}, got {tuple(tensor.shape)} "
                f"{tensor.dtype}."
            )
