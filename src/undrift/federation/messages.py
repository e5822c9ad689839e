"""Messages between a centre and its sites: a typed header and tensors, as one safetensors file.

Nothing in a message is code. A header is JSON that must fit its class exactly, tensors are read
without pickle, and neither allocates more than the message is long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from undrift.errors import UndriftError

NO_VERSION = -1  # of a client whose state nobody has counted yet
HEADER_BYTES = 2**16  # of JSON; names and numbers need far fewer
LONGEST_TEXT = 2000  # characters of a reason or a name
MAGIC = "undrift-federation-1"

Stage = Literal["answer", "upload"]
Count = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Token = Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")]


class StateName(NamedTuple):
    """Names a client's state; attempts at one exchange write states of one version.

    The site draws the token when it writes the state, and the reply that counts brings it.
    """

    version: int = NO_VERSION
    token: str = ""


class Header(BaseModel):
    """Is the part of a message that says what its tensors are."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants"
    )


class CensusRequest(Header):
    """Asks a site who it is and how many samples it has."""

    kind: Literal["census"] = "census"
    experiment: Text


class SiteCensus(Header):
    """Says who a site is; of its samples it tells their number and their form."""

    kind: Literal["census-reply"] = "census-reply"
    site: Text
    experiment: Text
    version: Text
    samples: Annotated[int, Field(ge=1, le=2**53)]
    test_samples: Count = 0
    form: Text  # shapes and dtypes of a sample
    steps: Annotated[int, Field(ge=1, le=2**31)] | None = None  # K_i that the site chooses itself


class ExchangeRequest(Header):
    """Asks a client for its part of an exchange; the tensors are the server's message.

    A newcomer gets the first model in front of it, and in front of a prelude's question also the
    broadcast from which its state starts.
    """

    kind: Literal["exchange"] = "exchange"
    experiment: Text
    client: Count
    t: Count  # the round, from 0
    stage: Stage
    attempt: Count
    base: Annotated[int, Field(ge=NO_VERSION)]  # version of the state to start from
    token: Token = ""  # of the state to start from
    keep: Annotated[int, Field(ge=NO_VERSION)]  # the oldest version that may still be asked for
    steps: Annotated[int, Field(ge=1, le=2**31)]
    mean_count: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    width: Annotated[int, Field(ge=1)]  # samples of the largest minibatch of all clients

    @property
    def version(self) -> int:
        """Return the version of the state after this exchange."""
        return 2 * self.t + (self.stage == "upload")


class ExchangeReply(Header):
    """Brings what a client sends in an exchange; the tensors are its answer or packed upload."""

    kind: Literal["exchange-reply"] = "exchange-reply"
    client: Count
    t: Count
    stage: Stage
    attempt: Count
    gradients: Count
    samples: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    token: Token = ""  # of the state that the site has written
    next_steps: Annotated[int, Field(ge=1, le=2**31)] | None = None


class LostState(Header):
    """Says that a site does not have the state that it was asked to start from."""

    kind: Literal["lost-state"] = "lost-state"
    client: Count
    base: int
    token: Token = ""
    held: list[int]  # versions on its disk


class EvaluationRequest(Header):
    """Asks a site to evaluate the model that the one tensor holds."""

    kind: Literal["evaluation"] = "evaluation"
    experiment: Text
    client: Count
    t: Count


class EvaluationReply(Header):
    """Brings sums over a site's test samples, or over its training samples where it has none."""

    kind: Literal["evaluation-reply"] = "evaluation-reply"
    client: Count
    t: Count
    loss: float  # summed over the samples; it may be infinite or NaN
    hits: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None  # None if there are no labels
    samples: Annotated[int, Field(ge=1)]
    tested: bool  # whether they are test samples


class ColumnsRequest(Header):
    """Asks a site for the statistics of its table's columns."""

    kind: Literal["columns"] = "columns"
    experiment: Text  # the digest of what the columns are for


class ColumnsReply(Header):
    """Brings a table's statistics; the one tensor is the bytes of their JSON."""

    kind: Literal["columns-reply"] = "columns-reply"
    site: Text


class AgreedColumns(Header):
    """Tells a site the preprocessing of all tables; the one tensor is the bytes of its JSON."""

    kind: Literal["agreed-columns"] = "agreed-columns"
    experiment: Text


class ColumnsTaken(Header):
    """Says that a site has prepared its table with the columns of this digest."""

    kind: Literal["columns-taken"] = "columns-taken"
    site: Text
    columns: Text


class Refusal(Header):
    """Says in a sentence why a site does not do what it was asked for."""

    kind: Literal["refusal"] = "refusal"
    reason: Text


AnyHeader = Annotated[
    CensusRequest
    | SiteCensus
    | ExchangeRequest
    | ExchangeReply
    | LostState
    | EvaluationRequest
    | EvaluationReply
    | ColumnsRequest
    | ColumnsReply
    | AgreedColumns
    | ColumnsTaken
    | Refusal,
    Field(discriminator="kind"),
]
_HEADERS: TypeAdapter[Any] = TypeAdapter(AnyHeader)


class SiteMessage(NamedTuple):
    """Holds a header and the tensors that it speaks of."""

    header: Header
    tensors: Sequence[Tensor] = ()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class MessageError(UndriftError):
    """Says that bytes are no message, or not the one that was expected."""


def encode(message: SiteMessage) -> bytes:
    """Return a message as bytes."""
    # Clones, because safetensors refuses tensors that share memory, as equal leaves may.
    named = {
        f"{k:04d}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for k, tensor in enumerate(message.tensors)
    }
    return save(named, {"format": MAGIC, "header": message.header.model_dump_json()})


def decode(data: bytes) -> SiteMessage:
    """Return the message that `encode` made; raise `MessageError` for anything else."""
    header = _parsed(_header_text(data))
    try:
        named = load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise MessageError(f"A message needs whole tensors, got {error}.") from error
    return SiteMessage(header, [named[name] for name in sorted(named)])


def _parsed(text: str) -> Header:
    try:
        header: Header = _HEADERS.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "header"
        raise MessageError(
            f"A message needs a header of a known form, got {place}: {first['msg']}."
        ) from error
    return header


def _header_text(data: bytes) -> str:
    """Return the JSON of the header, which safetensors keeps as metadata before the tensors."""
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else 0
    if not 0 < length <= min(len(data) - 8, 64 * HEADER_BYTES):
        raise MessageError(f"A message needs a safetensors header, got {len(data)} other bytes.")
    try:
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        text, form = metadata["header"], metadata["format"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise MessageError("A message needs a header, got tensors without one.") from error
    if form != MAGIC or not isinstance(text, str) or len(text) > HEADER_BYTES:
        raise MessageError(f"A message needs the format {MAGIC}, got {str(form)[:40]!r}.")
    return text
