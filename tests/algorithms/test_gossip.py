"""The gossip family: invariants, fixed points, limits, modes, costs, and nodes that take turns.

Closed forms are on quadratics F_i(x) = 1/2 (x - b_i)' A_i (x - b_i) in float64; what must hold for
any gradients is checked on a net with ragged minibatches and dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support.problems import bed, gradients
from tests.support.runs import distance
from tests.support.system import no_threads_left
from undrift import topology, tree
from undrift.data.availability import Spans
from undrift.testing import finish, small_clients, small_net, start

PROBLEM = bed(condition=2.5)  # fast to converge
A, B = PROBLEM.A, PROBLEM.b
M, D = B.shape
EYE = torch.eye(D, dtype=A.dtype)
START = torch.tensor([0.7, -1.1, 0.4], dtype=A.dtype)  # not 0: x is no increment
SPREAD = torch.tensor(np.random.default_rng(5).normal(size=(M, D)))  # rows that do not agree
WORK = [3, 5, 2, 4, 6]

FAMILY = {
    "dsgd-cta": ud.DSGD(lr=0.2),
    "dsgd-atc": ud.DSGD(lr=0.2, form="atc"),
    "ldsgd-cta": ud.LDSGD(lr=0.2),
    "ldsgd-cta-2": ud.LDSGD(lr=0.2, gossip=2),
    "ldsgd-atc": ud.LDSGD(lr=0.2, form="atc"),
    "ldsgd-atc-2": ud.LDSGD(lr=0.2, form="atc", gossip=2),
    "gtsgd-cta": ud.GTSGD(lr=0.2),
    "gtsgd-atc": ud.GTSGD(lr=0.2, form="atc"),
    "netfleet": ud.NetFleet(lr=0.1),
}
ONCE = {name: FAMILY[name] for name in FAMILY if not name.endswith("-2")}  # one gossip at a time
TRACKING = {name: FAMILY[name] for name in ("gtsgd-cta", "gtsgd-atc", "netfleet")}
LINKS = {
    "ring": topology.ring(M),
    "dropped": topology.DroppedLinks(topology.complete(M), 0.5, seed=1),
    "cycle": topology.Cycle((topology.ring(M), topology.star(M, mixing="metropolis"))),
}
MODES = {
    "loop": {"mode": "loop"},
    "stacked": {"mode": "stacked"},
    "groups-of-1": {"mode": "stacked", "execution": ud.ExecutionOptions(chunk_size=1)},
    "groups-of-2": {"mode": "stacked", "execution": ud.ExecutionOptions(chunk_size=2)},
    "groups-of-3": {"mode": "stacked", "execution": ud.ExecutionOptions(chunk_size=3)},
}
THREE_MODES = {name: MODES[name] for name in ("loop", "stacked", "groups-of-3")}


def each(name: str, values: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, list(values.values()), ids=list(values))


family, tracking, every_link = (
    each("algorithm", FAMILY),
    each("algorithm", TRACKING),
    each("links", LINKS),
)


def gossip_run(
    algorithm: Any,
    problem: ud.data.Quadratics = PROBLEM,
    *,
    links: topology.Links,
    rounds: int,
    k: int | Sequence[int] = 3,
    at: Tensor = START,
    **options: Any,
) -> ud.Run:
    """Return a run before its first round on quadratics, every node at `at`."""
    model = problem.model()
    with torch.no_grad():
        model.weight.copy_(at[None])
    options.setdefault("loss", problem.loss)
    options.setdefault("mode", "stacked")
    return ud.simulate(
        algorithm,
        model,
        problem.clients,
        work=ud.Steps(k),
        rounds=rounds,
        topology=links,
        evaluation=ud.EvaluationOptions(every=max(1, rounds)),
        **options,
    )


def gossip_on_net(algorithm: Any, links: topology.Links, **options: Any) -> ud.Run:
    """Return a run before its first round on the net, with unequal K_i where allowed."""
    dtype = options.get("dtype", torch.float64)
    clients = options.setdefault("clients", small_clients(dtype=dtype))
    k = 3 if algorithm.every_step else ([3, 5, 2, 6] * len(clients))[: len(clients)]
    options.setdefault("work", ud.Steps(k))
    return start(algorithm, participation=1.0, topology=links, **options)


def matrix(links: topology.Links, t: int = 0) -> Tensor:
    return torch.tensor(links.at(t).W)


# Invariants inside a round


@dataclass
class AllNodes:
    """Loop and comm of all nodes at once: states are (m, D), since methods work on each alone.

    Gradients have noise that depends on the step, as from minibatches.
    """

    W: Tensor
    t: int
    K: int
    seen: list[tuple[Any, Any]]  # states before and after each step

    def mix(self, held: Any) -> Any:
        return self.W @ held if torch.is_tensor(held) else tuple(self.W @ leaf for leaf in held)

    def __call__(self, step: Callable[[Any, Any], Any], node: Any) -> Any:
        for k in range(self.K):
            new = step(node, Noisy(self.t, k))
            self.seen.append((node, new))
            node = new
        return node


@dataclass(frozen=True)
class Noisy:
    t: int
    k: int

    def grad(self, x: Tensor) -> Tensor:
        rng = np.random.default_rng(100 * (self.t + 1) + self.k)
        return gradients(PROBLEM, x) + torch.tensor(rng.normal(size=(M, D)))


def inside(algorithm: Any, links: topology.Links, *, K: int, rounds: int) -> Iterator[AllNodes]:
    """Rounds of the algorithm's own code, every inner step kept."""
    node = algorithm.init(SPREAD, Noisy(-1, 0))
    for t in range(rounds):
        nodes = AllNodes(matrix(links, t), t, K, [])
        node = algorithm.round(node, nodes, nodes)
        yield nodes


