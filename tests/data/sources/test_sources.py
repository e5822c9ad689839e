"""Clients from arrays, torch's data sets and loaders, dictionaries and frames."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import undrift as ud

FEATURES, SAMPLES = 3, 12


def pair(seed: int, samples: int = SAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, FEATURES, generator=generator), torch.arange(samples) % 2


PAIRS = [pair(0), pair(1), pair(2)]
TEST = pair(9)


class Rows(Dataset):
    """A map-style data set, as a user writes it."""

    def __init__(self, inputs, targets, *, form=tuple, noise=0.0) -> None:
        self.inputs, self.targets_, self.form, self.noise = inputs, targets, form, noise
        self.reads = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int):
        self.reads += 1
        x = self.inputs[i] + (self.noise * torch.randn(FEATURES) if self.noise else 0)
        if self.form is dict:
            return {"x": x, "mask": torch.tensor(1), "labels": self.targets_[i], "site": int(i) % 2}
        return x, int(self.targets_[i])


def trained(clients: ud.Clients, model: nn.Module | None = None, **options) -> ud.Run:
    torch.manual_seed(0)
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        model or nn.Linear(FEATURES, 2),
        clients,
        loss=nn.functional.cross_entropy,
        rounds=2,
        **{"batch_size": 4, "work": ud.Steps(2), **options},
    )
    for _ in run:
        pass
    return run


def reference() -> str:
    return trained(ud.Clients(PAIRS, test=TEST)).model_sha256


FORMS = {
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "float64 and lists": lambda x, y: (x.double().numpy(), y.tolist()),
    "TensorDataset": TensorDataset,
    "Dataset": Rows,
    "DataLoader": lambda x, y: DataLoader(Rows(x, y), batch_size=5, shuffle=True),
    "Subset": lambda x, y: Subset(TensorDataset(torch.cat([x, x]), torch.cat([y, y])), range(12)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_bits_of_tensors(form: str) -> None:
    make = FORMS[form]
    clients = ud.Clients([make(*each) for each in PAIRS], test=make(*TEST))
    assert trained(clients).model_sha256 == reference()


def test_lazy_samples_give_the_same_bits_and_say_what_they_cost() -> None:
    rows = [Rows(*each) for each in PAIRS]
    clients = ud.Clients(rows, test=Rows(*TEST), lazy=True)
    assert "read when drawn, about" in repr(clients)
    assert clients.inputs.dtype == torch.int64
    before = rows[0].reads
    assert trained(clients).model_sha256 == reference()
    assert rows[0].reads > before


class OneLonger(Rows):
    """One of its samples is longer than the others, as where padding was forgotten."""

    def __getitem__(self, i: int):
        x, y = self.inputs[i], int(self.targets_[i])
        x = torch.cat([x, x]) if i == 7 else x
        return {"x": x, "mask": torch.tensor(1), "labels": y} if self.form is dict else (x, y)


@pytest.mark.parametrize(
    ("form", "shapes"),
    [(tuple, r"\(3,\), got \(6,\)"), (dict, r"x \(3,\), mask \(\), got x \(6,\), mask \(\)")],
)
def test_lazy_samples_of_several_shapes_are_named_when_they_are_drawn(form, shapes: str) -> None:
    rows = [Rows(*PAIRS[0]), OneLonger(*PAIRS[1], form=form)]
    rows = (
        rows if form is tuple else [OneLonger(*(each[:7] for each in PAIRS[0]), form=form), rows[1]]
    )
    clients = ud.Clients(rows, test=rows[0], lazy=True)
    message = rf"Clients, client 1, needs samples of one shape, {shapes} for sample 7 of its Data"
    model = nn.Linear(FEATURES, 2) if form is tuple else ByName()
    with pytest.raises(ValueError, match=message):
        trained(clients, model, batch_size=None, participation=1.0)


def test_random_transforms_are_drawn_anew_and_can_be_repeated() -> None:
    def run() -> str:
        clients = ud.Clients([Rows(*each, noise=0.1) for each in PAIRS], test=Rows(*TEST))
        assert clients.prepare is not None
        assert clients.prepare.random
        return trained(clients).model_sha256

    assert run() == run()
    assert run() != reference()


class Rare(Rows):
    """Draws from one of the generators, and changes a sample so seldom that none is seen."""

    draws: ClassVar[dict[str, Any]] = {
        "torch": lambda: float(torch.rand(())),
        "numpy": np.random.random,
        "Python": random.random,
    }

    def __init__(self, inputs, targets, *, library: str, seeds: bool = False) -> None:
        super().__init__(inputs, targets)
        self.library, self.seeds = library, seeds

    def __getitem__(self, i: int):
        if self.seeds:
            torch.manual_seed(i)
        x, y = super().__getitem__(i)
        return (x.flip(0) if self.draws[self.library]() < 1e-9 else x), y


@pytest.mark.parametrize("library", Rare.draws)
def test_a_transform_that_seldom_changes_a_sample_is_random_all_the_same(library: str) -> None:
    clients = ud.Clients([Rare(*each, library=library) for each in PAIRS])
    assert clients.prepare is not None
    assert clients.prepare.random


def test_a_data_set_that_seeds_each_sample_itself_is_not_random() -> None:
    clients = ud.Clients([Rare(*each, library="torch", seeds=True) for each in PAIRS])
    assert clients.prepare is None


class Listed(Dataset):
    """Lists its targets as torchvision's data sets do, which may be others than it returns."""

    def __init__(self, listed, target_transform=None, transforms=None) -> None:
        self.targets, self.returned = listed, np.arange(SAMPLES) % 2
        self.target_transform, self.transforms = target_transform, transforms
        self.reads = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int):
        self.reads += 1
        label = int(self.returned[i])
        return PAIRS[0][0][i], self.target_transform(label) if self.target_transform else label


