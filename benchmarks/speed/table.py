"""The tables of speeds in the README and on the page about speed, made from the newest results.

    python -m benchmarks.speed.table [RESULTS.json] [--readme FILE] [--page FILE] [--check]

The README has undrift's seconds and the ratios of each peer's best set-up; the page has every
set-up, first rounds and memory. Both tables stand between two comments, <!-- speed:begin --> and
<!-- speed:end -->. With --check nothing is written, and the exit code says whether both tables are
up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed import results
from benchmarks.speed.roster import CONTESTANTS, FEDERATED, REFERENCE, ROOT
from benchmarks.speed.show import number

BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
NAMES = {
    "pfl": "pfl-research",
    "flower": "Flower",
    "fedlab": "FedLab",
    "fedjax": "FedJAX",
    "deepcopy": "deepcopy and DataLoader",
}
MORE = "[Versions, set-ups, first rounds, memory](docs/performance.md#against-other-libraries)."
COMMAND = "python -m benchmarks.speed.table"
Extra = tuple[str, str, str, float, str]  # head, workload, figure, unit and its sign
DISTRIBUTIONS = {"pfl": "pfl", "flower": "flwr", "fedlab": "fedlab", "fedjax": "fedjax"}


def brief(found: Mapping[str, Any]) -> str:
    """Return a row for each workload: undrift's seconds, and how many times as many peers take."""
    held = [name for name in FEDERATED if name in found["workloads"]]
    best = {name: results.best_set_ups(found["workloads"][name]["scores"]) for name in held}
    modules = dict.fromkeys(module for name in held for module in best[name])
    heads = ["seconds a round", "undrift", *(NAMES.get(each, each).split()[0] for each in modules)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in held:
        on = found["workloads"][name]
        cells = [_cell(on, REFERENCE, "seconds", 1.0, "")]
        cells += [_times(on, best[name].get(module)) for module in modules]
        lines.append(f"| {name}, {on['title']} | {' | '.join(cells)} |")
    shown = {name: found["workloads"][name] for name in held}
    said = (
        "Others in the best of the set-ups that were raced, as multiples of undrift's seconds in "
        f"the same turn. {_when(shown)}.{_disturbance(shown)} {MORE}"
    )
    return "\n".join([*lines, "", said])


def markdown(found: Mapping[str, Any]) -> str:
    """Return a row for each of undrift's set-ups and one for each peer's best set-up."""
    held = [name for name in FEDERATED if name in found["workloads"]]
    extras: list[Extra] = []
    if "W1" in held:
        extras.append(("first round, W1", "W1", "first_round_seconds", 1.0, " s"))
    if "W2" in held:
        extras.append(("peak memory, W2", "W2", "peak_bytes", 1e9, " GB"))
    return "\n".join([*_table(found, held, _rows(found, held), extras), "", _notes(found)])


def _table(
    found: Mapping[str, Any], held: list[str], rows: dict[str, dict[str, str]], extras: list[Extra]
) -> list[str]:
    """Return the lines of a table: seconds on each workload, and more figures of some."""
    heads = [f"{name}, {found['workloads'][name]['title']}" for name in held]
    heads += [head for head, *_ in extras]
    lines = [f"| seconds a round | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for label, who_on in rows.items():
        cells = [
            _cell(found["workloads"][name], who_on.get(name), "seconds", 1.0, "") for name in held
        ]
        cells += [
            _cell(found["workloads"][name], who_on.get(name), *how) for _, name, *how in extras
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _rows(found: Mapping[str, Any], held: list[str]) -> dict[str, dict[str, str]]:
    """Return which contestant stands for each label on which workload."""
    rows: dict[str, dict[str, str]] = {}
    for name in held:
        scores = found["workloads"][name]["scores"]
        for who in scores:
            if CONTESTANTS[who].module == REFERENCE:
                label = "undrift" if who == REFERENCE else f"undrift, `{CONTESTANTS[who].set_up}`"
                rows.setdefault(label, {})[name] = who
    for name in held:
        for module, who in results.best_set_ups(found["workloads"][name]["scores"]).items():
            rows.setdefault(_label(found, module), {})[name] = who
    return rows


def _label(found: Mapping[str, Any], module: str) -> str:
    versions = found["versions"].get(module, {})
    version = versions.get(DISTRIBUTIONS.get(module, ""), "")
    return f"{NAMES.get(module, module)} {version}".strip()


def _cell(held: Mapping[str, Any], who: str | None, what: str, unit: float, suffix: str) -> str:
    if who is None:
        return "-"
    figures = held["summary"][who]
    value, ratio = figures["median"][what], figures["ratio"][what]
    if value is None:
        return "-"
    shown = f"{number(value / unit)}{suffix}{_mark(held, who)}"
    return shown if who == REFERENCE or ratio is None else f"{shown} ({number(ratio)}x)"


def _times(held: Mapping[str, Any], who: str | None) -> str:
    """Return the median ratio of a peer's seconds to undrift's."""
    ratio = None if who is None else held["summary"][who]["ratio"]["seconds"]
    return "-" if who is None or ratio is None else f"{number(ratio)}x{_mark(held, who)}"


def _mark(held: Mapping[str, Any], who: str) -> str:
    return "\\*" if held["scores"][who]["disturbed"] else ""


def _measured(found: Mapping[str, Any]) -> str:
    held = found["workloads"]
    return (
        f"{_when(held)}. In brackets the median ratio to undrift in the same turn, above 1 where "
        "undrift is better. Each peer in the best of the set-ups that were raced."
        f"{_disturbance(held)}"
    )


def _when(held: Mapping[str, Any]) -> str:
    """Return when and on what workloads were measured, and in how many turns."""
    turns = {name: len(one["scores"][REFERENCE]["seconds"]) for name, one in held.items()}
    return (
        f"Measured {_by_workload({name: _where(one) for name, one in held.items()}, '; ')}, "
        f"medians of {_by_workload(turns, ', ')} interleaved turns"
    )


def _disturbance(held: Mapping[str, Any]) -> str:
    """Return what the mark beside figures means, if there is one."""
    if not any(score["disturbed"] for one in held.values() for score in one["scores"].values()):
        return ""
    return " \\* Disturbed: other processes took more than 10 % of a core."


def _where(held: Mapping[str, Any]) -> str:
    """Return when, on what machine and with which torch a workload was measured."""
    machine, torch = held["machine"], held["versions"]["undrift"]["torch"]
    return f"{held['date'][:10]} on {machine['cores']} cores ({machine['cpu']}), torch {torch}"


def _by_workload(facts: Mapping[str, object], between: str) -> str:
    """Return a fact, with the workloads that it holds for where they differ."""
    names: dict[object, list[str]] = {}
    for name, fact in facts.items():
        names.setdefault(fact, []).append(name)
    if len(names) == 1:
        return str(next(iter(names)))
    return between.join(f"{fact} ({', '.join(held)})" for fact, held in names.items())


def _raced(found: Mapping[str, Any]) -> str:
    """Return which set-ups of peers are in the table, and which were left out for what reason."""
    lines = []
    for name, held in found["workloads"].items():
        best = results.best_set_ups(held["scores"]).values()
        words = ", ".join(f"{CONTESTANTS[who].module} {CONTESTANTS[who].set_up}" for who in best)
        reasons: dict[str, list[str]] = {}
        for who, why in {**_absent(name, held), **held["left_out"]}.items():
            reasons.setdefault(why, []).append(who)
        missing = "; ".join(f"{', '.join(whose)}: {why}" for why, whose in reasons.items())
        if words:
            lines.append(f"{name}: {words}" + (f" (left out: {missing})" if missing else ""))
    return f"Set-ups in the table: {'. '.join(lines)}."


def _absent(name: str, held: Mapping[str, Any]) -> dict[str, str]:
    """Return the contestants of which a file says nothing: those that were not asked for."""
    able = [who for who in CONTESTANTS if name in CONTESTANTS[who].workloads]
    return {who: "not asked for" for who in able if who not in held["scores"]}


def _notes(found: Mapping[str, Any]) -> str:
    lines = [_measured(found)]
    for name, text in (
        ("W1run", "A whole short run with an empty cache (W1run)"),
        ("G1", "Gossip (G1)"),
        ("A1", "One-bit ring of 8, 7.2M coordinates (A1)"),
    ):
        held = found["workloads"].get(name)
        if held is None or REFERENCE not in held["summary"]:
            continue
        said = f"{text}: {_cell(held, REFERENCE, 'seconds', 1.0, ' s')}"
        for other, words in (
            ("undrift-full-precision", "in full precision"),
            ("undrift-torch", "with `kernels=False`"),
            ("deepcopy-1", "deepcopy and DataLoader on one thread"),
        ):
            if other in held["summary"]:
                said += f", {words} {_cell(held, other, 'seconds', 1.0, ' s')}"
        lines.append(f"{said}.")
    lines.append(_raced(found))
    return "<br>\n".join(lines)


def replaced(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the text with the table between its marks."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"The page needs one {begin} and one {end} after it; put them in.")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "results", nargs="*", type=Path, help="by default the newest of each workload"
    )
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--check", action="store_true", help="only say whether both are up to date")
    options = parser.parse_args(arguments)
    paths = options.results or results.newest()
    if not paths:
        print(f"There are no results in {results.RESULTS}; run python -m benchmarks.speed.")
        return 1
    found = results.joined([json.loads(path.read_text()) for path in paths])
    tables = {options.readme: brief(found), options.page: markdown(found)}
    try:
        new = {path: replaced(path.read_text(), made) for path, made in tables.items()}
    except ValueError as error:
        print(error)
        return 1
    stale = [path for path, text in new.items() if path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path} is not made from {paths[-1]}; run {COMMAND}.")
        else:
            path.write_text(new[path])
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
