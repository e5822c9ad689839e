"""Exports of trained models as ONNX, where its packages are installed."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from undrift.check import require
from undrift.errors import UndriftError, first_line, import_or_none, optional
from undrift.models.layout import eval_mode
from undrift.results.export import write_export

# ONNX and torch sum in different orders in single precision, so outputs may differ by
# |a - b| <= TOLERANCE * (1 + |b|).
TOLERANCE = 1e-4


def save_onnx(
    model: nn.Module,
    example_input: Tensor,
    path: str | Path,
    *,
    complete: Callable[[bytes], bytes] | None = None,
) -> float | None:
    """Write one file with `input`, `output` and any batch size; the model stays as it was.

    `example_input` is a batch such as the model takes. The file is checked; where onnxruntime is
    installed its outputs on a random batch must be torch's within `TOLERANCE`, and the largest
    difference is returned. `complete` makes the content of the file from that of the net.
    """
    batch = isinstance(example_input, Tensor) and example_input.dim() >= 1 and len(example_input)
    got = tuple(example_input.shape) if isinstance(example_input, Tensor) else example_input
    require(bool(batch), "save_onnx", "example_input as a batch of one or more", got)
    onnx = optional("onnx", "save_onnx", "onnx")
    optional("onnxscript", "save_onnx", "onnx")  # torch converts with it
    with eval_mode(model), torch.no_grad():
        content = _converted(model, example_input, onnx)
        difference = _compared(model, example_input, content)
        if complete is not None:
            content = complete(content)
    write_export(Path(path), content)
    return difference


def _converted(model: nn.Module, example: Tensor, onnx: ModuleType) -> bytes:
    """Return the ONNX file's content, or raise `UndriftError`."""
    # torch takes a batch size of one for a constant, so the export gets a batch of two.
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
    """Return the first line of the first cause, without torch's advice on how to debug it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error, named=True)


def _compared(model: nn.Module, example: Tensor, content: bytes) -> float | None:
    """Return the largest difference to torch's outputs, or None without onnxruntime."""
    runtime = import_or_none("onnxruntime")
    if runtime is None:
        return None
    generator = torch.Generator().manual_seed(0)
    inputs = _random_batch(example, generator)
    with _quiet():
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (outputs,) = session.run(None, {"input": inputs.numpy()})
    exact = model(inputs.to(example.device)).cpu()
    got = torch.from_numpy(outputs)
    if got.shape != exact.shape or not torch.allclose(got, exact, TOLERANCE, TOLERANCE):
        off = (got - exact).abs().max().item() if got.shape == exact.shape else tuple(got.shape)
        raise UndriftError(
            f"save_onnx needs outputs within {TOLERANCE:g} of torch's, got {off} off for "
            f"{type(model).__name__}; nothing was written."
        )
    return float((got - exact).abs().max())


def _random_batch(example: Tensor, generator: torch.Generator) -> Tensor:
    """Return random inputs of another batch size; token ids are among those of the example."""
    shape = (len(example) + 1, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape, generator=generator).to(example.dtype)
    flat = example.detach().cpu().reshape(-1)
    return flat[torch.randint(len(flat), shape, generator=generator)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's remarks about itself and torchvision, and the graphs that it prints."""
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
