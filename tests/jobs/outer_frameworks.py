"""What `tests/outer/test_frameworks.py` runs under torchrun: a folder as its argument.

Every rank trains on batches of its own, in a plain loop, by accelerate and by Lightning, and writes
what it found to FOLDER/found-RANK.json. What is not installed is left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import undrift as ud
from tests.support import outer as support
from tests.support.outer import batch, vector

STEPS, EVERY = 6, 3
METHODS = {"FedSpeed": ud.FedSpeed(lr=0.1), "Marsit": ud.Marsit(lr=0.1)}
RANK = int(os.environ.get("RANK", 0))
Found = dict[str, Any]


def own_batches() -> list[tuple[Tensor, Tensor]]:
    return [batch(100 * RANK + k) for k in range(STEPS)]


def by_hand(method: Any) -> Tensor:
    model = support.net()
    outer = ud.Outer(model, method, EVERY)
    for each in own_batches():
        outer.step(support.closure_of(model, each))
    return vector(model)


def by_accelerate(method: Any, accelerator: Any) -> Tensor:
    model = support.net()
    outer = accelerator.prepare(ud.Outer(model, method, EVERY))
    for inputs, targets in own_batches():

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            outer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            return loss

        outer.step(closure)
    return vector(model)


def wrapped(accelerator: Any) -> str:
    """Return what is said where accelerate has put the model into DDP."""
    net = support.net()
    model, _ = accelerator.prepare(net, ud.Outer(net, METHODS["FedSpeed"], EVERY))
    try:
        model(batch()[0])
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def rate_after_one_call(prepare: Callable[[Any], Any]) -> float:
    """Return the learning rate after one step of a scheduler that halves it."""
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), EVERY)
    scheduler = prepare(torch.optim.lr_scheduler.ExponentialLR(outer, 0.5))
    outer.step(support.closure_of(model, batch()))
    scheduler.step()
    return float(outer.param_groups[0]["lr"])


def accelerated() -> Found:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(torch.arange(8), batch_size=2))
    return {
        "models": {n: by_accelerate(m, accelerator).tolist() for n, m in METHODS.items()},
        "wrapped": wrapped(accelerator),
        "rates": [rate_after_one_call(each) for each in (accelerator.prepare, lambda each: each)],
        "loader": [each.tolist() for each in loader],
    }


def by_lightning(method: Any) -> Tensor:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = support.net()

        def training_step(self, data: Any, k: int) -> Tensor:
            return cross_entropy(self.net(data[0]), data[1])

        def configure_optimizers(self) -> Any:
            return ud.Outer(self.net, method, EVERY)

    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: Any = dict.fromkeys(names, False)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **options)
    module = Module()
    trainer.fit(module, DataLoader(own_batches(), batch_size=None))  # type: ignore[arg-type]
    return vector(module.net)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: Found = {}
    if importlib.util.find_spec("accelerate") is not None:
        found["accelerate"] = accelerated()
    found["by hand"] = {name: by_hand(method).tolist() for name, method in METHODS.items()}
    if importlib.util.find_spec("lightning") is not None:
        found["lightning"] = {n: by_lightning(method).tolist() for n, method in METHODS.items()}
    (Path(sys.argv[1]) / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
