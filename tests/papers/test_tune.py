"""Papers run with each method at its tuned step size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.papers.example import TEXT, changed, example, shipped
from tests.support.commands import undrift
from undrift.engine.processes.rendezvous import code_digest
from undrift.papers import catalogue
from undrift.papers.catalogue import PaperEntry
from undrift.papers.find import find_results, find_sides
from undrift.papers.parts import Tune
from undrift.papers.run import run_paper
from undrift.papers.scales import plan
from undrift.papers.store import fingerprint
from undrift.papers.tune import tuned_experiment
from undrift.runs.jobs import jobs

__all__ = ["shipped"]
EXPERIMENTS = [entry for entry in catalogue.entries() if entry.paper.kind == "experiment"]
AXES = [entry for entry in EXPERIMENTS if entry.paper.tune.axis]
ENTRIES = [entry for entry in EXPERIMENTS if entry not in AXES]


def grid(**fields: object) -> dict[str, object]:
    """Return the grid of the example's panel iid with these fields of [tune]."""
    paper = example().model_copy(update={"tune": Tune.model_validate(fields)})
    return dict(plan(paper, "small", tune=True)[0].experiment.sweep.grid)


def test_step_sizes_are_the_printed_ones_times_factors() -> None:
    assert grid() == {"method.lr": [0.01, 0.03, 0.1, 0.3]}
    assert grid(factors=[0.5, 2.0]) == {"method.lr": [0.05, 0.2]}
    assert grid(grid={"FedACG.lr": [0.2, 0.4], "FedProx.mu": [1.0, 2.0]}) == {
        "methods[0].lr": [0.01, 0.03, 0.1, 0.3],
        "FedACG.lr": [0.2, 0.4],
    }  # The panel has no FedProx.


def test_schedules_keep_their_form_and_methods_their_own_base() -> None:
    paper = changed('name = "fedacg"\nlr = 0.1', 'name = "fedacg"\nlr = "exponential(0.2, 0.99)"')
    assert dict(plan(paper, "small", tune=True)[0].experiment.sweep.grid) == {
        "methods[0].lr": [0.01, 0.03, 0.1, 0.3],
        "methods[1].lr": [f"exponential({start}, 0.99)" for start in (0.02, 0.06, 0.2, 0.6)],
    }


def test_sign_methods_step_by_server_lr() -> None:
    (run,) = plan(catalogue.find("marsit/figure3_1b").paper, "small", tune=True)
    swept = run.experiment.sweep.grid
    titles = [method.title for method in run.experiment.methods]
    assert f"methods[{titles.index('signSGD')}].server_lr" in swept
    assert f"methods[{titles.index('EF-signSGD')}].lr" in swept


def test_panels_and_methods_can_be_left_out() -> None:
    paper = example().model_copy(update={"tune": Tune(panels=["iid"], methods=["FedACG"])})
    (run,) = plan(paper, "small", tune=True)
    assert (run.panel, [method.title for method in run.experiment.methods]) == ("iid", ["FedACG"])
    assert tuned_experiment(run.full, Tune(methods=["FedProx"])) is None
    with pytest.raises(ValueError, match="a panel of the file, got 'idd'"):
        changed("[small]\n", '[tune]\npanels = ["idd"]\n[small]\n')
    with pytest.raises(ValueError, match="--tune needs --scale full or small"):
        plan(example(), "glance", tune=True)


