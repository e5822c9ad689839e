"""The first stage of a tuned comparison: its experiment, its trials, and what they tell a reader.

All is read from the folder, so that a report says the same as the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from undrift.config.experiment import Experiment, Sweep
from undrift.errors import UndriftError, first_line
from undrift.results.filenames import TUNED, TUNING
from undrift.results.statistics import count_text
from undrift.results.trial import Trial, read_trial
from undrift.results.tuning import TriedCell, Tuning
from undrift.runs.jobs import Cell, Choice, cell_key, jobs, read_choice
from undrift.runs.tuning import ROUNDS, Edge, Tuner, without_rounds

Found = dict[tuple[str, str], list[Trial]]  # trials that have ended, by method and cell


def tuning_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment by which cells are chosen."""
    sweep = experiment.sweep
    return experiment.model_copy(
        update={
            "title": f"{experiment.title}, tuning".removeprefix(", "),
            "seeds": sweep.seeds_beside(experiment.seeds),
            "data": experiment.data.model_copy(update={"validation": sweep.validation}),
            "engine": experiment.engine.model_copy(update={"save_models": False}),
            "sweep": Sweep(grid=sweep.grid, together=sweep.together),
        }
    )


def tuning_trials(place: Path, experiment: Experiment) -> Found:
    """Return the trials of the folder of the first stage that have ended."""
    choice = read_choice(place, TUNED)
    found: Found = {}
    for job in [] if choice is None else jobs(tuning_experiment(experiment), choice):
        trial = read_trial(place, job.name)
        if trial is not None and trial.ended:
            found.setdefault((job.method.title, cell_key(job.cell)), []).append(trial)
    return found


def read_tuning(folder: Path, experiment: Experiment) -> Tuning | None:
    """Return every cell that was tried for a folder of results, or None if it has no choice."""
    tried, choice = read_choice(folder / TUNING, TUNED), read_choice(folder, TUNED)
    if tried is None or choice is None:
        return None
    try:
        return _told(folder, experiment, tried, choice)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise UndriftError(
            f"{folder} needs the cells of its experiment's grid in {TUNED}, got others "
            f"({first_line(error, named=True)}); tune anew."
        ) from error


def _told(folder: Path, experiment: Experiment, tried: Choice, choice: Choice) -> Tuning:
    """Return every cell that was tried, by what the files of both stages say."""
    found, smoothing = tuning_trials(folder / TUNING, experiment), experiment.evaluation.smoothing
    chosen = {title: own[0] for title, own in choice.cells.items() if own}
    titles = [m.title for m in experiment.methods if m.title in tried.cells]
    rows = [
        TriedCell.of(
            title,
            without_rounds(cell),
            found[title, cell_key(cell)],
            smoothing,
            _outcome(cell, tried.cells[title], chosen.get(title, {})),
        )
        for title in titles
        for cell in tried.cells[title]
        if (title, cell_key(cell)) in found
    ]
    tuner = Tuner(experiment)
    edges = {t: tuner.edges(t, chosen[t], tried.cells[t]) for t in titles if t in chosen}
    diverged = [row.method for row in rows if row.outcome == "diverged"]
    lost = [title for title in titles if diverged.count(title) == len(tried.cells[title])]
    sentences = [
        _manner(experiment, tuner, tried.cells),
        *_at_edges(edges),
        *(_diverged(title, tried.cells[title]) for title in lost),
    ]
    return Tuning(rows, sentences, lost)


def _outcome(cell: Cell, own: Sequence[Cell], chosen: Cell) -> str:
    """Return what became of a cell in a word or two."""
    if cell_key(cell) == cell_key(chosen):
        return "chosen"
    if ROUNDS not in cell:
        return ""
    same = [each for each in own if without_rounds(each) == without_rounds(cell)]
    goes_on = cell_key(same[-1]) != cell_key(cell)  # Rungs follow each other.
    return "went on" if goes_on else f"cut after {count_text(cell[ROUNDS], 'round')}"


def _manner(experiment: Experiment, tuner: Tuner, tried: Mapping[str, Sequence[Cell]]) -> str:
    """Return how cells were chosen."""
    sweep = experiment.sweep
    seeds = sweep.seeds_beside(experiment.seeds)
    counts = {len({cell_key(without_rounds(c)) for c in own}) for own in tried.values()}
    low, high = min(counts), max(counts)
    number = count_text(low, "cell") if low == high else f"{low} to {high} cells"
    added = f" ({tuner.count} of its grid)" if high > tuner.count else ""
    cut = ""
    if len(tuner.rungs) > 1:
        *early, _ = tuner.rungs
        after = " and ".join(map(str, early))
        rounds = "round" if early == [1] else "rounds"
        cut = f" Halving cut the worse half of the cells after {after} {rounds}."
    named = f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
    return (
        f"Each method was tried in {number}{added}; its cell was chosen on "
        f"{100 * sweep.validation:g} % of each client's samples, with {named}. The runs compared "
        f"here have other seeds, the same for all methods, and train on all samples.{cut}"
    )


def _at_edges(edges: Mapping[str, Sequence[Edge]]) -> Iterator[str]:
    """Yield a sentence for every choice at an edge of what was tried."""
    for title, own in edges.items():
        for edge in own:
            word, more = ("largest", "larger") if edge.side > 0 else ("smallest", "smaller")
            yield (
                f"{title} is shown at {edge.path.rpartition('.')[2]}={edge.value}, the {word} "
                f"value that was tried; a {more} one may be better."
            )


def _diverged(title: str, own: Sequence[Cell]) -> str:
    """Return that a method has nothing to show."""
    number = count_text(len({cell_key(without_rounds(cell)) for cell in own}), "cell")
    return f"{title} diverged in all {number} that were tried, so it has no runs to compare."
