"""Models by name, and what some methods need of a model.

    model = undrift.models.build("cnn2", shape=(1, 28, 28), classes=10, dropout=0.0)

A method may need
* **features**, the inputs of the classifier. The classifier is the attribute `classifier` of the
  model, or else its last linear layer; MOON expects a projection head in front of it.
* **blocks**, of which the model is a chain. `blocks` names children of the model in the order in
  which they run, and other children come after them; without `blocks` every child is a block.
Any `nn.Module` with these attributes serves; no base class is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from undrift.check import is_whole, nearest, require, require_choice
from undrift.models import own
from undrift.models.deep import alexnet, alexnet_wide, vgg19
from undrift.models.huggingface import HuggingFace, distilbert, for_texts, from_pretrained
from undrift.models.resnet import ResNet18, ResNet20, ResNet50
from undrift.models.small import celeba_cnn, cnn2, femnist_cnn, logistic, mlp, netfleet_cnn
from undrift.models.structure import block_names, classifier, require_blocks, require_features
from undrift.models.text import CharLSTM, TextTransformer
from undrift.usercode.names import is_code

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn2": cnn2,
    "alexnet": alexnet,
    "alexnet-wide": alexnet_wide,
    "vgg19": vgg19,
    "netfleet-cnn": netfleet_cnn,
    "resnet18-gn": ResNet18,
    "resnet20": ResNet20,
    "resnet50-gn": ResNet50,
    "femnist-cnn": femnist_cnn,
    "celeba-cnn": celeba_cnn,
    "char-lstm": CharLSTM,
    "text": TextTransformer,
    "distilbert": distilbert,
    "huggingface": for_texts,
}


def build(name: str, *, shape: Sequence[int], classes: int, **options: Any) -> nn.Module:
    """Return the model of that name for inputs of this shape (without the batch axis).

    `classes` is the number of its outputs: classes or labels, or the numbers of a regression.
    The name may be that of code, such as `mine.py:Net`: a class, a function or a model. Weights
    are drawn from torch's generator, so call `torch.manual_seed` before.
    """
    if not is_code(name):
        require_choice("build", "name", name, MODELS)
    require(is_whole(classes) and classes >= 1, "build", "classes >= 1, a whole number", classes)
    sides = isinstance(shape, Sequence) and all(is_whole(side) and side >= 1 for side in shape)
    require(sides and len(shape) > 0, "build", "shape as whole numbers >= 1", shape)
    _require_options(name, options)
    sizes, count = tuple(int(side) for side in shape), int(classes)
    if is_code(name):
        return own.build(name, sizes, count, options)
    return MODELS[name](sizes, count, **options)


def option_names(name: str) -> list[str]:
    """Return the options that `build` takes for the model of that name."""
    parameters = _parameters(name).values()
    named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    return [each for each in named if each not in own.ALWAYS]


def takes_any_option(name: str) -> bool:
    """Return whether a model checks its options itself, as those of Hugging Face do."""
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(name).values())


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return own.parameters(name) if is_code(name) else inspect.signature(MODELS[name]).parameters


def _require_options(name: str, options: dict[str, Any]) -> None:
    """Raise `ValueError` for an option that the model does not have."""
    known = option_names(name)
    for option in () if takes_any_option(name) else options:
        if option not in known:
            expected = f"no option but {', '.join(known)}" if known else "no options"
            remedy = nearest(option, known) or "; leave it out"
            raise ValueError(f"{name} needs {expected}, got {option!r}{remedy}.")


__all__ = [
    "MODELS",
    "CharLSTM",
    "HuggingFace",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "TextTransformer",
    "alexnet",
    "alexnet_wide",
    "block_names",
    "build",
    "celeba_cnn",
    "classifier",
    "cnn2",
    "distilbert",
    "femnist_cnn",
    "from_pretrained",
    "logistic",
    "mlp",
    "netfleet_cnn",
    "option_names",
    "require_blocks",
    "require_features",
    "takes_any_option",
    "vgg19",
]
