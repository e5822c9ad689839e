"""Which cells tuning tries and chooses, given what cells come to; nothing is trained here."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from undrift.config.experiment import Experiment
from undrift.results.tuning import CellRank
from undrift.runs.axes import NumericAxis
from undrift.runs.jobs import Cell, cell_key
from undrift.runs.tuning import ROUNDS, Decision, Ranks, Tuner, without_rounds

LRS = [0.01, 0.03, 0.1, 0.3]


def tuner(grid: dict[str, list[Any]], *names: str, **sweep: Any) -> Tuner:
    values = {
        "methods": [{"name": name} for name in names or ("fedavg",)],
        "training": {"rounds": 20},
        "sweep": {"grid": grid, "tune": True, **sweep},
    }
    return Tuner(Experiment.of(values))


def nearest_to(**best: float) -> Ranks:
    """Return ranks that are the higher, the nearer a method's lr is to its best in logarithm."""

    def rank(title: str, cell: Cell) -> CellRank:
        lr = cell["method.lr"]
        start = float(str(lr).partition("(")[2].partition(",")[0]) if "(" in str(lr) else float(lr)
        return CellRank(True, -abs(math.log(start / best[title])), 0.0)

    return rank


def lrs(decision: Decision, title: str = "FedAvg") -> list[Any]:
    return [cell["method.lr"] for cell in decision.tried[title]]


def chosen(decision: Decision, title: str = "FedAvg") -> Any:
    assert decision.chosen is not None
    return decision.chosen[title]


def test_a_choice_inside_the_grid_is_taken_as_it_is() -> None:
    decision = tuner({"method.lr": LRS}).decide(nearest_to(FedAvg=0.1))
    assert lrs(decision) == LRS
    assert chosen(decision) == {"method.lr": 0.1}


@pytest.mark.parametrize(
    ("best", "added", "choice"),
    [(1.0, [0.9, 2.7], 0.9), (1e-4, [0.0033, 0.0011], 0.0011), (0.35, [0.9, 0.16], 0.3)],
)
def test_a_choice_at_an_edge_extends_the_grid(
    best: float, added: list[float], choice: float
) -> None:
    own = tuner({"method.lr": LRS})
    decision = own.decide(nearest_to(FedAvg=best))
    assert chosen(decision) == {"method.lr": choice}
    # When 0.3 is no edge any more, the grid is not extended further.
    assert lrs(decision) == [*LRS, *(added[:1] if best == 0.35 else added)]
    at_edge = own.edges("FedAvg", chosen(decision), decision.tried["FedAvg"])
    assert [edge.side for edge in at_edge] == ([-1] if best == 1e-4 else [])


def test_without_extension_the_edge_stays() -> None:
    own = tuner({"method.lr": LRS}, extend=0)
    decision = own.decide(nearest_to(FedAvg=9.0))
    assert lrs(decision) == LRS
    (edge,) = own.edges("FedAvg", chosen(decision), decision.tried["FedAvg"])
    assert (edge.path, edge.value, edge.side) == ("method.lr", 0.3, 1)


def test_every_method_has_one_more_value_when_one_is_at_an_edge() -> None:
    decision = tuner({"method.lr": LRS}, "fedavg", "scaffold").decide(
        nearest_to(FedAvg=1.0, Scaffold=0.09)
    )
    assert lrs(decision, "FedAvg") == [*LRS, 0.9, 2.7]
    # 0.03 is the better neighbour of 0.1, and then 0.055 is.
    assert lrs(decision, "Scaffold") == [*LRS, 0.055, 0.074]
    assert {len(own) for own in decision.tried.values()} == {6}


def test_schedules_scale_their_start() -> None:
    grid = ["exponential(0.03, 0.998)", "exponential(0.1, 0.998)"]
    decision = tuner({"method.lr": grid}).decide(nearest_to(FedAvg=1.0))
    added = ["exponential(0.33, 0.998)", "exponential(1.1, 0.998)"]
    assert lrs(decision) == [*grid, *added]
    axis = NumericAxis.of("x", ["piecewise(0.1, {5: 0.5})", "piecewise(0.2, {5: 1.0})"])
    assert axis is not None
    assert axis.beyond(axis.values[-1]) == "piecewise(0.4, {5: 2.0})"


def test_words_and_single_numbers_have_no_edges() -> None:
    assert NumericAxis.of("x", ["sgd", "adam"]) is None
    assert NumericAxis.of("x", [0.1]) is None
    assert NumericAxis.of("x", [True, False]) is None
    axis = NumericAxis.of("x", [0, 1, 4])
    assert axis is not None
    assert axis.whole
    assert [axis.side(value) for value in (0, 1, 4)] == [0, 0, 1]
    assert axis.beyond(4) == 16
    assert axis.between(4, 1) == 2


