"""A trained model for others: safetensors, and ONNX where its packages are there.

Both appear at once under their name or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from undrift.check import require
from undrift.errors import UndriftError, first_line
from undrift.models.layout import raw_bytes

# ONNX against torch, as |a - b| <= TOLERANCE * (1 + |b|): both sum in single precision, each in its
# own order.
TOLERANCE = 1e-4
OWN_METADATA = ("undrift", "content_sha256")  # written into every file


def save_safetensors(
    model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None
) -> Path:
    """The state dict by its names; `metadata` comes beside the version and a hash of the content.

    Tied weights are written once for each of their names.
    """
    from undrift import __version__

    told = dict(metadata or {})
    for key, value in told.items():
        text = isinstance(key, str) and isinstance(value, str)
        require(text, "save_safetensors", "metadata of text only", {key: value}, "use str()")
        require(
            key not in OWN_METADATA,
            "save_safetensors",
            f"metadata beside {', '.join(OWN_METADATA)}",
            key,
        )
    # Clones, because safetensors refuses tensors that share memory.
    state = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in _state(model).items()}
    told |= {"undrift": __version__, "content_sha256": _digest(state)}
    return _write(Path(path), save(state, metadata=told))


def load_safetensors(model: nn.Module, path: str | Path) -> dict[str, str]:
    """Fill the model, or leave it as it was and say what does not fit; returns the metadata."""
    try:
        content = Path(path).read_bytes()
        saved = load(content)
        size = int.from_bytes(content[:8], "little")  # of the header, by the format
        told: dict[str, str] = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise UndriftError(
            f"load_safetensors needs a readable safetensors file, got {str(path)!r}: {why}."
        ) from error
    if told.get("content_sha256", _digest(saved)) != _digest(saved):
        raise UndriftError(
            f"load_safetensors needs a file as it was written, got {str(path)!r} whose tensors do "
            "not match its hash; export it again."
        )
    _require_fit(_state(model), saved, str(path))
    model.load_state_dict(saved, strict=False)  # the names have been compared
    return told


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Without what a module's own get_extra_state may add, which need not be tensors."""
    return {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}


def _digest(state: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and exact bits."""
    digest = hashlib.sha256()
    for name in sorted(state):
        leaf = state[name]
        digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode() + raw_bytes(leaf))
    return digest.hexdigest()


def _require_fit(wanted: Mapping[str, Tensor], saved: Mapping[str, Tensor], path: str) -> None:
    missing, extra = ([n for n in a if n not in b] for a, b in ((wanted, saved), (saved, wanted)))
    if missing or extra:
        told = ", ".join(
            f"{what} {_some(names)}"
            for what, names in (("without", missing), ("with", extra))
            if names
        )
        raise ValueError(
            f"load_safetensors needs the tensors of the model, got {path!r} {told}; build the "
            "model that was saved."
        )
    for name, leaf in wanted.items():
        kinds = [f"{tuple(t.shape)} {t.dtype}" for t in (leaf, saved[name])]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"load_safetensors needs {name!r} as {kinds[0]}, got {kinds[1]} in {path!r}; "
                "build the model that was saved."
            )


def _some(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more


def save_onnx(model: nn.Module, example_input: Tensor, path: str | Path) -> float | None:
    """One file, with `input`, `output` and any batch size; the model stays as it was.

    `example_input` is a batch such as the model takes. The file is checked; where onnxruntime is
    installed its outputs on a random batch must be torch's within `TOLERANCE`, and the largest
    difference is returned.
    """
    batch = isinstance(example_input, Tensor) and example_input.dim() >= 1 and len(example_input)
    got = tuple(example_input.shape) if isinstance(example_input, Tensor) else example_input
    require(bool(batch), "save_onnx", "example_input as a batch of one or more", got)
    onnx = _optional("onnx")
    _optional("onnxscript")  # which torch converts with
    with _evaluating(model), torch.no_grad():
        content = _converted(model, example_input, onnx)
        difference = _compared(model, example_input, content)
    _write(Path(path), content)
    return difference


def _converted(model: nn.Module, example: Tensor, onnx: ModuleType) -> bytes:
    # torch takes a batch of one for a constant.
    inputs = torch.cat([example, example]) if len(example) == 1 else example
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                (inputs,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["input"],
                output_names=["output"],
                verbose=False,
            )
            assert program is not None
            proto = program.model_proto
            onnx.checker.check_model(proto)
            content: bytes = proto.SerializeToString()
            free = bool(proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param)
    except Exception as error:  # torch, onnxscript and protobuf each have their own
        raise UndriftError(
            f"save_onnx needs a model that torch can export, got {type(model).__name__}: "
            f"{_reason(error)}; save_safetensors takes any."
        ) from error
    if not free:
        raise UndriftError(
            f"save_onnx needs a model for any batch size, got {type(model).__name__} which takes "
            f"{len(inputs)} only; use x.shape[0], not a number, in its forward."
        )
    return content


def _reason(error: BaseException) -> str:
    """The first line of what began it, without torch's advice on how to debug it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error, named=True)


def _compared(model: nn.Module, example: Tensor, content: bytes) -> float | None:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return None
    generator = torch.Generator().manual_seed(0)
    inputs = _random_batch(example, generator)
    with _quiet():
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (given,) = session.run(None, {"input": inputs.numpy()})
    exact = model(inputs.to(example.device)).cpu()
    got = torch.from_numpy(given)
    if got.shape != exact.shape or not torch.allclose(got, exact, TOLERANCE, TOLERANCE):
        off = (got - exact).abs().max().item() if got.shape == exact.shape else tuple(got.shape)
        raise UndriftError(
            f"save_onnx needs outputs within {TOLERANCE:g} of torch's, got {off} off for "
            f"{type(model).__name__}; nothing was written."
        )
    return float((got - exact).abs().max())


def _random_batch(example: Tensor, generator: torch.Generator) -> Tensor:
    """Of another size than the example's; token ids are among those it has."""
    shape = (len(example) + 1, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape, generator=generator).to(example.dtype)
    flat = example.detach().cpu().reshape(-1)
    return flat[torch.randint(len(flat), shape, generator=generator)]


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards every part is in the mode that it was in."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about itself and torchvision, or the graph of what it refuses."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch", "onnxscript")]
    levels = [logger.level for logger in loggers]
    nowhere = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UndriftError(
            f"save_onnx needs the package {name}, which is not installed; "
            "pip install 'undrift[onnx]'."
        ) from error


def _write(path: Path, content: bytes) -> Path:
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UndriftError(
            f"An export needs a writable place with room, got {error.strerror or error} at {path}; "
            "what was there before is intact."
        ) from error
    return path
