"""Who takes part, with which weight, and for how many steps: exact expectations where a law has
few outcomes, keyed draws with a stated confidence bound elsewhere."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.problems import bed
from tests.support.runs import distance, on_quadratics
from undrift.engine.participation import Participation, parse, population_weights

UNEQUAL = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
SIGMAS = 5  # a right law fails such a bound once in 1.7 million


def subsets(n: int, size: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(n), size))


def estimate(cohort: Sequence[int], population: np.ndarray, values: np.ndarray) -> float:
    """The server's mean of the values over a cohort."""
    ids, weights = ud.Cohorts([cohort]).sample(0, population, 0)
    return float(weights @ values[ids])


def draws(law: Participation, population: np.ndarray, rounds: int) -> list[tuple[int, ...]]:
    return [tuple(map(int, law.sample(t, population, 0).ids)) for t in range(rounds)]


def chi_square(seen: Counter, expected: dict) -> float:
    """Pearson's statistic over its bound at one in ten thousand (Wilson and Hilferty)."""
    assert set(seen) <= set(expected)
    statistic = sum((seen[key] - e) ** 2 / e for key, e in expected.items())
    dof = len(expected) - 1
    bound = dof * (1 - 2 / (9 * dof) + 3.72 * math.sqrt(2 / (9 * dof))) ** 3
    return statistic / bound


# Who takes part


@pytest.mark.parametrize(("n", "size"), [(n, m) for n in range(1, 7) for m in range(1, n + 1)])
def test_fixed_size_with_uniform_weights_is_unbiased(n, size):
    values = np.random.default_rng(n).normal(size=n)
    population = np.full(n, 1 / n)
    found = [estimate(cohort, population, values) for cohort in subsets(n, size)]
    assert np.mean(found) == pytest.approx(values.mean(), abs=1e-14)


def test_size_weights_renormalised_over_the_cohort_are_biased():
    population, values = np.array([0.6, 0.2, 0.1, 0.1]), np.array([1.0, 2.0, 3.0, 4.0])
    found = [estimate(cohort, population, values) for cohort in subsets(4, 2)]
    assert population @ values == pytest.approx(1.700)
    assert np.mean(found) == pytest.approx(2.077, abs=5e-4)


def test_a_round_of_the_simulator_is_unbiased_with_uniform_and_biased_with_unequal_weights():
    problem = bed(clients=5)

    def gap(weights: np.ndarray) -> float:
        def after(cohort: Sequence[int]) -> torch.Tensor:
            return on_quadratics(
                ud.FedAvg(lr=0.5),
                problem,
                rounds=1,
                work=2,
                weighting=weights.tolist(),
                participation=[cohort],
                mode="loop",
            ).x

        found = torch.stack([after(cohort) for cohort in subsets(5, 3)]).mean(0)
        return distance(found, after(range(5)))

    assert gap(np.full(5, 0.2)) < 1e-14
    assert gap(UNEQUAL) > 1e-2


def test_fixed_size_draws_every_subset_equally_often():
    rounds = 4000
    seen = draws(ud.FixedSize(2), UNEQUAL, rounds)
    assert chi_square(Counter(seen), dict.fromkeys(subsets(5, 2), rounds / 10)) < 1
    clients = Counter(i for cohort in seen for i in cohort)
    # Clients of one cohort exclude each other, which makes the counts more even than independent
    # draws would: the bound is on the safe side.
    assert chi_square(clients, dict.fromkeys(range(5), rounds * 2 / 5)) < 1


def test_drawn_cohorts_have_the_weights_of_explicit_ones():
    for t in range(20):
        for law in (ud.FixedSize(3), ud.Bernoulli(0.5)):
            ids, weights = law.sample(t, UNEQUAL, 0)
            again = ud.Cohorts(lambda _, ids=ids: ids.tolist()).sample(t, UNEQUAL, 0)
            assert list(again.ids) == list(ids) == sorted(set(ids))
            assert list(again.weights) == list(weights)
            assert weights == pytest.approx(UNEQUAL[ids] / UNEQUAL[ids].sum(), abs=1e-15)


def test_everybody_present_has_the_population_weights():
    for law in (ud.FixedSize(5), ud.Bernoulli(1.0)):
        ids, weights = law.sample(3, UNEQUAL, 0)
        assert list(ids) == list(range(5))
        assert weights == pytest.approx(UNEQUAL, abs=1e-15)