@every_link
@tracking
def test_the_trackers_mean_is_the_mean_gradient_after_every_inner_step(algorithm, links):
    steps = 0
    for nodes in inside(algorithm, links, K=4, rounds=6):
        for k, (_, new) in enumerate(nodes.seen):
            at = new.x if algorithm != TRACKING["gtsgd-atc"] else nodes.seen[k][0].x
            assert distance(new.g, Noisy(nodes.t, k).grad(at)) < 1e-12  # g is what it should be
            assert distance(new.y.mean(0), new.g.mean(0)) < 1e-12
            assert distance(new.y, new.g) > 1e-3  # of single nodes it is not
            steps += 1
    assert steps == 24


@every_link
@tracking
def test_the_mean_model_moves_against_the_mean_tracker_at_every_inner_step(algorithm, links):
    for nodes in inside(algorithm, links, K=4, rounds=6):
        for old, new in nodes.seen:
            y = new.y if algorithm == TRACKING["gtsgd-atc"] else old.y
            assert distance(new.x.mean(0), old.x.mean(0) - algorithm.lr * y.mean(0)) < 1e-12


@every_link
def test_inside_a_round_of_netfleet_the_correction_is_constant(links):
    corrections = []
    for nodes in inside(ud.NetFleet(lr=0.1), links, K=5, rounds=4):
        inner = [new.y - new.g for _, new in nodes.seen]
        assert all(distance(c, inner[0]) < 1e-12 for c in inner)
        corrections.append(inner[0])
    assert all(distance(a, b) > 1e-3 for a, b in pairwise(corrections))


@pytest.mark.parametrize(
    ("links", "mode"),
    [
        *((links, MODES["stacked"]) for links in LINKS.values()),
        *((LINKS["dropped"], MODES[mode]) for mode in ("loop", "groups-of-2")),
    ],
    ids=[*LINKS, "dropped-loop", "dropped-groups"],
)
def test_the_correction_follows_its_recursion_between_rounds(links, mode):
    """c = Y - G at the ends of rounds: c' = W c + (W - I) G, here on a net with minibatches."""
    run = gossip_on_net(
        ud.NetFleet(lr=0.2), links, clients=small_clients((11, 7, 16, 9, 5)), rounds=2, **mode
    )
    held = run.state
    assert torch.equal(held.y, held.g)
    for t, _ in enumerate(run):
        W = matrix(links, t)
        expected = W @ (held.y - held.g) + (W - torch.eye(M)) @ held.g
        held = run.state
        assert distance(held.y - held.g, expected) < 1e-12
        assert distance(held.y.mean(0), held.g.mean(0)) < 1e-12


@every_link
@tracking
def test_with_one_step_a_round_the_engine_keeps_both_means(algorithm, links):
    run = gossip_run(algorithm, links=links, rounds=8, k=1)
    before = run.state
    for _ in run:
        now = run.state
        y = now.y if algorithm == TRACKING["gtsgd-atc"] else before.y
        assert distance(now.y.mean(0), now.g.mean(0)) < 1e-13
        assert distance(now.x.mean(0), before.x.mean(0) - algorithm.lr * y.mean(0)) < 1e-13
        before = now


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@each("mode", THREE_MODES)
def test_netfleet_with_one_step_is_gradient_tracking_bit_for_bit(mode, dtype):
    links = topology.DroppedLinks(topology.complete(4), 0.3)
    runs = [
        gossip_on_net(kind(lr=0.3), links, work=ud.Steps(1), dtype=dtype, rounds=6, **mode)
        for kind in (ud.NetFleet, ud.GTSGD)
    ]
    for _ in zip(*runs, strict=True):
        for one, other in zip(runs[0].state, runs[1].state, strict=True):
            assert one.dtype == dtype
            assert torch.equal(one, other)


# Fixed points

RING = topology.ring(M, mixing="metropolis")


@pytest.mark.parametrize(
    ("algorithm", "k", "rounds"),
    [
        (ud.NetFleet(lr=0.2), 1, 150),
        (ud.NetFleet(lr=0.05), 10, 100),
        (ud.NetFleet(lr=0.08), WORK, 90),
        (ud.GTSGD(lr=0.2), 3, 50),
        (ud.GTSGD(lr=0.4, form="atc"), 3, 40),
    ],
    ids=["netfleet-1", "netfleet-10", "netfleet-unequal", "gtsgd-cta", "gtsgd-atc"],
)
def test_tracking_reaches_the_optimum_in_consensus_with_a_constant_step(algorithm, k, rounds):
    run = gossip_run(algorithm, links=RING, rounds=rounds, k=k)
    finish(run)
    assert distance(run.x, PROBLEM.optimum()) < 1e-8  # every row
    assert run.record.consensus < 1e-16
    assert distance(run.state.y, torch.zeros_like(B)) < 1e-8
    # The correction has learnt the local gradients at the optimum, which are not zero.
    corrections = run.state.y - run.state.g
    assert distance(corrections, -gradients(PROBLEM, PROBLEM.optimum())) < 1e-8
    assert corrections.abs().max() > 0.1


def test_tracking_also_reaches_it_over_links_that_fail():
    links = topology.DroppedLinks(topology.complete(M, mixing="metropolis"), 0.4)
    run = gossip_run(ud.NetFleet(lr=0.1), links=links, rounds=120, k=3)
    assert distance(finish(run), PROBLEM.optimum()) < 1e-9


