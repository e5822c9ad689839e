"""Bad uploads in a run: who is named, what is dropped, and that nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support.methods import DEFAULTS, VARIANTS
from tests.support.problems import bed
from tests.support.runs import finished, start_on_quadratics
from undrift import testing, tree
from undrift.aggregation.attacks import Attack
from undrift.core import Federated, Prelude
from undrift.errors import DivergenceError

FEDERATED = [method for method in (*DEFAULTS, *VARIANTS) if isinstance(method, Federated)]
ONE_EXCHANGE = [m for m in FEDERATED if not (isinstance(m, Prelude) and m.asks != "nobody")]
NET_METHODS = (ud.MOON, ud.FedMLB)  # which look into the model
CLIENTS = 8


@dataclass(frozen=True)
class Broken(Attack):
    """Uploads a value in chosen exchanges, by one client of eight."""

    share: float = 1 / CLIENTS
    value: float = float("nan")
    when: Sequence[int] = ()  # exchanges, all if empty
    calls: list[int] = field(default_factory=list, compare=False, repr=False)
    name = "broken"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        self.calls.append(len(self.calls))
        bad = not self.when or self.calls[-1] in self.when
        return torch.full_like(own, self.value) if bad else own


EVIL = int(Broken().attackers(CLIENTS, 0)[0])


def start(algorithm: Any, *, rounds: int = 4, **options: Any) -> ud.Run:
    """Return a run on quadratics, or of a small net where the method looks into the model."""
    options = {"work": ud.Steps(3), "weighting": "uniform", "mode": "loop", **options}
    if isinstance(algorithm, NET_METHODS):
        clients = testing.small_clients((11, 7, 16, 9, 12, 8, 10, 13))
        options |= {"loss": nn.functional.cross_entropy, "batch_size": 4, "rounds": rounds}
        return ud.simulate(algorithm, testing.small_net(), clients, **options)
    return start_on_quadratics(algorithm, bed(CLIENTS), rounds=rounds, **options)


def everybody_but(*absent: int) -> list[int]:
    return [i for i in range(CLIENTS) if i not in absent]


def assert_same(run: ud.Run, other: ud.Run) -> None:
    """The states of the server and of all clients have the same bits."""
    for a, b in zip(tree.leaves(run.state), tree.leaves(other.state), strict=True):
        assert torch.equal(a, b)
    states, others = run.client_states, other.client_states
    assert set(states) == set(others)
    for i in states:
        for a, b in zip(tree.leaves(states[i]), tree.leaves(others[i]), strict=True):
            assert torch.equal(a, b)


def on_data(
    scale: float, client: int = 2, *, clients: int = 6, algorithm: Any = None, **options: Any
) -> ud.Run:
    """Return a run of logistic regression in which one client's inputs are scaled."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for i in range(clients):
        inputs = torch.randn(20, 4, generator=generator) * (scale if i == client else 1.0)
        pairs.append((inputs, torch.randint(0, 3, (20,), generator=generator)))
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    options = {"rounds": 3, "batch_size": 5, "kernels": False, **options}
    loss = nn.functional.cross_entropy
    work = ud.Steps(4)
    algorithm = algorithm or ud.FedAvg(lr=0.1)
    return ud.simulate(algorithm, model, ud.Clients(pairs), loss=loss, work=work, **options)


@dataclass(frozen=True)
class OneOfAnotherType(ud.FedAvg):
    """Uploads float32 from the client that takes nine local steps."""

    def local(self, down: Tensor, client: Any, steps: Any) -> tuple[Tensor, Any]:
        upload, client = super().local(down, client, steps)
        return upload.float() if int(steps.count) == 9 else upload, client


class TestStop:
    @pytest.mark.parametrize(
        ("scale", "said"), [(1e18, "far larger than the others"), (1e30, "NaN or Inf")]
    )
    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    def test_the_culprit_is_named_in_its_round(self, scale: float, said: str, mode: Any) -> None:
        run = on_data(scale, mode=mode)
        before = run.x.clone()
        with pytest.raises(DivergenceError, match=f"{said} from client 2 in round 1;") as error:
            next(run)
        assert error.value.clients == [2]
        assert error.value.round == 1
        assert torch.equal(run.x, before)

    def test_the_first_client_is_named_where_its_form_is_wrong(self) -> None:
        work = ud.Steps([3] * 5 + [9] + [3] * (CLIENTS - 6))  # the most work comes first
        said = "another shape or type than the others from client 5 in round 1"
        with pytest.raises(DivergenceError, match=said):
            next(start(OneOfAnotherType(lr=0.1), work=work))

    def test_nan_names_its_client(self) -> None:
        with pytest.raises(DivergenceError, match=f"NaN or Inf from client {EVIL} in round 3"):
            finished(start(ud.FedAvg(lr=0.1), attack=Broken(when=(2,))))

    def test_several_processes_raise_alike(self) -> None:
        with on_data(1e18, processes=2) as run, pytest.raises(DivergenceError, match="client 2 in"):
            next(run)


