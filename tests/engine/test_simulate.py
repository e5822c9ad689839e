"""The simulator: stacking, minibatches, masks, memory, divergence, taps, two exchanges."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support.runs import distance
from undrift import testing
from undrift.engine.execution.tables import BatchTable, full_table, minibatch_table
from undrift.engine.plan import Assignment, Plan


class CountingNet(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = testing.small_net()

    def forward(self, inputs: Tensor) -> Tensor:
        CountingNet.calls += 1
        return self.inner(inputs)


def calls_per_round(algorithm: Any, clients: int, **options: Any) -> int:
    """Model calls of the second round alone: no probe, no evaluation."""
    run = testing.start(
        algorithm,
        model=CountingNet(),
        clients=testing.small_clients((9,) * clients),
        work=ud.Steps(5),
        participation=1.0,
        evaluation=ud.EvaluationOptions(every=100),
        **options,
    )
    next(run)
    before = CountingNet.calls
    next(run)
    return CountingNet.calls - before


def test_stacked_model_calls_do_not_grow_with_the_chunk() -> None:
    for clients in (2, 8, 32):
        assert (
            calls_per_round(
                ud.FedAvg(lr=0.1),
                clients,
                mode="stacked",
                execution=ud.ExecutionOptions(chunk_size=32),
            )
            == 5
        )
    assert (
        calls_per_round(
            ud.FedSpeed(lr=0.1), 32, mode="stacked", execution=ud.ExecutionOptions(chunk_size=32)
        )
        == 10
    )
    assert (
        calls_per_round(
            ud.FedAvg(lr=0.1), 32, mode="stacked", execution=ud.ExecutionOptions(chunk_size=8)
        )
        == 4 * 5
    )
    assert calls_per_round(ud.FedAvg(lr=0.1), 32, mode="loop") == 32 * 5


def test_stacking_sorts_clients_by_work() -> None:
    """Two long and two short clients in chunks of two: 9 + 2 steps, not 9 + 9."""
    run = testing.start(
        ud.FedAvg(lr=0.1),
        model=CountingNet(),
        work=ud.Steps([9, 2, 9, 2]),
        participation=1.0,
        mode="stacked",
        execution=ud.ExecutionOptions(chunk_size=2),
        evaluation=ud.EvaluationOptions(every=100),
    )
    next(run)
    before = CountingNet.calls
    next(run)
    assert CountingNet.calls - before == 9 + 2


@pytest.mark.parametrize(
    ("counts", "row_cost", "expected"),
    [
        ([5, 5, 5], 10.0, [[0, 1, 2]]),  # alike: one group, whatever a row costs
        ([2, 300, 2, 2], 0.0, [[1, 0, 2, 3]]),  # rows for nothing: never a step more
        ([2, 300, 2, 2], 1.0, [[1], [0, 2, 3]]),  # 2 steps more, 3 * 298 rows fewer
        ([2, 300, 2, 2], 0.001, [[1, 0, 2, 3]]),  # 2 > 0.001 * 3 * 298
        ([9, 8, 7, 6], 0.3, [[0, 1, 2, 3]]),
        ([9, 8, 7, 6], 9.0, [[0], [1], [2], [3]]),
    ],
)
def test_clients_that_end_early_do_not_wait_for_long_ones(
    counts: list[int], row_cost: float, expected: list[list[int]]
) -> None:
    plan = Plan.equal(np.arange(len(counts)), counts, len(counts))
    groups = plan.groups_of_like_work(10, row_cost)
    assert [group.tolist() for group in groups] == expected
    assert [len(group) for group in plan.groups_of_like_work(1, row_cost)] == [1] * len(counts)


def test_auto_mode_stacks_small_models_and_loops_big_ones() -> None:
    assert testing.start(ud.FedAvg(lr=0.1), mode="auto").mode == "stacked"
    big = nn.Sequential(nn.Linear(6, 40_000), nn.Linear(40_000, 3)).double()
    run = testing.start(ud.FedAvg(lr=0.1), model=big, mode="auto", rounds=0)
    assert run.mode == "loop"
    assert "too many" in run.why


class Recurrent(nn.Module):
    """LSTM dropout cannot be keyed by us: it draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.lstm(inputs.view(len(inputs), 3, 2))[0][:, -1])


