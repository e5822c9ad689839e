"""Run the tests of each mended defect on the code before its repair, where they must fail.

    python -m benchmarks.faults [--only 3 5]

The source before a repair and the tests that came with it are put together in a folder; the
history of the repository is needed for that. Where such a test names something that the old code
lacks, that is taken out of it; what was wrong with a test is mended. Printed is how each test ends
there, with its error, which must be the one that the defect makes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STORE, STOPPED = "tests/engine/checkpoint/test_store.py::", "tests/runs/test_stopped.py::"
BAD = "tests/engine/execution/test_bad_clients.py::"
UNTRUSTED, KERNELS = (
    "tests/test_untrusted.py::",
    "tests/gradients/test_kernel_runs.py::TestBuilder::",
)
WORKERS, ELASTIC = (f"tests/engine/processes/test_{name}.py::" for name in ("workers", "elastic"))


class Edit(NamedTuple):
    """Replaces something in a test that the old code lacks or that was wrong."""

    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> None:
        """Change the file in a folder, or raise `ValueError` where it has nothing to replace."""
        text = (folder / self.file).read_text()
        if self.old not in text:
            raise ValueError(f"{self.file} needs {self.old!r} to be taken out, got none.")
        (folder / self.file).write_text(text.replace(self.old, self.new))


class Fault(NamedTuple):
    """Names a defect, the commits before and with its repair, and the tests of it."""

    defect: str
    before: str
    repair: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...] = ()


SLOW = (
    Edit("tests/jobs/slow.py", "import due, store", "import store"),
    Edit("tests/jobs/slow.py", "    due.SECONDS, due.SHARE = between_saves, 1e9\n", ""),
)
MANIFEST = "tests/engine/checkpoint/test_manifest.py"
OWN, BOMBS, MEASURED = "tests/cli/test_own.py", "tests/data/test_bombs.py", STORE.rstrip(":")


FAULTS: dict[int | str, Fault] = {
    1: Fault("a report ran code that the folder names", "c231c4e^", "c231c4e",
             (f"{OWN}::test_reading_a_folder_runs_no_code",),
             (Edit(OWN, '"--trust", ', ""),
              Edit(OWN, '[model]\nname = "{folder}/evil.py:Net"\n', ""),
              Edit(OWN, "from undrift.usercode import load", "from undrift import errors as load")),
             ),
    2: Fault("every save rewrote all client states", "a3d30eb^", "a3d30eb",
             (f"{STORE}test_a_save_writes_the_states_that_have_changed",),
             (Edit(MEASURED, "from undrift.engine.checkpoint import client_states\n", ""),
              Edit(MEASURED, '(tmp_path / "states").iterdir()', 'tmp_path.rglob("*")'),
              Edit(MEASURED, "{path.name for", "{path for"),
              Edit(MEASURED, "path.name not in before", "path not in before and path.is_file()"),
              Edit(MEASURED, ' for path in new if path.name.startswith("segment")',
                   ' for path in new'))),
    3: Fault("`--resume` began at round 1 and emptied the records", "a3a8e80^", "f459741",
             (f"{STOPPED}test_a_signal_saves_and_a_resume_goes_on[2-130]",
              f"{STOPPED}test_after_a_kill_every_record_is_kept",
              f"{STOPPED}test_records_without_a_checkpoint_are_moved_aside"), SLOW),
    4: Fault("one bad client ended or poisoned a run", "739e19f^", "739e19f",
             (f"{BAD}TestStop::test_the_culprit_is_named_in_its_round",),
             (Edit(BAD.rstrip(":"), "from undrift.aggregation.attacks import Attack", ""),
              Edit(BAD.rstrip(":"), "class Broken(Attack)", "class Broken"),
              Edit(BAD.rstrip(":"), "int(Broken().attackers(CLIENTS, 0)[0])", "0"))),
    5: Fault("folders such as `round-best` made new checkpoints be deleted", "face036^", "face036",
             (f"{STORE}test_folders_of_other_names_are_left_alone_and_hide_no_checkpoint",),
             (Edit(MEASURED,  # A run refuses to begin beside them; what it saves later is deleted.
                   "    for name in others:\n        (tmp_path / name).mkdir()\n"
                   "    final = saved(tmp_path)\n",
                   "    run = testing.start(SCAFFOLD, checkpoint=tmp_path)\n    next(run)\n"
                   "    for name in others:\n        (tmp_path / name).mkdir()\n"
                   "    final = testing.finish(run)\n"),)),
    6: Fault("small files unpacked to gigabytes", "739e19f^", "739e19f",
             tuple(f"{BOMBS}::test_a_bomb_is_refused_in_little_memory[{name}]"
                   for name in ("LIBSVM-bz2", "LIBSVM-gz", "zip", "TOML-key")),
             (Edit(BOMBS, ", match=bomb.message", ""),  # The memory is to decide.
              Edit(BOMBS, "40 << 20", "400 << 20"))),
    "6b": Fault("a small PNG unpacked to 800 MB", "739e19f^", "739e19f",
                (f"{BOMBS}::test_a_bomb_is_refused_in_little_memory[PNG]",),
                (Edit(BOMBS, ", match=bomb.message", ""),)),
    7: Fault("a kernel that others could write was loaded", "739e19f^", "739e19f",
             (f"{KERNELS}test_a_library_that_others_may_have_written_is_not_loaded",),
             (Edit(KERNELS.partition("::")[0],  # A library that is loaded once stays.
                   "    builder.library(self.SOURCE)\n        (kept,), (seal,) = self.folder.glob("
                   '"*.so"), self.folder.glob("*.json")\n        source',
                   "    load, builder._load = builder._load, lambda path: None\n"
                   "        builder.library(self.SOURCE)\n        builder._load = load\n"
                   '        (kept,), (seal,) = self.folder.glob("*.so"), '
                   'self.folder.glob("*.json")\n        source'),)),
    8: Fault("the store of local processes listened on all interfaces", "7be6fcb^", "7be6fcb",
             (f"{ELASTIC}test_sigterm_saves_the_same_round_of_all_processes_and_a_resume_goes_on",)),
    9: Fault("a short timeout failed at the start on a busy machine", "7be6fcb^", "7be6fcb",
             (f"{WORKERS}test_a_slow_start_is_not_taken_for_a_hung_process_and_only_the_loopback_listens",)),
    10: Fault("SIGTERM saved nothing", "a3a8e80^", "f459741",
              (f"{STOPPED}test_a_signal_saves_and_a_resume_goes_on[15-143]",), SLOW),
    11: Fault("a flipped byte of cached data went unnoticed", "739e19f^", "739e19f",
              ("tests/data/test_datasets.py::test_a_flipped_byte_of_the_cache_is_noticed",)),
    12: Fault("two runs wrote into one folder", "a3a8e80^", "f459741",
              (f"{STOPPED}test_a_second_signal_ends_at_once_and_a_second_run_is_refused",), SLOW),
    13: Fault("hostile files raised errors of any type", "739e19f^", "739e19f",
              (f"{UNTRUSTED}test_an_experiment_that_is_hostile_is_one_sentence",
               f"{UNTRUSTED}test_hostile_schedules_are_one_short_sentence",
               f"{UNTRUSTED}test_a_partition_that_makes_no_sense_is_none"),
              (Edit(UNTRUSTED.rstrip(":"), "from undrift.untrusted import LONGEST_TOML, "
                    "MOST_KEY_PARTS, parse_json, parse_toml, read_json",
                    "LONGEST_TOML = MOST_KEY_PARTS = 1000"),)),
    "13b": Fault("a sealed manifest with the round -5 was trained from", "c4fc419^", "c4fc419",
                 (f"{MANIFEST}::test_a_sealed_manifest_that_makes_no_sense_is_passed_over"
                  "[round--5]",)),
    14: Fault("a run with kernels went on without them and said nothing", "7be6fcb^", "7be6fcb",
              (f"{STORE}test_a_run_with_kernels_that_goes_on_without_them_says_so",),
              (Edit(MEASURED, "ud.ExecutionOptions(force_resume=True)", "None"),)),
    15: Fault("a kill while an old checkpoint was deleted left a warning of damage", "face036^",
              "face036",
              (f"{STORE}test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_damaged_one",)),
}  # fmt: skip

ERRORS: dict[int | str, str] = {  # of the tests that fail for the defect, as regular expressions
    1: "assert not True",
    2: r"assert \d+ < ",
    3: r"assert \[\] == \[\d+\]|AssertionError: \('\s+Result|assert '.* starts again, .* in ",
    4: "DID NOT RAISE DivergenceError",
    5: "assert {'round-best', 'round-final'} == ",
    6: r"assert \d{9,} < ",
    "6b": "DID NOT RAISE",
    7: "assert 13 == 42",
    8: r"assert \{':::\d+'.*\} == set\(\)",
    9: "Processes lost each other: Timed out waiting 2000ms",
    10: r"AssertionError: Scaffold\(lr=0\.1",  # what a run wrote that ended with another code
    11: "assert False",
    12: "assert 0 == 1",
    13: r"RecursionError|MemoryError|OverflowError|assert \d+ < 400|is None",
    "13b": "DID NOT WARN",
    14: "DID NOT WARN",
    15: r"Checkpoint round-\d+ is damaged",
}


def unpack(commit: str, folder: Path, *paths: str) -> None:
    """Put the files of a commit into a folder."""
    archive = subprocess.run(
        ["git", "archive", commit, *paths], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)


def outcomes(fault: Fault) -> list[str]:
    """Return a line for each case of the tests on the code before, "FAILED ..." or "PASSED ..."."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        unpack(fault.before, folder, "src", "tests", "pyproject.toml")
        files = {test.partition("::")[0] for test in fault.tests}
        helpers = ("tests/conftest.py", "tests/jobs", "tests/support/system.py", "benchmarks")
        unpack(fault.repair, folder, *sorted(files), *helpers)
        for edit in fault.edits:
            edit.apply(folder)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfEp"]
        command += ["-m", "long or not long", "--tb=no", *fault.tests]
        environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder}", "COLUMNS": "300"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
        )
    lines = re.findall(r"^(?:FAILED|PASSED|ERROR) .*$", done.stdout, re.MULTILINE)
    return lines or [f"ERROR {line}" for line in done.stdout.splitlines()[-3:]]


def failed_for(error: str, line: str) -> bool:
    """Return whether a line tells of a test that failed with such an error."""
    told = line.partition(" - ")[2]
    return line.startswith("FAILED") and re.search(error, told) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", help="numbers, such as 3 and 13b")
    options = parser.parse_args()
    held = []
    for number, fault in FAULTS.items():
        if options.only and str(number) not in options.only:
            continue
        print(f"{number}. {fault.defect}", flush=True)
        lines = outcomes(fault)
        print(*(f"   {line}" for line in lines), sep="\n", flush=True)
        failed = [line for line in lines if failed_for(ERRORS[number], line)]
        held += [test for test in fault.tests if not any(test in line for line in failed)]
    if held:
        text = "pass, cannot run, or fail for another reason"
        sys.exit(f"These tests {text} on the code before: {', '.join(held)}.")


if __name__ == "__main__":
    main()
