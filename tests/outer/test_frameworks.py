"""Outer under Lightning and accelerate, and with a Hugging Face model of a local configuration."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import undrift as ud
from tests.jobs import outer_frameworks as job
from tests.support import outer as support
from tests.support.outer import after, batch, vector
from tests.support.system import made_once, torchrun

needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)
STEPS = 7


def module_of(net: nn.Module, make: Any) -> Any:
    """Return a Lightning module that trains the net with the optimisers that `make` returns."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, data: Any, k: int) -> Tensor:
            return cross_entropy(self.net(data[0]), data[1])

        def configure_optimizers(self) -> Any:
            return make(self.net)

    return Module()


def fit(net: nn.Module, make: Any, **options: Any) -> None:
    import lightning

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, enable_model_summary=False, **quiet, **options
    )
    batches = DataLoader([batch(k) for k in range(STEPS)], batch_size=None)
    trainer.fit(module_of(net, make), batches)


@needs_lightning
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [ud.FedSpeed(lr=0.1), ud.Scaffold(lr=0.1)], ids=repr)
def test_lightning_drives_it_as_a_loop_of_ones_own(method: Any) -> None:
    net, plain, made = support.net(), support.net(), []

    def make(net: nn.Module) -> Any:
        made.append(ud.Outer(net, method, every=3))
        return made[0]

    fit(net, make)
    own = ud.Outer(plain, method, every=3)
    assert torch.allclose(vector(net), after(own, plain, STEPS), rtol=0, atol=1e-14)
    assert (made[0].t, made[0].steps) == (2, STEPS)


@needs_lightning
@pytest.mark.filterwarnings("ignore")
def test_lightning_schedules_an_inner_optimiser_at_every_step() -> None:
    net, plain = support.net(), support.net()

    def make(net: nn.Module) -> Any:
        inner = torch.optim.AdamW(net.parameters(), lr=0.02)
        outer = ud.Outer(net, ud.FedAvg(lr=1.0), every=3, inner=inner)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(outer, 0.8)
        return [outer], [{"scheduler": scheduler, "interval": "step"}]

    fit(net, make)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.8)
    for k in range(STEPS):
        optimiser.zero_grad()
        support.closure_of(plain, batch(k))()
        optimiser.step()
        scheduler.step()
    assert torch.allclose(vector(net), vector(plain), rtol=0, atol=1e-13)


@needs_lightning
@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on_from_its_checkpoint_in_the_middle_of_a_round(tmp_path: Path) -> None:
    whole = job.by_lightning(ud.Scaffold(lr=0.1), steps=job.ODD, epochs=2)
    assert torch.equal(job.resumed(ud.Scaffold(lr=0.1), tmp_path), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0"]


@pytest.mark.parametrize("closure", [True, False])
def test_accelerate_wraps_it_as_any_other_optimiser(closure: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def trained(wrapped: bool) -> Tensor:
        net = support.net()
        outer: Any = ud.Outer(net, (ud.FedSpeed if closure else ud.Scaffold)(lr=0.1), every=3)
        model, backward = net, Tensor.backward
        if wrapped:
            model, outer = accelerator.prepare(net, outer)
            backward = accelerator.backward
        for k in range(STEPS):
            inputs, targets = batch(k)

            def compute(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                outer.zero_grad()
                loss = cross_entropy(model(inputs), targets)
                backward(loss)
                return loss

            if closure:
                outer.step(compute)
            else:
                compute()
                outer.step()
        return vector(net)

    assert torch.equal(trained(True), trained(False))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two ranks under torchrun has found."""
    folder = made_once(
        tmp_path_factory,
        "outer-frameworks",
        lambda folder: torchrun(2, Path(job.__file__), str(folder)),
    )
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("method", ["FedSpeed", "Marsit"])
def test_lightning_drives_it_on_two_ranks(method: str, two_ranks: list[dict[str, Any]]) -> None:
    pytest.importorskip("lightning")
    by_hand = torch.tensor(two_ranks[0]["by hand"][method])
    for found in two_ranks:
        model = torch.tensor(found["lightning"][method])
        assert torch.allclose(model, by_hand, rtol=0, atol=1e-14)


@pytest.mark.long
def test_lightning_goes_on_from_the_checkpoints_of_two_ranks(
    two_ranks: list[dict[str, Any]],
) -> None:
    pytest.importorskip("lightning")
    assert two_ranks[0]["whole"] != two_ranks[1]["whole"]  # in the middle of a round
    for found in two_ranks:
        assert found["resumed"] == found["whole"]


@pytest.mark.long
@pytest.mark.parametrize("method", ["FedSpeed", "Marsit"])
def test_accelerate_drives_it_on_two_ranks(method: str, two_ranks: list[dict[str, Any]]) -> None:
    pytest.importorskip("accelerate")
    by_hand = two_ranks[0]["by hand"][method]
    assert [found["accelerate"]["models"][method] for found in two_ranks] == [by_hand] * 2


@pytest.mark.long
def test_a_model_that_accelerate_has_wrapped_is_refused(two_ranks: list[dict[str, Any]]) -> None:
    pytest.importorskip("accelerate")
    for found in two_ranks:
        assert re.search(
            r"step on their own .*prepare\(outer, loader\)", found["accelerate"]["wrapped"]
        )


@pytest.mark.long
def test_accelerate_deals_out_batches_and_steps_schedulers_for_all_ranks(
    two_ranks: list[dict[str, Any]],
) -> None:
    pytest.importorskip("accelerate")
    for rank, found in enumerate(two_ranks):
        prepared, own = found["accelerate"]["rates"]
        assert (prepared, own) == (0.1 * 0.5**2, 0.1 * 0.5)
        assert found["accelerate"]["loader"] == [
            [2 * rank, 2 * rank + 1],
            [2 * rank + 4, 2 * rank + 5],
        ]


def test_a_hugging_face_model_trains_with_its_tied_weights() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        vocab_size=24,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    codes = torch.arange(16).repeat(4, 1) % 5
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    outer = ud.Outer(model, ud.DiLoCo(lr=1.0), every=5, inner=inner)

    def closure() -> Tensor:
        loss = model(input_ids=codes, labels=codes).loss
        loss.backward()
        return loss

    losses = [float(outer.step(closure).detach()) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    assert model.lm_head.weight is model.transformer.wte.weight