@pytest.mark.parametrize("count", [1, 4])
def test_draws_with_replacement_by_weight_are_unbiased_with_multinomial_variance(count):
    rounds, law = 4000, ud.WithReplacement(count)
    found = np.zeros((rounds, 5))
    for t in range(rounds):
        ids, weights = law.sample(t, UNEQUAL, 0)
        assert len(set(ids)) == len(ids) <= count
        found[t, ids] = weights
    assert found.sum(1) == pytest.approx(np.ones(rounds), abs=1e-14)
    assert found * count == pytest.approx(np.round(found * count), abs=1e-12)  # multiplicities
    variance = UNEQUAL * (1 - UNEQUAL) / count
    errors = found.mean(0) - UNEQUAL
    assert (np.abs(errors) < SIGMAS * np.sqrt(variance / rounds)).all()
    squares = (found - UNEQUAL) ** 2
    bounds = SIGMAS * squares.std(0) / math.sqrt(rounds)
    assert (np.abs(squares.mean(0) - variance) <= bounds + 1e-12).all()  # 0 for one draw at 1/2


def test_bernoulli_draws_every_nonempty_subset_with_its_probability():
    rounds, p, n = 4000, 0.3, 4
    seen = Counter(draws(ud.Bernoulli(p), np.full(n, 1 / n), rounds))
    somebody = 1 - (1 - p) ** n
    expected = {
        cohort: rounds * p ** len(cohort) * (1 - p) ** (n - len(cohort)) / somebody
        for size in range(1, n + 1)
        for cohort in subsets(n, size)
    }
    assert {len(cohort) for cohort in seen} == {1, 2, 3, 4}  # the size is random
    assert chi_square(seen, expected) < 1


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_bernoulli_is_unbiased_with_uniform_weights_and_biased_with_unequal_ones(p):
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])

    def bias(population: np.ndarray) -> float:
        expectation = sum(
            p**size * (1 - p) ** (5 - size) * estimate(cohort, population, values)
            for size in range(1, 6)
            for cohort in subsets(5, size)
        )
        return expectation / (1 - (1 - p) ** 5) - population @ values

    assert bias(np.full(5, 0.2)) == pytest.approx(0, abs=1e-14)
    assert bias(UNEQUAL) > 0.1


