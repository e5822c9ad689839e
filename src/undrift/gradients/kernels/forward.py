"""Losses and hits of many models by the forward half of a kernel, without anything kept for later.

The library is one of its own, so that the bits of gradients do not depend on it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.builder import library
from undrift.gradients.kernels.emitter import PARTS, layer_parts, rows_source
from undrift.gradients.kernels.images import ImageCode
from undrift.gradients.kernels.layers import Chain, Drop, UnsupportedError
from undrift.gradients.kernels.rows import RowCode
from undrift.gradients.kernels.stages import stages_of
from undrift.gradients.task import Task
from undrift.models.layout import eval_mode

CLOSE = 1e-4  # largest distance from torch's losses, as a share of the largest of them
_NO_MEMORY = 2  # what the function returns if it cannot allocate

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
_ARGUMENTS: list[Any] = [_POINTER, _LONG, *[_POINTER] * 5, _LONG, _LONG, ctypes.c_int]

_FORWARD = """
namespace {{
{types}
struct alignas(64) Block {{
{block}
}};
struct alignas(64) Fixed {{
{fixed}
}};
using Loss = {loss}<{outputs}>;
constexpr long PIECE = 128;  // samples that a core takes at a time

struct Given {{
  const float* inputs;
  const Loss::Target* targets;
  const std::int64_t* index;
  long first;
  INLINE long at(long i) const {{ return index ? index[first + i] : first + i; }}
  INLINE const Loss::Target* operator()(long i) const {{ return targets + at(i) * Loss::TARGETS; }}
}};

struct Memory {{
  Fixed fixed;
  Block block;
  const float* inputs[PIECE];
  float rows[PIECE * {width}];
}};

int score(const float* x, Given given, long n, float* losses, std::uint8_t* hits, Memory& memory) {{
  const float** inputs = memory.inputs;
  for (long i = 0; i < n; ++i) inputs[i] = given.inputs + given.at(i) * {features};
  constexpr long batch = PIECE;
  float* rows = memory.rows;
  {names}
  Fixed& f = memory.fixed;
  (void)f;
  {packed}
  {blocks_forward}
  {rows_forward}
  return {loss}Values<{outputs}>::of({last}, given, n, losses, hits);
}}
}}  // namespace

// Losses of models, the rows of x, `stride` apart: (models, samples), each model on the samples of
// its row of the index, or all models on the same. 0 if all went well, 1 for a label that is none,
// 2 without memory, 3 for a loss that is not finite.
extern "C" int undrift_losses(
    const float* x, long stride, float* losses, std::uint8_t* hits, const float* inputs,
    const void* targets, const std::int64_t* index, long models, long samples, int threads) {{
  std::atomic<int> result{{0}};
  const long pieces = (samples + PIECE - 1) / PIECE;
  // Waking somebody takes as long as this many products.
  if ((double)models * samples * {products} < 1e6) threads = 1;
  Workers::share(models * pieces, threads, [&](long job) {{
    thread_local Room room;
    char* at = room.of(sizeof(Memory));
    if (!at) {{
      result = 2;
      return;
    }}
    const long model = job / pieces, first = job % pieces * PIECE, to = model * samples + first;
    const long n = samples - first < PIECE ? samples - first : PIECE;
    const std::int64_t* own = index ? index + model * samples : nullptr;
    const Given given{{inputs, (const Loss::Target*)targets, own, first}};
    const int made = score(x + model * stride, given, n, losses + to, hits + to, *(Memory*)at);
    if (made) result = made;
  }});
  return result;
}}
"""


class SampleScores(NamedTuple):
    """Holds the losses of models on samples, and which labels they hit."""

    losses: Tensor  # (models, samples)
    hits: Tensor | None  # likewise, of 0 and 1; None where targets are not labels


@dataclass(frozen=True)
class ForwardKernel:
    """Computes losses by a compiled function, all models of a call spread over the cores."""

    chain: Chain  # without dropout
    function: Callable[..., int]

    def __call__(
        self, x: Tensor, inputs: Tensor, targets: Tensor, index: Tensor | None, threads: int
    ) -> SampleScores | None:
        """Return the scores of the models in the rows of x, or None if torch must make them.

        Each model sees the samples of its row of `index`, or all of them. Torch must where samples
        do not fit the kernel, where a label is none, and where a loss is not finite.
        """
        chain = self.chain
        typed = torch.int64 if chain.labels else torch.float32
        shape = () if chain.labels else (chain.outputs,)
        if (
            inputs.shape[1:] != chain.inputs
            or targets.shape[1:] != shape
            or targets.is_floating_point() == chain.labels
            or not x.dtype == inputs.dtype == torch.float32
        ):
            return None
        x = x if x.stride(1) == 1 else x.contiguous()
        inputs, targets = inputs.contiguous(), targets.to(typed).contiguous()
        index = None if index is None else index.contiguous()
        models, samples = len(x), len(targets) if index is None else index.shape[1]
        losses = torch.empty(models, samples)
        hits = torch.empty(models, samples, dtype=torch.uint8)
        result = self.function(
            x.data_ptr(),
            x.stride(0),
            losses.data_ptr(),
            hits.data_ptr(),
            inputs.data_ptr(),
            targets.data_ptr(),
            None if index is None else index.data_ptr(),
            models,
            samples,
            threads,
        )
        if result == _NO_MEMORY:
            raise MemoryError("A kernel of losses needs memory for some samples, got none.")
        return None if result else SampleScores(losses, hits if chain.labels else None)


def build_forward(chain: Chain) -> ForwardKernel:
    """Return the compiled forward half of a chain's kernel, or raise `UnsupportedError`."""
    plain = replace(chain, layers=tuple(e for e in chain.layers if not isinstance(e, Drop)))
    function = library(emit_forward(plain)).undrift_losses
    function.argtypes, function.restype = _ARGUMENTS, ctypes.c_int
    return ForwardKernel(plain, function)


