"""Hugging Face sequence classifiers as models of texts (`pip install 'undrift[transformers]'`).

    model = undrift.models.from_pretrained("distilbert/distilbert-base-uncased", classes=2)

Models are read from a folder or the local cache; nothing is downloaded without
`local_files_only=False`, and code that a model's folder brings is never run. Attention is computed
step by step ("eager"), because dropout inside fused attention could not be repeated in another
execution mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from undrift.check import require
from undrift.errors import UndriftError, first_line, optional
from undrift.models.arguments import require_token_ids, require_tokens

DISTILBERT = "distilbert/distilbert-base-uncased"


class HuggingFace(nn.Module):
    """Computes logits from one tensor of token ids, and masks the padding's id."""

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network = network
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        require_token_ids("A Hugging Face model", tokens)
        tokens = tokens.long()
        mask = (tokens != self.padding).long()
        return self.network(input_ids=tokens, attention_mask=mask).logits  # type: ignore[no-any-return]


def from_pretrained(name_or_folder: str | Path, *, classes: int, **options: Any) -> HuggingFace:
    """Return the sequence classifier of that folder, or of that name in the local cache.

    The classifier is drawn from torch's generator where the files hold none of that size.
    options: for `AutoModelForSequenceClassification.from_pretrained`, for example `dropout=0.0`,
        `pad_token_id=0`, `local_files_only=False`.
    """
    transformers = optional("transformers", "A Hugging Face model", "transformers")
    name = str(name_or_folder)
    remote = options.pop("trust_remote_code", False)
    remedy = "build the model in a file of your own and name it, such as mine.py:Net"
    require(not remote, "from_pretrained", "no trust_remote_code", remote, remedy)
    settings = {
        "num_labels": classes,
        "trust_remote_code": False,
        "local_files_only": True,
        "attn_implementation": "eager",
        "ignore_mismatched_sizes": True,  # a classifier of another size is replaced
    } | options
    try:
        with _without_bars(transformers):
            loads = transformers.AutoModelForSequenceClassification.from_pretrained
            network = loads(name, **settings)
    except Exception as error:  # transformers raises errors of many classes
        raise UndriftError(_refusal(name, error, bool(settings["local_files_only"]))) from error
    padding = network.config.pad_token_id
    if padding is None:
        raise UndriftError(
            f"from_pretrained needs a model that knows its padding, got no pad_token_id in "
            f"{name!r}; pass pad_token_id=0 or whatever fills your texts."
        )
    return HuggingFace(network.float().train(), padding)


@contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    """Let transformers load without a bar, which it draws for the smallest model, too."""
    told = transformers.utils.logging
    shown = told.is_progress_bar_enabled()
    told.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            told.enable_progress_bar()


def for_texts(
    shape: Sequence[int], classes: int, *, path: str | Path | None = None, **options: Any
) -> HuggingFace:
    """Return `from_pretrained(path, classes=classes, **options)` for texts of this length."""
    remedy = f"name a folder or a model in the local cache, such as {DISTILBERT!r}"
    require(path is not None, "huggingface", "path", path, remedy)
    length = require_tokens("huggingface", shape)
    model = from_pretrained(path, classes=classes, **options)  # type: ignore[arg-type]
    most = getattr(model.network.config, "max_position_embeddings", None)
    fits = most is None or length <= most
    require(fits, "huggingface", f"texts of at most {most} tokens", length, "cut them")
    return model


def distilbert(
    shape: Sequence[int], classes: int, *, path: str | Path = DISTILBERT, **options: Any
) -> HuggingFace:
    """Return DistilBERT (67M parameters), from the local cache unless `path` names a folder."""
    return for_texts(shape, classes, path=path, **options)


def _refusal(name: str, error: Exception, local: bool) -> str:
    """Return the sentence that says why a model could not be read."""
    reason = first_line(error, named=True)
    if Path(name).is_dir():
        return (
            f"from_pretrained needs a folder that save_pretrained wrote and options of its model, "
            f"got {name!r} ({reason}); check config.json, the weights and the options."
        )
    if not local:
        return (
            f"from_pretrained needs a folder or the name of a model, got {name!r} ({reason}); "
            "check the name and the connection."
        )
    return (
        f"from_pretrained needs a folder or the name of a model in the local cache, got {name!r}; "
        f"fetch it once with `hf download {name}`, or pass local_files_only=False."
    )
