"""All-reduce and messages between three processes, launched once; against the simulator's."""

from __future__ import annotations

import json

import pytest

from tests.jobs import wire as job
from tests.support.system import launch, made_once


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of the three ranks found."""
    folder = made_once(tmp_path_factory, "wire", lambda folder: launch(3, job, str(folder)))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(3)]


def test_every_route_and_merge_is_the_simulators_bit_for_bit(found):
    assert [each["literal"] for each in found] == [[], [], []]


def test_long_vectors_are_the_simulators_bit_for_bit_by_cpp_and_by_numpy(found):
    assert [each["long"] for each in found] == [[], [], []]


def test_vectors_that_travel_together_end_as_each_by_itself(found):
    assert all(each["together"] for each in found)


@pytest.mark.parametrize("what", ["flagged", "flagged in a piece"])
def test_everybody_learns_who_is_not_finite_on_every_route(found, what):
    assert [each[what] for each in found] == [[[1]] * 5] * 3


def test_an_exchange_names_all_who_are_not_finite_on_every_rank(found):
    assert [each["refused"] for each in found] == [[list(job.BAD)] * len(job.ROUTES[7])] * 3


def test_a_message_out_of_step_is_refused_with_its_sender(found):
    for rank, each in enumerate(found):
        sender = 0 if rank else 1
        assert f"got another message from rank {sender} than another" in each["out of step"]


def test_the_gradient_norm_is_that_of_one_process(found):
    alone = job.gradient_norm()
    assert None not in alone
    for each in found:
        assert each["gradient norm"] == pytest.approx(alone, rel=1e-12)
