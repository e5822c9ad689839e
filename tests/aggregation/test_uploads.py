"""What a cohort's uploads go through, whoever has received them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from undrift.aggregation.policy import UploadPolicy
from undrift.aggregation.robust import Krum
from undrift.aggregation.uploads import CohortUploads
from undrift.aggregation.validation import FACTOR, Fault, UsualSizes, norms_of_rows, sizes_of


class Pair(NamedTuple):
    x: Tensor
    c: Tensor


def pairs(count: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator).to(dtype)
    return Pair(x, torch.randn(count, 3, generator=generator).to(dtype))


def cohort(count: int = 6, *, hold: bool = True, **options: Any) -> CohortUploads:
    weights = np.arange(1, count + 1) / np.arange(1, count + 1).sum()
    return CohortUploads(np.arange(10, 10 + count), weights, hold=hold, **options)


class TestAdd:
    def test_sound_uploads_have_no_fault(self) -> None:
        uploads = cohort()
        assert uploads.add(np.arange(10, 16), pairs(6))
        faults, norms = uploads.findings()
        assert not faults.any()
        assert norms[0] == pytest.approx(pairs(6).x.norm(dim=1).numpy(), rel=1e-6)
        assert norms[1] == pytest.approx(pairs(6).c.norm(dim=1).numpy(), rel=1e-6)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    @pytest.mark.parametrize("hold", [True, False])
    def test_one_number_that_is_not_finite(self, value: float, hold: bool) -> None:
        uploads, sent = cohort(hold=hold), pairs(6)
        sent.c[2, 1] = value
        assert not uploads.add(np.arange(10, 16), sent)
        assert uploads.findings().faults.tolist() == [0, 0, Fault.NOT_FINITE, 0, 0, 0]
        assert uploads.total is None

    def test_squares_that_overflow_are_finite_and_too_large(self) -> None:
        uploads, sent = cohort(), pairs(6)
        sent.x[4] = 1e30
        assert uploads.add(np.arange(10, 16), sent)
        faults, norms = uploads.findings()
        assert not faults.any()
        assert oversized(norms, [1] * 6, 1.0) == [4]

    def test_the_form_of_most_is_right(self) -> None:
        uploads = cohort()
        uploads.add([10], Pair(torch.zeros(1, 4), torch.zeros(1, 3)))
        uploads.add([11], pairs(1, dtype=torch.float64))
        uploads.add([12, 13, 14, 15], pairs(4))
        form = int(Fault.FORM)
        assert uploads.findings().faults.tolist() == [form, form, 0, 0, 0, 0]

    @pytest.mark.parametrize("hold", [True, False])
    def test_the_first_is_to_blame_where_its_form_is_not_the_known_one(self, hold: bool) -> None:
        uploads = cohort(hold=hold, form=lambda: Pair(torch.zeros(5), torch.zeros(3)))
        assert uploads.add([10], pairs(1, dtype=torch.float64))
        assert not uploads.add([11], pairs(1))
        missing = [Fault.MISSING] * 4
        assert uploads.findings().faults.tolist() == [Fault.FORM, Fault.NONE, *missing]

    def test_most_are_to_blame_where_their_form_is_not_the_known_one(self) -> None:
        uploads = cohort(form=lambda: Pair(torch.zeros(5), torch.zeros(3)))
        uploads.add([10, 11, 12], Pair(torch.zeros(3, 4), torch.zeros(3, 3)))
        uploads.add([13], (torch.zeros(1, 5), torch.zeros(1, 3)))
        uploads.add([14, 15], pairs(2))
        assert uploads.findings().faults.tolist() == [Fault.FORM] * 4 + [0, 0]

    def test_a_form_is_asked_for_only_where_uploads_differ(self) -> None:
        def never() -> Pair:
            raise AssertionError("not needed")

        uploads = cohort(form=never)
        assert uploads.add(np.arange(10, 16), pairs(6))
        assert not uploads.findings().faults.any()

    def test_a_required_form_holds_for_a_process_that_sees_no_other(self) -> None:
        known = Pair(torch.zeros(5), torch.zeros(3))
        uploads = cohort(form=lambda: known, required=True)
        uploads.add([10], pairs(1, dtype=torch.float64))
        assert uploads.findings().faults[0] == Fault.FORM

    def test_an_upload_of_fewer_leaves_takes_no_norm_from_the_others(self) -> None:
        uploads, sent = cohort(form=lambda: Pair(torch.zeros(5), torch.zeros(3))), pairs(5, 1)
        uploads.add([10], (torch.zeros(1, 5),))
        uploads.add(np.arange(11, 16), sent)
        faults, norms = uploads.findings()
        assert faults.tolist() == [Fault.FORM, 0, 0, 0, 0, 0]
        assert np.isnan(norms[:, 0]).all()
        assert norms[0, 1:] == pytest.approx(sent.x.norm(dim=1).numpy(), rel=1e-6)


class TestSums:
    def test_held_and_streamed_sums_have_the_same_bits(self) -> None:
        held, streamed = cohort(), cohort(hold=False)
        for start, stop in ((10, 13), (13, 14), (14, 16)):
            part = Pair(*(leaf[start - 10 : stop - 10] for leaf in pairs(6)))
            for uploads in (held, streamed):
                assert uploads.add(np.arange(start, stop), part)
        weights = np.arange(1, 7) / 21
        total = held.weighted_sum(weights)
        for a, b in zip(total, streamed.total, strict=True):
            assert torch.equal(a, b)

    def test_without_one_is_as_if_it_had_never_been(self) -> None:
        uploads, sent = cohort(), pairs(6)
        uploads.add(np.arange(10, 13), Pair(*(leaf[:3] for leaf in sent)))
        uploads.add(np.arange(13, 16), Pair(*(leaf[3:] for leaf in sent)))
        weights = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
        without = CohortUploads([0, 2, 3, 4, 5], weights, hold=False)
        without.add([0, 2, 3], Pair(*(leaf[[0, 2, 3]] for leaf in sent)))
        without.add([4, 5], Pair(*(leaf[4:] for leaf in sent)))
        groups = [np.array([0, 2, 3]), np.array([4, 5])]
        total = uploads.weighted_sum(np.insert(weights, 1, 0.0), groups)
        for a, b in zip(total, without.total, strict=True):
            assert torch.equal(a, b)

    def test_a_table_has_rows_in_order_and_zeros_elsewhere(self) -> None:
        uploads, sent = cohort(), pairs(6)
        uploads.add([14, 11], Pair(*(leaf[[4, 1]] for leaf in sent)))
        uploads.findings()
        table = uploads.stacked(np.array([1, 3, 4]), uploads.form())
        assert torch.equal(table.x, torch.stack([sent.x[1], torch.zeros(5), sent.x[4]]))


def oversized(norms: Any, steps: Any, scale: float) -> list[int]:
    """Who is too large in a first round."""
    return UsualSizes().oversized("upload", norms, steps, scale)


class TestNorms:
    def test_norms_of_a_row_and_of_many_agree(self) -> None:
        rows = pairs(6)
        single = [norms_of_rows(Pair(*(leaf[[i]] for leaf in rows))) for i in range(6)]
        assert np.concatenate(single, axis=1) == pytest.approx(norms_of_rows(rows), rel=1e-6)

    def test_the_bound_is_of_steps_and_off_below_five(self) -> None:
        rates = np.array([1.0, 1.2, 0.8, 1.1, 0.9, 1.0])
        steps = np.array([100, 400, 200, 100, 300, 100])
        norms = (rates * steps)[None]
        assert oversized(norms, steps, 0.0) == []
        norms[0, 1] *= 1.3 * FACTOR
        assert oversized(norms, steps, 0.0) == [1]
        assert oversized(norms, steps, 1e9) == []  # smaller than the model
        assert oversized(norms[:, :4], steps[:4], 0.0) == []

    def test_nobody_is_large_among_zeros(self) -> None:
        assert oversized(np.array([[0.0, 0.0, 0.0, 0.0, 5.0]]), [1] * 5, 0.0) == []

    def test_half_of_the_cohort_cannot_raise_the_median(self) -> None:
        norms = np.array([[1.0, 1.0, 1.0, 1e9, 1e9, 1e9]])
        assert oversized(norms, [1] * 6, 0.0) == [3, 4, 5]

    def test_what_was_usual_once_is_not_too_large_later(self) -> None:
        """Of a method with duals a newcomer uploads much where others have converged."""
        usual, steps = UsualSizes(), [1] * 6
        late = np.array([[6.0, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]])
        assert oversized(late, steps, 0.0) == [0]
        assert usual.oversized("upload", np.full((1, 6), 5.0), steps, 0.0) == []
        assert usual.oversized("upload", late, steps, 0.0) == []
        assert usual.oversized("answer", late, steps, 0.0) == [0]  # of another exchange
        assert usual.oversized("upload", 101 * late, steps, 0.0) == [0]
        assert usual.largest["upload"] == [5.0]

    @pytest.mark.parametrize("saved", [None, [], {"upload": 1.0}, {"upload": ["1"]}, {"a": [-1.0]}])
    def test_saved_sizes_that_make_no_sense_are_refused(self, saved: Any) -> None:
        assert sizes_of({"upload": [1, 2.5]}) == {"upload": [1.0, 2.5]}
        with pytest.raises(ValueError, match="usual sizes"):
            sizes_of(saved)


@pytest.mark.parametrize("quorum", [None, 10, 0.9])
def test_a_quorum_within_the_cohort_is_taken(quorum: float | None) -> None:
    UploadPolicy(quorum=quorum).check_cohort(10)


def test_a_quorum_above_the_cohort_is_refused() -> None:
    with pytest.raises(ValueError, match="at most the 10 clients of a round, got 11; lower it"):
        UploadPolicy(quorum=11).check_cohort(10)


def test_the_quorum() -> None:
    assert UploadPolicy().needed(10) == 1
    assert UploadPolicy(on_bad="drop").needed(10) == 5
    assert UploadPolicy(on_bad="drop").needed(1) == 1
    assert UploadPolicy(quorum=0.7).needed(10) == 7
    assert UploadPolicy(quorum=3).needed(10) == 3
    assert UploadPolicy(quorum=3, aggregation=Krum(2)).needed(10) == 7
    assert UploadPolicy().settings() == {}
    assert UploadPolicy(on_bad="drop", quorum=3).settings() == {"on_bad": "'drop'", "quorum": "3"}
