"""Exports of trained models: safetensors, and ONNX where its packages are installed.

Both files are written atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from undrift.check import require
from undrift.errors import UndriftError, first_line, import_or_none, optional
from undrift.files import write_atomic
from undrift.models.layout import eval_mode, raw_bytes
from undrift.untrusted import parse_json

# ONNX and torch sum in different orders in single precision, so outputs may differ by
# |a - b| <= TOLERANCE * (1 + |b|).
TOLERANCE = 1e-4
OWN_METADATA = ("undrift", "content_sha256")  # written into every file


def save_safetensors(
    model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None
) -> Path:
    """Write the state dict with `metadata`, the version and a hash of the content; return the path.

    Tied weights are written once for each of their names.
    """
    from undrift import __version__

    header = dict(metadata or {})
    for key, value in header.items():
        text = isinstance(key, str) and isinstance(value, str)
        require(text, "save_safetensors", "metadata of text only", {key: value}, "use str()")
        require(
            key not in OWN_METADATA,
            "save_safetensors",
            f"metadata beside {', '.join(OWN_METADATA)}",
            key,
        )
    # The tensors are cloned, because safetensors refuses tensors that share memory.
    state = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in _state(model).items()}
    header |= {"undrift": __version__, "content_sha256": _digest(state)}
    return _write(Path(path), save(state, metadata=header))


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return the metadata of a safetensors file without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: Exception) -> UndriftError:
    why = getattr(error, "strerror", None) or error
    return UndriftError(f"A model needs a readable safetensors file, got {str(path)!r}: {why}.")


def load_safetensors(model: nn.Module, path: str | Path) -> dict[str, str]:
    """Fill the model and return the metadata, or raise an error and leave the model as it was."""
    try:
        content = Path(path).read_bytes()
        saved = load(content)
        size = int.from_bytes(content[:8], "little")  # the format begins with the header's size
        header: dict[str, str] = parse_json(content[8 : 8 + size]).get("__metadata__") or {}
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from error
    if header.get("content_sha256", _digest(saved)) != _digest(saved):
        raise UndriftError(
            f"load_safetensors needs a file as it was written, got {str(path)!r} whose tensors do "
            "not match its hash; export it again."
        )
    _require_fit(_state(model), saved, str(path))
    model.load_state_dict(saved, strict=False)  # the names have been compared
    return header


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state dict; get_extra_state may add other objects to it."""
    return {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}


def _digest(state: Mapping[str, Tensor]) -> str:
    """Return a hash of names, types, shapes and exact bits."""
    digest = hashlib.sha256()
    for name in sorted(state):
        leaf = state[name]
        digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode() + raw_bytes(leaf))
    return digest.hexdigest()


def _require_fit(expected: Mapping[str, Tensor], saved: Mapping[str, Tensor], path: str) -> None:
    """Raise `ValueError` unless both have the same names, shapes and types."""
    missing, extra = (
        [n for n in a if n not in b] for a, b in ((expected, saved), (saved, expected))
    )
    if missing or extra:
        difference = ", ".join(
            f"{what} {_some(names)}"
            for what, names in (("without", missing), ("with", extra))
            if names
        )
        raise ValueError(
            f"load_safetensors needs the tensors of the model, got {path!r} {difference}; build "
            "the model that was saved."
        )
    for name, leaf in expected.items():
        kinds = [f"{tuple(t.shape)} {t.dtype}" for t in (leaf, saved[name])]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"load_safetensors needs {name!r} as {kinds[0]}, got {kinds[1]} in {path!r}; "
                "build the model that was saved."
            )


def _some(names: list[str], most: int = 3) -> str:
    """Return the first names as text, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def save_onnx(model: nn.Module, example_input: Tensor, path: str | Path) -> float | None:
    """Write one file with `input`, `output` and any batch size; the model stays as it was.

    `example_input` is a batch such as the model takes. The file is checked; where onnxruntime is
    installed its outputs on a random batch must be torch's within `TOLERANCE`, and the largest
    difference is returned.
    """
    batch = isinstance(example_input, Tensor) and example_input.dim() >= 1 and len(example_input)
    got = tuple(example_input.shape) if isinstance(example_input, Tensor) else example_input
    require(bool(batch), "save_onnx", "example_input as a batch of one or more", got)
    onnx = optional("onnx", "save_onnx", "onnx")
    optional("onnxscript", "save_onnx", "onnx")  # torch converts with it
    with eval_mode(model), torch.no_grad():
        content = _converted(model, example_input, onnx)
        difference = _compared(model, example_input, content)
    _write(Path(path), content)
    return difference


def _converted(model: nn.Module, example: Tensor, onnx: ModuleType) -> bytes:
    # torch takes a batch size of one for a constant, so the export gets a batch of two.
    """Return the ONNX file's content, or raise `UndriftError`."""
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


def _write(path: Path, content: bytes) -> Path:
    """Write an export atomically and return its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise UndriftError(
            f"An export needs a writable place with room, got {error.strerror or error} at {path}; "
            "what was there before is intact."
        ) from error
    return path
