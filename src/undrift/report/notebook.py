"""Records in a notebook, as a pandas frame, as a plot, and as a short table of a run.

`frame` and `plot` take a run, its records, a trial, or lists of runs or trials.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from undrift.check import require, require_choice
from undrift.errors import optional
from undrift.report import style
from undrift.report.progress import test_text
from undrift.results.metrics import measured
from undrift.results.record import NESTED, Record, Totals
from undrift.results.trial import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

AGAINST = {  # horizontal axis -> its label
    "round": "round",
    "bytes": "megabytes sent",
    "gradients": "gradients",
    "samples": "training samples",
    "seconds": "seconds of training",
    "all_seconds": "seconds",
    "simulated_seconds": "simulated seconds",
}
SHOWN = 5  # rounds in the table of a run


@runtime_checkable
class RunLike(Protocol):
    """Has the attributes of a run that are shown."""

    algorithm: Any
    mode: Any
    why: str
    round: int
    planned_rounds: int
    stopped_early: str
    totals: Totals
    record: Record | None
    records: Sequence[Record]


Source = RunLike | Trial | Iterable[Record] | Iterable[Trial] | Iterable[RunLike]


@dataclass(frozen=True)
class _Series:
    """Holds records that form one curve."""

    records: Sequence[Record]
    label: str = ""
    totals: Totals | None = None  # also of the rounds before the first record
    heading: Mapping[str, Any] = field(default_factory=dict)  # columns of a frame

    def before(self, name: str) -> float:
        """Return what a resumed run spent before its first record."""
        if self.totals is None:
            return 0.0
        return max(0.0, _sum([self.totals], name) - _sum(self.records, name))


def _series(source: Source) -> list[_Series]:
    """Return the series of records in a source, or raise `ValueError`."""
    if isinstance(source, RunLike):
        label = type(source.algorithm).__name__
        return [_Series(list(source.records), label, source.totals)]
    if isinstance(source, Trial):
        heading = {"label": source.label, "method": source.method, "seed": source.seed}
        # The lines that a damaged file lacks may lie anywhere, so its totals cannot be used.
        totals = None if source.damaged else source.totals
        return [_Series(list(source.records), source.label, totals, heading)]
    expected = "a run, a trial, or a list of records, runs or trials"
    require(isinstance(source, Iterable), "A frame or plot", expected, source)
    items: list[Any] = list(source)
    if all(isinstance(item, Record) for item in items):
        return [_Series(items)]
    for item in items:
        require(isinstance(item, RunLike | Trial), "A frame or plot", expected, item)
    return [series for item in items for series in _series(item)]


def _sum(costs: Iterable[Record | Totals], name: str) -> float:
    """Return the sum of a cost."""
    return float(sum(_spent(cost, name) or 0 for cost in costs))


def _spent(cost: Record | Totals, name: str) -> float | None:
    """Return a cost of a record or of totals; "bytes" are megabytes in both directions."""
    if name == "bytes":
        return (cost.bytes_up + cost.bytes_down) / 1e6
    spent: float | None = getattr(cost, name)
    return spent


def _metrics(parts: Sequence[_Series]) -> list[str]:
    """Return the names of all fields of the records in their order, then those of metrics."""
    kinds = {Record: None} | {type(record): None for part in parts for record in part.records}
    names = [each.name for kind in kinds for each in fields(kind) if each.name not in NESTED]
    own = (name for part in parts for record in part.records[:1] for name in record.flat())
    return list(dict.fromkeys([*names, *own]))


def frame(source: Source) -> Any:
    """Return a `pandas.DataFrame` with one row per round and NaN for None.

    Rows of trials begin with label, method and seed.
    """
    pandas = optional("pandas", "A frame", "notebook")
    parts = _series(source)
    names = _metrics(parts)
    rows = [
        {**part.heading} | {name: _or_nan(flat.get(name)) for name in names}
        for part in parts
        for flat in (record.flat() for record in part.records)
    ]
    headings = dict.fromkeys(name for part in parts for name in part.heading)
    return pandas.DataFrame(rows, columns=[*headings, *names])


def _or_nan(value: Any) -> Any:
    return float("nan") if value is None else value


def plot(
    source: Source, metric: str = "accuracy", against: str = "round", *, ax: Axes | None = None
) -> Axes:
    """Draw a curve for every run or trial, in one colour for each label, and return the axes.

    Rounds without the metric are left out. The plot goes to `ax`, or to a new figure, which a
    notebook shows; elsewhere save it with `.figure.savefig(path)`.
    """
    parts = _series(source)
    names = [name for name in _metrics(parts) if name != "round"]
    require_choice("plot", "metric", metric, names)
    require_choice("plot", "against", against, AGAINST)
    curves = [(part.label, _points(part, metric, against)) for part in parts]
    if not any(points for _, points in curves):
        measured = [name for name in names if any(_has(part.records, name) for part in parts)]
        remedy = f"it has {', '.join(measured)}" if measured else "run a round first"
        raise ValueError(f"plot needs rounds with {metric} and {against}, got none; {remedy}.")
    return _drawn(curves, metric, against, ax)


def _points(part: _Series, metric: str, against: str) -> list[tuple[float, float]]:
    """Return (cost so far, metric) of every round that has both."""
    if against == "round":
        places: list[float] = [record.round for record in part.records]
    elif _has(part.records, against):
        spent = (_spent(record, against) or 0.0 for record in part.records)
        places = list(accumulate(spent, initial=part.before(against)))[1:]
    else:
        return []
    values = [getattr(record, metric, None) for record in part.records]
    return [(x, y) for x, y in zip(places, values, strict=True) if y is not None]


def _has(records: Iterable[Record], name: str) -> bool:
    """Return whether some record has a value of this field."""
    return name == "bytes" or any(getattr(record, name, None) is not None for record in records)


def _drawn(
    curves: Iterable[tuple[str, list[tuple[float, float]]]],
    metric: str,
    against: str,
    ax: Axes | None,
) -> Axes:
    """Draw curves and return their axes."""
    axis: Axes = _new_axis() if ax is None else ax
    colours: dict[str, Any] = {}
    for label, points in curves:
        look: dict[str, Any] = {"linewidth": style.LINE_WIDTH}
        # A line of one point would be invisible without a marker.
        look |= {"marker": "o"} if len(points) == 1 else {}
        look |= {"color": colours[label]} if label in colours else {"label": label or None}
        (line,) = axis.plot([x for x, _ in points], [y for _, y in points], **look)
        colours.setdefault(label, line.get_color())
    axis.set(xlabel=AGAINST[against], ylabel=metric.replace("_", " "))
    if against == "round":
        style.whole_ticks(axis.xaxis)
    style.trim(axis)
    if any(colours):
        axis.legend(frameon=False)
    return axis


def _new_axis() -> Any:
    """Return the axes of a new figure; pyplot, which keeps and shows figures, is for notebooks."""
    if _in_notebook():
        pyplot = optional("matplotlib.pyplot", "A plot", "report")
        return pyplot.subplots(layout="constrained")[1]
    return style.new_figure().subplots()


def _in_notebook() -> bool:
    """Return whether the program runs in a Jupyter kernel, not in a script or a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def rich_table(source: RunLike | Sequence[Record]) -> Table:
    """Return the last rounds and the totals as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    head, rows, notes = _shown(source)
    title, *rest = notes
    table = Table(title=Text(title), caption=Text("\n".join(rest)), caption_justify="left")
    for name in head:
        table.add_column(Text(name), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def html_table(source: RunLike | Sequence[Record]) -> str:
    """Return the last rounds and the totals as HTML, which the notebook styles."""
    head, rows, notes = _shown(source)
    title, *rest = map(html.escape, notes)
    lines = [f"<table><caption>{title}</caption>", f"<thead>{_html_row(head, 'th')}</thead>"]
    lines += ["<tbody>", *(_html_row(row, "td") for row in rows), "</tbody></table>"]
    return "\n".join([*lines, *(f"<div>{note}</div>" for note in rest)])


def _html_row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _form(form: str, scale: float = 1.0) -> Callable[[Any], str]:
    """Return a function that formats numbers, and None as a dash."""
    return lambda value: "-" if value is None else form.format(scale * value)


Columns = dict[str, tuple[str, Callable[[Any], str]]]
_ALWAYS: Columns = {
    "round": ("round", str),
    "clients": ("clients", str),
    "loss": ("loss", _form("{:.4f}")),
    "accuracy": ("accuracy %", _form("{:.2f}", 100)),
    "bytes_up": ("MB up", _form("{:.3f}", 1e-6)),
    "bytes_down": ("MB down", _form("{:.3f}", 1e-6)),
    "gradients": ("gradients", str),
    "seconds": ("training s", _form("{:.3f}")),
    "evaluation_seconds": ("tests s", _form("{:.3f}")),
}
_IF_MEASURED: Columns = {
    "simulated_seconds": ("simulated s", _form("{:.4g}")),
    "missed": ("missed", str),
    "dropped": ("dropped", lambda clients: str(len(clients or ()))),
    "node_accuracy": ("nodes' own %", _form("{:.2f}", 100)),
    "consensus": ("consensus", _form("{:.3g}")),
    "bits": ("bits / hop", _form("{:.3g}")),
    "sign_matching": ("signs kept %", _form("{:.1f}", 100)),
}


def _shown(source: RunLike | Sequence[Record]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return column names, cells, and notes, of which the first is a title."""
    records = _known(source)
    last = records[-SHOWN:]
    columns = _ALWAYS | {k: v for k, v in _IF_MEASURED.items() if _has(last, k)}
    columns |= {name: (name, _form("{:.4g}")) for name in measured(last)}
    rows = [
        [form(_cell_value(record, name)) for name, (_, form) in columns.items()] for record in last
    ]
    return [name for name, _ in columns.values()], rows, list(_notes(source, records))