def stacked_map(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """(m, D) the fixed point of x -> P x + q, for a composition of affine maps in their order."""
    P, q = torch.eye(M * D, dtype=A.dtype), torch.zeros(M * D, dtype=A.dtype)
    for S, s in parts:
        P, q = S @ P, S @ q + s
    return torch.linalg.solve(torch.eye(M * D, dtype=A.dtype) - P, q).view(M, D)


def pieces(lr: float, links: topology.Topology = RING) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W (x) I, lr blkdiag(A_i), all b_i and the identity, for the stacked vector of all nodes."""
    eye = torch.eye(M * D, dtype=A.dtype)
    return torch.kron(matrix(links), EYE), lr * torch.block_diag(*A), B.reshape(-1), eye


def test_dsgd_cta_ends_at_the_stacked_solution():
    W, A_, b, eye = pieces(0.6)
    point = torch.linalg.solve(eye - W + A_, A_ @ b).view(M, D)
    assert distance(finish(gossip_run(ud.DSGD(lr=0.6), links=RING, rounds=40, k=3)), point) < 1e-10


def test_dsgd_atc_ends_at_its_own_stacked_solution():
    """X = W (X - lr A (X - b)), so [I - W (I - lr A)] X = W lr A b."""
    W, A_, b, eye = pieces(0.6)
    point = torch.linalg.solve(eye - W @ (eye - A_), W @ A_ @ b).view(M, D)
    end = finish(gossip_run(ud.DSGD(lr=0.6, form="atc"), links=RING, rounds=40, k=3))
    assert distance(end, point) < 1e-10


def test_ldsgd_cta_ends_at_its_stacked_solution():
    """T = blkdiag((I - lr A_i)^(K - 1)): [I - T (W - lr A)] X = T lr A b + (I - T) b."""
    W, A_, b, eye = pieces(0.3)
    T = torch.linalg.matrix_power(eye - A_, 3)
    point = torch.linalg.solve(eye - T @ (W - A_), T @ A_ @ b + (eye - T) @ b).view(M, D)
    assert distance(finish(gossip_run(ud.LDSGD(lr=0.3), links=RING, rounds=40, k=4)), point) < 1e-10


def test_ldsgd_atc_ends_at_its_own_stacked_solution():
    """X = W [b + T (X - b)] with T = blkdiag((I - lr A_i)^K): [I - W T] X = W (I - T) b."""
    W, A_, b, eye = pieces(0.3)
    T = torch.linalg.matrix_power(eye - A_, 4)
    point = torch.linalg.solve(eye - W @ T, W @ (eye - T) @ b).view(M, D)
    end = finish(gossip_run(ud.LDSGD(lr=0.3, form="atc"), links=RING, rounds=40, k=4))
    assert distance(end, point) < 1e-10


@pytest.mark.parametrize("form", ["cta", "atc"])
def test_ldsgd_with_two_gossips_ends_where_its_affine_map_stays(form):
    W, A_, b, eye = pieces(0.3)
    local, mixing = (eye - A_, A_ @ b), (W, torch.zeros_like(b))
    combined = (W - A_, A_ @ b)
    parts = {"cta": [combined] * 2 + [local] * 2, "atc": [local] * 4 + [mixing] * 2}[form]
    end = finish(gossip_run(ud.LDSGD(lr=0.3, form=form, gossip=2), links=RING, rounds=40, k=4))
    assert distance(end, stacked_map(parts)) < 1e-10


@pytest.mark.parametrize("form", ["cta", "atc"])
def test_without_tracking_nodes_end_apart_and_their_mean_is_biased(form):
    runs = [
        gossip_run(kind(lr=0.3, form=form), links=RING, rounds=60, k=k)
        for kind, k in ((ud.DSGD, 1), (ud.LDSGD, 4))
    ]
    bias = []
    for run in runs:
        finish(run)
        bias.append(distance(run.mean, PROBLEM.optimum()))
        assert run.record.consensus > 1e-2
        assert (run.x - PROBLEM.optimum()).norm(dim=1).min() > 1e-2
    assert bias[0] > 1e-2
    assert bias[1] > bias[0]  # longer local work, further away
    exact = gossip_run(ud.NetFleet(lr=0.1), links=RING, rounds=60, k=4)
    assert distance(finish(exact), PROBLEM.optimum()) < 1e-3 * bias[0]  # and still falling


# Limits


@pytest.mark.parametrize("k", [4, WORK], ids=["equal-K", "unequal-K"])
def test_local_steps_and_a_complete_mean_are_fedavg_on_quadratics(k):
    links = topology.complete(M, mixing="metropolis")
    gossip = gossip_run(ud.LDSGD(lr=0.3, form="atc"), links=links, rounds=6, k=k)
    server = gossip_run(ud.FedAvg(lr=0.3), links=None, rounds=6, k=k, weighting="uniform")
    for _ in zip(gossip, server, strict=True):
        assert distance(gossip.x, server.x) < 1e-12
        assert gossip.record.consensus < 1e-28


@each("mode", THREE_MODES)
def test_local_steps_and_a_complete_mean_are_fedavg_on_a_net(mode):
    """The same minibatches and dropout masks in both."""
    links = topology.complete(4, mixing="metropolis")
    gossip = gossip_on_net(ud.LDSGD(lr=0.3, form="atc"), links, **mode)
    server = start(ud.FedAvg(lr=0.3), participation=1.0, weighting="uniform")
    for _ in zip(gossip, server, strict=True):
        assert distance(gossip.x, server.x) < 1e-12
        assert distance(gossip.mean, server.x) < 1e-12


ALONE = {
    name: algorithm
    for name, algorithm in FAMILY.items()
    if name not in ("gtsgd-cta", "netfleet")  # these step along the gradient of the step before
}


@each("algorithm", ALONE)
def test_without_links_everybody_runs_sgd_alone_on_a_net(algorithm):
    run = gossip_on_net(algorithm, topology.isolated(4), mode="stacked")
    work = run._planner.work
    finish(run)
    for i in range(4):
        alone = start(ud.FedAvg(lr=algorithm.lr), participation=[[i]] * 4, work=work)
        assert distance(run.x[i], finish(alone)) < 1e-12
    assert run.totals.bytes_up == 0


@tracking
def test_without_links_everybody_descends_alone_and_tracks_its_own_gradient(algorithm):
    run = gossip_run(algorithm, links=topology.isolated(M), rounds=4, k=3)
    x = START.expand(M, D)
    for _ in run:
        for _ in range(3):
            before, x = x, x - algorithm.lr * gradients(PROBLEM, x)
        at = before if algorithm == TRACKING["gtsgd-atc"] else x
        assert distance(run.x, x) < 1e-12
        assert distance(run.state.g, gradients(PROBLEM, at)) < 1e-12
        assert distance(run.state.y, run.state.g) < 1e-12


@family
def test_one_node_alone_is_gradient_descent(algorithm):
    problem = bed(clients=1)
    run = gossip_run(algorithm, problem, links=topology.ring(1), rounds=3, k=3)
    x = START
    for _ in range(9):
        x = x - algorithm.lr * problem.A[0] @ (x - problem.b[0])
    assert distance(finish(run)[0], x) < 1e-12
    assert run.record.consensus == 0.0


@every_link
@family
@pytest.mark.wide(daily=lambda case: case["links"] is LINKS["dropped"])
def test_identical_clients_are_one_gradient_descent(algorithm, links):
    one = bed(clients=1)
    same = replace(one, clients=ud.Clients([one.clients[0]] * M))
    run = gossip_run(algorithm, same, links=links, rounds=4, k=3)
    x = START
    for record in run:
        for _ in range(3):
            x = x - algorithm.lr * one.A[0] @ (x - one.b[0])
        assert distance(run.x, x) < 1e-12
        assert record.consensus < 1e-28


def flat(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.0 * outputs.sum()


@pytest.mark.parametrize("maker", [topology.ring, topology.star])
@pytest.mark.parametrize("name", FAMILY)
def test_where_nothing_pulls_a_gossip_contracts_disagreement_by_lambda(name, maker):
    """Of squared distances by lambda^2 at most, and exactly along lambda's eigenvector."""
    k, gossips = (1, 1) if name != "ldsgd-cta-2" else (2, 2)
    gossips = 2 if name == "ldsgd-atc-2" else gossips
    links = maker(M)
    values, vectors = np.linalg.eigh(links.W)
    slowest = int(np.abs(values[:-1]).argmax())
    factor = values[slowest] ** (2 * gossips)
    eigenvector = torch.tensor(vectors[:, slowest])[:, None] * torch.tensor([1.0, -2.0, 0.5])
    for rows, exact in ((SPREAD, False), (START + eigenvector, True)):
        run = gossip_run(FAMILY[name], links=links, rounds=3, k=k, loss=flat)
        run.state = run.state._replace(x=rows)
        before = float((rows - rows.mean(0)).square().sum(1).mean())
        for record in run:
            assert record.consensus <= factor * before * (1 + 1e-9)
            if exact:
                assert record.consensus == pytest.approx(factor * before, rel=1e-9)
            before = record.consensus
        assert distance(run.mean, rows.mean(0)) < 1e-13


# Symmetries


def work_of(algorithm: Any) -> list[int]:
    return [3] * M if algorithm.every_step else WORK


@family
def test_relabelling_the_nodes_permutes_the_output(algorithm):
    P = [3, 0, 4, 1, 2]
    links = topology.grid(1, M)
    moved = replace(PROBLEM, clients=ud.Clients([PROBLEM.clients[i] for i in P]))
    relabelled = topology.Topology(links.W[np.ix_(P, P)])
    assert relabelled != links
    k = work_of(algorithm)
    run = gossip_run(algorithm, links=links, rounds=5, k=k)
    other = gossip_run(algorithm, moved, links=relabelled, rounds=5, k=[k[i] for i in P])
    finish(run)
    finish(other)
    for one, two in zip(run.state, other.state, strict=True):
        assert distance(one[P], two) < 1e-12
    assert distance(run.x[P], run.x) > 1e-2
    assert run.record.consensus == pytest.approx(other.record.consensus, rel=1e-12)


NOISY = bed(noise=0.5)


def noisy_end(algorithm: Any, pairs: list[tuple[Tensor, Tensor]], at: Tensor) -> Any:
    """Final states over minibatches, the same samples whatever their values."""
    problem = replace(NOISY, clients=ud.Clients(pairs))
    k = work_of(algorithm)
    run = gossip_run(algorithm, problem, links=topology.star(M), rounds=4, k=k, at=at, batch_size=5)
    finish(run)
    return run.state


@family
def test_shifting_the_problem_shifts_the_models_and_nothing_else(algorithm):
    v = torch.tensor([2.0, -3.0, 1.5], dtype=A.dtype)
    pairs = [NOISY.clients[i] for i in range(M)]
    plain = noisy_end(algorithm, pairs, START)
    shifted = noisy_end(algorithm, [(X, y + (X @ v)[:, None]) for X, y in pairs], START + v)
    assert distance(shifted.x, plain.x + v) < 1e-12
    for one, two in zip(plain[1:], shifted[1:], strict=True):
        assert distance(one, two) < 1e-12


@family
def test_rotating_the_problem_rotates_everything(algorithm):
    Q = torch.linalg.qr(torch.tensor(np.random.default_rng(0).normal(size=(D, D))))[0]
    pairs = [NOISY.clients[i] for i in range(M)]
    plain = noisy_end(algorithm, pairs, START)
    rotated = noisy_end(algorithm, [(X @ Q.T, y) for X, y in pairs], Q @ START)
    for one, two in zip(plain, rotated, strict=True):
        assert distance(one @ Q.T, two) < 1e-12
    assert distance(plain.x @ Q.T, plain.x) > 1e-2


# Modes, determinism, checkpoints


def assert_equal_states(one: ud.Run, other: ud.Run, within: float = 0.0) -> None:
    for a, b in zip(tree.leaves(one.state), tree.leaves(other.state), strict=True):
        assert a.shape == b.shape
        assert distance(a, b) <= within


@each("algorithm", ONCE)
def test_stacked_groups_and_one_at_a_time_agree(algorithm):
    links = topology.DroppedLinks(topology.complete(4), 0.3)
    runs = [gossip_on_net(algorithm, links, rounds=2, **mode) for mode in MODES.values()]
    records = list(zip(*runs, strict=True))
    for run, mine in zip(runs, zip(*records, strict=True), strict=True):
        assert_equal_states(runs[0], run, 1e-12)
        for a, b in zip(mine, (some[0] for some in records), strict=True):
            costs = ("bytes_up", "bytes_per_worker", "bytes_per_link", "hops", "bits")
            for name in (*costs, "gradients", "samples", "clients"):
                assert getattr(a, name) == getattr(b, name)
            assert a.consensus == pytest.approx(b.consensus, rel=1e-10)


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [
        *((algorithm, MODES["groups-of-3"]) for algorithm in ONCE.values()),
        (FAMILY["netfleet"], MODES["loop"]),
        (FAMILY["netfleet"], MODES["stacked"]),
    ],
    ids=[*ONCE, "netfleet-loop", "netfleet-stacked"],
)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(algorithm, mode):
    links = topology.ring(4)
    runs = [gossip_on_net(algorithm, links, rounds=1, seed=seed, **mode) for seed in (3, 3, 4)]
    for run in runs:
        finish(run)
    assert_equal_states(runs[0], runs[1])
    assert distance(runs[0].x, runs[2].x) > 1e-3


