"""One pass over long vectors in compiled code: reads what is given, writes what is wanted.

It is written from the same record of a step as the loops around a kernel (`gradients.loops`) and
rounds as torch does. Short vectors, other types than float32 and machines without a compiler are
left to torch's own operations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from undrift.builder import library
from undrift.errors import UnsupportedError
from undrift.gradients.loops.emit import EXPRESSIONS
from undrift.gradients.loops.run import FLAGS
from undrift.gradients.loops.traced import Node

LEAST = 2**20  # coordinates from which on a compilation pays

_PASS = """
extern "C" void undrift_pass(const float* const* given, float* const* wanted, const float* single,
                             const std::int64_t* lengths, long blocks, int threads) {{
  Workers::share(blocks, threads, [&](long b) {{
    const float* const* in = given + {given} * b;
    float* const* out = wanted + {wanted} * b;
    const long length = lengths[b];
    (void)in;
    (void)single;
    {names}
    #pragma GCC ivdep
    for (long d = 0; d < length; ++d) {{
      {lines}
    }}
  }});
}}
"""

Blocks = Sequence[Sequence[Tensor]]
Pass = Callable[[Blocks, Blocks, Iterable[Any], Sequence[int]], None]


def compiled_pass(
    nodes: Sequence[Node],
    given: tuple[int, ...],
    made: tuple[int, ...],
    single: tuple[int, ...],
    wanted: tuple[int, ...],
    like: Tensor,
) -> Pass | None:
    """Return the pass that makes the nodes `wanted` of what is given, or None.

    It is called with the blocks of what is given and of where results go, with the single numbers,
    and with the blocks' lengths.
    """
    if len(like) < LEAST or like.dtype != torch.float32 or like.device.type != "cpu":
        return None
    function = _function(_source(nodes, given, made, single, wanted))
    if function is None:
        return None

    def run(memory: Blocks, into: Blocks, numbers: Iterable[Any], lengths: Sequence[int]) -> None:
        count = len(lengths)
        kept = [[block.contiguous() for block in blocks] for blocks in memory]
        function(
            _pointers([blocks[b] for b in range(count) for blocks in kept]),
            _pointers([blocks[b] for b in range(count) for blocks in into]),
            (ctypes.c_float * max(1, len(single)))(*map(float, numbers)),
            (ctypes.c_int64 * count)(*lengths),
            count,
            torch.get_num_threads(),
        )

    return run


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(tensor.data_ptr() for tensor in tensors))


def _source(
    nodes: Sequence[Node],
    given: Sequence[int],
    made: Sequence[int],
    single: Sequence[int],
    wanted: Sequence[int],
) -> str:
    names = [f"const float* const g{i} = in[{place}];" for place, i in enumerate(given)]
    names += [f"const float v{i} = single[{place}];" for place, i in enumerate(single)]
    names += [f"float* const o{place} = out[{place}];" for place in range(len(wanted))]
    lines = [f"const float v{i} = g{i}[d];" for i in given]
    for i in made:
        value = EXPRESSIONS[nodes[i].op].format(*(f"v{a}" for a in nodes[i].args))
        lines.append(f"const {'bool' if nodes[i].condition else 'float'} v{i} = {value};")
    lines += [f"o{place}[d] = v{i};" for place, i in enumerate(wanted)]
    program = _PASS.format(
        given=len(given),
        wanted=len(wanted),
        names="\n    ".join(names),
        lines="\n      ".join(lines),
    )
    kernels, loops = files("undrift.gradients.kernels"), files("undrift.gradients.loops")
    sources = [kernels / "vectors.hpp", kernels / "workers.hpp", loops / "loops.hpp"]
    return "".join(part.read_text(encoding="utf-8") for part in sources) + program


@cache
def _function(source: str) -> Callable[..., None] | None:
    try:
        function = library(source, *FLAGS).undrift_pass
    except UnsupportedError:
        return None
    pointers = [ctypes.c_void_p] * 4
    function.argtypes, function.restype = [*pointers, ctypes.c_long, ctypes.c_int], None
    return function