def check_forward(kernel: ForwardKernel, task: Task, inputs: Tensor, targets: Tensor) -> None:
    """Raise `UnsupportedError` if the losses on these samples differ from torch's."""
    x = task.layout.gather(task.model)
    found = kernel(x[None], inputs, targets, None, 1)
    if found is None:
        return  # Torch makes such losses anyway.
    with eval_mode(task.model), torch.no_grad():
        expected = float(task.loss(task.forward(x, inputs), targets))
    away = abs(float(found.losses.double().mean()) - expected)
    if math.isfinite(expected) and not away <= CLOSE * max(1.0, float(found.losses.abs().max())):
        raise UnsupportedError(f"a loss that differs from torch's by {away:.1e}")


def emit_forward(chain: Chain) -> str:
    """Return the source of a library with the one function `undrift_losses`."""
    before, flat = layer_parts(chain)
    images = ImageCode(stages_of(before))
    width = math.prod(before[-1].out if before else chain.inputs)
    rows = RowCode(flat, rows_source(before, width), images.learns)
    if before:
        rows.keep_first(width)
    program = _FORWARD.format(
        types="\n".join(images.types),
        block="\n".join(images.block or ["char nothing;"]),
        fixed="\n".join(images.fixed or ["char nothing;"]),
        loss=chain.loss,
        outputs=chain.outputs,
        width=rows.width,
        features=math.prod(chain.inputs),
        products=chain.products,
        names="\n  ".join(rows.names),
        packed="\n  ".join(images.packed),
        blocks_forward="\n  ".join(_through_blocks(chain, images, width) if before else []),
        rows_forward="\n  ".join(rows.forward),
        last=f"r{len(flat)}",
    )
    here = files("undrift.gradients.kernels")
    parts = (here.joinpath(part).read_text(encoding="utf-8") for part in (*PARTS, "scores.hpp"))
    return "".join(parts) + program


def _through_blocks(chain: Chain, images: ImageCode, width: int) -> list[str]:
    """Return the C++ that takes images through their stages, all in the memory of one block."""
    return [
        "for (long b = 0; b * V < n; ++b) {",
        "Block& s = memory.block;",
        "const ivec mask = lanes_of(b, n);",
        f"into_lanes<{chain.inputs[0]}, P0>(Pointed{{inputs}}, b, n, s.a0);",
        *images.forward,
        f"lanes_to_rows<{width}>(s.a{len(images.stages)}, b, n, r0);",
        "}",
    ]
