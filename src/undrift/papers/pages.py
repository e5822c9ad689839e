"""`undrift papers pages`: a page of results for each document, and the README's headline claims.

The pages are made from the package's files and results alone, so whoever makes them again gets the
same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from undrift.check import require
from undrift.files import write_atomic
from undrift.papers import catalogue
from undrift.papers.catalogue import DOCUMENTS, PaperEntry
from undrift.papers.draw import draw
from undrift.papers.estimate import hours
from undrift.papers.file import Paper
from undrift.papers.find import Side, leading, shipped_sides
from undrift.papers.heatmap import HeatMap
from undrift.papers.judge import Judged, hours_text
from undrift.papers.page_tables import claims_table, number_tables, table, tried_table
from undrift.papers.plots import Plot, plots
from undrift.papers.scales import plan
from undrift.papers.store import StoredPaper
from undrift.papers.verdicts import ELSEWHERE, NOT_RUN
from undrift.papers.words import setting_lines

FIGURES = "figures"  # the folder beside the pages
BEGIN, END = "<!-- papers:begin -->", "<!-- papers:end -->"  # around the README's table
AWAY, LACKING = "†", "‡"  # in the README: at another setting; without parts
MADE = "Made by `undrift papers pages` from the package's results; not written by hand."


@dataclass(frozen=True)
class Item:
    """Holds a table or figure of a document beside the package's results."""

    entry: PaperEntry
    sides: Sequence[Side]
    outdated: Sequence[Path]
    parts: Sequence[Plot] | Sequence[HeatMap]  # of its figure

    @property
    def results(self) -> list[StoredPaper]:
        """Return the results that there are, the tuned ones first."""
        return [side.stored for side in self.sides if side.stored is not None]

    @property
    def figure(self) -> str:
        """Return the figure's path beside the page."""
        return f"{FIGURES}/{self.entry.document}-{self.entry.path.stem}.svg"


def items_of(document: str) -> list[Item]:
    """Return the tables and figures of a document."""
    return [_item(entry) for entry in catalogue.entries() if entry.document == document]


def _item(entry: PaperEntry) -> Item:
    sides, outdated = shipped_sides(entry)
    return Item(entry, sides, outdated, plots(entry.paper, sides))


def write_pages(folder: Path, readme: Path | None = None) -> list[Path]:
    """Write all pages and figures and, if one is named, the README's table; return the paths."""
    written = []
    everything = {document: items_of(document) for document in DOCUMENTS}
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for document, items in everything.items():
        for item in items:
            if item.parts:
                draw(item.parts, folder / item.figure)
                written.append(folder / item.figure)
        write_atomic(folder / f"{document}.md", page(document, items))
        written.append(folder / f"{document}.md")
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        items = [item for each in everything.values() for item in each]
        write_atomic(readme, with_headlines(text, headlines(items, folder, readme)))
        written.append(readme)
    return written


def page(document: str, items: Sequence[Item]) -> str:
    """Return the page of a document."""
    heads = ("item", "what", "ours", "claims")
    overview = table(heads, [_overview_row(item) for item in items])
    parts = [
        f"# {DOCUMENTS[document]}: the document's results and ours",
        f"{MADE} [How results are read and claims are judged](../papers.md#document-and-ours).",
        overview,
        *(_section(item, _title(item, items)) for item in items),
    ]
    return "\n\n".join(parts) + "\n"


def _overview_row(item: Item) -> list[str]:
    paper, stem = item.entry.paper, item.entry.path.stem
    ours = "; ".join(_short_setting(stored) for stored in item.results) or _not_run(item)
    verdicts = [leading(item.sides, place).verdict for place in range(len(paper.claims))]
    counts = ", ".join(f"{count} {word}" for word, count in Counter(verdicts).items())
    return [f"[{paper.item}](#{stem})", paper.what, ours, counts or "-"]


def _short_setting(stored: StoredPaper) -> str:
    count = len(stored.seeds)
    tuned = ", tuned" if stored.tuned else ""
    return f"{stored.scale}{tuned}, {count} seed{'' if count == 1 else 's'}"


def _not_run(item: Item) -> str:
    """Return why there are no results, with the hours that they would take."""
    paper = item.entry.paper
    if paper.kind == "command":
        return f"measured by `{paper.command}`"
    if paper.kind == "impossible":
        return "cannot be run"
    small = [] if paper.small is None else plan(paper, "small", at_hand=lambda data: True)
    runs = small or plan(paper, "full", at_hand=lambda data: True)
    scale = "small" if small else "full"
    needed = hours_text(sum(hours(run.experiment) for run in runs))
    return f"{NOT_RUN} (about {needed} a seed at the scale {scale})"


