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
ODD = 7  # steps of an epoch that ends in the middle of a round
METHODS = {"FedSpeed": ud.FedSpeed(lr=0.1), "Marsit": ud.Marsit(lr=0.1)}
RANK = int(os.environ.get("RANK", 0))
Found = dict[str, Any]


def own_batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    return [batch(100 * RANK + k) for k in range(steps)]


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


def by_lightning(
    method: Any, folder: Path | None = None, steps: int = STEPS, epochs: int = 1
) -> Tensor:
    """Return the model after some epochs, with checkpoints in a folder of this rank."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = support.net()

        def training_step(self, data: Any, k: int) -> Tensor:
            return cross_entropy(self.net(data[0]), data[1])

        def configure_optimizers(self) -> Any:
            return ud.Outer(self.net, method, EVERY)

    names = ("logger", "enable_progress_bar", "enable_model_summary")
    options: Any = {**dict.fromkeys(names, False), "enable_checkpointing": folder is not None}
    if folder is not None:
        callbacks = [ModelCheckpoint(save_last=True)]
        options |= {"default_root_dir": folder / f"rank-{RANK}", "callbacks": callbacks}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=epochs, **options)
    module = Module()
    loader = DataLoader(own_batches(steps), batch_size=None)  # type: ignore[arg-type]
    trainer.fit(module, loader, ckpt_path=None if folder is None else "last")
    return vector(module.net)


def resumed(method: Any, folder: Path) -> Tensor:
    """Return the model of a training that goes on after its first epoch."""
    by_lightning(method, folder, ODD)
    return by_lightning(method, folder, ODD, epochs=2)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: Found = {}
    if importlib.util.find_spec("accelerate") is not None:
        found["accelerate"] = accelerated()
    found["by hand"] = {name: by_hand(method).tolist() for name, method in METHODS.items()}
    if importlib.util.find_spec("lightning") is not None:
        found["lightning"] = {n: by_lightning(method).tolist() for n, method in METHODS.items()}
        folder, method = Path(sys.argv[1]) / "checkpoints", METHODS["Marsit"]
        found["whole"] = by_lightning(method, steps=ODD, epochs=2).tolist()
        found["resumed"] = resumed(method, folder).tolist()
    (Path(sys.argv[1]) / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