SPARSE = topology.ring(60)  # few enough non-zero entries for a sparse product


@each("mode", THREE_MODES)
def test_mixing_over_many_nodes_is_the_product_with_w(mode, monkeypatch):
    # Nodes in groups are mixed two columns at a time.
    monkeypatch.setattr("undrift.engine.collectives.base.BLOCK", 120)
    problem = bed(clients=60, seed=1)
    run = gossip_run(ud.DSGD(lr=0.2), problem, links=SPARSE, rounds=2, k=2, **mode)
    x = START.expand(60, D)
    for _ in range(4):
        g = torch.einsum("ijk,ik->ij", problem.A, x - problem.b)
        x = matrix(SPARSE) @ x - 0.2 * g
    assert distance(finish(run), x) < 1e-12


CHANGING = topology.DroppedLinks(topology.Cycle((topology.ring(4), topology.complete(4))), 0.4, 5)


@each("algorithm", ONCE)
def test_a_resumed_run_goes_on_with_the_same_bits(algorithm, tmp_path):
    whole = gossip_on_net(algorithm, CHANGING, mode="stacked")
    records = list(whole)
    half = gossip_on_net(algorithm, CHANGING, mode="stacked", rounds=2, checkpoint=tmp_path)
    finish(half)
    rest = gossip_on_net(algorithm, CHANGING, mode="stacked", resume=tmp_path)
    assert rest.round == 2
    assert_equal_states(half, rest)
    untimed = {"seconds": 0, "evaluation_seconds": 0}
    assert replace(rest.record, **untimed) == replace(half.record, **untimed)
    for a, b in zip(records[2:], rest, strict=True):
        assert replace(a, **untimed) == replace(b, **untimed)
    assert_equal_states(whole, rest)
    assert replace(whole.totals, **untimed) == replace(rest.totals, **untimed)