def test_methods_that_are_step_sizes_are_not_tuned() -> None:
    """The word changes what `--tune` does and no fingerprint of results at the printed steps."""
    paper = changed("[small]\n", "[tune]\naxis = true\n[small]\n")
    with pytest.raises(ValueError, match="--tune needs methods with a step to tune, got 'Table 9"):
        plan(paper, "small", tune=True)
    for scale in ("full", "small"):
        assert fingerprint(paper, scale) == fingerprint(example(), scale)
    refused = [entry.name for entry in AXES]
    assert refused == ["fedagrac/figure4_4", "netfleet/figure6"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_paper_can_be_tuned(entry: PaperEntry) -> None:
    """Nothing but the step sizes differs from the printed settings, and every method has four."""
    printed = plan(entry.paper, "small", at_hand=lambda data: True)
    tuned = plan(entry.paper, "small", at_hand=lambda data: True, tune=True)
    by_folder = {run.folder: run.experiment for run in printed}
    for run in tuned:
        ours, theirs = run.experiment.values(), by_folder[run.folder].values()
        for values in (ours, theirs):
            for name in ("title", "sweep"):
                values.pop(name, None)
            values["data"].pop("validation", None)
        titles = [method.title for method in run.experiment.methods]
        full = [method.title for method in by_folder[run.folder].methods]
        theirs["methods"] = [m for m, t in zip(theirs["methods"], full, strict=True) if t in titles]
        assert ours == theirs
        once = run.experiment.model_copy(update={"seeds": [0]})
        counts = dict.fromkeys(titles, 0)
        for job in jobs(once):
            counts[job.method.title] += 1
        assert min(counts.values()) >= 2


def test_tuned_results_are_kept_beside_the_printed_ones(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped.write_text(TEXT + '\n[tune]\npanels = ["iid"]\nfactors = [0.3, 3.0]\nextend = 0\n')
    catalogue._read.cache_clear()
    entry = catalogue.find("fedacg/table9")
    run_paper(entry, "small", seeds=2)
    command = ("papers", "run", "fedacg/table9", "--scale", "small", "--tune", "--seeds", "2")
    code, out, _ = undrift(capsys, monkeypatch, *command)
    assert code == 0
    assert "at its tuned step size" in " ".join(out.split())
    stored = find_results(entry, tuned=True)
    assert stored is not None
    assert stored.tuned
    assert {(t.panel, t.method, t.seed) for t in stored.trials} == {
        ("iid", method, seed) for method in ("FedAvg", "FedACG") for seed in (0, 1)
    }
    assert [(cell.method, cell.cell) for cell in stored.tried] == [
        (method, f"lr={lr}") for method in ("FedAvg", "FedACG") for lr in (0.03, 0.3)
    ]
    assert sorted(cell.outcome for cell in stored.tried) == ["", "", "chosen", "chosen"]
    assert all(0 < (cell.accuracy or 0) <= 1 for cell in stored.tried)
    chosen = {cell.method: cell.cell for cell in stored.tried if cell.outcome == "chosen"}
    for trial in stored.trials:
        assert chosen[trial.method] == f"lr={trial.cell['method.lr']}"
    assert any("samples, with seed 1000" in sentence for sentence in stored.sentences)
    assert stored.code == code_digest()[:12]
    assert stored.tuning_seconds is not None
    assert stored.tuning_seconds > 0
    own = sum(trial.seconds or 0.0 for trial in stored.trials)
    assert stored.seconds == pytest.approx(own + stored.tuning_seconds)
    tuned, printed = find_sides(entry)
    assert (tuned.tuned, printed.tuned) == (True, False)
    assert printed.stored is not None
    assert not printed.stored.tuned
    more = run_paper(entry, "small", seeds=3, tune=True)  # goes on with another seed
    assert [t for t in more.trials if t.seed < 2] == stored.trials
    assert {t.seed for t in more.trials} == {0, 1, 2}
    assert more.tried == stored.tried


def test_another_way_of_tuning_is_another_version_of_the_file(shipped: Path) -> None:
    entry = catalogue.find("fedacg/table9")
    shipped.write_text(TEXT + "\n[tune]\nfactors = [0.3, 3.0]\nextend = 0\n")
    catalogue._read.cache_clear()
    run_paper(entry, "small", tune=True)
    run_paper(entry, "small")
    shipped.write_text(TEXT + "\n[tune]\nfactors = [0.5, 3.0]\nextend = 0\n")
    catalogue._read.cache_clear()
    with pytest.raises(ValueError, match="--scale small --tune"):
        find_results(entry, tuned=True)
    assert find_results(entry) is not None


def test_a_method_that_diverges_in_every_cell_counts_as_diverged(shipped: Path) -> None:
    lost = '\n[tune]\npanels = ["iid"]\nextend = 0\ngrid = { "FedACG.lr" = [1e30, 2e30] }\n'
    shipped.write_text(TEXT + lost)
    catalogue._read.cache_clear()
    stored = run_paper(catalogue.find("fedacg/table9"), "small", tune=True)
    (trial,) = (t for t in stored.trials if t.method == "FedACG")
    assert (trial.status, trial.values["accuracy"]) == ("diverged", "diverges")
