"""What a run of the comparison found, and what follows from it: medians and ratios."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.speed import peers
from benchmarks.speed.roster import CONTESTANTS, CORES, REFERENCE, ROOT
from benchmarks.speed.usage import Span
from benchmarks.speed.workloads import WORKLOADS

RESULTS = ROOT / "benchmarks" / "results"


@dataclass
class Score:
    """Holds one contestant's results on one workload; figures of a turn are means of its rounds."""

    seconds: list[float] = field(default_factory=list)  # a round, turn by turn, after warm-up
    cpu_seconds: list[float] = field(default_factory=list)
    setup_seconds: float | None = None
    first_round_seconds: float | None = None  # from the start of the process
    peak_bytes: int | None = None
    accuracy: float | None = None
    rounds: int = 0  # played before accuracy was asked for
    execution: dict[str, str] = field(default_factory=dict)  # where the contestant tells it
    span: Span = Span(0.0, 0.0, 0.0)  # of all measured turns

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        span = facts.pop("span")
        known = self.span.others is not None and self.span.wall > 0
        facts["others_cores"] = span[1] / span[0] if known else None
        facts["idle_cores"] = span[2] / span[0] if known else None
        facts["disturbed"] = self.span.disturbed
        return facts


def paired(theirs: Sequence[float], ours: Sequence[float]) -> float | None:
    """Return the median of ratios within a turn, above one where `theirs` took longer."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=False) if b > 0]
    return statistics.median(ratios) if ratios else None


def single(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs is not None and ours else None


def summary(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return medians of each contestant, and ratios to the reference if it played."""
    found: dict[str, dict[str, Any]] = {}
    ours = scores.get(REFERENCE)
    for name, score in scores.items():
        figures: dict[str, Any] = {
            "seconds": statistics.median(score["seconds"]) if score["seconds"] else None,
            "cpu_seconds": statistics.median(score["cpu_seconds"]) if score["seconds"] else None,
            "first_round_seconds": score["first_round_seconds"],
            "peak_bytes": score["peak_bytes"],
        }
        ratios: dict[str, float | None] = dict.fromkeys(figures)
        if ours is not None:
            for what in ("seconds", "cpu_seconds"):
                ratios[what] = paired(score[what], ours[what])
            for what in ("first_round_seconds", "peak_bytes"):
                ratios[what] = single(score[what], ours[what])
        found[name] = {"median": figures, "ratio": ratios}
    return found


def best_set_ups(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return for each module but undrift the contestant with the shortest median round."""
    best: dict[str, tuple[float, str]] = {}
    for name, score in scores.items():
        module = CONTESTANTS[name].module
        if module != REFERENCE and score["seconds"]:
            time = statistics.median(score["seconds"])
            best[module] = min(best.get(module, (time, name)), (time, name))
    return {module: name for module, (_, name) in best.items()}


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": CORES,
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def cpu_model(cpuinfo: str | None = None) -> str:
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text()
        except OSError:
            return platform.processor() or "unknown"
    names = [line.partition(":")[2] for line in cpuinfo.splitlines() if "model name" in line]
    return names[0].strip() if names else platform.processor() or "unknown"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def versions(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the versions of undrift's environment and of the peers."""
    found = {"undrift": {name: metadata.version(name) for name in ("undrift", "torch", "numpy")}}
    wanted = ("torch", "jax", "ray", "numpy")
    for peer in dict.fromkeys(CONTESTANTS[name].peer for name in names):
        if peer is not None and peers.is_built(peer):
            installed = peers.installed(peer)
            shown = (peers.PEERS[peer].distribution, *wanted)
            found[peer] = {each: installed[each] for each in shown if each in installed}
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def place(date: str, folder: Path = RESULTS, kind: str = "speed") -> Path:
    """Return speed-2026-01-31T1430.json, so that names sort by date."""
    return folder / f"{kind}-{date[:16].replace(':', '')}.json"


def newest(folder: Path = RESULTS) -> list[Path]:
    """Return the files with the newest results of each workload, oldest first."""
    paths, seen = list[Path](), set[str]()
    for path in sorted(folder.glob("speed-*.json"), reverse=True):
        held = json.loads(path.read_text())["workloads"].keys()
        if held - seen:
            paths.insert(0, path)
            seen |= held
    return paths


def joined(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of several files as one; later files replace workloads of earlier ones.

    Each workload keeps the date, the machine and the versions of its file.
    """
    whole = dict(found[-1])
    newest = {
        name: {**held, **{each: one[each] for each in ("date", "machine", "versions")}}
        for one in found
        for name, held in one["workloads"].items()
    }
    whole["workloads"] = {name: newest[name] for name in WORKLOADS if name in newest}
    whole["versions"] = {name: held for one in found for name, held in one["versions"].items()}
    return whole