def test_foreign_randomness_is_keyed_and_never_stacked() -> None:
    model = Recurrent().double()
    runs = [testing.start(ud.FedSpeed(lr=0.1), model=model, mode="auto") for _ in range(2)]
    assert runs[0].mode == "loop"
    assert "random" in runs[0].why
    torch.manual_seed(1)
    first = testing.finish(runs[0])
    torch.manual_seed(2)
    assert torch.equal(first, testing.finish(runs[1]))
    with pytest.raises(ud.UndriftError, match="stacked"):
        testing.start(ud.FedAvg(lr=0.1), model=model, mode="stacked")


class ConvNet(nn.Module):
    """Two kinds of dropout, one of them called as a function, and an in-place one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.drop = nn.Dropout1d(0.4)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.drop(torch.tanh(self.conv(inputs.unsqueeze(1)))).flatten(1)
        hidden = nn.functional.dropout(hidden, 0.3, training=self.training)
        return self.head(nn.functional.dropout(hidden + 0.0, 0.1, self.training, True))


@pytest.mark.parametrize("algorithm", [ud.FedAvg(lr=0.2), ud.FedSpeed(lr=0.2)], ids=repr)
def test_every_kind_of_dropout_is_the_same_in_both_modes(algorithm: Any) -> None:
    torch.manual_seed(0)
    model = ConvNet().double()
    ends = [testing.finish(testing.start(algorithm, model=model, mode=m)) for m in MODES]
    assert distance(*ends) < 1e-12
    dry = ConvNet().double()
    dry.load_state_dict(model.state_dict())
    for module in (dry.drop,):
        module.p = 0.0
    assert distance(ends[0], testing.finish(testing.start(algorithm, model=dry))) > 1e-6


MODES = ("loop", "stacked")


@dataclass(frozen=True)
class TwoLooks(ud.FedAvg):
    """Asks the oracle twice at each step and sends the difference."""

    def local(self, down: Tensor, client: Any, steps: Any) -> Any:
        def step(worst: Tensor, f: Any) -> Tensor:
            return torch.maximum(worst, (f.grad(down) - f.grad(down)).abs())

        return steps(step, torch.zeros_like(down)), client


@pytest.mark.parametrize("mode", MODES)
def test_two_looks_at_one_step_see_the_same_batch_and_masks(mode: str) -> None:
    run = testing.start(TwoLooks(lr=0.1), mode=mode)
    start = run.x.clone()
    assert torch.equal(testing.finish(run), start)


def test_dropout_masks_differ_between_steps_rounds_and_clients() -> None:
    from undrift.gradients.dropout import KeyedDropout

    def mask(*counters: int) -> Tensor:
        from undrift import keyed

        with KeyedDropout(torch.tensor(keyed.key(0, "dropout", *counters))):
            return nn.functional.dropout(torch.ones(400, dtype=torch.float64), 0.25)

    base = mask(1, 2, 3)
    assert torch.equal(base, mask(1, 2, 3))
    for other in (mask(2, 2, 3), mask(1, 3, 3), mask(1, 2, 4)):
        assert not torch.equal(base, other)
    assert abs(float((base > 0).double().mean()) - 0.75) < 0.1
    assert set(base.tolist()) <= {0.0, 1 / 0.75}


def table_of(
    clients: ud.Clients, ids: list[int], counts: list[int], batch_size: int | None, passed: int = 0
) -> BatchTable:
    """Minibatches of these clients in round 0."""
    assignment = Assignment(
        t=0,
        ids=np.array(ids),
        counts=np.array(counts),
        mean_count=1.0,
        seed=0,
        batch_size=batch_size,
        width=0,
    )
    held = [clients.of(i) for i in ids]
    return minibatch_table(assignment, held, passed, torch.device("cpu"))


def test_an_epoch_visits_every_sample_once_and_reshuffles() -> None:
    clients = testing.small_clients((10, 7))
    table = table_of(clients, [0, 1], [6, 4], 4)
    held = [clients.of(0), clients.of(1)]
    epochs = []
    for client, steps in ((0, 3), (1, 2)):
        for epoch in range(2):
            rows = range(epoch * steps, (epoch + 1) * steps)
            seen = [
                int(i) for k in rows for i in table.index[client, k, : table.lengths[client, k]]
            ]
            assert sorted(seen) == held[client].tolist()
            epochs.append(seen)
    assert epochs[0] != epochs[1]
    assert table.lengths.tolist() == [[4, 4, 2, 4, 4, 2], [4, 3, 4, 3, 4, 4]]
    assert table.running.sum(1).tolist() == [6, 4]


def test_the_second_pass_continues_the_first() -> None:
    clients = testing.small_clients((10, 7))
    long = table_of(clients, [0], [6], 4)
    for passed in (0, 1, 2):
        short = table_of(clients, [0], [2], 4, passed)
        assert torch.equal(short.index[0], long.index[0, 2 * passed : 2 * passed + 2])


def test_without_a_batch_size_every_step_sees_all_local_data_in_order() -> None:
    clients = testing.small_clients((5, 8))
    table = table_of(clients, [1], [2], None)
    assert table.index[0].tolist() == [clients.of(1).tolist()] * 2
    assert full_table([clients.of(0)], None, torch.device("cpu")).index.shape == (1, 1, 5)


@dataclass(frozen=True)
class FullGradient(ud.FedAvg):
    """One step along the gradient of the whole local data."""

    def local(self, down: Tensor, client: Any, steps: Any) -> Any:
        return -self.lr * steps.full.grad(down), client


@pytest.mark.parametrize("mode", MODES)
def test_full_is_the_whole_local_data_in_slices(mode: str) -> None:
    model = testing.small_net(dropout=0.0)
    sliced = testing.start(FullGradient(lr=0.1), model=model, mode=mode)
    at_once = testing.start(
        ud.FedAvg(lr=0.1), model=model, mode=mode, batch_size=None, work=ud.Steps(1)
    )
    assert distance(testing.finish(sliced), testing.finish(at_once)) < 1e-12
    assert sliced.totals.samples == at_once.totals.samples


@dataclass(frozen=True)
class Penalised(ud.FedAvg):
    """A term per sample through `plus`, as MOON and FedMLB need it."""

    def local(self, down: Tensor, client: Any, steps: Any) -> Any:
        def step(y: Tensor, f: Any) -> Tensor:
            def per_sample(x: Tensor) -> Tensor:
                features = f.outputs(x).features
                return (features - f.outputs(down).features).square().sum(1)

            return y - self.lr * f.plus(per_sample).plus(lambda x: x.dot(x)).grad(y)

        return steps(step, down) - down, client


def test_terms_are_masked_like_the_loss() -> None:
    runs = [testing.start(Penalised(lr=0.05), mode=mode) for mode in MODES]
    assert distance(*(testing.finish(run) for run in runs)) < 1e-12
    assert runs[0].totals.gradients == runs[1].totals.gradients
    assert runs[0].totals.samples == runs[1].totals.samples
    plain = testing.finish(testing.start(ud.FedAvg(lr=0.05)))
    assert distance(runs[0].x, plain) > 1e-6


def test_level_names_the_block_of_each_coordinate() -> None:
    seen = []

    @dataclass(frozen=True)
    class Looks(ud.FedAvg):
        def local(self, down: Tensor, client: Any, steps: Any) -> Any:
            steps(lambda y, f: seen.append(f.level) or y, down)
            return down - down, client

    testing.finish(testing.start(Looks(lr=0.1), rounds=1))
    assert seen[0].tolist() == [0] * (6 * 8 + 8) + [1] * (8 * 3 + 3)


class CentreServer(NamedTuple):
    x: Tensor
    g: Tensor


@dataclass(frozen=True)
class MeanGradient(ud.Prelude[CentreServer, CentreServer, tuple[()], Tensor]):
    """A method with two exchanges: everybody first sends a gradient and hears the mean."""

    lr: float

    def init(self, x0: Tensor) -> CentreServer:
        return CentreServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Tensor, down: CentreServer) -> tuple[()]:
        return ()

    def ask(self, server: CentreServer) -> Tensor:
        return server.x

    def answer(self, down: Tensor, client: Any, steps: Any) -> tuple[Tensor, Any]:
        return steps.full.grad(down), client

    def hear(self, server: CentreServer, mean: Tensor, cohort: ud.Cohort) -> CentreServer:
        return server._replace(g=mean)

    def broadcast(self, server: CentreServer) -> CentreServer:
        return server

    def local(self, down: CentreServer, client: Any, steps: Any) -> tuple[Tensor, Any]:
        return -self.lr * down.g, client

    def update(self, server: CentreServer, mean: Tensor, cohort: ud.Cohort) -> CentreServer:
        return server._replace(x=server.x + mean)


@pytest.mark.parametrize("mode", MODES)
def test_a_prelude_is_one_more_exchange_over_the_same_cohort(mode: str) -> None:
    model = testing.small_net(dropout=0.0)
    run = testing.start(MeanGradient(lr=0.1), model=model, mode=mode)
    plain = testing.start(ud.FedAvg(lr=0.1), model=model, batch_size=None, work=ud.Steps(1))
    assert distance(testing.finish(run), testing.finish(plain)) < 1e-12
    assert run.totals.bytes_up == 2 * plain.totals.bytes_up
    assert run.totals.bytes_down == 3 * plain.totals.bytes_down


@pytest.mark.parametrize("mode", MODES)
def test_draws_are_keyed_by_purpose_round_and_client(mode: str) -> None:
    @dataclass(frozen=True)
    class Draws(ud.FedAvg):
        def local(self, down: Tensor, client: Any, steps: Any) -> Any:
            return steps.draw("codec", down) + 2 * steps.draw("other", down), client

    seen: dict[tuple[int, int], Tensor] = {}
    run = testing.start(
        Draws(lr=0.1),
        mode=mode,
        tap=lambda u: seen.__setitem__((u.round, u.client), u.upload),
    )
    testing.finish(run)
    values = list(seen.values())
    assert all(((v >= 0) & (v < 3)).all() for v in values)
    assert all(distance(a, b) > 0.1 for i, a in enumerate(values) for b in values[:i])
    again: dict[tuple[int, int], Tensor] = {}
    testing.finish(
        testing.start(
            Draws(lr=0.1),
            mode="loop",
            tap=lambda u: again.__setitem__((u.round, u.client), u.upload),
        )
    )
    assert all(torch.equal(seen[key], again[key]) for key in seen)


def test_a_tap_sees_every_upload_and_its_weight() -> None:
    seen: list[ud.Upload] = []
    run = testing.start(ud.FedAvg(lr=0.1), rounds=1, tap=seen.append)
    start = run.x.clone()
    end = testing.finish(run)
    assert len(seen) == 3
    assert abs(sum(u.weight for u in seen) - 1) < 1e-12
    assert distance(start + sum(u.weight * u.upload for u in seen), end) < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_divergence_names_client_and_round_and_keeps_the_last_good_state(mode: str) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        # Client 2 alone holds label 2, and its gradient is not a number.
        poison = torch.where(targets == 2, torch.nan, 0.0) * outputs[:, 2]
        return (nn.functional.cross_entropy(outputs, targets, reduction="none") + poison).mean()

    rng = np.random.default_rng(0)
    pairs = [
        (torch.tensor(rng.normal(size=(5, 6))), torch.full((5,), label)) for label in (0, 1, 2, 0)
    ]
    cohorts = [[0, 1], [1, 3], [0, 1, 2], [3]]
    run = testing.start(
        ud.Scaffold(lr=0.1),
        clients=ud.Clients(pairs),
        loss=loss,
        batch_size=None,
        participation=cohorts,
        mode=mode,
        work=ud.Steps(2),
        evaluation=ud.EvaluationOptions(every=100),
    )
    next(run), next(run)
    state, states = run.state, dict(run.client_states)
    with pytest.raises(ud.DivergenceError, match="client 2 in round 3") as caught:
        next(run)
    assert (caught.value.round, caught.value.clients) == (3, [2])
    assert run.state is state
    assert run.client_states.keys() == states.keys()
    assert all(run.client_states[i] is states[i] for i in states)
    assert run.round == 2


def test_client_state_is_kept_only_for_those_who_took_part() -> None:
    run = testing.start(ud.Scaffold(lr=0.1), participation=[[0], [2], [0], [2]])
    testing.finish(run)
    assert sorted(run.client_states) == [0, 2]


GROWTH = """
import os, resource, sys, torch, undrift as ud
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(1000, 1000)