def one_line(run: RunLike) -> str:
    """Return a run in one line: its method, how far it is, and the last test."""
    tests = [record for record in _known(run) if record.loss is not None]
    found = f", {test_text(tests[-1])}" if tests else ""
    return f"<run of {run.algorithm!r}: {_how_far(run)}{found}, {run.mode}>"


def _how_far(run: RunLike) -> str:
    """Return the round that a run has reached and those that were planned."""
    early = ", stopped early" if run.stopped_early else ""
    return f"round {run.round} of {run.planned_rounds}{early}"


def _cell_value(record: Record, name: str) -> Any:
    return getattr(record, name) if hasattr(record, name) else (record.metrics or {}).get(name)


def _known(source: RunLike | Sequence[Record]) -> list[Record]:
    """Return the records of a run, or those given."""
    if not isinstance(source, RunLike):
        return list(source)
    # A run that was just resumed has only the record of its checkpoint.
    return list(source.records) or ([] if source.record is None else [source.record])


def _notes(source: RunLike | Sequence[Record], records: Sequence[Record]) -> Iterator[str]:
    """Yield a title and sentences about the run and its costs."""
    if isinstance(source, RunLike):
        yield f"{source.algorithm!r}: {_how_far(source)}"
        yield f"{source.mode}: {source.why}"
        totals = source.totals
    else:
        yield f"{len(records)} round{'' if len(records) == 1 else 's'}"
        totals = Totals()
        for record in records:
            totals.add(record)
    clock = f", {totals.simulated_seconds:.4g} simulated" if totals.simulated_seconds else ""
    yield (
        f"In all {totals.bytes_up / 1e6:.3f} MB up, {totals.bytes_down / 1e6:.3f} MB down, "
        f"{totals.gradients} gradients on {totals.samples} samples, {totals.all_seconds:.3f} s "
        f"({totals.seconds:.3f} training, {totals.evaluation_seconds:.3f} tests){clock}."
    )
