"""Every registered class passes every check; the checks themselves can fail."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.methods import DEFAULTS, VARIANTS
from undrift import testing

CASES = [
    pytest.param(algorithm, check, id=f"{algorithm!r}-{check.__name__}", marks=marks)
    for algorithms, marks in ((DEFAULTS, ()), (VARIANTS, pytest.mark.long))
    for algorithm in algorithms
    for check in testing.checks_for(algorithm)
]


@pytest.mark.parametrize(("algorithm", "check"), CASES)
def test_contract(algorithm: Any, check: Any) -> None:
    check(algorithm)


@dataclass(frozen=True)
class Broken(ud.FedAvg):
    """FedAvg with one defect at a time; the checks must name each."""

    defect: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.defect == "derives":  # again whenever a schedule is replaced by its number
            object.__setattr__(self, "server_lr", self.server_lr / 2)

    def local(self, down: Any, client: Any, steps: Any) -> Any:
        up, client = super().local(down, client, steps)
        if self.defect == "mutates":
            down.add_(1e-3)
        if self.defect == "absolute":
            up = up + down
        if self.defect == "branches" and steps.count > 3:
            up = 2 * up
        if self.defect == "draws":
            up = up + 1e-3 * torch.rand_like(up)
        if self.defect == "wide":
            up = up.double()
        return up, client

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        if self.defect == "remembers":
            MEMORY.append(mean)
            mean = sum(MEMORY)
        if self.defect == "counts":
            mean = mean * cohort.size
        return super().update(server, mean, cohort)


MEMORY: list[Any] = []


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        ("mutates", testing.check_no_mutation),
        ("absolute", testing.check_increments),
        ("branches", testing.check_stacked_equals_loop),
        ("draws", testing.check_deterministic),
        ("remembers", testing.check_resume),
        ("counts", testing.check_zero_weight),
        ("wide", testing.check_state),
    ],
)
def test_checks_catch_defects(defect: str, check: Any) -> None:
    MEMORY.clear()
    with pytest.raises((AssertionError, ud.UndriftError)):
        check(Broken(lr=0.1, defect=defect))


def test_the_hyper_parameter_whose_schedule_changes_the_result_is_named() -> None:
    with pytest.raises(AssertionError, match="lr as a schedule changes the result"):
        testing.check_schedules(Broken(lr=0.1, defect="derives"))


def test_mutable_algorithms_are_refused() -> None:
    @dataclasses.dataclass(eq=False)
    class Hidden:
        lr: float = 0.1

    with pytest.raises(AssertionError):
        testing.check_is_a_value(Hidden())  # type: ignore[arg-type]


def test_check_algorithm_runs_everything() -> None:
    testing.check_algorithm(ud.FedAvg(lr=0.1))
    with pytest.raises(AssertionError, match="flat objective"):
        testing.check_algorithm(Broken(lr=0.1, defect="absolute"))


def test_every_method_is_exported_and_listed() -> None:
    for cls in ud.ALGORITHMS:
        assert getattr(ud, cls.__name__) is cls
        assert cls.__name__ in ud.__all__
        assert cls.__module__ == f"undrift.algorithms.{cls.__name__.lower()}"
