"""Replies that a centre leaves out: what a site sends in place of its own, and the reason."""

from __future__ import annotations

from collections.abc import Callable

import torch

from undrift.federation.messages import ExchangeRequest, SiteMessage, decode, encode

Change = Callable[[ExchangeRequest, bytes], list[bytes]]


def with_tensors(data: bytes, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    header, tensors = decode(data)
    return encode(SiteMessage(header, [change(each) for each in tensors]))


def of_round(data: bytes, t: int) -> bytes:
    header, tensors = decode(data)
    return encode(SiteMessage(header.model_copy(update={"t": t}), tensors))


BAD: dict[str, tuple[Change, str]] = {
    "no reply": (lambda request, data: [], "no reply"),
    "nan": (lambda request, data: [with_tensors(data, lambda v: v * float("nan"))], "NaN"),
    "shape": (lambda request, data: [with_tensors(data, lambda v: v[:-1])], "needs"),
    "dtype": (lambda request, data: [with_tensors(data, torch.Tensor.double)], "float64"),
    "old round": (lambda request, data: [of_round(data, 0)], "round 1"),
    "garbage": (lambda request, data: [b"\x00" * 100], "needs a safetensors header"),
    "cut": (lambda request, data: [data[:-10]], "whole tensors"),
}
