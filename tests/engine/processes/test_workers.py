"""`simulate(..., processes=n)`: other processes are started, do as this one does, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from tests.jobs import processes as job
from tests.support.system import listeners
from undrift import testing

TIMEOUT = 60.0


def children() -> set[int]:
    """Processes that this one has started and that have not ended."""
    pid = os.getpid()
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # Python keeps one process for itself, which watches shared memory.
    return {
        int(p)
        for p in started
        if b"resource_tracker" not in Path(f"/proc/{p}/cmdline").read_bytes()
    }


def run_in_processes(algorithm: Any, **options: Any) -> ud.Run:
    return testing.start(algorithm, **({"processes": 2, "timeout": TIMEOUT} | options))


class Failing(nn.Module):
    """A net that fails in processes other than the first, and only when it is trained."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how, self.first, self.calls = testing.small_net(), how, os.getpid(), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if os.getpid() != self.first and self.calls == 1 and self.how == "slow":
            time.sleep(4)  # before its first round
        if os.getpid() != self.first and self.calls > 10:
            if self.how == "slow":
                return self.inner(inputs)
            if self.how == "raise":
                raise RuntimeError("no more coffee")
            os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)
        return self.inner(inputs)


def test_the_run_is_the_callers_and_its_processes_end_with_it(tmp_path):
    before = children()
    expected = testing.finish(testing.start(ud.NetFleet(lr=0.05)))
    threads = torch.get_num_threads()
    run = run_in_processes(ud.NetFleet(lr=0.05), checkpoint=tmp_path / "saved")
    assert len(children() - before) == 1
    first = next(run)
    assert first.round == 1
    middle = run.state.x  # (m, D), of which the other process holds half
    assert middle.shape == expected.shape
    assert torch.allclose(run.mean, middle.mean(0), rtol=0, atol=1e-14)
    assert run.evaluate().loss == pytest.approx(run.evaluate().loss)
    assert run.model(torch.zeros(2, 6, dtype=torch.float64)).shape == (2, 3)
    found = testing.finish(run)
    assert float((found - expected).abs().max()) < 1e-12
    assert children() == before
    assert torch.get_num_threads() == threads
    resumed = testing.start(ud.NetFleet(lr=0.05), resume=tmp_path / "saved")
    assert torch.equal(resumed.x, found)


@pytest.mark.long
def test_a_new_run_lets_the_processes_of_an_unfinished_one_go():
    before = children()
    unfinished = run_in_processes(ud.Scaffold(lr=0.1))
    next(unfinished)
    held = unfinished.x.clone()
    plain = testing.start(ud.Scaffold(lr=0.1))  # one process, whatever others are doing
    next(plain)
    assert float((plain.x - held).abs().max()) < 1e-12
    with run_in_processes(ud.Scaffold(lr=0.1)) as second:
        next(second)
        assert len(children() - before) == 1
        assert torch.equal(second.x, held)
    assert children() == before
    assert torch.equal(unfinished.x, held)


@pytest.mark.long
def test_a_closed_run_of_peers_says_that_the_others_are_gone():
    run = run_in_processes(ud.NetFleet(lr=0.05))
    next(run)
    run.close()
    with pytest.raises(ud.UndriftError, match=r"run\.state needs the other processes, got a run"):
        _ = run.state


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "Rank 1 failed: no more coffee"),
        ("kill", "Rank 1 was lost, killed or crashed"),
        pytest.param("stop", "Rank 1 has not answered for 5 s", marks=pytest.mark.long),
    ],
)
def test_a_process_that_fails_is_named_and_none_is_left(how, said):
    before = children()
    begun = time.monotonic()
    with pytest.raises(ud.WorkerError, match=said) as caught:
        for _ in run_in_processes(
            ud.FedAvg(lr=0.1), model=Failing(how), timeout=5.0 if how == "stop" else 60
        ):
            pass
    assert caught.value.ranks == [1]
    assert time.monotonic() - begun < 50
    assert children() == before


def test_a_slow_start_is_not_taken_for_a_hung_process_and_only_the_loopback_listens():
    """The group had the run's timeout from the start, and the store was open to everybody."""
    before = children()
    with run_in_processes(ud.FedAvg(lr=0.1), model=Failing("slow"), timeout=2.0) as run:
        next(run)
        found = listeners(os.getpid(), *(children() - before))
        assert found
        assert {address for address in found if not address.startswith("127.")} == set()


@pytest.mark.long
def test_the_last_good_state_is_kept_where_training_diverges():
    clients = job.spoiled_clients()
    clients.test = clients[0]
    run = run_in_processes(ud.NetFleet(lr=0.05), model=job.Spoiled(), clients=clients)
    with pytest.raises(ud.DivergenceError, match="from client 3 in round 1"):
        next(run)
    assert run.state.x.shape == (4, 83)
    assert torch.equal(run.model.inner[0].weight, testing.small_net()[0].weight)


@pytest.mark.long
def test_a_refused_run_leaves_the_one_in_progress_as_it_was():
    with run_in_processes(ud.NetFleet(lr=0.05)) as run:
        next(run)
        with pytest.raises(ValueError, match="batch_size"):
            testing.start(ud.FedAvg(lr=0.1), batch_size=0)
        assert next(run).round == 2
        assert run.state.x.shape == (4, 83)


def test_bad_input_is_refused_before_any_process_is_started():
    before = children()
    with pytest.raises(ValueError, match="at least one client for each of 5 processes, got 4"):
        run_in_processes(ud.FedAvg(lr=0.1), processes=5)
    with pytest.raises(ValueError, match="processes >= 1, a whole number or None, got 0"):
        run_in_processes(ud.FedAvg(lr=0.1), processes=0)
    with pytest.raises(ValueError, match="A tap needs one process, got '2 processes'"):
        run_in_processes(ud.FedAvg(lr=0.1), tap=print)
    with pytest.raises(ValueError, match=r"importable by other processes, got .*lambda"):
        run_in_processes(ud.FedAvg(lr=0.1), loss=lambda a, b: nn.functional.cross_entropy(a, b))
    assert children() == before


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_script_without_a_main_guard_gets_one_sentence(tmp_path):
    done = script(
        tmp_path,
        """
        import undrift as ud
        from undrift import testing
        for record in testing.start(ud.FedAvg(lr=0.1), processes=2):
            print(record)
        """,
    )
    assert done.returncode == 1
    assert "put the work under `if __name__ == '__main__':`" in done.stderr
    assert done.stderr.count("Traceback") == 1  # this process's own, none of the child's


@pytest.mark.long
def test_a_finished_run_can_be_evaluated_and_an_abandoned_one_says_so():
    run = run_in_processes(ud.NetFleet(lr=0.05), rounds=2)
    testing.finish(run)
    assert run.evaluate().loss == pytest.approx(run.record.loss)
    abandoned = run_in_processes(ud.Scaffold(lr=0.1))
    next(abandoned)
    abandoned.close()
    assert abandoned.evaluate().loss > 0
    with pytest.raises(ud.UndriftError, match="but they have ended"):
        next(abandoned)


@pytest.mark.long
def test_a_program_from_standard_input_is_refused(tmp_path):
    text = "import undrift as ud; from undrift import testing\n"
    text += "testing.start(ud.FedAvg(lr=0.1), processes=2)"
    done = subprocess.run(
        [sys.executable, "-"], input=text, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "needs a script in a file for processes=2, got" in done.stderr
