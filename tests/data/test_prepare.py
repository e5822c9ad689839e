"""Stored samples to what a model sees: normalisation, augmentation, the same in every mode."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift import keyed
from undrift.data import Images, Tokens

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def pictures(count: int = 6, side: int = 5, channels: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, side, side + 1), generator=generator).byte()


def key(*counters: int) -> Tensor:
    return torch.tensor(keyed.key(0, "test", *counters))


def windows(image: Tensor, padding: int) -> list[Tensor]:
    """Every crop of an image with a black border and its mirror image, by slicing."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    places = itertools.product(range(2 * padding + 1), repeat=2)
    cut = [padded[:, y : y + height, x : x + width] for y, x in places]
    return cut + [window.flip(2) for window in cut]


def test_bytes_are_normalised_per_channel() -> None:
    inputs = pictures()
    expected = (inputs.double() / 255 - torch.tensor(MEAN).double()[:, None, None]) / torch.tensor(
        STD
    ).double()[:, None, None]
    seen = Images(MEAN, STD)(inputs, torch.float64)
    assert torch.allclose(seen, expected, atol=1e-6)
    assert Images(MEAN, STD)(inputs, torch.float32).dtype == torch.float32


def test_floats_are_not_divided() -> None:
    inputs = torch.rand(2, 1, 3, 3)
    assert torch.allclose(Images((0.5,), (2.0,))(inputs, torch.float32), (inputs - 0.5) / 2)


def test_without_a_key_nothing_is_augmented() -> None:
    inputs = pictures()
    assert torch.equal(
        Images(MEAN, STD, crop=2, flip=True)(inputs, torch.float32),
        Images(MEAN, STD)(inputs, torch.float32),
    )


def test_an_augmented_image_is_one_of_the_crops_and_flips() -> None:
    """Against slices of a padded copy; in many draws every one of them is met, about as often."""
    padding, draws = 1, 4000
    image = pictures(1)[0]
    possible = windows(image, padding)
    assert len({tuple(window.flatten().tolist()) for window in possible}) == 18
    seen = Images(crop=padding, flip=True)(image.expand(draws, *image.shape), torch.float32, key())
    index = {tuple(window.flatten().tolist()): i for i, window in enumerate(possible)}
    counts = np.zeros(18)
    for augmented in (255 * seen).round().byte():
        counts[index[tuple(augmented.flatten().tolist())]] += 1
    chi_square = ((counts - draws / 18) ** 2 / (draws / 18)).sum()
    assert chi_square < 45  # 17 degrees of freedom: once in 5,000 seeds


@pytest.mark.parametrize(("crop", "flip", "kinds"), [(0, True, 2), (2, False, 25), (2, True, 50)])
def test_each_augmentation_alone(crop: int, flip: bool, kinds: int) -> None:
    image = pictures(1)[0]
    many = Images(crop=crop, flip=flip)(image.expand(3000, *image.shape), torch.float32, key())
    assert len({tuple(one.flatten().tolist()) for one in (255 * many).round()}) == kinds


def test_samples_in_front_do_not_depend_on_padding_behind() -> None:
    prepare, inputs = Images(crop=2, flip=True), pictures(8)
    whole = prepare(inputs, torch.float32, key())
    assert torch.equal(prepare(inputs[:5], torch.float32, key()), whole[:5])


def test_stacked_is_alone() -> None:
    prepare = Images(MEAN, STD, crop=2, flip=True)
    inputs = torch.stack([pictures(seed=i) for i in range(4)])
    keys = torch.stack([key(i) for i in range(4)])
    stacked = torch.vmap(lambda some, its: prepare(some, torch.float32, its))(inputs, keys)
    alone = [prepare(some, torch.float32, its) for some, its in zip(inputs, keys, strict=True)]
    assert torch.equal(stacked, torch.stack(alone))


@pytest.mark.parametrize("crop", [0, 2])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_many_clients_in_one_call_are_each_alone(crop: int, dtype: torch.dtype) -> None:
    """With more images than are cropped at a time; each client has draws of its own key."""
    prepare = Images(MEAN, STD, crop=crop, flip=True)
    inputs = torch.stack([pictures(400, 12, seed=i) for i in range(3)]).to(dtype)
    keys = torch.stack([key(i) for i in range(3)])
    stacked = prepare.stacked(inputs, torch.float32, keys)
    alone = [prepare(some, torch.float32, its) for some, its in zip(inputs, keys, strict=True)]
    assert torch.equal(stacked, torch.stack(alone))
    assert not torch.equal(stacked, Images(MEAN, STD).stacked(inputs, torch.float32, keys))


def test_both_ways_to_cut_windows_give_the_same_bits() -> None:
    """Under `vmap` and off the CPU one gather cuts all windows, else NumPy some at a time."""
    prepare = Images(MEAN, STD, crop=3, flip=True)
    inputs = pictures(900, 12)
    by_gather = torch.vmap(lambda its: prepare(inputs, torch.float32, its))(key()[None])[0]
    assert torch.equal(prepare(inputs, torch.float32, key()), by_gather)


