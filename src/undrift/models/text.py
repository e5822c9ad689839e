"""Models of texts, whose inputs are token ids, whole numbers of shape (B, length)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undrift.check import require
from undrift.models.arguments import (
    require_probability,
    require_token_ids,
    require_tokens,
    require_whole,
)
from undrift.models.layers import drop

PADDING = 0  # the token id that fills short texts
EMBEDDING = 0.02  # standard deviation as in BERT; plain SGD hardly moves torch's 1.0


class CharLSTM(nn.Module):
    """Predicts the next character as in LEAF: embedding of 8, two LSTM layers of 256, classifier.

    `vocabulary` is the number of input characters, by default that of the classes. torch's LSTM has
    a second bias vector in each layer, 2,048 parameters more than LEAF's, and no forget bias of 1.
    """

    blocks = ("embedding", "lstm")

    def __init__(
        self,
        shape: Sequence[int] = (80,),
        classes: int = 80,
        *,
        vocabulary: int | None = None,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
    ) -> None:
        super().__init__()
        require_tokens("char-lstm", shape)
        vocabulary = classes if vocabulary is None else vocabulary
        sizes = {"embedding": embedding, "hidden": hidden, "layers": layers}
        require_whole("char-lstm", vocabulary=vocabulary, **sizes)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        require_token_ids("char-lstm", tokens)
        outputs, _ = self.lstm(self.embedding(tokens.long()))
        return self.classifier(outputs[:, -1])  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    """Adds the embeddings of tokens and of their positions."""

    def __init__(self, vocabulary: int, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.positions = nn.Embedding(length, width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=EMBEDDING)
        self.drop = drop(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions.weight[: tokens.shape[1]]
        return self.drop(self.tokens(tokens.long()) + positions)  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Computes self-attention step by step, so that `vmap` can stack it.

    The weights have no dropout, because keyed masks would cost more than the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, hidden: Tensor, padding: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        split = self.inputs(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, heads, length, width / heads)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        # With -inf a text that consists of padding would become NaN.
        scores = scores.masked_fill(padding[:, None, None, :], torch.finfo(scores.dtype).min)
        mixed = scores.softmax(-1) @ value
        return self.outputs(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """Applies attention and a hidden layer, each behind a norm and around a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = drop(dropout)

    def forward(self, hidden: Tensor, padding: Tensor) -> Tensor:
        hidden = hidden + self.drop(self.attention(self.norm1(hidden), padding))
        return hidden + self.drop(self.dense(self.norm2(hidden)))  # type: ignore[no-any-return]


class TextTransformer(nn.Module):
    """A small transformer encoder that classifies texts by the mean over their tokens.

    It has pre-norm and learned positions; token id 0 is padding. As in Vaswani et al., dropout is
    applied to the embeddings and to what each part of a layer adds. The default options make about
    1.4M parameters; the text model of the papers is DistilBERT.
    """

    def __init__(
        self,
        shape: Sequence[int] = (256,),
        classes: int = 2,
        *,
        vocabulary: int = 20_000,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        length = require_tokens("text", shape)
        require_whole("text", vocabulary=vocabulary, width=width, layers=layers, heads=heads)
        require(width % heads == 0, "text", f"heads that divide its width {width}", heads)
        require_probability("text", dropout=dropout)
        self.embedding = _Embedding(vocabulary, length, width, dropout)
        names = [f"layer{number}" for number in range(1, layers + 1)]
        for name in names:
            self.add_module(name, _Layer(width, heads, dropout))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)
        self.blocks = ("embedding", *names)

    def forward(self, tokens: Tensor) -> Tensor:
        require_token_ids("text", tokens)
        padding = tokens == PADDING
        hidden = self.embedding(tokens)
        for name in self.blocks[1:]:
            hidden = self.get_submodule(name)(hidden, padding)
        mask = (~padding).unsqueeze(-1).to(hidden.dtype)
        mean = (self.norm(hidden) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.classifier(mean)  # type: ignore[no-any-return]