LAWS = [ud.FixedSize(5), ud.Bernoulli(0.3), ud.WithReplacement(5)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_cohorts_depend_on_the_seed_and_the_round_alone(law):
    population = np.full(20, 0.05)

    def cohorts(seed: int, rounds: Iterable[int]) -> dict[int, tuple[list, list]]:
        drawn = {t: law.sample(t, population, seed) for t in rounds}
        return {t: (ids.tolist(), weights.tolist()) for t, (ids, weights) in drawn.items()}

    forwards = cohorts(7, range(30))
    assert forwards == cohorts(7, reversed(range(30)))  # no hidden state between rounds
    assert len({tuple(ids) for ids, _ in forwards.values()}) >= 25
    other = cohorts(8, range(30))
    assert sum(forwards[t] == other[t] for t in range(30)) <= 2


@pytest.mark.parametrize("law", [2, *LAWS], ids=repr)
def test_the_simulator_runs_the_cohorts_of_the_law(law):
    problem = bed(clients=8)
    seen: dict[int, dict[int, float]] = {}

    def keep(up: ud.Upload) -> None:
        seen.setdefault(up.round - 1, {})[up.client] = up.weight

    on_quadratics(ud.FedAvg(lr=0.1), problem, rounds=4, work=1, participation=law, seed=3, tap=keep)
    for t in range(4):
        ids, weights = parse(law).sample(t, np.full(8, 1 / 8), 3)
        assert seen[t] == dict(zip(ids.tolist(), weights.tolist(), strict=True))


@pytest.mark.parametrize(
    ("participation", "size"), [(0.29, 29), (0.1, 10), (0.001, 1), (1.0, 100), (1, 1), (7, 7)]
)
def test_a_float_is_a_fraction_and_an_int_a_count(participation, size):
    drawn = parse(participation).sample(0, np.full(100, 0.01), 0)
    assert len(drawn.ids) == size


def test_population_weights_are_normalised():
    sizes = np.array([1, 2, 5])
    assert population_weights("size", sizes) == pytest.approx([1 / 8, 2 / 8, 5 / 8])
    assert population_weights("uniform", sizes) == pytest.approx([1 / 3] * 3)
    assert population_weights([2, 0, 6], sizes) == pytest.approx([1 / 4, 0, 3 / 4])


# How much each of them runs


def counts(work, clients: int = 1, rounds: int = 1, epoch: int = 1, seed: int = 0) -> np.ndarray:
    """(rounds, clients) K_i."""
    return np.array(
        [
            [work.steps(client=i, epoch=epoch, t=t, seed=seed) for i in range(clients)]
            for t in range(rounds)
        ]
    )


def test_steps_are_the_same_for_all_or_one_number_each():
    assert (counts(ud.Steps(4), 3, 2, epoch=7) == 4).all()
    assert counts(ud.Steps([2, 5, 9]), 3, 2, epoch=7).tolist() == [[2, 5, 9]] * 2


@pytest.mark.parametrize(
    ("epochs", "batch_size", "expected"),
    [
        (1, 4, [1, 1, 3, 4]),  # sizes 3, 4, 10 and 16; 3 is less than a batch
        (2, 4, [2, 2, 6, 8]),
        (5, 100, [5, 5, 5, 5]),
        (3, None, [3, 3, 3, 3]),  # the whole local data is one minibatch
        (0.5, 4, [1, 1, 2, 2]),
        (0.01, 4, [1, 1, 1, 1]),
    ],
)
def test_epochs_are_passes_over_the_local_data_and_at_least_one_step(epochs, batch_size, expected):
    problem = bed(clients=4, samples=[3, 4, 10, 16])

    def record(client: int) -> ud.Record:
        run = ud.simulate(
            ud.FedAvg(lr=0.1),
            problem.model(),
            problem.clients,
            loss=problem.loss,
            work=ud.Epochs(epochs),
            batch_size=batch_size,
            participation=[[client]],
            rounds=1,
        )
        return next(run)

    records = [record(i) for i in range(4)]
    assert [r.gradients for r in records] == expected
    if epochs == int(epochs):  # a whole epoch sees every sample once
        assert [r.samples for r in records] == [epochs * n for n in (3, 4, 10, 16)]


def test_gaussian_steps_have_their_mean_and_variance():
    n, mean, variance = 4000, 500, 100
    k = counts(ud.GaussianSteps(mean, variance), clients=n)[0]
    # Rounding down takes half a step off the mean and adds 1/12 to the variance.
    assert abs(k.mean() - (mean - 0.5)) < SIGMAS * math.sqrt(variance / n)
    assert abs(k.var() - (variance + 1 / 12)) < SIGMAS * variance * math.sqrt(2 / n)


def test_gaussian_steps_are_folded_and_at_least_one():
    n = 4000
    k = counts(ud.GaussianSteps(2, 9), clients=n)[0]
    assert k.min() == 1

    def below(z: float) -> float:
        return 0.5 * (1 + math.erf(z / math.sqrt(2)))

    for bound in (2, 4):  # P(K < bound) = P(|X| < bound) of X from N(2, 9)
        p = below((bound - 2) / 3) - below((-bound - 2) / 3)
        assert abs((k < bound).mean() - p) < SIGMAS * math.sqrt(p * (1 - p) / n)


def test_gaussian_steps_without_variance_are_constant():
    assert (counts(ud.GaussianSteps(6, 0, mode="random"), 5, 5) == 6).all()
    assert (counts(ud.GaussianSteps(0.3, 0), 5, 5) == 1).all()


@pytest.mark.parametrize(("low", "high"), [(1, 5), (3, 12), (4, 4)])
def test_uniform_steps_reach_every_number_from_low_to_high_equally_often(low, high):
    n = 4000
    seen = Counter(counts(ud.UniformSteps(low, high), clients=n)[0].tolist())
    if low == high:
        assert set(seen) == {low}
    else:
        expected = dict.fromkeys(range(low, high + 1), n / (high - low + 1))
        assert chi_square(seen, expected) < 1


@pytest.mark.parametrize("law", [ud.GaussianSteps, ud.UniformSteps])
def test_random_work_is_drawn_once_per_client_or_anew_in_every_round(law):
    fixed = counts(law(100, 900, mode="fixed"), clients=50, rounds=20)
    assert (fixed == fixed[0]).all()
    assert len(set(fixed[0])) > 20
    random = counts(law(100, 900, mode="random"), clients=50, rounds=20)
    assert (random.std(0) > 0).all()
    assert (random == counts(law(100, 900, mode="random"), clients=50, rounds=20)).all()
    other = counts(law(100, 900, mode="fixed"), clients=50, rounds=1, seed=1)
    assert (other != fixed[0]).mean() > 0.9


def test_the_simulator_runs_the_steps_of_the_law():
    work = ud.UniformSteps(1, 9, mode="random")
    problem = bed(clients=6)
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        problem.model(),
        problem.clients,
        loss=problem.loss,
        work=work,
        rounds=4,
        seed=2,
    )
    asked = counts(work, clients=6, rounds=4, seed=2).sum(1).tolist()
    assert [record.gradients for record in run] == asked
