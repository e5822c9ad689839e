"""undrift beside its peers on the same work, all in one interleaved run.

    python -m benchmarks.speed [--workloads W1 W2] [--contestants pfl flower] [--rounds 5]

Every contestant is a process of its own, in its own environment (`python -m benchmarks.speed.peers
build`), and plays a round when it is its turn; between turns it only waits. So a busy machine slows
all of them alike, and a ratio is the median over turns of two rounds played next to each other.
Ratios above one say that undrift is better. A contestant whose round is not the same number of
steps and samples is left out. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.speed import results, show, workloads
from benchmarks.speed.contest import Failed, Player, Refused
from benchmarks.speed.protocol import Options
from benchmarks.speed.results import Score
from benchmarks.speed.roster import CONTESTANTS, REFERENCE, choose
from benchmarks.speed.usage import Reading, Span
from benchmarks.speed.workloads import WORK, WORKLOADS, Amount
from rich.console import Console

REHEARSAL = "W1b10"  # what files are read into memory by


class Event:
    """Runs all contestants on one workload."""

    def __init__(self, name: str, data: Path, console: Console) -> None:
        self.name, self.data, self.console = name, data, console
        self.turn = WORKLOADS[name].turn
        self.players: dict[str, Player] = {}
        self.scores: dict[str, Score] = {}
        self.left_out: dict[str, str] = {}
        self.failed = False

    def start(self, who: str) -> Player:
        contestant = CONTESTANTS[who]
        options = Options(
            self.name,
            str(self.data),
            contestant.threads,
            contestant.processes,
            contestant.variant,
        )
        return Player.start(contestant, options, WORK / "logs" / f"{self.name}-{who}.log")

    def enter(self, who: str) -> None:
        """Start a process up to the end of its first round, which has to do the same work."""
        missing = CONTESTANTS[who].missing
        if missing is not None:
            self.leave_out(who, missing)
            return
        player = self.players[who] = self.start(who)
        score = self.scores[who] = Score()
        try:
            score.setup_seconds = player.ready().get("setup_seconds")
            first = player.ask("round")
            score.first_round_seconds = time.perf_counter() - player.started
            check_work(first, WORKLOADS[self.name].amount(first=True))
            score.rounds = 1
        except Failed as error:
            self.drop(who, error)

    def play(self, who: str, *, measured: bool) -> None:
        """Play one turn."""
        pids = [player.pid for player in self.players.values()]
        playing = list(self.players).index(who)
        player, score = self.players[who], self.scores[who]
        before = Reading.now(pids)
        try:
            answers = [player.ask("round") for _ in range(self.turn)]
            after = Reading.now(pids)
            for answer in answers:
                check_work(answer, WORKLOADS[self.name].amount())
        except Failed as error:
            self.drop(who, error)
            return
        span = Span.between(before, after, playing)
        score.rounds += self.turn
        score.peak_bytes = answers[-1]["peak_rss_bytes"]
        score.execution = answers[-1].get("execution", {})
        if measured:
            score.seconds.append(statistics.fmean(each["seconds"] for each in answers))
            score.cpu_seconds.append(statistics.fmean(each["cpu_seconds"] for each in answers))
            score.span = score.span + span

    def finish(self) -> None:
        for who, player in list(self.players.items()):
            try:
                self.scores[who].accuracy = player.ask("accuracy")["accuracy"]
            except Failed as error:
                self.drop(who, error)
        self.close()

    def close(self) -> None:
        while self.players:
            self.players.popitem()[1].stop()

    def drop(self, who: str, why: Failed) -> None:
        self.players.pop(who).stop()
        del self.scores[who]
        self.leave_out(who, str(why))
        self.failed |= not isinstance(why, Refused)

    def leave_out(self, who: str, why: str) -> None:
        self.left_out[who] = why
        self.console.print(f"  {who} is left out: {why}", highlight=False, soft_wrap=True)


def check_work(answer: dict[str, Any], expected: Amount) -> None:
    """Refuse to compare what is not the same amount of work."""
    done = answer.get("steps"), answer.get("samples")
    if done != tuple(expected):
        raise Failed(
            f"a round needs {expected.steps} steps on {expected.samples} samples, got {done[0]} "
            f"on {done[1]}."
        )


def hold(
    event: Event, names: list[str], *, rounds: int, warm_up: int, rehearsed: set[str] | None
) -> None:
    """Start all contestants, then play turns; the order is reversed in every other turn."""
    able = [who for who in CONTESTANTS if event.name in CONTESTANTS[who].workloads]
    event.left_out = {who: "not asked for" for who in able if who not in names}
    taking_part = [who for who in names if who in able]
    for who in taking_part:
        if rehearsed is not None and who not in rehearsed and CONTESTANTS[who].missing is None:
            rehearsed.add(who)
            rehearse(who, event.console)
        event.console.print(f"  {who} enters", highlight=False)
        event.enter(who)
        if who == REFERENCE and who not in event.players:
            return
    for turn in range(warm_up - 1 + rounds):
        order = list(event.players) if turn % 2 == 0 else list(event.players)[::-1]
        for who in order:
            event.play(who, measured=turn >= warm_up - 1)
        event.console.print(f"  turn {turn + 1} of {warm_up - 1 + rounds}", highlight=False)
    event.finish()


def rehearse(who: str, console: Console) -> None:
    """Start it once, so that nobody's first round waits for the disk."""
    name = REHEARSAL if REHEARSAL in CONTESTANTS[who].workloads else CONTESTANTS[who].workloads[0]
    event = Event(name, workloads.write(name, WORK)[0], console)
    player = event.start(who)
    try:
        player.ready()
        player.ask("round")
    except Failed:
        pass  # it will be said when it enters
    finally:
        player.stop()


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # not without them
    console = Console(width=None if sys.stdout.isatty() else show.WIDTH)
    date = results.now()
    made: dict[str, Any] = {
        "date": date,
        "machine": results.machine(),
        "versions": results.versions(options.contestants),
        "rounds": options.rounds,
        "warm_up": options.warm_up,
        "workloads": {},
    }
    place = options.out or results.place(date)
    place.parent.mkdir(parents=True, exist_ok=True)
    rehearsed: set[str] | None = set() if options.rehearsal else None
    failed = False
    for name in options.workloads:
        path, about = workloads.write(name, WORK)
        console.print(f"{name}, {WORKLOADS[name].title}: {about}", highlight=False)
        event = Event(name, path, console)
        how = {"rounds": options.rounds, "warm_up": options.warm_up}
        try:
            hold(event, options.contestants, rehearsed=rehearsed, **how)
        finally:
            event.close()
        failed |= event.failed
        scores = {who: score.to_dict() for who, score in event.scores.items()}
        made["workloads"][name] = {
            "title": WORKLOADS[name].title,
            "data": about,
            "scores": scores,
            "summary": results.summary(scores),
            "left_out": event.left_out,
        }
        place.write_text(json.dumps(made, indent=1) + "\n")
        console.print(show.table(name, made["workloads"][name]))
        for line in show.remarks(made["workloads"][name]):
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f"Results are in {place}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help=", ".join(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5, help="measured turns (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before (%(default)s)")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/speed-<date>.json")
    parser.add_argument(
        "--no-rehearsal", dest="rehearsal", action="store_false", help="first rounds may read disks"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.warm_up < 1:
        parser.error("--rounds and --warm-up need to be at least 1")
    try:
        options.contestants = choose(options.contestants)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main())
