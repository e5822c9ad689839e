"""The three scales of a paper."""

from __future__ import annotations

import pytest

from tests.papers.example import changed, example
from undrift.config.experiment import Experiment
from undrift.papers.file import Paper
from undrift.papers.quantity import Quantity
from undrift.papers.scales import PanelRun, plan

ENGINE = {"engine.save_models"}  # It changes no result.


def changed_fields(run: PanelRun) -> set[str]:
    """Return the fields by which a run differs from the document's."""
    ours, theirs = run.experiment.values(), run.full.values()
    names = set()
    for section in {*ours, *theirs} - {"methods"}:
        a, b = ours.get(section, {}), theirs.get(section, {})
        if isinstance(a, dict) and isinstance(b, dict):
            names |= {f"{section}.{key}" for key in {*a, *b} if a.get(key) != b.get(key)}
        elif a != b:
            names.add(section)
    return names


def test_documents_test_in_every_round_where_they_do_not_say_otherwise() -> None:
    assert example().experiment is not None
    assert example().experiment.evaluation.every is None
    assert {run.experiment.evaluation.every for run in plan(example(), "full")} == {1}
    rare = changed('smoothing = "ema"', 'smoothing = "ema"\nevery = 5')
    assert {run.experiment.evaluation.every for run in plan(rare, "full")} == {5}


def test_full_is_the_document_s_own() -> None:
    runs = plan(example(), "full")
    assert [run.panel for run in runs] == ["iid", "Dir 0.3"]
    assert all(run.same for run in runs)
    assert changed_fields(runs[0]) == {"title", *ENGINE}
    assert [len(run.experiment.methods) for run in runs] == [2, 3]


def test_small_changes_network_rounds_evaluation_and_cells_only() -> None:
    iid, dirichlet = plan(example(), "small", seeds=2)
    allowed = {"title", "seeds", "model.name", "training.rounds", "evaluation.target"}
    assert changed_fields(iid) == {*allowed, *ENGINE}
    assert iid.experiment.training.rounds == 2
    assert dirichlet.experiment.training.rounds == 3  # three quarters of four
    assert [m.title for m in dirichlet.experiment.methods] == ["FedAvg", "FedACG"]
    assert dirichlet.experiment.methods[1].settings["lam"] == 0.6
    assert iid.experiment.seeds == [0, 1]
    assert not iid.same


def test_rounds_and_targets_of_the_document_are_found_at_a_smaller_scale() -> None:
    iid, _ = plan(example(), "small")
    assert iid.locate(Quantity("accuracy", at=2)).at == 1
    assert iid.locate(Quantity("accuracy")).at is None
    assert iid.locate(Quantity("rounds", target=0.9)).target == 0.4


def test_glance_has_two_rounds_of_one_step() -> None:
    for run in plan(example(), "glance"):
        training = run.experiment.training
        assert (training.rounds, training.work, training.participation) == (2, "steps:1", 2)


GRID = '[[panels]]\nname = "iid"'


def test_grids_are_searched_on_validation_data_and_can_be_left_out() -> None:
    grid = '[experiment.sweep.grid]\n"FedAvg.lr" = [0.1, 0.3]\n\n' + GRID
    paper = changed(GRID, grid)
    iid, _ = plan(paper, "full")
    assert iid.experiment.data.validation == 0.1
    assert not iid.experiment.sweep.empty
    without = plan(
        paper.model_copy(
            update={
                "small": paper.small.model_copy(  # type: ignore[union-attr]
                    update={"left_out": [_left_out(paper)]}
                )
            }
        ),
        "small",
    )
    assert all(run.experiment.sweep.empty for run in without)
    assert all(run.experiment.data.validation is None for run in without)


def _left_out(paper: Paper) -> object:
    assert paper.small is not None
    (first, *_) = paper.small.left_out
    return first.model_copy(update={"panel": None, "methods": None, "grid": True})


def test_a_grid_of_a_method_that_is_left_out_goes_with_it() -> None:
    grid = '[experiment.sweep.grid]\n"FedProx.mu" = [0.1, 0.3]\n\n' + GRID
    iid, dirichlet = plan(changed(GRID, grid), "small")
    assert iid.experiment.sweep.empty
    assert dirichlet.experiment.sweep.empty


def test_a_stand_in_is_taken_where_data_are_missing_and_never_at_full_scale() -> None:
    text = '{ "data.partition" = "iid" }'
    paper = changed(text, '{ "data.partition" = "iid", "data.name" = "cifar100" }')
    paper = paper.model_copy(update={"stand_in": _stand_in()})
    run = plan(paper, "small", at_hand=lambda data: data.name != "cifar100")[0]
    assert run.experiment.data.name == "digits"
    assert run.stand_in is not None
    assert not run.same
    assert plan(paper, "small", at_hand=lambda data: True)[0].stand_in is None
    full = plan(paper, "full", at_hand=lambda data: data.name != "cifar100")[0]
    assert full.experiment.data.name == "cifar100"


def _stand_in() -> object:
    from undrift.papers.parts import StandIn

    return {"cifar100": StandIn(name="digits", why="It is at hand.")}


def test_a_scale_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="--scale to be one of full, small, glance, got 'smal'"):
        plan(example(), "smal")


def test_a_paper_round_trips_as_experiments() -> None:
    for run in plan(example(), "small"):
        assert Experiment.of(run.experiment.values()) == run.experiment