def test_a_run_killed_in_its_first_round_still_counts_the_gradients_of_the_start(tmp_path):
    whole = gossip_on_net(ud.NetFleet(lr=0.2), topology.ring(4), rounds=2)
    finish(whole)
    killed = gossip_on_net(
        Fails(error=KeyboardInterrupt), topology.ring(4), rounds=2, checkpoint=tmp_path
    )
    with pytest.raises(KeyboardInterrupt):
        next(killed)
    assert [folder.name for folder in tmp_path.glob("round-*")] == ["round-00000000"]
    resumed = gossip_on_net(Fails(), topology.ring(4), rounds=2, resume=tmp_path)
    finish(resumed)
    assert torch.equal(whole.x, resumed.x)
    assert resumed.totals.gradients == whole.totals.gradients
    assert resumed.totals.samples == whole.totals.samples


OTHERS = {
    "graph": topology.DroppedLinks(topology.ring(4), 0.4, 5),
    "mixing": topology.DroppedLinks(
        topology.Cycle((topology.ring(4), topology.complete(4, mixing="metropolis"))), 0.4, 5
    ),
    "probability": replace(CHANGING, p=0.3),
    "seed": replace(CHANGING, seed=6),
}


@each("other", OTHERS)
def test_resuming_over_other_links_is_refused(other, tmp_path):
    finish(gossip_on_net(ud.DSGD(lr=0.2), CHANGING, rounds=2, checkpoint=tmp_path))
    with pytest.raises(ud.CheckpointError, match="topology"):
        gossip_on_net(ud.DSGD(lr=0.2), other, rounds=4, resume=tmp_path)


# What it cost

PARAMETERS = 6 * 8 + 8 + 8 * 3 + 3
EXCHANGES = {  # messages over each link one way, vectors in all of them, for K = 3
    "dsgd-cta": (3, 3),
    "dsgd-atc": (3, 3),
    "ldsgd-cta": (1, 1),
    "ldsgd-cta-2": (2, 2),
    "ldsgd-atc": (1, 1),
    "ldsgd-atc-2": (2, 2),
    "gtsgd-cta": (3, 6),
    "gtsgd-atc": (6, 6),
    "netfleet": (1, 2),
}
COSTLY = {
    "ring": topology.ring(4),
    "star": topology.star(4),
    "dropped": topology.DroppedLinks(topology.complete(4), 0.4, seed=2),
    "isolated": topology.isolated(4),
}


def changing_links_or_narrow_tracking(parameters):
    """Return whether links change, or two vectors travel in float32."""
    narrow = parameters["dtype"] == torch.float32 and parameters["name"] in TRACKING
    return narrow or parameters["links"] is COSTLY["dropped"]


@pytest.mark.parametrize(
    ("links", "dtype"),
    [(COSTLY["star"], torch.float32), *((links, torch.float64) for links in COSTLY.values())],
    ids=["star-float32", *COSTLY],
)
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.wide(daily=changing_links_or_narrow_tracking)
def test_bytes_are_links_times_vectors_in_both_directions(name, links, dtype):
    messages, vectors = EXCHANGES[name]
    rounds = 2 if links is COSTLY["dropped"] else 1
    options = {"work": ud.Steps(3), "dtype": dtype, "mode": "stacked", "rounds": rounds}
    run = gossip_on_net(FAMILY[name], links, **options)
    for t, record in enumerate(run):
        now = links.at(t)
        one_way = vectors * PARAMETERS * dtype.itemsize
        assert record.bytes_up == 2 * now.links * one_way
        assert record.bytes_down == 0
        assert record.bytes_per_link == (one_way if now.links else 0)
        assert record.bytes_per_worker == int(now.degrees.max()) * one_way
        if now.links:
            assert record.hops == messages
            assert record.bits == 8 * dtype.itemsize
        else:
            assert record.bits is None
        assert record.sign_matching is None


def stacked_with_one_gossip(parameters):
    """Return whether nodes are stacked and a form of a method gossips once at a time."""
    return parameters["mode"] == MODES["stacked"] and parameters["name"] in ONCE


@pytest.mark.parametrize("name", FAMILY)
@each("mode", {name: MODES[name] for name in ("loop", "stacked")})
@pytest.mark.wide(daily=stacked_with_one_gossip)
def test_gradients_are_one_a_step_and_one_at_the_start_of_those_that_need_it(name, mode):
    run = gossip_on_net(FAMILY[name], topology.ring(4), rounds=2, **mode)
    k = 4 * 3 if FAMILY[name].every_step else 3 + 5 + 2 + 6
    at_start = 4 if name in ("gtsgd-cta", "netfleet") else 0
    assert [record.gradients for record in run] == [k + at_start, k]
    assert run.totals.gradients == 2 * k + at_start


def test_samples_are_those_of_the_gradients():
    """Batches of 4 from 11, 7, 16 and 9 samples; the first of every client at the start."""
    run = gossip_on_net(ud.NetFleet(lr=0.1), topology.ring(4), work=ud.Steps(3), rounds=2)
    lengths = {0: 4 + 4 + 3, 1: 4 + 3 + 4, 2: 4 + 4 + 4, 3: 4 + 4 + 1}
    assert [r.samples for r in run] == [sum(lengths.values()) + 4 * 4, sum(lengths.values())]
    whole = gossip_on_net(ud.NetFleet(lr=0.1), topology.ring(4), work=ud.Steps(3), batch_size=None)
    assert next(whole).samples == 4 * (11 + 7 + 16 + 9)


def accuracy(model: nn.Module, x: Tensor, inputs: Tensor, targets: Tensor) -> float:
    nn.utils.vector_to_parameters(x.clone(), model.parameters())
    with torch.no_grad():
        return float((model.eval()(inputs).argmax(1) == targets).double().mean())


def test_records_by_hand():
    clients = small_clients()
    inputs, targets = small_clients((50,), seed=8)[0]
    clients = ud.Clients([clients[i] for i in range(4)], test=(inputs, targets))
    evaluation = ud.EvaluationOptions(every=2, gradient_norm=True)
    options = {"clients": clients, "weight_decay": 0.1, "mode": "stacked"}
    run = gossip_on_net(ud.LDSGD(lr=0.8), topology.grid(1, 4), evaluation=evaluation, **options)
    model, told_apart = small_net(), False
    for record in run:
        rows = run.x.numpy()
        mean = rows.mean(axis=0)
        spread = np.mean([np.sum((row - mean) ** 2) for row in rows])
        assert record.consensus == pytest.approx(spread, rel=1e-12)
        assert torch.equal(nn.utils.parameters_to_vector(run.model.parameters()), run.x.mean(0))
        if record.round % 2:
            assert record.loss is record.accuracy is None
            assert record.node_accuracy is record.gradient_norm is None
            continue
        scores = [accuracy(model, x, inputs, targets) for x in run.x]
        of_mean = accuracy(model, run.x.mean(0), inputs, targets)
        assert record.node_accuracy == pytest.approx(np.mean(scores), abs=1e-12)
        assert record.accuracy == pytest.approx(of_mean, abs=1e-12)
        told_apart |= record.accuracy != record.node_accuracy
        model.zero_grad()
        for i in range(4):
            X, y = clients[i]
            (nn.functional.cross_entropy(model(X), y) / 4).backward()
        g = torch.cat([p.grad.flatten() for p in model.parameters()]) + 0.1 * run.x.mean(0)
        assert record.gradient_norm == pytest.approx(float(g.norm()), rel=1e-12)
        loss = nn.functional.cross_entropy(model(inputs), targets).detach()
        assert record.loss == pytest.approx(loss.item(), rel=1e-12)
    assert told_apart
    assert isinstance(record, ud.PeerRecord)
    assert run.evaluate().accuracy == record.accuracy


def test_what_is_not_asked_for_is_not_measured():
    run = gossip_on_net(
        ud.DSGD(lr=0.2),
        topology.ring(4),
        evaluation=ud.EvaluationOptions(every=1, node_accuracy=False),
    )
    record = next(run)
    assert record.accuracy is not None
    assert record.node_accuracy is record.gradient_norm is None
    quadratic = gossip_run(ud.DSGD(lr=0.2), links=RING, rounds=1)
    assert next(quadratic).node_accuracy is None  # no labels


def test_the_state_is_one_row_for_each_node_from_the_start():
    run = gossip_run(ud.NetFleet(lr=0.1), links=RING, rounds=1)
    assert torch.equal(run.x, START.expand(M, D))
    assert distance(run.state.y, gradients(PROBLEM, START)) < 1e-12
    assert torch.equal(run.state.y, run.state.g)
    zero = gossip_run(ud.GTSGD(lr=0.1, form="atc"), links=RING, rounds=1).state
    assert zero.y.abs().max() == zero.g.abs().max() == 0


# Divergence


def drain(run: ud.Run, kept: list[Any]) -> None:
    """Play on, with a copy of the state before the last round in `kept`."""
    while run.round < run.rounds:
        kept[:] = [leaf.clone() for leaf in run.state]
        next(run)


@each("mode", THREE_MODES)
@family
def test_a_huge_step_is_refused_and_the_last_state_kept(algorithm, mode):
    run, before = gossip_run(replace(algorithm, lr=1e200), links=RING, rounds=9, k=3, **mode), []
    with no_threads_left(), pytest.raises(ud.DivergenceError, match="lower lr") as caught:
        drain(run, before)
    assert caught.value.clients == list(range(M))
    assert caught.value.round == run.round + 1
    for old, kept in zip(before, run.state, strict=True):
        assert torch.equal(old, kept)
        assert kept.isfinite().all()


@each("mode", MODES)
@pytest.mark.parametrize(
    ("algorithm", "what"),
    [(ud.DSGD(lr=0.1), "models"), (ud.NetFleet(lr=0.1), "messages")],
    ids=["model", "message"],
)
def test_the_node_that_diverges_is_named_alone(algorithm, what, mode):
    """Client 3's gradient overflows: its own model does, or the message in which it sends it."""
    pairs = [PROBLEM.clients[i] for i in range(M)]
    pairs[3] = (pairs[3][0] * 1e200, pairs[3][1])
    problem = replace(PROBLEM, clients=ud.Clients(pairs))
    run = gossip_run(algorithm, problem, links=RING, rounds=2, k=1, **mode)
    with pytest.raises(ud.DivergenceError, match=f"finite {what}.*client 3 in round 1") as caught:
        next(run)
    assert caught.value.clients == [3]
    assert torch.equal(run.x, START.expand(M, D))


# Bad input


class Watch:
    def __call__(self, upload: Any) -> None: ...


ring4 = topology.ring(4)
REFUSED = {
    "no-topology": (ud.DSGD(lr=0.1), {"topology": None}, "DSGD needs a topology such as"),
    "a-number": (ud.DSGD(lr=0.1), {"topology": 4}, "DSGD needs a topology such as.*'int'"),
    "another-size": (
        ud.NetFleet(lr=0.1),
        {"topology": topology.ring(5)},
        "The topology needs 4 nodes, one for each client, got 5",
    ),
    "allreduce": (
        ud.GTSGD(lr=0.1),
        {"topology": ring4, "allreduce": "ring"},
        "GTSGD needs a topology, not an all-reduce, got 'ring'",
    ),
    "a-server": (
        ud.FedAvg(lr=0.1),
        {"topology": ring4},
        r"FedAvg needs no topology, it has a server, got ring\(4\)",
    ),
    "part-of-the-peers": (
        ud.NetFleet(lr=0.1),
        {"topology": ring4, "participation": 0.5},
        "NetFleet needs all peers in every round, got .*0.5.*; leave participation out",
    ),
    "absent-peers": (
        ud.DSGD(lr=0.1),
        {
            "topology": ring4,
            "clients": ud.Clients(
                [small_clients()[i] for i in range(4)], availability=Spans([(0, 2)] * 4)
            ),
        },
        "DSGD needs peers that are always there, got .*; use dropped links",
    ),
    "size-weights": (
        ud.LDSGD(lr=0.1),
        {"topology": ring4, "weighting": "size"},
        "LDSGD needs peers that all weigh the same, got 'size'; use weighting='uniform'",
    ),
    "unequal-weights-of-equal-sizes": (
        ud.LDSGD(lr=0.1),
        {
            "topology": ring4,
            "weighting": [0.4, 0.3, 0.2, 0.1],
            "clients": small_clients((9, 9, 9, 9)),
        },
        "LDSGD needs peers that all weigh the same, got .*0.4",
    ),
    "unknown-weighting-of-equal-sizes": (
        ud.LDSGD(lr=0.1),
        {"topology": ring4, "weighting": "sizes", "clients": small_clients((9, 9, 9, 9))},
        "weighting.*'sizes'",
    ),
    "unequal-steps-dsgd": (
        ud.DSGD(lr=0.1),
        {"topology": ring4, "work": ud.Steps([3, 5, 2, 6])},
        "DSGD needs the same number of local steps on every client, got 2 for client 2 and 6 for "
        r"client 3; use work=Steps\(k\)",
    ),
    "unequal-steps-gtsgd": (
        ud.GTSGD(lr=0.1),
        {"topology": ring4, "work": ud.Epochs(1)},
        "GTSGD needs the same number of local steps on every client, got 2 for client 1 and 4 for "
        "client 2",
    ),
    "tap": (
        ud.NetFleet(lr=0.1),
        {"topology": ring4, "tap": Watch()},
        "NetFleet needs no tap, peers upload nothing",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_settings_are_refused_before_any_work(name):
    algorithm, options, message = REFUSED[name]
    settings = {"participation": 1.0, "work": ud.Steps(2)} | options
    with pytest.raises(ValueError, match=message):
        start(algorithm, **settings)


WEIGHTS = {
    "sizes-of-equal-clients": ("size", (9, 9, 9, 9)),
    "a-number-each": ((0.25,) * 4, (9, 9, 9, 9)),
    "uniform": ("uniform", (11, 7, 16, 9)),
    "left-out": (None, (11, 7, 16, 9)),
}


@each("given", WEIGHTS)
def test_equal_weights_in_any_words_are_accepted(given):
    weighting, sizes = given
    run = gossip_on_net(ud.DSGD(lr=0.1), ring4, weighting=weighting, clients=small_clients(sizes))
    assert finish(run).isfinite().all()


def test_everybody_by_number_is_everybody():
    run = start(ud.DSGD(lr=0.1), topology=ring4, participation=4, work=ud.Steps(2))
    assert finish(run).isfinite().all()


@each("mode", MODES)
def test_more_gossips_than_a_client_has_steps_are_refused_in_every_mode(mode):
    """Client 2 has two steps: it would be gone when the others meet for the third time."""
    with no_threads_left(), pytest.raises((ValueError, ud.UndriftError), match="steps"):
        finish(gossip_on_net(ud.LDSGD(lr=0.1, gossip=3), ring4, **mode))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ud.DSGD(lr=0.0), "DSGD needs lr > 0"),
        (lambda: ud.LDSGD(lr=-1.0), "LDSGD needs lr > 0"),
        (lambda: ud.GTSGD(lr=float("nan")), "GTSGD needs lr > 0"),
        (lambda: ud.NetFleet(lr=float("inf")), "NetFleet needs lr > 0"),
        (lambda: ud.DSGD(lr=0.1, form="act"), "DSGD needs form to be one of cta, atc, got 'act'"),
        (lambda: ud.LDSGD(lr=0.1, form="x"), "LDSGD needs form"),
        (lambda: ud.GTSGD(lr=0.1, form=""), "GTSGD needs form"),
        (lambda: ud.LDSGD(lr=0.1, gossip=0), "LDSGD needs gossip >= 1"),
        (lambda: ud.LDSGD(lr=0.1, gossip=1.5), "LDSGD needs gossip >= 1"),
    ],
    ids=[
        *("dsgd-lr", "ldsgd-lr", "gtsgd-lr", "netfleet-lr"),
        *("dsgd-form", "ldsgd-form", "gtsgd-form", "gossip-none", "gossip-half"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Nodes that take turns


@dataclass(frozen=True)
class Fails(ud.NetFleet):
    """NetFleet whose client with five steps fails after the gossip, as long as it is told to."""

    lr: float = 0.2
    error: Any = None

    def round(self, node: Any, steps: Any, comm: Any) -> Any:
        new = super().round(node, steps, comm)
        if self.error is not None and (steps._group.stacked or int(steps.count) == 5):
            raise self.error("inside")
        return new

    def __repr__(self) -> str:
        return "Fails"  # the same experiment, whether it fails or not


@each("mode", THREE_MODES)
@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_an_error_inside_a_node_ends_the_round_and_nothing_else(error, mode):
    clean = finish(gossip_on_net(Fails(), ring4, rounds=2, **mode))
    run = gossip_on_net(Fails(), ring4, rounds=2, **mode)
    next(run)
    before = run.state
    run.algorithm = Fails(error=error)
    with no_threads_left(), pytest.raises(error, match="inside"):
        next(run)
    assert run.round == 1
    assert run.state is before
    run.algorithm = Fails()
    assert torch.equal(finish(run), clean)  # it goes on as if nothing had happened


@dataclass(frozen=True)
class AsksByCount(ud.LDSGD):
    """Lets a node's amount of work decide what it asks, which only one at a time could."""

    lr: float = 0.1
    what: str = "often"

    def round(self, node: Any, steps: Any, comm: Any) -> Any:
        few = int(steps.count) < 4
        if self.what == "often":
            for _ in range(1 if few else 2):
                comm.mix(node.x)
        else:
            comm.mix(node.x if few else (node.x, node.x))
        return node


@pytest.mark.parametrize(
    ("what", "message"),
    [("often", "communicate equally often"), ("kind", "the same thing at the same time")],
    ids=["often", "kind"],
)
def test_nodes_that_ask_differently_are_told_so(what, message):
    run = gossip_on_net(AsksByCount(what=what), ring4, mode="loop")
    before = run.x.clone()
    with no_threads_left(), pytest.raises(ud.UndriftError, match=message):
        next(run)
    assert torch.equal(run.x, before)


@dataclass(frozen=True)
class Counts(ud.LDSGD):
    """Holds the number of nodes."""

    lr: float = 0.1

    def round(self, node: Any, steps: Any, comm: Any) -> Any:
        return node._replace(x=0 * comm.mix(node.x) + comm.size)


@each("mode", MODES)
def test_nodes_know_how_many_they_are(mode):
    assert (finish(gossip_on_net(Counts(), ring4, rounds=1, **mode)) == 4).all()


# Linear speedup

BURN_IN = 75


def floor(m: int, *, seeds: Sequence[int], rounds: int) -> float:
    """Mean over late rounds of the mean model's squared distance to x* = 0, which all share."""
    errors = []
    for seed in seeds:
        problem = ud.data.quadratics(
            m, dim=8, samples=48, heterogeneity=0.0, condition=2.0, noise=1.0, seed=seed
        )
        links = topology.erdos_renyi(m, 0.6, seed=seed, mixing="metropolis")
        run = gossip_run(
            ud.NetFleet(lr=0.02),
            problem,
            links=links,
            rounds=rounds,
            k=4,
            at=torch.zeros(8),
            batch_size=4,
            seed=seed,
        )
        errors += [float(run.mean.square().sum()) for record in run if record.round > BURN_IN]
    return float(np.mean(errors))


@pytest.mark.long
def test_netfleets_noise_floor_falls_like_one_over_the_number_of_nodes():
    floors = {m: floor(m, seeds=range(4), rounds=BURN_IN + 250) for m in (4, 8, 16, 32)}
    slope = np.polyfit(np.log(list(floors)), np.log(list(floors.values())), 1)[0]
    assert -1.2 < slope < -0.8


def test_links_and_counts_are_checked_before_any_work():
    graph = topology.ring(4).graph
    for wrong in (topology.Topology, np.eye(4), graph, None):
        with pytest.raises(ValueError, match=r"needs a topology such as .*from_graph") as error:
            start(ud.DSGD(lr=0.1), topology=wrong)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="a list of topologies"):
        topology.Cycle(topology.ring(3))
    with pytest.raises(ValueError, match="chunk_size >= 1, a whole number"):
        start(ud.DSGD(lr=0.1), mode="stacked", execution=ud.ExecutionOptions(chunk_size=1.5))
    with pytest.raises(ValueError, match="no gradient_norm"):
        start(ud.FedAvg(lr=0.1), evaluation=ud.EvaluationOptions(gradient_norm=True))
    # Equal in the first round, not in a later one.
    work = ud.UniformSteps(1, 2, "random")
    seed = next(
        seed
        for seed in range(100)
        if len({work.steps(client=i, epoch=1, t=0, seed=seed) for i in range(4)}) == 1
    )
    with pytest.raises(ValueError, match="same number of local steps"):
        start(ud.PSGD(lr=0.1), work=work, seed=seed, rounds=30)


def test_whole_numbers_are_not_mixed():
    class Counting(ud.Gossip):
        def init(self, x0, f):
            return ud.algorithms.dsgd.DSGDNode(x0)

        def round(self, node, steps, comm):
            comm.mix(torch.ones(2, dtype=torch.int64))
            return node

    with pytest.raises(ud.UndriftError, match=r"needs floats, got a leaf of torch.int64"):
        next(start(Counting()))
