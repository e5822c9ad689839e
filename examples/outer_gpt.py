"""A character GPT on Shakespeare's plays: every rank has its own plays and meets the others rarely.

METHOD=diloco TEXT=pg100.txt.gz torchrun --nproc-per-node 2 examples/outer_gpt.py
"""

import gzip
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud

METHODS: dict[str, Callable[[float], Any]] = {
    "ddp": lambda lr: None,  # averages gradients at every step
    "diloco": lambda lr: ud.DiLoCo(lr=lr),
    "fedavg": lambda lr: ud.FedAvg(lr=lr, rule=ud.AdamW(), keep_rule=True),
    "fedspeed": lambda lr: ud.FedSpeed(lr=lr, lam=10.0, rho=0.05),
    "scaffold": lambda lr: ud.Scaffold(lr=lr),
    "fedagrac": lambda lr: ud.FedaGrac(lr=lr, lam=0.5),
    "diloco-1bit": lambda lr: ud.Compressed(ud.DiLoCo(lr=lr), ud.ScaledSign(), error_feedback=True),
    "marsit": lambda lr: ud.Marsit(lr=lr, server_lr=2 * lr, rule=ud.AdamW()),
}
VERSE = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.\n"
WINDOW = 64


class GPT(nn.Module):
    """Predicts the next character from those before it."""

    def __init__(self, letters: int, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(WINDOW, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)
        future = torch.ones(WINDOW, WINDOW, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.layers(self.letter(codes) + self.place.weight, mask=self.future))


def read_plays(path: str | None) -> list[Tensor]:
    """Return the plays of Gutenberg's number 100, or a line, as codes of their characters."""
    with gzip.open(path, "rt") if path else io.StringIO(VERSE * 200) as file:
        text = file.read()
    codes = {letter: code for code, letter in enumerate(sorted(set(text)))}
    plays = [play for play in text.split("THE END") if len(play) > 100 * WINDOW]
    return [torch.tensor([codes[letter] for letter in play]) for play in plays]


def batches(plays: list[Tensor], size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield windows of the plays, and the characters that follow."""
    draw, text = torch.Generator().manual_seed(seed), torch.cat(plays)
    while True:
        starts = torch.randint(len(text) - WINDOW - 1, (size,), generator=draw)
        rows = torch.stack([text[start : start + WINDOW + 1] for start in starts])
        yield rows[:, :-1], rows[:, 1:]


def train(model: nn.Module, method: Any, every: Any, lr: float, loader: Any) -> Iterator[Any]:
    """Train for ever, and yield the optimiser after every step."""
    net = model if method else nn.parallel.DistributedDataParallel(model)  # which needs torchrun
    adam = torch.optim.AdamW(net.parameters(), lr)
    optimizer: Any = ud.Outer(model, method, every) if method else adam
    for inputs, targets in loader:

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            return loss

        optimizer.step(closure)
        yield optimizer


if __name__ == "__main__":
    name, rounds = os.environ.get("METHOD", "diloco"), int(os.environ.get("ROUNDS", 2))
    rank, size = (int(os.environ.get(key, d)) for key, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    if size > 1:
        dist.init_process_group("gloo")
    lr = 0.3 if name in ("fedspeed", "scaffold", "fedagrac") else 3e-3  # SGD, AdamW
    every = [10 if name == "fedagrac" and r % 2 else 20 for r in range(size)]  # unequal steps
    plays = read_plays(os.environ.get("TEXT"))
    model = GPT(1 + max(int(play.max()) for play in plays))
    loader = batches(plays[rank::size] or plays, 8, seed=rank)
    for k, _ in enumerate(train(model, METHODS[name](lr), every, lr, loader), 1):
        if k == rounds * every[rank]:
            break
    inputs, targets = next(batches(plays, 64, seed=9))
    loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
    print(f"{name}, rank {rank}: loss {loss:.3f} after {rounds} meetings")
