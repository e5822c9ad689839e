"""Robust rules against brute force, what they refuse, and what they bear."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from undrift.aggregation import robust
from undrift.aggregation.robust import (
    RULES,
    Aggregation,
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    TrimmedMean,
)

SIZES = pytest.mark.parametrize("n", [5, 6, 7, 8])


def points(n: int, seed: int = 0, dim: int = 3) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@SIZES
def test_median(n: int) -> None:
    rows = points(n)
    assert Median()(rows).numpy() == pytest.approx(np.median(rows.numpy(), axis=0))


@SIZES
@pytest.mark.parametrize("f", [0, 1, 2])
def test_trimmed_mean(n: int, f: int) -> None:
    rows = points(n).numpy()
    naive = [np.mean(sorted(column)[f : n - f]) for column in rows.T]
    assert TrimmedMean(f)(torch.from_numpy(rows)).numpy() == pytest.approx(naive)


@SIZES
def test_geometric_median_has_the_least_sum_of_distances(n: int) -> None:
    rows = points(n, dim=2)
    found = GeometricMedian(iterations=1000, tolerance=1e-12)(rows)

    def cost(point: Tensor) -> float:
        return float((rows - point).norm(dim=1).sum())

    side = torch.linspace(-0.02, 0.02, 21, dtype=rows.dtype)
    around = [found + torch.stack([a, b]) for a, b in itertools.product(side, side)]
    assert cost(found) <= min(map(cost, around)) + 1e-9
    assert cost(found) <= min(cost(row) for row in rows) + 1e-9


def test_geometric_median_at_one_of_the_points() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0], [10.0], [1.0]], dtype=torch.float64)
    assert GeometricMedian()(rows).item() == pytest.approx(1.0, abs=1e-5)
    same = torch.ones(4, 3)
    assert torch.equal(GeometricMedian()(same), same[0])


def naive_scores(rows: np.ndarray, f: int) -> list[float]:
    """Return Krum's scores as the paper defines them."""
    scores = []
    for i, row in enumerate(rows):
        others = sorted(float(((row - rows[j]) ** 2).sum()) for j in range(len(rows)) if j != i)
        scores.append(sum(others[: len(rows) - f - 2]))
    return scores


@pytest.mark.parametrize(("n", "f"), [(5, 1), (6, 1), (7, 2), (9, 3), (5, 0)])
@pytest.mark.parametrize("seed", range(5))
def test_krum_and_multi_krum(n: int, f: int, seed: int) -> None:
    rows = points(n, seed)
    scores = naive_scores(rows.numpy(), f)
    assert torch.equal(Krum(f)(rows), rows[int(np.argmin(scores))])
    for chosen in (1, 2, n - f):
        best = np.argsort(scores)[:chosen]
        expected = rows.numpy()[best].mean(axis=0)
        assert MultiKrum(f, chosen)(rows).numpy() == pytest.approx(expected)
    assert torch.equal(MultiKrum(f)(rows), MultiKrum(f, n - f)(rows))


@pytest.mark.parametrize("radius", [0.3, 1.0, None])
def test_centered_clipping(radius: float | None) -> None:
    rows = points(7).numpy()
    centre = np.median(rows, axis=0)
    for _ in range(3):
        away = rows - centre
        lengths = [np.sqrt((row**2).sum()) for row in away]
        limit = radius if radius is not None else sorted(lengths)[3]
        clipped = [
            row * min(1.0, limit / length) for row, length in zip(away, lengths, strict=True)
        ]
        centre = centre + np.mean(clipped, axis=0)
    found = CenteredClipping(radius=radius)(torch.from_numpy(rows))
    assert found.numpy() == pytest.approx(centre)


def test_centered_clipping_of_equal_uploads() -> None:
    rows = torch.ones(5, 2)
    assert torch.equal(CenteredClipping()(rows), rows[0])


ALL: list[Aggregation] = [
    Median(),
    TrimmedMean(2),
    GeometricMedian(),
    Krum(2),
    MultiKrum(2),
    CenteredClipping(),
]


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_two_of_nine_cannot_move_the_result_far(rule: Aggregation) -> None:
    rows = points(9)
    honest = rows[2:]
    for size in (10.0, 1e3, 1e6):
        moved = rows.clone()
        moved[:2] = size
        distance = (rule(moved) - honest.mean(0)).norm()
        assert distance < 4 * honest.std(0).norm()
    assert (moved.mean(0) - honest.mean(0)).norm() > 1e5


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_the_order_of_uploads_does_not_matter(rule: Aggregation) -> None:
    rows = points(9)
    shuffled = rows[torch.randperm(9, generator=torch.Generator().manual_seed(1))]
    assert torch.allclose(rule(rows), rule(shuffled), atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "size"),
    [(TrimmedMean(2), 4), (Krum(2), 6), (MultiKrum(1), 4), (MultiKrum(1, 8), 8), (Krum(0.3), 8)],
)
def test_too_many_attackers_are_refused(rule: Aggregation, size: int) -> None:
    with pytest.raises(ValueError, match="cohorts of at least"):
        rule.check(size)
    rule.check(rule.least(20) + 20)


@pytest.mark.parametrize("attackers", [-1, 0.5, 1.5, True, float("nan"), "2"])
def test_attackers_are_a_number_or_a_share(attackers: object) -> None:
    with pytest.raises(ValueError, match=r"attackers as a number >= 0 or a share in \[0, 0.5\)"):
        Krum(attackers)  # type: ignore[arg-type]


def test_a_share_of_attackers() -> None:
    assert [Krum(0.2).count(n) for n in (5, 9, 10, 11)] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mean", None),
        ("median", Median()),
        ("trimmed-mean:2", TrimmedMean(2)),
        ("trimmed-mean:0.2", TrimmedMean(0.2)),
        ("geometric-median", GeometricMedian()),
        ("krum:1", Krum(1)),
        ("multi-krum:2", MultiKrum(2)),
        ("multi-krum:2:5", MultiKrum(2, 5)),
        ("centered-clipping", CenteredClipping()),
        ("centered-clipping:0.5", CenteredClipping(0.5)),
    ],
)
def test_forms(text: str, rule: Aggregation | None) -> None:
    assert robust.parse(text) == rule
    assert robust.parse(rule) == rule


@pytest.mark.parametrize(
    "text", ["krums:1", "krum", "krum:x", "krum:1:2", "median:3", "krum:-1", "multi-krum:1:0", ""]
)
def test_forms_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"needs"):
        robust.parse(text)


def test_all_rules_have_a_form() -> None:
    names = {form.partition(":")[0] for form in robust.FORMS}
    assert names == {"mean", *RULES}
