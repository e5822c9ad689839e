"""Exports of trained models as safetensors; both kinds of exports are written atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from undrift.check import require
from undrift.errors import UndriftError
from undrift.files import write_atomic
from undrift.models.layout import raw_bytes
from undrift.untrusted import parse_json

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
    return write_export(Path(path), save(state, metadata=header))


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


def write_export(path: Path, content: bytes) -> Path:
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
