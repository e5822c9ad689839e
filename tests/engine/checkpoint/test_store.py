"""Save and resume: bit-exact after SIGKILL, atomic, every damage found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.commands import built_run
from undrift import testing
from undrift.config.hyperparameters import DEFAULT_LR, METHODS
from undrift.engine.checkpoint import client_states
from undrift.files import part_of

SCAFFOLD = ud.Scaffold(lr=0.1)
FORCED = ud.ExecutionOptions(force_resume=True)


def saved(folder: Path, rounds: int = 4) -> torch.Tensor:
    return testing.finish(testing.start(SCAFFOLD, rounds=rounds, checkpoint=folder))


def work_of(method: str) -> str:
    """All-reduce methods need the same number of steps everywhere."""
    return "steps:2" if issubclass(METHODS[method], ud.AllReduce) else "uniform:1:4"


def arguments(method: str, folder: Path) -> list[str]:
    given = ["run", method, "--rounds", "60", "--clients", "8", "--work", work_of(method)]
    given += ["--checkpoint-every", "2", "--checkpoint", str(folder / "checkpoints")]
    return [*given, "--quiet", "--json", "--out", str(folder / "out")]


# One of each kind: duals of clients and server, gossip, all-reduce.
METHODS_HERE = ["scaffold", "marsit"]
DIVERGING = ["cascadingssdm"]  # at this learning rate, as it must
THE_OTHERS = [name for name in METHODS if name not in METHODS_HERE + DIVERGING]


@pytest.mark.parametrize(
    "method", [*METHODS_HERE, *(pytest.param(name, marks=pytest.mark.long) for name in THE_OTHERS)]
)
def test_a_run_killed_and_resumed_ends_with_the_same_hash(
    method: str, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    checkpoints = tmp_path / "checkpoints"
    victim = subprocess.Popen(
        [sys.executable, "-m", "undrift", *arguments(method, tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not (rounds := sorted(checkpoints.glob("round-*[1-9]*"))) and victim.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL, "it ended before it could be killed"
    assert rounds
    code, out, err = call(*arguments(method, tmp_path), "--resume", str(checkpoints))
    assert code == 0, err
    shown = json.loads(out.splitlines()[-1])
    training = {"rounds": 60, "work": work_of(method)}
    whole = built_run({"name": method, "lr": DEFAULT_LR}, data={"clients": 8}, training=training)
    *_, last = whole
    assert shown["model_sha256"] == whole.model_sha256
    assert shown["accuracy"] == last.accuracy
    assert shown["bytes"] == whole.totals.bytes_up + whole.totals.bytes_down
    assert shown["gradients"] == whole.totals.gradients
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 61))


def test_a_kill_inside_the_save_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = testing.start(SCAFFOLD, checkpoint=tmp_path)
    next(run), next(run)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    monkeypatch.undo()
    left = part_of(tmp_path / "round-00000003")
    left.mkdir()
    (left / "state.safetensors").write_bytes(b"half")
    again = testing.start(SCAFFOLD, resume=tmp_path, checkpoint=tmp_path)
    assert again.round == 2
    assert torch.equal(testing.finish(again), testing.finish(testing.start(SCAFFOLD)))
    assert not left.exists(), "the next save removes what a kill left"


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    saved(tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "round-00000003",
        "round-00000004",
        "states",
    ]


def test_folders_of_other_names_are_left_alone_and_hide_no_checkpoint(tmp_path: Path) -> None:
    others = ["round-best", "round-final", "round-9", "round-000000099"]
    for name in others:
        (tmp_path / name).mkdir()
    final = saved(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *others,
        "round-00000003",
        "round-00000004",
        "states",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = testing.start(SCAFFOLD, resume=tmp_path)
    assert resumed.round == 4
    assert torch.equal(resumed.x, final)


def test_what_was_just_written_stays_although_later_rounds_are_damaged(tmp_path: Path) -> None:
    saved(tmp_path)
    for name in ("round-00000003", "round-00000004", "round-00000005", "round-00000006"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "manifest.json").write_text("torn")
    run = testing.start(SCAFFOLD, rounds=8, checkpoint=tmp_path / "other")
    next(run), next(run)
    shutil.rmtree(tmp_path / "states")
    for name in ("round-00000002", "states"):
        (tmp_path / "other" / name).rename(tmp_path / name)
    with pytest.warns(UserWarning, match="is damaged"):
        again = testing.start(SCAFFOLD, rounds=8, resume=tmp_path, checkpoint=tmp_path)
    next(again)
    with pytest.warns(UserWarning, match="is damaged"):
        assert testing.start(SCAFFOLD, rounds=8, resume=tmp_path).round == 3


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = testing.start(SCAFFOLD, checkpoint=tmp_path)
    next(run)

    def half(path: Path, **_: Any) -> None:
        (path / "manifest.json").unlink(missing_ok=True)
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("undrift.files.shutil.rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            next(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = testing.start(SCAFFOLD, resume=tmp_path, checkpoint=tmp_path)
        assert again.round == 2
        next(again)
    assert not list(tmp_path.glob(".*"))


def test_resume_can_add_rounds_and_change_the_mode(tmp_path: Path) -> None:
    saved(tmp_path, rounds=2)
    with pytest.warns(UserWarning, match="goes on with mode = stacked where it had loop; it will"):
        more = testing.start(SCAFFOLD, rounds=6, resume=tmp_path, mode="stacked")
    end = testing.finish(more)
    assert float((end - testing.finish(testing.start(SCAFFOLD, rounds=6))).abs().max()) < 1e-12


def test_totals_survive_a_resume(tmp_path: Path) -> None:
    saved(tmp_path, rounds=2)
    resumed, whole = testing.start(SCAFFOLD, resume=tmp_path), testing.start(SCAFFOLD)
    testing.finish(resumed), testing.finish(whole)
    assert resumed.totals.gradients == whole.totals.gradients
    assert resumed.totals.bytes_up == whole.totals.bytes_up


def test_a_resume_starts_from_the_saved_model_whatever_the_new_process_initialised(
    tmp_path: Path,
) -> None:
    """MOON-like states need x0; it comes from the checkpoint, not from the model passed in."""
    saved(tmp_path, rounds=2)
    other = testing.start(SCAFFOLD, resume=tmp_path, model=testing.small_net(seed=9))
    assert torch.equal(testing.finish(other), testing.finish(testing.start(SCAFFOLD)))


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_every_flipped_byte_is_found_and_the_one_before_is_used(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    path = tmp_path / "round-00000004" / name
    sound = path.read_bytes()
    for position in range(0, len(sound), max(1, len(sound) // 60)):
        damaged = bytearray(sound)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.warns(UserWarning, match="round-00000004 is damaged"):
            assert testing.start(SCAFFOLD, resume=tmp_path).round == 3
    for length in (0, 1, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.warns(UserWarning, match="is damaged"):
            assert testing.start(SCAFFOLD, resume=tmp_path).round == 3
    path.write_bytes(sound)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert testing.start(SCAFFOLD, resume=tmp_path).round == 4


def segments_in(folder: Path) -> list[Path]:
    """The files of segments, the newest last."""
    return sorted((folder / "states").glob("segment-*"))


def test_where_the_segment_of_the_last_save_is_damaged_the_one_before_is_used(
    tmp_path: Path,
) -> None:
    end = saved(tmp_path)
    newest = segments_in(tmp_path)[-1]
    sound = newest.read_bytes()
    for position in range(0, len(sound), max(1, len(sound) // 20)):
        newest.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        with pytest.warns(UserWarning, match="round-00000004 is damaged"):
            assert testing.start(SCAFFOLD, resume=tmp_path).round == 3
    newest.unlink()
    with pytest.warns(UserWarning, match="is damaged"):
        again = testing.start(SCAFFOLD, resume=tmp_path, checkpoint=tmp_path)
    assert torch.equal(testing.finish(again), end)


def test_a_segment_that_both_checkpoints_need_is_mended_by_its_copy(tmp_path: Path) -> None:
    options = {"rounds": 6, "participation": 2}
    testing.finish(testing.start(SCAFFOLD, checkpoint=tmp_path, **options))
    copies = [path for path in segments_in(tmp_path) if path.suffix == ".copy"]
    assert copies
    for copy in copies:
        path = copy.with_suffix("")
        sound = path.read_bytes()
        for damaged, other in ((path, copy), (copy, path)):
            damaged.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
            with pytest.warns(UserWarning, match=rf"its hash; {other.name} is sound"):
                assert testing.start(SCAFFOLD, resume=tmp_path, **options).round == 6
            assert damaged.read_bytes() == sound


def test_a_save_writes_the_states_that_have_changed(tmp_path: Path) -> None:
    options = {"participation": 3, "rounds": 40, "batch_size": 2, "work": ud.Steps(2)}
    options["clients"] = testing.small_clients(sizes=(4,) * 60)
    run = testing.start(SCAFFOLD, checkpoint=tmp_path, **options)
    for _ in range(20):
        next(run)
    before = {path.name for path in (tmp_path / "states").iterdir()}
    next(run)
    new = [path for path in (tmp_path / "states").iterdir() if path.name not in before]
    written = sum(path.stat().st_size for path in new if path.name.startswith("segment"))
    assert len(run.client_states) > 30
    assert 0 < written < 2 * 3 * (run.x.nbytes + 64)
    resumed = testing.start(SCAFFOLD, resume=tmp_path, **options)
    assert sorted(resumed.client_states) == sorted(run.client_states)
    assert torch.equal(testing.finish(resumed), testing.finish(run))


def test_states_beyond_the_memory_go_to_disk_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_states, "LIMIT", 1000)
    run = testing.start(SCAFFOLD, rounds=6, checkpoint=tmp_path, checkpoint_every=None)
    for _ in range(4):
        next(run)
    assert sum(path.stat().st_size for path in (tmp_path / "states").iterdir()) == 0, "in a buffer"
    assert run.save()
    assert run.client_states._memory == {}
    plain = testing.start(SCAFFOLD, rounds=6)
    whole = testing.finish(plain)
    resumed = testing.start(SCAFFOLD, rounds=6, checkpoint=tmp_path / "new", resume=tmp_path)
    assert torch.equal(testing.finish(resumed), whole)
    assert torch.equal(testing.finish(run), whole)
    assert all(torch.equal(run.client_states[i], s) for i, s in plain.client_states.items())


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    saved(tmp_path)
    for path in tmp_path.glob("round-*/state.safetensors"):
        path.write_bytes(b"")
    damaged = pytest.raises(ud.CheckpointError, match="only damaged ones")
    with pytest.warns(UserWarning, match="does not match its hash"), damaged:
        testing.start(SCAFFOLD, resume=tmp_path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 4}, "seed"),
        ({"batch_size": 5}, "batch_size"),
        ({"participation": 2}, "participation"),
        ({"clients": testing.small_clients(seed=1)}, "data"),
        ({"weighting": "uniform"}, "weights"),
    ],
)
def test_another_experiment_is_refused(tmp_path: Path, changed: Any, named: str) -> None:
    saved(tmp_path)
    with pytest.raises(ud.CheckpointError, match=named):
        testing.start(SCAFFOLD, resume=tmp_path, **changed)


def test_another_experiment_goes_on_where_that_is_forced(tmp_path: Path) -> None:
    saved(tmp_path, rounds=2)
    with pytest.warns(UserWarning, match="got seed = 4 where the checkpoint has 3"):
        run = testing.start(SCAFFOLD, resume=tmp_path, seed=4, execution=FORCED)
    assert run.round == 2
    testing.finish(run)


def test_other_code_is_refused_by_name_unless_it_is_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, rounds=2)
    monkeypatch.setattr("undrift.engine.resume.code_digest", lambda: "other")
    refused = r"got the code of undrift = other where the checkpoint has [0-9a-f]{32}; .*--force"
    with pytest.raises(ud.CheckpointError, match=refused):
        testing.start(SCAFFOLD, resume=tmp_path)
    with pytest.warns(UserWarning, match="got the code of undrift = other"):
        forced = testing.start(SCAFFOLD, resume=tmp_path, execution=FORCED)
    assert torch.equal(testing.finish(forced), testing.finish(testing.start(SCAFFOLD)))


def test_what_does_not_fit_is_refused_even_if_it_is_forced(tmp_path: Path) -> None:
    saved(tmp_path, rounds=2)
    model = torch.nn.Linear(6, 3).double()
    differs = pytest.warns(UserWarning, match="Going on with another run's checkpoint")
    with differs, pytest.raises(ud.CheckpointError, match="a checkpoint of this model, 21 param"):
        testing.start(SCAFFOLD, resume=tmp_path, model=model, execution=FORCED)
    with differs, pytest.raises(ud.CheckpointError, match="got server/c, server/x; it is of anoth"):
        testing.start(ud.FedAvg(lr=0.1), resume=tmp_path, execution=FORCED)


def test_a_run_with_kernels_that_goes_on_without_them_says_so(tmp_path: Path) -> None:
    run = testing.start(SCAFFOLD, checkpoint=tmp_path)
    run.execution = replace(run.execution, kernels=True, loops=True)  # as if it had them
    next(run)
    run.close()
    changes = "kernels = False where it had True, loops = False where it had True"
    with pytest.warns(UserWarning, match=f"This run goes on with {changes}; it will not end with"):
        testing.start(SCAFFOLD, resume=tmp_path, kernels=False)


def test_another_algorithm_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ud.CheckpointError, match=r"Scaffold\(lr=0.2"):
        testing.start(ud.Scaffold(lr=0.2), resume=tmp_path)


def test_nothing_is_overwritten_and_nothing_is_not_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match="earlier run"):
        testing.start(SCAFFOLD, checkpoint=tmp_path)
    with pytest.raises(ud.CheckpointError, match="folder with checkpoints"):
        testing.start(SCAFFOLD, resume=tmp_path / "nowhere")


def test_a_full_disk_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = testing.start(SCAFFOLD, checkpoint=tmp_path)
    next(run)

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("undrift.files.os.fsync", full)
    with pytest.raises(ud.CheckpointError, match=r"No space left.*intact"):
        next(run)
    monkeypatch.undo()
    assert testing.start(SCAFFOLD, resume=tmp_path).round == 1


def test_a_resume_needs_the_same_frozen_part_and_structure(tmp_path: Path) -> None:
    def model(seed: int) -> torch.nn.Module:
        made = testing.small_net(seed)
        made[0].requires_grad_(False)
        return made

    testing.finish(testing.start(SCAFFOLD, model=model(0), rounds=2, checkpoint=tmp_path))
    assert testing.start(SCAFFOLD, model=model(0), resume=tmp_path).round == 2
    with pytest.raises(ud.CheckpointError, match="frozen"):
        testing.start(SCAFFOLD, model=model(1), resume=tmp_path)


def test_fewer_rounds_than_saved_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match="rounds >= 4"):
        testing.start(SCAFFOLD, rounds=3, resume=tmp_path)


def test_bfloat16_models_have_hashes_and_checkpoints(tmp_path: Path) -> None:
    run = testing.start(ud.FedAvg(lr=0.1), dtype=torch.bfloat16, rounds=2, checkpoint=tmp_path)
    testing.finish(run)
    again = testing.start(ud.FedAvg(lr=0.1), dtype=torch.bfloat16, rounds=2, resume=tmp_path)
    assert again.model_sha256 == run.model_sha256