def test_tokens_become_indices() -> None:
    seen = Tokens()(torch.tensor([[1, 255]], dtype=torch.uint8), torch.float32)
    assert seen.dtype == torch.int64
    assert seen.tolist() == [[1, 255]]


def clients(prepare: Any, count: int = 4) -> ud.Clients:
    """Ragged clients with pictures whose label their brightness tells."""
    generator = torch.Generator().manual_seed(1)
    pairs = []
    for i in range(count):
        targets = torch.arange(9 + i) % 3
        noise = torch.randint(0, 60, (len(targets), 3, 5, 6), generator=generator)
        pairs.append(((noise + 60 * targets[:, None, None, None]).byte(), targets))
    return ud.Clients(pairs, test=pairs[0], prepare=prepare)


def train(prepare: Any, mode: str, algorithm: Any = None, **options: Any) -> ud.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    run = ud.simulate(
        algorithm or ud.FedAvg(lr=0.1),
        model.double(),
        clients(prepare),
        loss=nn.functional.cross_entropy,
        work=ud.Steps([2, 5, 3, 4]),
        batch_size=4,
        rounds=3,
        mode=mode,  # type: ignore[arg-type]
        **options,
    )
    for _ in run:
        pass
    return run


AUGMENTED = Images(MEAN, STD, crop=1, flip=True)


@pytest.mark.parametrize("method", ["FedAvg", "FedSpeed", "FedLin"])
def test_augmentation_is_the_same_in_every_mode(method: str) -> None:
    """Bytes, ragged batches and unequal work; FedLin also sees its whole local data."""
    algorithm = getattr(ud, method)(lr=0.1)
    loop, stacked = train(AUGMENTED, "loop", algorithm), train(AUGMENTED, "stacked", algorithm)
    few = train(AUGMENTED, "stacked", algorithm, execution=ud.ExecutionOptions(chunk_size=3))
    assert torch.allclose(loop.x, stacked.x, atol=1e-12)
    assert torch.allclose(loop.x, few.x, atol=1e-12)


def test_augmentation_changes_training_but_not_evaluation() -> None:
    plain, augmented = train(AUGMENTED.plain(), "loop"), train(AUGMENTED, "loop")
    assert not torch.allclose(plain.x, augmented.x, atol=1e-6)
    plain.state = augmented.state
    assert plain.evaluate() == augmented.evaluate()


def test_the_engine_sees_what_a_hand_made_loop_sees() -> None:
    """The crop is that of key (seed, "augment", round, client), folded with the step."""
    inputs, targets = clients(None)[2]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 3)).double()
    x = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        model,
        ud.Clients([(inputs, targets)], prepare=AUGMENTED),
        loss=nn.functional.cross_entropy,
        work=ud.Steps(3),
        rounds=2,
        seed=5,
    )
    for t, _ in enumerate(run):
        for k in range(3):
            step = keyed.fold(torch.tensor(keyed.key(5, "augment", t, 0)), k)
            seen = AUGMENTED(inputs, torch.float64, step).flatten(1)
            weight, bias = x[:270].view(3, 90), x[270:]
            slope = torch.softmax(seen @ weight.T + bias, 1) - nn.functional.one_hot(targets, 3)
            x = x - 0.1 * torch.cat([(slope.T @ seen).flatten(), slope.sum(0)]) / len(targets)
        assert torch.allclose(run.x, x, atol=1e-10)


def test_a_resumed_run_goes_on_with_the_same_crops(tmp_path: Any) -> None:
    whole = train(AUGMENTED, "loop")
    first = train(AUGMENTED, "loop", checkpoint=tmp_path / "a")
    assert torch.equal(first.x, whole.x)
    latest = tmp_path / "a" / "round-00000003"
    for path in latest.iterdir():
        path.unlink()
    latest.rmdir()  # as if it had been killed after round 2
    resumed = train(AUGMENTED, "loop", resume=tmp_path / "a")
    assert torch.equal(resumed.x, whole.x)
    with pytest.raises(ud.CheckpointError, match="preparation"):
        train(AUGMENTED.plain(), "loop", resume=tmp_path / "a")


BAD: dict[str, tuple[Any, str]] = {
    "std": (lambda: Images((0.5,), (0.0,)), "std > 0"),
    "lengths": (lambda: Images((0.5, 0.5), (1.0,)), "as many means as stds"),
    "crop": (lambda: Images(crop=-1), "crop >= 0"),
    "channels": (lambda: Images(MEAN, STD)(pictures(channels=2), torch.float32), "2 channels"),
    "rank": (lambda: Images()(torch.zeros(3, 4), torch.float32), r"\(B, C, H, W\)"),
    "class": (lambda: clients(Images), "an object such as"),
    "bytes": (lambda: train(None, "loop"), "prepare=undrift.data.Images"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()
