"""Keywords, words and classes that other libraries have get undrift's own as the answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from undrift import testing


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("learning_rate", r"simulate has no 'learning_rate'; the learning rate is lr"),
        ("local_epochs", 'work="epochs:5"'),
        ("criterion", "loss=nn.CrossEntropyLoss"),
        ("optimizer", r"rule=Momentum\(0.9\)"),
        ("round", "the nearest is 'rounds'"),
        ("devices", "fleet='phone'"),
        ("zzz", r"help\(undrift.simulate\) says which it has"),
    ],
)
def test_a_keyword_of_another_library(keyword: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        testing.start(ud.FedAvg(lr=0.1), **{keyword: 1})


def test_a_keyword_that_is_missing_is_named_with_its_words() -> None:
    clients = ud.Clients([(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))])
    with pytest.raises(TypeError, match=r'simulate needs work, got none; .* work="epochs:5"'):
        ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(3, 2), clients, rounds=1)
    with pytest.raises(TypeError, match="Clients needs one list with the data of each client"):
        ud.Clients(torch.zeros(2, 3), torch.zeros(2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0.1}, "FedAvg has no 'learning_rate'; the learning rate is lr"),
        ({"lr": 0.1, "momentum": 0.9}, r"FedAvg\(lr=0.1, rule=Momentum\(0.9\)\)"),
        ({"lr": 0.1, "epochs": 5}, r"simulate has it: simulate\(..., work=...\)"),
        ({"lr": 0.1, "server_lrr": 5}, "the nearest is 'server_lr'"),
    ],
)
def test_a_field_of_another_library(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ud.FedAvg(**fields)


def test_the_shells_words_are_read_in_python() -> None:
    words = testing.start(ud.FedAvg(lr=0.1), work="epochs:2")
    objects = testing.start(ud.FedAvg(lr=0.1), work=ud.Epochs(2))
    assert testing.finish(words).equal(testing.finish(objects))
    ring = testing.start(ud.DSGD(lr=0.1), topology="ring", work="steps:1", participation=1.0)
    assert testing.finish(ring).isfinite().all()


def test_the_shells_words_name_a_rule() -> None:
    for words, rule in (("adamw", ud.AdamW()), ("momentum:0.8:nesterov", ud.Momentum(0.8, True))):
        for cls in (ud.FedAvg, ud.FedProx, ud.PSGD, ud.DiLoCo):
            assert cls(lr=0.1, rule=words) == cls(lr=0.1, rule=rule)
    assert hash(ud.FedAvg(lr=0.1, rule="adam")) == hash(ud.FedAvg(lr=0.1, rule=ud.Adam()))
    with pytest.raises(ValueError, match=r"rule needs it to be one of sgd.*the nearest is 'adamw'"):
        ud.FedAvg(lr=0.1, rule="adamww")


PARAMETER = torch.zeros(1, requires_grad=True)
SGD = torch.optim.SGD([PARAMETER], lr=0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": torch.optim.AdamW}, r"FedAvg needs a rule .*; write undrift\.AdamW\(\)"),
        ({"rule": SGD}, r"FedAvg needs a rule .*; write undrift\.SGD\(\)"),
        ({"rule": ud.AdamW}, r"write undrift\.AdamW\(\)"),
        ({"rule": torch.optim.RMSprop}, r"write undrift\.Momentum\(0.9\), undrift\.Adam\(\) or"),
        (
            {"lr": torch.optim.lr_scheduler.CosineAnnealingLR(SGD, 10)},
            r"got an object of CosineAnnealingLR; write .* schedule of rounds, such as .*cosine\(0",
        ),
        (
            {"lr": torch.optim.lr_scheduler.StepLR(SGD, 10)},
            r"got an object of StepLR; .* such as undrift\.staircase\(",
        ),
    ],
)
def test_what_torch_has_is_answered_with_what_undrift_has(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ud.FedAvg(**{"lr": 0.1, **fields})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"work": "epoch:2"}, "work needs.*the nearest is 'epochs'"),
        ({"work": 5}, r"say work=Steps\(5\)"),
        ({"model": nn.Linear}, r"make an object of it: Linear\(\.\.\.\)"),
        ({"model": "mlp"}, r"undrift.models.build\('mlp'"),
        ({"clients": [1]}, r"make them: undrift.Clients\(data_of_each_client"),
        ({"algorithm": ud.FedAvg}, r"make an object of it: FedAvg\(lr=0.1\)"),
    ],
)
def test_classes_and_names_have_a_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        testing.start(options.pop("algorithm", ud.FedAvg(lr=0.1)), **options)


def test_one_client_a_round_is_asked_about() -> None:
    with pytest.warns(UserWarning, match="participation=1 is one client of 4.*write 1.0 for all"):
        testing.start(ud.FedAvg(lr=0.1), participation=1)


def test_schedules_rise_fall_and_are_read_from_their_text() -> None:
    from undrift.optim.schedules import parse, starting_at

    both = ud.warmup(ud.cosine(0.2, 10), 4)
    values = [both.at(t) for t in range(15)]
    assert values[:5] == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
    assert values[9] == pytest.approx(0.1)
    assert values[14] == pytest.approx(0.0)
    assert parse(repr(both)) == both
    assert starting_at(both, 0.4).at(4) == pytest.approx(0.4)
    torches = torch.optim.lr_scheduler.CosineAnnealingLR(
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2), 10
    )
    assert ud.cosine(0.2, 10).at(0) == pytest.approx(torches.get_last_lr()[0])
    assert parse("step(0.1, 0.5, 10)") == ud.staircase(0.1, 0.5, 10)
    with pytest.raises(ValueError, match="cosine"):
        parse("cosin(0.1, 10)")