class TestDrop:
    @pytest.mark.parametrize("algorithm", FEDERATED, ids=repr)
    def test_the_rounds_are_those_without_the_client(self, algorithm: Any) -> None:
        """Duals are part of the states that are compared, of the server and of every client."""
        attack = Broken()
        run = finished(start(algorithm, on_bad="drop", attack=attack))
        without = finished(start(algorithm, participation=[everybody_but(EVIL)] * 4))
        assert_same(run, without)
        assert EVIL not in run.client_states
        for record in run.records:
            assert record.dropped == {str(EVIL): "NaN or Inf"}
            assert record.clients == CLIENTS - 1

    @pytest.mark.parametrize("algorithm", ONE_EXCHANGE, ids=repr)
    def test_a_client_may_be_bad_in_one_round(self, algorithm: Any) -> None:
        run = finished(start(algorithm, on_bad="drop", attack=Broken(when=(2,))))
        cohorts = [everybody_but(*([EVIL] if t == 2 else [])) for t in range(4)]
        assert_same(run, finished(start(algorithm, participation=cohorts)))
        assert [bool(record.dropped) for record in run.records] == [False, False, True, False]

    @pytest.mark.parametrize("mode", ["loop", "threads", "stacked"])
    def test_in_every_mode(self, mode: Any) -> None:
        options: dict[str, Any] = {"mode": mode, "execution": ud.ExecutionOptions(chunk_size=3)}
        run = finished(start(ud.Scaffold(lr=0.1), on_bad="drop", attack=Broken(), **options))
        cohorts = [everybody_but(EVIL)] * 4
        assert_same(run, finished(start(ud.Scaffold(lr=0.1), participation=cohorts, **options)))

    @pytest.mark.skipif(
        not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
    )
    @pytest.mark.parametrize("mode", ["loop", "threads", "stacked"])
    @pytest.mark.parametrize(
        "algorithm", [ud.FedAvg(lr=0.1), ud.Scaffold(lr=0.1), ud.FedDyn(lr=0.1)], ids=repr
    )
    def test_with_compiled_kernels(self, algorithm: Any, mode: Any) -> None:
        options = {"algorithm": algorithm, "mode": mode, "kernels": "require"}
        options |= {"weighting": "uniform", "clients": CLIENTS}
        run = finished(on_data(1e18, on_bad="drop", **options))
        assert run.execution.kernels
        without = finished(on_data(1e18, participation=[everybody_but(2)] * 3, **options))
        assert_same(run, without)
        assert run.model_sha256 == without.model_sha256
        dropped = [list(record.dropped or {}) for record in run.records]
        assert dropped == [["2"]] * 3

    def test_unequal_weights_and_the_mean_count_as_announced(self) -> None:
        """FedaGrac compares K_i with the mean that was announced, with the bad client in it."""
        weights = [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
        work = ud.Steps([2, 3, 4, 5, 6, 7, 8, 9])
        announced: list[float] = []

        class Listening(ud.FedAvg):
            def local(self, down: Any, client: Any, steps: Any) -> Any:
                announced.append(steps.mean_count)
                return super().local(down, client, steps)

        finished(
            start(Listening(lr=0.1), on_bad="drop", attack=Broken(), weighting=weights, work=work)
        )
        (mean,) = set(announced)
        assert mean == pytest.approx(sum(np.multiply(weights, range(2, 10))))

    def test_a_client_that_answered_and_was_dropped_keeps_what_the_server_heard(self) -> None:
        algorithm = ud.FedaGrac(lr=0.1, start="full")
        attack = Broken(when=(1,))  # the uploads of the first round, after its answers
        run = start(algorithm, on_bad="drop", attack=attack)
        record = next(run)
        assert record.dropped == {str(EVIL): "NaN or Inf"}
        assert EVIL in run.client_states  # so that it is not asked again as a new client
        finished(run)
        assert len(attack.calls) == 5

    def test_scaled_data_is_dropped_and_the_run_goes_on(self) -> None:
        run = finished(on_data(1e18, on_bad="drop"))
        assert [record.dropped for record in run.records] == [
            {"2": "far larger than the others"}
        ] * 3
        assert run.x.norm() < 100

    @pytest.mark.parametrize("processes", [2, 3])
    def test_several_processes(self, processes: int) -> None:
        with on_data(1e18, on_bad="drop", processes=processes) as run:
            finished(run)
        single = finished(on_data(1e18, on_bad="drop"))
        assert torch.allclose(run.x, single.x, atol=1e-6)
        assert [r.dropped for r in run.records] == [r.dropped for r in single.records]

    def test_honest_runs_have_the_same_bits(self) -> None:
        for mode in ("loop", "stacked"):
            run = finished(on_data(1.0, on_bad="drop", mode=mode))
            assert run.model_sha256 == finished(on_data(1.0, mode=mode)).model_sha256
            assert all(record.dropped is None for record in run.records)

    def test_a_resumed_run_needs_the_same_policy(self, tmp_path: Any) -> None:
        whole = finished(on_data(1e18, on_bad="drop"))
        run = on_data(1e18, on_bad="drop", checkpoint=tmp_path)
        next(run)
        run.close()
        with pytest.raises(ud.CheckpointError, match="on_bad"):
            on_data(1e18, resume=tmp_path)
        again = finished(on_data(1e18, on_bad="drop", resume=tmp_path))
        assert again.model_sha256 == whole.model_sha256


class TestQuorum:
    def test_below_it_the_round_is_void(self) -> None:
        attack = Broken(share=0.5, when=(1,))
        run = start(ud.Scaffold(lr=0.1), on_bad="drop", quorum=5, attack=attack)
        next(run)
        before, states = run.state, dict(run.client_states)
        record = next(run)
        assert record.clients == 0
        assert len(record.dropped or {}) == 4
        for a, b in zip(tree.leaves(before), tree.leaves(run.state), strict=True):
            assert torch.equal(a, b)
        assert run.client_states == states
        assert next(run).clients == CLIENTS

    @pytest.mark.parametrize("exchange", [0, 1])
    def test_of_a_method_with_two_exchanges(self, exchange: int) -> None:
        run = start(ud.FedLin(lr=0.1), on_bad="drop", quorum=5,
                    attack=Broken(share=0.5, when=(exchange,)))  # fmt: skip
        before = run.x.clone()
        assert next(run).clients == 0
        assert torch.equal(run.x, before)
        assert run.client_states == {}

    def test_clients_that_failed_count_as_drawn(self) -> None:
        fleet = ud.Fleet(ud.fleet.parse("phone", CLIENTS), dropout=0.5, seed=3)
        run = finished(start(ud.FedAvg(lr=0.1), quorum=0.5, fleet=fleet, rounds=6))
        for record in run.records:
            answered = CLIENTS - int(record.missed or 0)
            assert record.clients == (answered if answered >= 4 else 0)
        assert any(record.clients == 0 for record in run.records)
        assert any(record.clients for record in run.records)


class TestRefusals:
    @pytest.mark.parametrize("quorum", [0, 0.0, 1.5, -1, True, float("nan")])
    def test_quorum(self, quorum: Any) -> None:
        with pytest.raises(ValueError, match="quorum as a share"):
            start(ud.FedAvg(lr=0.1), quorum=quorum)

    def test_a_quorum_that_no_round_reaches(self) -> None:
        with pytest.raises(ValueError, match="at most the 4 clients of a round, got 5"):
            start(ud.FedAvg(lr=0.1), quorum=5, participation=0.5)
        start(ud.FedAvg(lr=0.1), quorum=4, participation=0.5)

    def test_on_bad(self) -> None:
        with pytest.raises(ValueError, match="on_bad to be one of stop, drop, got 'ignore'"):
            start(ud.FedAvg(lr=0.1), on_bad="ignore")

    def test_peers_upload_nothing(self) -> None:
        with pytest.raises(ValueError, match="peers upload nothing"):
            start(ud.PSGD(lr=0.1), on_bad="drop")

    @pytest.mark.parametrize(
        "algorithm",
        [ud.Scaffold(lr=0.1), ud.FedDyn(lr=0.1), ud.FedSpeed(lr=0.1), ud.FedaGrac(lr=0.1),
         ud.FedADMM(lr=0.1), ud.FedDC(lr=0.1), ud.FedGamma(lr=0.1), ud.FedPD(lr=0.1),
         ud.FedLin(lr=0.1), ud.Accelerated(ud.Scaffold(lr=0.1))],
        ids=repr,
    )  # fmt: skip
    def test_methods_that_need_the_mean(self, algorithm: Any) -> None:
        with pytest.raises(ValueError, match="needs the weighted mean of its uploads"):
            start(algorithm, aggregation="median")

    def test_too_many_attackers_for_the_cohort(self) -> None:
        with pytest.raises(ValueError, match="cohorts of at least 9 clients, got 8"):
            start(ud.FedAvg(lr=0.1), aggregation="krum:3")


class TestAggregation:
    @pytest.mark.parametrize("rule", ["median", "trimmed-mean:2", "krum:2", "centered-clipping"])
    @pytest.mark.parametrize("mode", ["loop", "stacked"])
    def test_the_result_is_the_rule_of_the_uploads(self, rule: str, mode: Any) -> None:
        from undrift.aggregation import robust

        heard: list[Tensor] = []
        run = start(ud.FedAvg(lr=0.1), aggregation=rule, mode=mode, rounds=1,
                    tap=lambda upload: heard.append(upload.upload))  # fmt: skip
        before = run.x.clone()
        finished(run)
        made = robust.parse(rule)
        assert made is not None
        assert torch.allclose(run.x, before + made(torch.stack(heard)), atol=1e-12)

    def test_attackers_are_borne(self) -> None:
        optimum = finished(start(ud.FedAvg(lr=0.1), rounds=30)).x
        errors = {}
        for rule in ("mean", "median"):
            options = {"aggregation": rule, "attack": f"scaling:{2 / CLIENTS}:-50", "rounds": 30}
            options["attack"] = ud.attacks.Scaling(2 / CLIENTS, -5.0)
            errors[rule] = float((finished(start(ud.FedAvg(lr=0.1), **options)).x - optimum).norm())
        assert errors["median"] < 0.5 * errors["mean"]

    def test_several_processes_have_the_result_of_one(self) -> None:
        single = finished(on_data(1.0, aggregation="geometric-median"))
        with on_data(1.0, aggregation="geometric-median", processes=2) as run:
            finished(run)
        assert torch.allclose(run.x, single.x, atol=1e-6)

    def test_bad_uploads_are_dropped_before_the_rule(self) -> None:
        run = finished(start(ud.FedAvg(lr=0.1), aggregation="median", on_bad="drop",
                             attack=Broken()))  # fmt: skip
        cohorts = [everybody_but(EVIL)] * 4
        without = finished(start(ud.FedAvg(lr=0.1), aggregation="median", participation=cohorts))
        assert torch.equal(run.x, without.x)


def test_flipped_labels_are_those_of_the_attackers() -> None:
    pairs = [(torch.zeros(4, 2), torch.tensor([0, 1, 2, 2])) for _ in range(CLIENTS)]
    clients = ud.Clients(pairs)
    flipped = clients.with_flipped_labels(np.array([1, 5]))
    for i in range(CLIENTS):
        expected = [2, 1, 0, 0] if i in (1, 5) else [0, 1, 2, 2]
        assert flipped[i][1].tolist() == expected
        assert clients[i][1].tolist() == [0, 1, 2, 2]
    shared = ud.Clients.split(*pairs[0], [[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="samples that one client alone holds"):
        shared.with_flipped_labels(np.array([0]))


def test_a_newcomer_is_not_judged_by_those_who_have_converged(tmp_path: Any) -> None:
    """Increments of duals vanish in time; the newcomer's is whole and larger than the model."""
    newcomer, rounds = CLIENTS - 1, 100
    cohorts = [everybody_but(newcomer)] * rounds + [list(range(CLIENTS))]

    def converging(rounds: int, **options: Any) -> ud.Run:
        problem, method = bed(CLIENTS, seed=1), ud.Scaffold(lr=0.05)
        options |= {"participation": cohorts, "work": ud.Steps(1), "mode": "loop"}
        return start_on_quadratics(method, problem, rounds=rounds, weighting="uniform", **options)

    finished(converging(rounds, checkpoint=tmp_path, checkpoint_every=rounds))
    forgetful = converging(rounds + 1, resume=tmp_path)
    forgetful._usual_sizes.largest.clear()
    with pytest.raises(DivergenceError, match=f"far larger than the others from client {newcomer}"):
        finished(forgetful)
    resumed = finished(converging(rounds + 1, resume=tmp_path))
    assert resumed.model_sha256 == finished(converging(rounds + 1)).model_sha256


HONEST = [ud.FedAvg(lr=0.1), ud.Scaffold(lr=0.05), ud.FedSpeed(lr=0.1), ud.FedNova(lr=0.1)]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(m, marks=() if m in HONEST else pytest.mark.long) for m in FEDERATED],
    ids=repr,
)  # fmt: skip
def test_honest_runs_drop_nobody(algorithm: Any) -> None:
    """U(100, 400) local steps, Dirichlet 0.1, ten of twenty clients a round."""
    experiment = ud.Experiment.of(
        {
            "model": {"name": "mlp" if isinstance(algorithm, NET_METHODS) else "logistic"},
            "methods": [{"name": "fedavg", "lr": 0.1}],
            "data": {"clients": 20, "partition": "dirichlet:0.1"},
            "training": {"rounds": 3, "work": "uniform:100:400", "participation": 0.5},
        }
    )
    from undrift.runs.build import _arguments

    arguments = _arguments(experiment, experiment.methods[0], 0)
    run = ud.simulate(**arguments | {"algorithm": algorithm, "on_bad": "drop"})
    for record in run:
        assert record.dropped is None
        assert record.clients == 10
