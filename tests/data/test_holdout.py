"""Validation samples: how many each client gives, and that nobody trains on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import undrift as ud
from undrift.data.holdout import hold_out


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.floats(0.05, 0.95),
    st.integers(0, 2**32),
)
def test_each_client_gives_its_share_and_keeps_the_rest(
    sizes: list[int], share: float, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(sum(sizes))
    parts = np.split(order, np.cumsum(sizes)[:-1])
    given_away = [min(int(share * size + 0.5), size - 1) for size in sizes]
    if not any(given_away):
        with pytest.raises(ValueError, match="takes a sample of some client"):
            hold_out(parts, share, len(order), seed=seed)
        return
    left, taken = hold_out(parts, share, len(order), seed=seed)
    assert [len(part) for part in left] == [s - g for s, g in zip(sizes, given_away, strict=True)]
    assert np.array_equal(np.sort(np.concatenate([*left, taken])), np.arange(len(order)))
    for part, rest in zip(parts, left, strict=True):
        assert np.array_equal(rest, part[np.isin(part, rest)])  # in the order that it had


def test_by_hand() -> None:
    """Of 10 samples one, of 14 one, of 15 two (half up), of 4 none, of one none."""
    ends = np.cumsum([10, 14, 15, 4, 1])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    left, taken = hold_out(parts, 0.1, int(ends[-1]), seed=0)
    assert [len(part) for part in left] == [9, 13, 13, 4, 1]
    assert len(taken) == 4


def test_a_client_with_one_sample_keeps_it() -> None:
    left, taken = hold_out([[0], [1, 2, 3]], 0.9, 4, seed=0)
    assert left[0].tolist() == [0]
    assert len(left[1]) == 1
    assert len(taken) == 2


def test_the_seed_decides() -> None:
    taken = [hold_out([range(100)], 0.1, 100, seed=seed)[1].tolist() for seed in (0, 0, 1)]
    assert taken[0] == taken[1] != taken[2]


def test_clients_with_the_same_samples_give_the_same() -> None:
    data = ud.data.digits()
    clients = data.split("replicated", 3, validation=0.1)
    assert clients.validation is not None
    assert clients.sizes.tolist() == [1294] * 3  # of 1438
    assert len(clients.validation[1]) == 144


def test_samples_that_others_gave_are_not_trained_on() -> None:
    left, taken = hold_out([range(20), range(10, 30)], 0.2, 30, seed=3)
    assert not np.isin(np.concatenate(left), taken).any()


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1, float("nan"), "0.1"])
def test_no_share(share: Any) -> None:
    with pytest.raises(ValueError, match=r"validation needs a share in \(0, 1\), got"):
        hold_out([[0, 1]], share, 2, seed=0)


def test_nobody_is_left_without_samples() -> None:
    with pytest.raises(ValueError, match=r"no other client gives away, got none for client [23];"):
        hold_out([[0, 1], [0, 1], [0], [1]], 0.5, 2, seed=0)


def test_natural_clients_and_their_test_samples() -> None:
    owners = np.repeat([0, 1, 2], [20, 30, 50])
    inputs, targets = torch.arange(100.0)[:, None], torch.arange(100) % 2
    data = ud.Dataset((inputs, targets), (inputs[:6], targets[:6]), 2, client_ids=owners)
    clients = data.split("natural", validation=0.1)
    assert clients.sizes.tolist() == [18, 27, 45]
    assert clients.validation is not None
    held = set(clients.validation[0][:, 0].tolist())
    assert len(held) == 10
    for i in range(3):
        own = clients[i][0][:, 0].tolist()
        assert not held & set(own)
        assert {owners[int(value)] for value in own} == {i}
    assert clients.test is not None
    assert len(clients.test[1]) == 6
    assert "10 validation samples" in repr(clients)


def test_a_validation_set_of_ones_own_is_checked() -> None:
    inputs, targets = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="The validation set needs samples like the clients'"):
        ud.Clients([(inputs, targets)], validation=(torch.zeros(4, 3), targets))
    with pytest.raises(ValueError, match="The validation set needs finite data"):
        ud.Clients([(inputs, targets)], validation=(inputs * torch.nan, targets))
