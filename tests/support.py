"""What several test files share: the quadratic test bed, a small net, a full disk."""

from __future__ import annotations

import fcntl
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.testing import small_clients, small_net

ROOT = Path(__file__).resolve().parents[1]  # of the checkout
SHARED = ROOT.parent / "shared" / "data"  # real data sets; a clone of a user's has none


def bed(clients: int = 5, dim: int = 3, seed: int = 0, **options: Any) -> ud.data.Quadratics:
    """Heterogeneous quadratics in float64 with known A_i, b_i and optimum."""
    return ud.data.quadratics(clients, dim, seed=seed, **options)


@dataclass(frozen=True)
class From(ud.data.Quadratics):
    """Quadratics with a start of one's own instead of x = 0."""

    x0: Tensor

    def model(self) -> nn.Module:
        linear = super().model()
        nn.utils.vector_to_parameters(self.x0, linear.parameters())
        return linear


def on_quadratics(
    algorithm: Any, problem: ud.data.Quadratics, *, rounds: int, work: Any = 5, **options: Any
) -> ud.Run:
    """A finished run with exact gradients from x = 0, uniform weights unless told otherwise."""
    options.setdefault("weighting", "uniform")
    run = ud.simulate(
        algorithm,
        problem.model(),
        problem.clients,
        loss=problem.loss,
        work=ud.Steps(work) if isinstance(work, int | Sequence) else work,
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=max(1, rounds)),
        **options,
    )
    for _ in run:
        pass
    return run


def on_net(algorithm: Any, *, mode: str, rounds: int = 4, **options: Any) -> ud.Run:
    """A finished run of the small net with ragged minibatches, dropout and unequal work."""
    options.setdefault("work", ud.Steps([3, 5, 2, 6]))
    options.setdefault("batch_size", 4)
    options.setdefault("clients", small_clients())
    options.setdefault("model", small_net())
    run = ud.simulate(
        algorithm,
        options.pop("model"),
        options.pop("clients"),
        loss=nn.functional.cross_entropy,
        rounds=rounds,
        mode=mode,  # type: ignore[arg-type]
        evaluation=ud.EvaluationOptions(every=max(1, rounds)),
        **options,
    )
    for _ in run:
        pass
    return run


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A file that grows beyond it is refused as on a full disk: a part is taken, then an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` has filled, once for all workers of a test session."""
    base = factory.getbasetemp()
    common = base.parent if base.name.startswith("popen-") else base
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits for the first
        folder = common / name
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder
