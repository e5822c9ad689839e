"""Paper files: what is read, and one sentence for what does not fit."""

from __future__ import annotations

import math

import pytest

from tests.papers.example import changed, example
from undrift.papers.file import panel_experiment
from undrift.papers.quantity import Quantity, Value, lead


def test_numbers_are_read_by_method_and_by_panel() -> None:
    cells = {(c.quantity.text, c.panel, c.method): c for c in example().cells}
    assert len(cells) == 7
    assert cells["accuracy", "iid", "FedAvg"].value == Value(80.5)
    assert cells["accuracy", "iid", "FedAvg"].deviation == 0.3
    assert cells["accuracy at 2", "Dir 0.3", "FedACG"].value == Value(60.0)
    assert cells["rounds to 50 %", "Dir 0.3", "FedAvg"].value == Value(4.0, beyond=True)


def test_panels_have_their_settings_and_methods() -> None:
    paper = example()
    assert paper.experiment is not None
    iid, dirichlet = (panel_experiment(paper.experiment, panel) for panel in paper.panels)
    assert [method.title for method in iid.methods] == ["FedAvg", "FedACG"]
    assert iid.data.partition == "iid"
    assert dirichlet.methods[1].settings["lam"] == 0.6
    assert iid.methods[1].settings["lam"] == 0.5


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "FedACG = 82.0",
            "FedAGC = 82.0",
            "The published cell of 'Table 9, left' needs a method of the file, got 'FedAGC'",
        ),
        ('panel = "iid"\nwhere', 'panel = "idd"\nwhere', "needs a panel of the file, got 'idd'"),
        (
            'ahead = "FedACG"',
            'ahead = "FedAGC"',
            "The claim 'FedACG is ahead of all others.' needs a method of the file, got 'FedAGC'",
        ),
        ('panels = ["iid"]', 'panels = ["Dir 3"]', "needs a panel of the file, got 'Dir 3'"),
        ("FedAvg = 80.5", "FedAvg = '80+'", "A published value needs a number, '>1000'"),
        ('metric = "accuracy"\nat', 'metric = "acuracy"\nat', "the nearest is 'accuracy'"),
        ("at_least = 81.0", "by = 81.0", "at_least or at_most beside method alone"),
        ('methods = ["FedAvg", "FedACG"]', 'methods = ["FedAvg2"]', "methods of the file"),
        ('name = "iid"\nset', 'name = "Dir 0.3"\nset', "needs each cell once"),
        ('"FedACG.lam" = 0.6', '"FedACG.lamb" = 0.6', "lamb"),
        ("hours = 2.0", "", "hours needs to be given"),
        ("[small]\nwhy", "[small]\ndata = { clients = 3 }\nwhy", "small has no 'data'"),
        ('printed = "Section 1, Table 9"\n', "", "printed needs to be given"),
        ('metric = "rounds"\ntarget = 0.5\npanel ', 'metric = "rounds"\npanel ', "needs a target"),
        ("item = ", "item == ", "needs to be TOML"),
    ],
)
def test_what_does_not_fit_gets_one_sentence(old: str, new: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"table9\.toml") as error:
        changed(old, new)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_small_changes_nothing_but_network_rounds_evaluation_and_cells() -> None:
    for name in ("training", "methods", "participation", "batch_size", "partition", "seeds"):
        with pytest.raises(ValueError, match=f"small has no '{name}'"):
            changed("[small]\n", f"[small]\n{name} = 1\n")
        with pytest.raises(ValueError, match="has no"):
            changed('[small.panel."Dir 0.3"]\n', f'[small.panel."Dir 0.3"]\n{name} = 1\n')


def test_a_paper_that_cannot_run_says_why() -> None:
    with pytest.raises(ValueError, match="a sentence in why"):
        changed('printed = "Section 1, Table 9"', 'printed = "x"\nkind = "impossible"')
    with pytest.raises(ValueError, match="command"):
        changed('printed = "Section 1, Table 9"', 'printed = "x"\nkind = "command"\nwhy = "y"')


@pytest.mark.parametrize(
    ("better", "worse", "rises", "expected"),
    [
        (Value(3), Value(5), False, (2, 2)),
        (Value(5), Value(3), True, (2, 2)),
        (Value(300), Value(1000, beyond=True), False, (700, math.inf)),
        (Value(1000, beyond=True), Value(300), False, (-math.inf, -700)),
        (Value(900, beyond=True), Value(1500), False, (-math.inf, 600)),
        (Value(1000, beyond=True), Value(1000, beyond=True), False, (-math.inf, math.inf)),
        (Value(95, beyond=True), Value(90), True, (5, math.inf)),
        (Value(97), Value(95, beyond=True), True, (-math.inf, 2)),
        (Value(1), Value(math.nan), True, (math.inf, math.inf)),
        (Value(math.nan), Value(1), True, (-math.inf, -math.inf)),
        (Value(math.nan), Value(math.nan), True, None),
    ],
)
def test_lead(
    better: Value, worse: Value, rises: bool, expected: tuple[float, float] | None
) -> None:
    assert lead(better, worse, rises=rises) == expected


def test_lead_as_a_factor() -> None:
    assert lead(Value(2), Value(6), rises=False, factor=True) == (3, 3)
    assert lead(Value(6), Value(2), rises=True, factor=True) == (3, 3)
    beyond = Value(1000, beyond=True)
    assert lead(Value(500), beyond, rises=False, factor=True) == (2, math.inf)
    assert lead(beyond, Value(500), rises=False, factor=True) == (0, 0.5)


@pytest.mark.parametrize("printed", [3, 2.5, ">1000", "diverges"])
def test_values_return_as_they_were_printed(printed: float | str) -> None:
    assert Value.of(printed).plain == printed


def test_quantities_in_words() -> None:
    assert Quantity("rounds", target=0.81).text == "rounds to 81 %"
    assert Quantity("accuracy", at=500).text == "accuracy at 500"
