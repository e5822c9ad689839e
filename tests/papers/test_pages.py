"""Pages and figures: those of the repository are made from the results of the package."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.papers.example import TEXT, shipped
from tests.support.commands import undrift
from tests.support.system import ROOT
from undrift.papers import catalogue
from undrift.papers.catalogue import DOCUMENTS
from undrift.papers.curves import thinned
from undrift.papers.draw import draw
from undrift.papers.find import find_sides, leading, shipped_sides
from undrift.papers.heatmap import HeatMap, grid_of
from undrift.papers.judge import Judged
from undrift.papers.pages import (
    BEGIN,
    END,
    Item,
    _setting,
    headlines,
    items_of,
    page,
    short_verdict,
    with_headlines,
    write_pages,
)
from undrift.papers.plots import digest, plots
from undrift.papers.run import results_file, run_paper
from undrift.papers.verdicts import ELSEWHERE

__all__ = ["shipped"]
PAGES = ROOT / "docs" / "papers"
AGAIN = "run `undrift papers pages --readme README.md`"


@cache
def items(document: str) -> list[Item]:
    return items_of(document)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_pages_are_those_of_the_results(document: str) -> None:
    text = (PAGES / f"{document}.md").read_text(encoding="utf-8")
    assert text == page(document, items(document)), AGAIN


@pytest.mark.parametrize("document", DOCUMENTS)
def test_figures_are_those_of_the_results(document: str) -> None:
    drawn = [item for item in items(document) if item.parts]
    for item in drawn:
        text = (PAGES / item.figure).read_text(encoding="utf-8")
        assert f"<dc:description>{digest(item.parts)}</dc:description>" in text, AGAIN
    files = {path.name for path in (PAGES / "figures").glob(f"{document}-*")}
    assert files == {Path(item.figure).name for item in drawn}


def test_the_readme_has_the_headline_claims() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    everything = [item for document in DOCUMENTS for item in items(document)]
    lines = headlines(everything, PAGES, ROOT / "README.md")
    assert text == with_headlines(text, lines), AGAIN


def test_headline_claims_are_named_with_their_verdicts(shipped: Path) -> None:
    shipped.write_text(TEXT.replace("[[claims]]", '[[claims]]\nheadline = "brief"'))
    catalogue._read.cache_clear()
    count = TEXT.count("[[claims]]")
    claim = "[brief](docs/papers/fedacg.md#table9): "
    head, _, row = brief_claims().splitlines()
    assert head.startswith("| document | claims in brief, and what came out (†: at another")
    claims = "; ".join([f"{claim}**not run**"] * count)
    assert row == f"| [FedACG](docs/papers/fedacg.md) | {claims} |"
    kept_results(shipped)
    judged = shipped_sides(catalogue.find("fedacg/table9"))[0][0].judged
    claims = "; ".join(f"{claim}{short_verdict(each)}" for each in judged)
    assert brief_claims().splitlines()[2] == f"| [FedACG](docs/papers/fedacg.md) | {claims} |"
    assert "**not run**" not in claims


@pytest.mark.parametrize(
    ("verdict", "without", "short"),
    [
        ("not shown", (), "**not shown**"),
        ("shown" + ELSEWHERE, (), "**shown**†"),
        ("not shown", ("CIFAR-100",), "**not shown**‡"),
        ("contradicted" + ELSEWHERE, ("FedDyn (iid)",), "**contradicted**†‡"),
    ],
)
def test_signs_stand_for_the_conditions_of_a_verdict(
    verdict: str, without: tuple[str, ...], short: str
) -> None:
    claim = next(claim for item in items("fedacg") for claim in item.entry.paper.claims)
    assert short_verdict(Judged(claim, None, verdict, without=without)) == short


def brief_claims() -> str:
    return headlines(items_of("fedacg"), Path("docs/papers"), Path("README.md"))


def test_readmes_without_markers_are_refused() -> None:
    with pytest.raises(ValueError, match="papers pages needs a README with"):
        with_headlines("# x\n", "| a |")
    assert with_headlines(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\nnew\n{END}\nb\n"


def kept_results(shipped: Path, *, seeds: int = 3, tuned: bool = False) -> None:
    """Run the example and keep its results in the package, as a second kind if they are tuned."""
    stored = run_paper(catalogue.find("fedacg/table9"), "small", seeds=seeds)
    (shipped.parent / "results").mkdir(exist_ok=True)
    kind = "small.tuned" if tuned else "small"
    path = shipped.parent / "results" / f"table9.{kind}.json"
    replace(stored, tuned=tuned).write(path)


def test_pages_are_made_from_results(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_results(shipped)
    Path("README.md").write_text(f"# x\n{BEGIN}\n{END}\n")
    code, _, _ = undrift(capsys, monkeypatch, "papers", "pages", "--readme", "README.md")
    assert code == 0
    text = Path("docs/papers/fedacg.md").read_text()
    (judged, _) = shipped_sides(catalogue.find("fedacg/table9"))[0][0].judged
    assert f"**{judged.text}**" in text
    assert judged.reason in text
    assert "`undrift papers run fedacg/table9 --scale small --seeds 3` (undrift " in text
    assert re.search(r"\| iid \| FedAvg \| 80.50 ± 0.3 / \d\d\.\d\d \[", text)
    assert "![Table 9: ours beside the document](figures/fedacg-table9.svg)" in text
    assert Path("docs/papers/figures/fedacg-table9.svg").is_file()
    before = text, Path("docs/papers/figures/fedacg-table9.svg").read_bytes()
    write_pages(Path("docs/papers"))
    again = Path("docs/papers/fedacg.md").read_text()
    assert (again, Path("docs/papers/figures/fedacg-table9.svg").read_bytes()) == before
    show = undrift(capsys, monkeypatch, "papers", "show", "fedacg/table9")[1]
    assert judged.verdict in " ".join(show.split())


def test_pages_name_the_panels_and_seeds_that_were_run(shipped: Path) -> None:
    entry = catalogue.find("fedacg/table9")
    run_paper(entry, "small", seeds=[3, 5], panels=["Dir 0.3"])
    (shipped.parent / "results").mkdir()
    results_file(entry, "small").rename(shipped.parent / "results" / "table9.small.json")
    (item,) = items_of("fedacg")
    text = page("fedacg", [item])
    flags = '--scale small --panel "Dir 0.3" --seeds 3,5`'
    assert f"`undrift papers run fedacg/table9 {flags} (undrift " in text
    (stored,) = item.results
    assert f", code {stored.code}, {stored.machine}, " in text
    older = replace(stored, tuned=True, code="")
    assert ", code" not in _setting(item, older)
    assert "of computing, without tuning)" in _setting(item, older)


def test_parts_of_one_table_have_headings_of_their_own() -> None:
    marsit, fedagrac = (
        re.findall("^## (.*)", page(document, items(document)), re.MULTILINE)
        for document in ("marsit", "fedagrac")
    )
    assert len({*marsit, *fedagrac}) == len(marsit) + len(fedagrac)
    assert {"Table 3.1", "Table 3.2: IMDb with DistilBERT"} <= set(marsit)
    assert "Figure 4.5: LR on a9a, DP1" in fedagrac


def test_results_of_an_earlier_version_are_told_and_not_shown(shipped: Path) -> None:
    kept_results(shipped, seeds=1)
    shipped.write_text(TEXT.replace("lr = 0.1", "lr = 0.2"), encoding="utf-8")
    catalogue._read.cache_clear()
    text = page("fedacg", items_of("fedacg"))
    assert "The results in `table9.small.json` were made with an earlier version" in text
    assert "**not run (about " in text


def test_tuned_results_come_first(shipped: Path) -> None:
    kept_results(shipped, seeds=2)
    kept_results(shipped, seeds=2, tuned=True)
    (item,) = items_of("fedacg")
    assert [side.tuned for side in item.sides] == [True, False]
    assert leading(item.sides, 0) is item.sides[0].judged[0]
    text = page("fedacg", [item])
    assert text.index("Each method at its tuned step size.") < text.index("At the printed step")
    assert "ours at its tuned step size | ours at the printed step size" in text
    assert {dot.whose for _, dots in item.parts[0].rows for dot in dots} == {
        "the document",
        "at its tuned step size",
        "at the printed step size",
    }


def test_what_another_program_measured_has_no_step_sizes() -> None:
    (item,) = [each for each in items("marsit") if each.entry.path.stem == "figure3_5"]
    whose = {dot.whose for part in item.parts for _, dots in part.rows for dot in dots}
    assert "measured" in whose <= {"measured", "the document"}
    assert "ours, measured" in (PAGES / item.figure).read_text(encoding="utf-8")


def test_curves_are_thin_and_keep_their_ends() -> None:
    assert thinned(5) == [0, 1, 2, 3, 4]
    places = thinned(1000)
    assert (len(places), places[0], places[-1]) == (60, 0, 999)
    assert max(b - a for a, b in pairwise(places)) == 17


def test_figures_of_documents_are_curves_by_round(shipped: Path) -> None:
    shipped.with_name("figure9.toml").write_text(TEXT.replace("Table 9", "Figure 9"))
    shipped.unlink()
    stored = run_paper(catalogue.find("fedacg/figure9"), "small", seeds=2)
    (shipped.parent / "results").mkdir()
    stored.write(shipped.parent / "results" / "figure9.small.json")
    (item,) = items_of("fedacg")
    assert [part.title for part in item.parts] == ["iid", "Dir 0.3"]
    line = item.parts[0].lines[0]
    assert (line.label, line.rounds) == ("FedAvg", (1, 2))
    ends = [t.curves["accuracy"][1][-1] for t in stored.trials if (t.panel, t.method) == FIRST]
    assert line.mean[-1] == pytest.approx(sum(ends) / 2, rel=1e-4)
    assert (line.low[-1], line.high[-1]) == (min(ends), max(ends))
    values = [t.values["accuracy"] for t in stored.trials if (t.panel, t.method) == FIRST]
    assert ends == pytest.approx(values, rel=1e-4)


FIRST = ("iid", "FedAvg")


def test_methods_that_are_a_grid_make_a_heat_map(shipped: Path) -> None:
    """Each cell has the mean of its own method, which is found by its label."""
    text = shipped.read_text().replace('item = "Table 9"', 'item = "Figure 9"')
    labels = [f"eta {eta}, lam {lam}" for eta in ("0.1", "0.01") for lam in ("0.5", "1")]
    head = text.partition("[[experiment.methods]]")[0]
    methods = "".join(
        "[[experiment.methods]]\nname = 'fedavg'\n"
        f"label = '{label}'\nlr = {label.split()[1].rstrip(',')}\n"
        for label in labels
    )
    figure = f"""{methods}
[[panels]]
name = "iid"
[[claims]]
text = "A claim."
where = "Section 1"
metric = "last_accuracy"
ahead = "{labels[0]}"
[small]
why = "Fewer rounds."
rounds = 2
"""
    shipped.with_name("figure9.toml").write_text(head + figure)
    shipped.unlink()
    catalogue._read.cache_clear()
    entry = catalogue.find("fedacg/figure9")
    stored = run_paper(entry, "small", seeds=2)
    (part,) = plots(entry.paper, find_sides(entry))
    assert isinstance(part, HeatMap)
    assert (part.across, part.down) == (("eta", ("0.1", "0.01")), ("lam", ("0.5", "1")))
    for i, lam in enumerate(part.down[1]):
        for j, eta in enumerate(part.across[1]):
            own = [t for t in stored.trials if t.method == f"eta {eta}, lam {lam}"]
            mean = sum(float(value) for t in own for value in t.values.values()) / 2
            assert part.values[i][j] == pytest.approx(mean, rel=1e-4)
    draw([part], Path("figure.svg"))
    assert digest([part]) in Path("figure.svg").read_text()
    assert grid_of(labels[:3]) is None
    assert grid_of(["step size 0.1", "step size 0.01"]) is None