def _title(item: Item, items: Sequence[Item]) -> str:
    """Return the heading of an item; parts of one table or figure also say which part they are."""
    paper = item.entry.paper
    named = [each.entry.paper.what for each in items if each.entry.paper.item == paper.item]
    if len(named) == 1:
        return paper.item
    shared = set.intersection(*(set(what.split(", ")) for what in named))
    own = ", ".join(part for part in paper.what.split(", ") if part not in shared)
    return f"{paper.item}: {re.split('[:(]', own)[0].strip()}"


def _section(item: Item, title: str) -> str:
    paper, entry = item.entry.paper, item.entry
    parts = [
        f'<a id="{entry.path.stem}"></a>\n\n## {title}',
        f"{paper.what}. Printed in: {paper.printed}.",
    ]
    parts += [_outdated(entry, path) for path in item.outdated]
    if item.results:
        parts += [_setting(item, stored) for stored in item.results]
        parts += [f"![{paper.item}: ours beside the document]({item.figure})"] * bool(item.parts)
        parts += number_tables(item.sides)
        parts += [tried_table(stored) for stored in item.results if stored.tried]
    else:
        reason = f"{paper.why} " if paper.why else ""
        parts.append(f"{reason}Ours: {_not_run(item)}.")
    if paper.claims:
        parts.append(claims_table(paper, item.sides))
    return "\n\n".join(parts)


def _outdated(entry: PaperEntry, path: Path) -> str:
    return (
        f"**The results in `{path.name}` were made with an earlier version of the file** and are "
        f"not shown; run `undrift papers run {entry.name}` again."
    )


def _setting(item: Item, stored: StoredPaper) -> str:
    """Return how results were made: command, seeds, version, machine, seconds."""
    name = "Each method at its tuned step size" if stored.tuned else "At the printed step sizes"
    name = "Measured" if item.entry.paper.kind == "command" else name
    tune = " --tune" if stored.tuned else ""
    command = item.entry.paper.command or (
        f"undrift papers run {item.entry.name} --scale {stored.scale}{tune}"
        f"{_panel_flags(item.entry.paper, stored)} --seeds {_seeds_flag(stored.seeds)}"
    )
    code = f", code {stored.code}" if stored.code else ""
    untold = stored.tuned and stored.tuning_seconds is None
    took = f"{hours_text(stored.seconds / 3600)} of computing{', without tuning' * untold}"
    facts = f"undrift {stored.undrift}{code}, {stored.machine}, {took}"
    lines = [*setting_lines(item.entry.paper, stored), *stored.sentences]
    made = f"`{command}` ({facts})."
    return f"**{name}.**\n\n" + "\n".join(f"- {line}" for line in [*lines, made])


def _panel_flags(paper: Paper, stored: StoredPaper) -> str:
    """Return the flags of the panels that were run, "" if all were."""
    runs = plan(paper, stored.scale, at_hand=lambda data: True, tune=stored.tuned)
    names = dict.fromkeys(run.panel for run in runs)
    ran = {panel.panel for panel in stored.panels}
    return "".join(f' --panel "{n}"' for n in names if n in ran) if ran < set(names) else ""


def _seeds_flag(seeds: Sequence[int]) -> str:
    """Return seeds as --seeds takes them: their number, or a list if they do not begin at 0."""
    plain = list(seeds) == list(range(len(seeds)))
    return str(len(seeds)) if plain else ",".join(map(str, seeds))


def headlines(items: Sequence[Item], folder: Path, readme: Path) -> str:
    """Return the README's table: a row for each document with its headline claims and verdicts."""
    place = folder.resolve().relative_to(readme.resolve().parent).as_posix()
    named: dict[str, list[str]] = {}
    for item in items:
        document, stem = item.entry.document, item.entry.path.stem
        for position, claim in enumerate(item.entry.paper.claims):
            if claim.headline:
                verdict = short_verdict(leading(item.sides, position))
                link = f"[{claim.headline}]({place}/{document}.md#{stem})"
                named.setdefault(document, []).append(f"{link}: {verdict}")
    rows = [
        [f"[{DOCUMENTS[document].split(' (')[0]}]({place}/{document}.md)", "; ".join(claims)]
        for document, claims in named.items()
    ]
    signs = f"{AWAY}:{ELSEWHERE}; {LACKING}: without parts that were not run"
    return table(("document", f"claims in brief, and what came out ({signs})"), rows)


def short_verdict(judged: Judged) -> str:
    """Return a verdict, with signs in the place of its conditions."""
    word = judged.verdict.removesuffix(ELSEWHERE)
    away = AWAY if word != judged.verdict else ""
    return f"**{word}**{away}{LACKING if judged.without else ''}"


def with_headlines(text: str, lines: str) -> str:
    """Return the README with these lines between its markers."""
    both = text.count(BEGIN) == 1 and text.count(END) == 1 and text.index(BEGIN) < text.index(END)
    require(both, "papers pages", f"a README with {BEGIN} and {END}", "one without", "add them")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n{lines}\n{END}{tail}"
