"""Hashes of the functions of a user's own classes."""

from __future__ import annotations

import torch

import undrift as ud
from undrift.usercode.functions import functions_of

TYPED = """
class Mine(ud.FedAvg):
    def update(self, server, mean, cohort):
        return server._replace(x=server.x * {factor})
"""


class Halves:
    """Is a rule of one's own."""

    def __call__(
        self, g: torch.Tensor, s: tuple[()], y: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[()]]:
        return 0.5 * g, s

    def init(self, x: torch.Tensor) -> tuple[()]:
        return ()

    def __repr__(self) -> str:
        return "Halves()"


def typed(factor: int) -> dict[str, str]:
    """Return the hashes of a method without a source, as one that was typed at a prompt."""
    names: dict[str, type[ud.FedAvg]] = {}
    exec(TYPED.format(factor=factor), {"ud": ud, "__name__": "typed"}, names)
    return functions_of(names["Mine"](lr=0.1))


def test_methods_of_undrift_have_none() -> None:
    assert functions_of(ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4))) == {}


def test_functions_of_a_field_are_among_them() -> None:
    method = ud.Accelerated(ud.FedAvg(lr=0.1, rule=Halves()))
    assert set(functions_of(method)) == {"Halves.__call__", "Halves.init", "Halves.__repr__"}


def test_a_function_without_a_source_goes_by_its_instructions() -> None:
    assert set(typed(2)) == {"Mine.update"}
    assert typed(2) == typed(2)
    assert typed(2) != typed(3)