def run(clients, mode):
    pairs = [(torch.randn(2, 1000), torch.zeros(2, dtype=torch.int64))] * clients
    return ud.simulate(ud.FedAvg(lr=0.1), model, ud.Clients(pairs), work=ud.Steps(1), rounds=2,
                       loss=nn.functional.cross_entropy, mode=mode,
                       execution=ud.ExecutionOptions(chunk_size=4),
                       evaluation=ud.EvaluationOptions(every=2))

def growth(clients):
    \"\"\"Print the largest resident growth of a round, in a process of its own.\"\"\"
    if os.fork() == 0:
        training = run(clients, sys.argv[1])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        list(training)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
        os._exit(0)
    os.wait()

for clients in (8, 64, 8, 64):
    growth(clients)
"""


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_flat_in_the_clients_per_round(mode: str) -> None:
    """56 more uploads of 4 MB would be 224 MB if they were kept until the end of the round.

    Each growth is the smaller of two, because the allocator's gaps differ from process to process.
    """
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, mode], capture_output=True, text=True, check=True
    )
    growths = [int(line) * 1024 for line in done.stdout.split()]
    assert min(growths[1::2]) - min(growths[::2]) < 100e6


def test_records_count_what_was_done() -> None:
    run = testing.start(ud.FedSpeed(lr=0.1), participation=1.0, work=ud.Epochs(2))
    record = next(run)
    steps = sum(2 * int(np.ceil(n / 4)) for n in (11, 7, 16, 9))
    assert record.round == 1
    assert record.clients == 4
    assert record.gradients == 2 * steps
    assert record.samples == 2 * 2 * (11 + 7 + 16 + 9)
    assert record.bytes_up == record.bytes_down == 4 * 8 * len(run.x)
    assert record.loss is None
    assert record.accuracy is None
    *_, last = run
    assert last.loss is not None
    assert 0 <= last.accuracy <= 1
    assert run.totals.gradients == 4 * record.gradients


def test_evaluation_is_batched_and_without_dropout() -> None:
    data = testing.small_clients()
    test = data[2]
    clients = ud.Clients([data[i] for i in range(4)], test=test)
    runs = [
        testing.start(
            ud.FedAvg(lr=0.1), clients=clients, evaluation=ud.EvaluationOptions(batch_size=size)
        )
        for size in (3, 50)
    ]
    scores = [list(run)[-1] for run in runs]
    model = runs[0].model.eval()
    outputs = model(test[0]).detach()
    for score in scores:
        assert abs(score.loss - float(nn.functional.cross_entropy(outputs, test[1]))) < 1e-12
        assert abs(score.accuracy - float((outputs.argmax(1) == test[1]).double().mean())) < 1e-12


def test_without_a_test_set_the_training_objective_is_reported() -> None:
    problem = ud.data.quadratics(3, 2)
    run = ud.simulate(
        ud.FedAvg(lr=0.1),
        problem.model(),
        problem.clients,
        loss=problem.loss,
        work=ud.Steps(1),
        rounds=1,
        weighting=[0.5, 0.3, 0.2],
    )
    record = next(run)
    gap = run.x - problem.b
    values = 0.5 * torch.einsum("ij,ijk,ik->i", gap, problem.A, gap)
    assert (
        abs(record.loss - float(values @ torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)))
        < 1e-12
    )
    assert record.accuracy is None


def test_the_users_model_is_left_alone_and_the_runs_model_is_a_copy() -> None:
    model = testing.small_net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    run = testing.start(ud.FedAvg(lr=0.1), model=model)
    testing.finish(run)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    trained = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(trained, run.x)
    for p in run.model.parameters():
        p.data.zero_()
    assert run.x.abs().max() > 0


def test_zero_rounds_leave_the_model_as_it_was() -> None:
    run = testing.start(ud.FedAvg(lr=0.1), rounds=0)
    start = run.x.clone()
    assert list(run) == []
    assert torch.equal(run.x, start)


def test_draws_with_replacement_warn_methods_that_keep_duals() -> None:
    law = ud.WithReplacement(3)
    testing.finish(testing.start(ud.FedAvg(lr=0.1), participation=law))
    testing.finish(testing.start(ud.FedaGrac(lr=0.1, nu_scope="participants"), participation=law))
    with pytest.warns(UserWarning, match="without replacement"):
        testing.finish(testing.start(ud.Scaffold(lr=0.1), participation=law))


def test_hopeless_bernoulli_takes_one_client_instead_of_hanging() -> None:
    record = next(testing.start(ud.FedAvg(lr=0.1), participation=ud.Bernoulli(1e-12)))
    assert record.clients == 1


def test_small_steps_run_on_one_thread_and_the_setting_comes_back() -> None:
    from undrift.engine.execution.threads import SHARED_ELEMENTS, intra_op_threads

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with intra_op_threads(SHARED_ELEMENTS - 1):
            assert torch.get_num_threads() == 1
        with intra_op_threads(SHARED_ELEMENTS):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_operation_that_vmap_would_loop_over_is_not_called_stacked() -> None:
    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Bilinear(6, 6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs, inputs)

    run = testing.start(ud.FedAvg(lr=0.01), model=Bilinear().double(), mode="auto")
    assert run.mode == "loop"
    assert "vmap refuses it" in run.why


SKEWED = nn.CrossEntropyLoss(weight=torch.tensor([5.0, 1.0, 0.2], dtype=torch.float64))


@pytest.mark.parametrize("loss", [SKEWED, nn.CrossEntropyLoss(ignore_index=0)])
def test_a_loss_that_is_no_mean_over_samples_is_never_padded(loss: Any) -> None:
    """Clients whose first samples are alike must not hide it."""
    data = testing.small_clients()
    pairs = []
    for i in range(4):
        inputs, targets = data[i]
        order = targets.argsort()
        pairs.append((inputs[order], targets[order]))
    run = testing.start(ud.FedAvg(lr=0.1), clients=ud.Clients(pairs), loss=loss, mode="auto")
    assert run.mode == "loop"
    assert "not a mean over samples" in run.why
    scores = {
        testing.start(
            ud.FedAvg(lr=0.1),
            clients=ud.Clients(pairs),
            loss=loss,
            evaluation=ud.EvaluationOptions(batch_size=size),
        ).evaluate()[0]
        for size in (3, 1000)
    }
    assert len(scores) == 1


def test_large_finite_updates_are_not_called_infinite() -> None:
    from undrift.tree import finite_rows

    rows = torch.tensor([[3e38, 3e38], [1.0, torch.nan], [torch.inf, -torch.inf], [1.0, 2.0]])
    assert finite_rows(rows).tolist() == [True, False, False, True]


def test_a_part_in_eval_mode_stays_so_and_a_whole_model_in_eval_mode_is_trained() -> None:
    """Evaluation in between must not change it either."""
    still = testing.small_net(dropout=0.5)
    still[2].eval()
    dry, wet = testing.small_net(dropout=0.0), testing.small_net(dropout=0.5)
    loaded = testing.small_net(dropout=0.5).eval()
    ends = [
        testing.finish(
            testing.start(ud.FedAvg(lr=0.1), model=model, evaluation=ud.EvaluationOptions(every=1))
        )
        for model in (still, dry, wet, loaded)
    ]
    assert distance(ends[0], ends[1]) < 1e-15
    assert distance(ends[2], ends[3]) < 1e-15
    assert distance(ends[0], ends[2]) > 1e-6