def other(label: int) -> int:
    return 1 - label


def increased(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([y + 1 for _, y in samples])


PARITY = (np.arange(SAMPLES) % 2).tolist()
LISTS = {  # a data set that lists targets -> how it becomes clients, how often samples are read
    "as it returns them": (lambda: Listed(PARITY), lambda d: d, 17),
    "as an array": (lambda: Listed(np.array(PARITY)), lambda d: d, 17),
    "with a transform": (lambda: Listed(PARITY, target_transform=other), lambda d: d, 21),
    "with a transform of both": (
        lambda: Listed(PARITY, transforms=lambda x, y: (x, y)),
        lambda d: d,
        21,
    ),
    "with a collate function": (
        lambda: Listed(PARITY),
        lambda d: DataLoader(d, collate_fn=increased),
        21,
    ),
    "others": (lambda: Listed([1 - y for y in PARITY]), lambda d: d, 22),
    "as text": (lambda: Listed(["a"] * SAMPLES), lambda d: d, 21),
    "too few": (lambda: Listed(PARITY[:3]), lambda d: d, 21),
}


@pytest.mark.parametrize("case", LISTS)
def test_lazy_samples_have_the_targets_that_their_data_set_returns(case: str) -> None:
    make, wrap, reads = LISTS[case]
    data = make()
    lazily = ud.Clients([wrap(data)], lazy=True)
    assert data.reads == reads  # 8 to look, 1 for the form, 8 to compare, or all
    eagerly = ud.Clients([wrap(make())], lazy=False)
    assert torch.equal(lazily.targets, eagerly.targets)
    assert lazily.targets.dtype == eagerly.targets.dtype


def test_the_loader_s_batch_size_counts_unless_another_is_named() -> None:
    loaders = [DataLoader(TensorDataset(*each), batch_size=4) for each in PAIRS]
    clients = ud.Clients(loaders, test=DataLoader(TensorDataset(*TEST)))
    assert trained(clients, batch_size=None).model_sha256 == reference()


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert mask.dtype == torch.int64
        return self.layer(x) * mask[..., None]


class _Records(Dataset[Any]):
    """Samples that are dictionaries of one input or of two."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {**{name: torch.ones(4) * i for name in self.names}, "label": i % 2}


class _ReadsBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layer(batch["feat"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("names", "clue"),
    [
        (("feat",), "one input, that arrives as a tensor, so write forward.self, inputs."),
        (
            ("feat", "mask"),
            "the inputs of a sample arrive by name, so write forward.self, feat, mask.",
        ),
    ],
)
def test_a_model_that_reads_a_dictionary_is_told_what_arrives(
    names: tuple[str, ...], clue: str, recwarn: pytest.WarningsRecorder
) -> None:
    clients = ud.Clients([_Records(*names), _Records(*names)])
    with pytest.raises(ValueError, match=clue):
        ud.simulate(ud.FedAvg(lr=0.1), _ReadsBatch(), clients, work="steps:1", rounds=1)
    assert not recwarn.list


def test_dictionaries_reach_the_model_by_name() -> None:
    rows = [Rows(*each, form=dict) for each in PAIRS]
    for data in rows:
        data.__class__ = type("Plain", (Rows,), {"__getitem__": without_site})
    clients = ud.Clients(rows, test=rows[0])
    assert [field.name for field in clients.fields] == ["x", "mask"]
    run = trained(clients, ByName())
    assert isinstance(run.model, ByName)
    assert run.record.accuracy is not None


def without_site(self, i: int):
    return {k: v for k, v in Rows.__getitem__(self, i).items() if k != "site"}


def test_one_data_set_with_a_field_of_clients() -> None:
    clients = ud.Clients(Rows(*PAIRS[0], form=dict), client="site")
    assert clients.sizes.tolist() == [6, 6]
    assert torch.equal(clients[1][0][:, :FEATURES], PAIRS[0][0][1::2])


def test_a_collate_function_of_ones_own() -> None:
    def shifted(samples):
        return torch.stack([x for x, _ in samples]) + 1, torch.tensor([y for _, y in samples])

    clients = ud.Clients([DataLoader(Rows(*PAIRS[0]), collate_fn=shifted)])
    assert torch.allclose(clients.inputs, PAIRS[0][0] + 1)


def test_frames_become_clients_and_score_new_rows() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": ["a", "b"] * 40, "x": rng.normal(size=80)})
    frame["y"] = 3.0 * frame["x"] + 10
    frame["big"] = frame["x"] > 0
    clients = ud.Clients(frame.drop(columns="y"), target="big", client="site")
    assert len(clients) == 2
    run = trained(clients, nn.Linear(1, 2), work=ud.Steps(50), batch_size=10)
    scored = run.predict(frame)
    assert (scored["predicted big"] == frame["big"].astype(str)).mean() > 0.9
    parts = [part.drop(columns=["site", "y"]) for _, part in frame.groupby("site")]
    assert len(ud.Clients(parts, target="big")) == 2


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


class NoLength(Dataset):
    def __getitem__(self, i: int):
        return torch.zeros(3), 0


class Ragged(Rows):
    def __getitem__(self, i: int):
        return torch.zeros(3 + i % 2), 0


BAD = {
    "iterable": (lambda: [Endless()], "a Dataset with a length, got 'Endless'"),
    "no length": (lambda: [NoLength()], "a Dataset with a length, got 'NoLength'"),
    "ragged": (lambda: [Ragged(*PAIRS[0])], r"samples of one shape, got shapes \(3,\) and \(4,\)"),
    "ragged arrays": (lambda: [([[1.0], [1.0, 2.0]], [0, 1])], "numbers of one shape"),
    "mixed": (lambda: [Rows(*PAIRS[0]), PAIRS[1]], "Datasets or DataLoaders for all"),
    "one data set": (lambda: Rows(*PAIRS[0]), 'one Rows for each client, or client="field" that'),
    "one loader": (lambda: DataLoader(Rows(*PAIRS[0])), "got one DataLoader; pass undrift"),
    "samples": (
        lambda: [[{"x": 1.0, "y": 0}, {"x": 2.0, "y": 1}]],
        "got 'a list of dictionaries'; wrap the list: torch.utils.data.DataLoader",
    ),
    "nobody": (list, r"at least one client, got \[\]"),
    "a dictionary": (lambda: {"a": 1}, "a list with the data of each client"),
    "a frame": (lambda: pd.DataFrame({"x": [1]}), 'target="column" for frames'),
}


def test_a_list_of_dictionaries_in_a_loader_is_a_client() -> None:
    samples = [{"x": torch.ones(3) * i, "y": i % 2} for i in range(4)]
    clients = ud.Clients([DataLoader(samples), DataLoader(samples)])
    assert [len(clients.of(i)) for i in range(2)] == [4, 4]


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_one_sentence(case: str) -> None:
    make, clue = BAD[case]
    with pytest.raises(ValueError, match=clue):
        ud.Clients(make())


def test_a_list_of_loaders_and_a_model_class_are_answered_with_the_remedy() -> None:
    loaders = [DataLoader(TensorDataset(*each)) for each in PAIRS]
    with pytest.raises(ValueError, match=r"got 'list'; make them: undrift\.Clients\("):
        trained(loaders)
    with pytest.raises(ValueError, match=r"make an object of it: ByName\(\.\.\.\)"):
        trained(ud.Clients(PAIRS), ByName)


def test_predictions_take_new_samples_in_every_form() -> None:
    run = trained(ud.Clients(PAIRS, test=TEST))
    inputs, targets = TEST
    expected = run.predict(inputs)
    whole = TensorDataset(inputs, targets)
    forms = (
        inputs.double().numpy(),
        inputs.tolist(),
        whole,
        DataLoader(whole, batch_size=5, shuffle=True),
        TensorDataset(inputs),
        {"x": inputs.numpy(), "labels": targets},
        (inputs.numpy(), targets),
    )
    for form in forms:
        assert torch.equal(run.predict(form), expected)
    with pytest.raises(ValueError, match="a frame needs clients that were made from a table"):
        run.predict(pd.DataFrame(inputs.numpy()))


def test_predictions_of_inputs_by_name_and_of_lazy_samples() -> None:
    rows = [Rows(*each, form=dict) for each in PAIRS]
    data = ud.Clients(rows, client="site", target="labels", test=Rows(*TEST, form=dict))
    run = trained(data, ByName())
    expected = run.model(x=TEST[0], mask=torch.ones(SAMPLES, dtype=torch.int64))
    named = {"x": TEST[0].numpy(), "mask": np.ones(SAMPLES, dtype=np.int64)}
    assert torch.equal(run.predict(named), expected)
    assert torch.equal(run.predict(Rows(*TEST, form=dict)), expected)
    with pytest.raises(ValueError, match="predict needs the input 'mask', got 'x'"):
        run.predict({"x": TEST[0]})
    with pytest.raises(ValueError, match=r"'mask' of shape .* of whole numbers"):
        run.predict({"x": TEST[0], "mask": torch.ones(SAMPLES)})
    with pytest.raises(ValueError, match="a dictionary of x, mask, got 'Tensor'"):
        run.predict(TEST[0])
    lazy = trained(ud.Clients([Rows(*each) for each in PAIRS], test=Rows(*TEST), lazy=True))
    assert torch.equal(lazy.predict(TEST[0]), lazy.model(TEST[0]))