def test_a_value_that_the_method_refuses_is_passed_over() -> None:
    """A momentum of 1.35 is none; the method has its further trial elsewhere."""
    own = tuner({"fedavgm.beta": [0.6, 0.9]}, "fedavgm")
    decision = own.decide(lambda title, cell: CellRank(True, cell["fedavgm.beta"], 0.0))
    assert [cell["fedavgm.beta"] for cell in decision.tried["FedAvgM"]] == [0.6, 0.9, 0.73, 0.81]
    assert own.edges("FedAvgM", chosen(decision, "FedAvgM"), decision.tried["FedAvgM"])


@pytest.mark.parametrize("trials", [None, 3, 4, 50])
def test_all_methods_have_the_same_number_of_trials(trials: int | None) -> None:
    grid = {"method.lr": LRS, "fedavgm.beta": [0.4, 0.6, 0.9], "fedprox.mu": [0.1, 1.0]}
    own = tuner(grid, "fedavg", "fedavgm", "fedprox", trials=trials, extend=1)
    first = own.first
    assert {len(cells) for cells in first.values()} == {min(trials or 4, 4)}
    assert len({cell_key(cell) for cell in first["FedAvgM"]}) == len(first["FedAvgM"])
    assert own.first == first  # drawn by the seed
    decision = own.decide(nearest_to(FedAvg=9.0, FedAvgM=9.0, FedProx=9.0))
    assert {len(cells) for cells in decision.tried.values()} == {min(trials or 4, 4) + 1}


def test_a_subsample_has_every_value_equally_often() -> None:
    grid = {"method.lr": LRS, "fedavgm.beta": [0.4, 0.6]}
    first = tuner(grid, "fedavg", "fedavgm").first["FedAvgM"]
    assert Counter(cell["method.lr"] for cell in first) == dict.fromkeys(LRS, 1)
    assert Counter(cell["fedavgm.beta"] for cell in first) == {0.4: 2, 0.6: 2}
    drawn = {
        repr(tuner(grid, "fedavg", "fedavgm", tune_seeds=[seed]).first["FedAvgM"])
        for seed in range(1, 9)
    }
    assert len(drawn) > 1


def test_halving_cuts_the_worse_half() -> None:
    own = tuner({"method.lr": LRS}, halving=True)
    assert own.rungs == [5, 10, 20]
    decision = own.decide(nearest_to(FedAvg=0.08))
    rungs = [(cell.get(ROUNDS), cell["method.lr"]) for cell in decision.tried["FedAvg"]]
    first, second = [(5, lr) for lr in LRS], [(10, 0.03), (10, 0.1)]
    assert rungs == [*first, *second, (None, 0.1)]
    assert chosen(decision) == {"method.lr": 0.1}


def test_a_cell_that_went_on_is_better_than_one_that_was_cut() -> None:
    """A cell is worse after more rounds here, and is still the choice."""

    def rank(title: str, cell: Cell) -> CellRank:
        lr = cell["method.lr"]
        return CellRank(True, lr - (0 if ROUNDS in cell else 1), 0.0)

    decision = tuner({"method.lr": LRS}, halving=True, extend=0).decide(rank)
    assert chosen(decision) == {"method.lr": 0.3}


def test_cells_that_diverged_are_the_worst() -> None:
    def rank(title: str, cell: Cell) -> CellRank:
        lr = cell["method.lr"]
        return CellRank(lr < 0.1 and title == "FedAvg", 1.0, 0.0)

    own = tuner({"method.lr": LRS}, "fedavg", "scaffold", halving=True)
    decision = own.decide(rank)
    assert decision.chosen is not None
    assert list(decision.chosen) == ["FedAvg"]
    assert chosen(decision)["method.lr"] < 0.1
    # A method of which nothing is left does not go on, but has its further trials.
    assert [c.get(ROUNDS) for c in decision.tried["Scaffold"]][:4] == [5] * 4


def test_of_equal_accuracies_the_lower_loss_decides() -> None:
    rank = lambda title, cell: CellRank(True, 0.9, -abs(cell["method.lr"] - 0.1))  # noqa: E731
    assert chosen(tuner({"method.lr": LRS}).decide(rank)) == {"method.lr": 0.1}


def test_asking_step_by_step_leads_to_the_same_choice() -> None:
    own = tuner({"method.lr": LRS}, "fedavg", "scaffold", halving=True)
    known = nearest_to(FedAvg=1.0, Scaffold=0.09)
    ran: set[str] = set()

    def rank(title: str, cell: Cell) -> CellRank | None:
        return known(title, cell) if title + cell_key(cell) in ran else None

    steps = 0
    while (decision := own.decide(rank)).chosen is None:
        before = set(ran)
        ran |= {t + cell_key(cell) for t, cells in decision.tried.items() for cell in cells}
        assert ran > before
        steps += 1
    assert steps == 5  # three rungs and two further values
    assert decision == own.decide(known)
    assert without_rounds({**chosen(decision), ROUNDS: 5}) == chosen(decision)


def test_a_method_without_a_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="Tuning FedAvg needs at least two cells, got 1"):
        tuner({"fedavgm.beta": [0.4, 0.6]}, "fedavg", "fedavgm")
    with pytest.raises(ValueError, match="Tuning FedAvg needs at least two cells, got 1"):
        tuner({"method.lr": [0.1]})
