"""The package's results of a paper, completed by those of a new run of some of its panels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from undrift.papers.catalogue import PaperEntry
from undrift.papers.store import StoredPanel, StoredPaper, is_current, read_stored, shipped


def with_shipped(entry: PaperEntry, stored: StoredPaper, seeds: Collection[int]) -> StoredPaper:
    """Return the results with the package's of methods and panels that were not run here.

    These are kept if they are of this version of the file, have some of these seeds, and if the
    panel was run alike; so a file that replaces the package's loses nothing.
    """
    path = shipped(entry, stored.scale, tuned=stored.tuned)
    if not path.is_file() or not is_current(theirs := read_stored(path), entry.paper):
        return stored
    here = {(trial.panel, trial.method) for trial in stored.trials}
    own = {panel.panel: _setting(panel) for panel in stored.panels}
    alike = {p.panel for p in theirs.panels if own.get(p.panel, _setting(p)) == _setting(p)}
    kept = [
        trial
        for trial in theirs.trials
        if (trial.panel, trial.method) not in here and trial.panel in alike and trial.seed in seeds
    ]
    if not kept:
        return stored
    cells = {(trial.panel, trial.method) for trial in kept}
    order = entry.paper.panel_names
    panels = [
        *stored.panels,
        *(
            p
            for p in theirs.panels
            if p.panel not in own and p.panel in {name for name, _ in cells}
        ),
    ]
    machines = dict.fromkeys([theirs.machine, stored.machine])
    return replace(
        stored,
        panels=sorted(panels, key=lambda panel: order.index(panel.panel)),
        trials=sorted([*stored.trials, *kept], key=lambda trial: order.index(trial.panel)),
        tried=[*stored.tried, *(t for t in theirs.tried if (t.panel, t.method) in cells)],
        sentences=list(dict.fromkeys([*theirs.sentences, *stored.sentences])),
        machine="; ".join(machines),
        tuning_seconds=_sum(theirs.tuning_seconds, stored.tuning_seconds),
    )


def _sum(*seconds: float | None) -> float | None:
    """Return the sum, or None if one of them is not known."""
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


def _setting(panel: StoredPanel) -> tuple[object, ...]:
    return panel.data, panel.model, panel.rounds, panel.same, panel.stand_in
