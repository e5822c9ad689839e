"""Topologies from the names that the command line takes."""

from __future__ import annotations

import math
from typing import TypeVar

from undrift.check import require_choice
from undrift.topology.graphs import (
    barabasi_albert,
    check_nodes,
    complete,
    erdos_renyi,
    exponential,
    grid,
    ring,
    small_world,
    star,
    torus,
)
from undrift.topology.matrix import Topology
from undrift.topology.mixing import MIXINGS

N = TypeVar("N", int, float)
_FORMS = {
    "ring": "ring",
    "torus": "torus or sides such as torus:4x5",
    "complete": "complete",
    "star": "star",
    "grid": "grid or sides such as grid:4x5",
    "erdos-renyi": "erdos-renyi or a probability such as erdos-renyi:0.3",
    "exponential": "exponential",
    "barabasi-albert": "barabasi-albert or its k such as barabasi-albert:2",
    "small-world": "small-world or its k and p such as small-world:4:0.1",
}


def near_square(m: int) -> tuple[int, int]:
    """Return (x, y) with x * y = m and x <= y as near to each other as m's divisors allow."""
    check_nodes("near_square", m)
    x = next(x for x in range(math.isqrt(m), 0, -1) if m % x == 0)
    return x, m // x


def parse(text: str, m: int, seed: int) -> Topology:
    """Return a topology of m nodes by its name: `ring`, `torus:4x5`, `star+metropolis`.

    Without arguments, sides are the most square ones, p = 0.5 for erdos-renyi, k = 2 for
    barabasi-albert, and k = 4, p = 0.1 for small-world, where a k too large for m is lowered.
    """
    body, plus, after = text.strip().partition("+")
    name, *arguments = body.split(":")
    require_choice("topology", "its name", name, _FORMS)
    mixing = after if plus else "laplacian"
    require_choice("topology", "its mixing", mixing, MIXINGS)

    malformed = ValueError(f"topology needs {_FORMS[name]}, got {text!r}.")

    def number(kind: type[N], argument: str) -> N:
        try:
            return kind(argument)
        except ValueError:
            raise malformed from None

    def sides() -> tuple[int, int]:
        if not arguments:
            return near_square(m)
        x, times, y = arguments[0].partition("x")
        if not times:
            raise malformed
        pair = number(int, x), number(int, y)
        if min(pair) < 1 or math.prod(pair) != m:
            raise ValueError(
                f"topology needs sides whose product is the number of clients, {m}, got "
                f"{arguments[0]}."
            )
        return pair

    match name, arguments:
        case "ring" | "complete" | "star" | "exponential", []:
            plain = {"ring": ring, "complete": complete, "star": star, "exponential": exponential}
            return plain[name](m, mixing=mixing)
        case "torus", [] | [_]:
            return torus(*sides(), mixing=mixing)
        case "grid", [] | [_]:
            return grid(*sides(), mixing=mixing)
        case "erdos-renyi", [] | [_]:
            chance = number(float, arguments[0]) if arguments else 0.5
            return erdos_renyi(m, chance, seed=seed, mixing=mixing)
        case "barabasi-albert", [] | [_]:
            k = number(int, arguments[0]) if arguments else min(2, m - 1)
            return barabasi_albert(m, k, seed=seed, mixing=mixing)
        case "small-world", [] | [_, _]:
            k = number(int, arguments[0]) if arguments else min(4, (m - 1) // 2 * 2)
            chance = number(float, arguments[1]) if arguments else 0.1
            return small_world(m, k, chance, seed=seed, mixing=mixing)
    raise malformed
