"""Writes the C++ of a chain's gradient, with the parts in the headers beside this file."""

from __future__ import annotations

import math
from importlib.resources import files

from undrift.gradients.kernels.images import ImageCode
from undrift.gradients.kernels.layers import Chain, Flatten, Layer
from undrift.gradients.kernels.rows import RowCode
from undrift.gradients.kernels.stages import stages_of

PARTS = "vectors.hpp", "images.hpp", "rows.hpp", "workers.hpp"

_GRADIENT = """
namespace {{
{types}
struct alignas(64) Block {{
{block}
}};
struct alignas(64) Fixed {{
{fixed}
}};
using Loss = {loss}<{outputs}>;

struct Given {{  // a client's minibatch: samples one after the other, or picked out of a pool
  const float* inputs;
  const Loss::Target* targets;
  const std::int64_t* index;
  INLINE long at(long i) const {{ return index ? index[i] : i; }}
  INLINE const Loss::Target* operator()(long i) const {{ return targets + at(i) * Loss::TARGETS; }}
}};

// Memory for a minibatch of this size.
struct Memory {{
  Fixed* fixed;
  Block* blocks;
  float* rows;
  const float** inputs;
  static std::size_t size(long batch) {{
    return sizeof(Fixed) + (batch + V - 1) / V * sizeof(Block) + 4 * batch * {width} +
           sizeof(float*) * batch + 64;
  }}
  Memory(char* at, long batch) {{
    fixed = (Fixed*)at;
    blocks = (Block*)(at + sizeof(Fixed));
    inputs = (const float**)(blocks + (batch + V - 1) / V);
    rows = (float*)(inputs + batch);
  }}
}};

int gradient(const float* x, float* g, Given given, long n, long batch, std::uint64_t key,
             Memory memory) {{
  (void)key;
  const float** inputs = memory.inputs;
  for (long i = 0; i < n; ++i) inputs[i] = given.inputs + given.at(i) * {features};
  float* rows = memory.rows;
  {names}
  Fixed& f = *memory.fixed;
  (void)f;
  {before}
  {blocks_forward}
  {rows_forward}
  {copied}
  float* e = {slope};
  if (!Loss::slope(e, given, n)) return 1;
  {rows_backward}
  {blocks_backward}
  {after}
  return 0;
}}

// One client's gradient in this thread's memory; the results are those of `undrift_gradients`.
int checked_gradient(const float* x, float* g, Given given, long n, long batch, std::int64_t key) {{
  thread_local Room room;
  if (n == 0) {{
    std::memset(g, 0, sizeof(float) * {parameters});
    return 0;
  }}
  char* at = room.of(Memory::size(batch));
  if (!at) return 2;
  const int made = gradient(x, g, given, n, batch, (std::uint64_t)key, Memory(at, batch));
  return made ? made : finite(g, {parameters}) ? 0 : 3;
}}
}}  // namespace

// The gradient of one client on n samples of a pool, the first of a minibatch of `batch` samples.
extern "C" int undrift_gradient(
    const float* x, float* g, const float* inputs, const void* targets, const std::int64_t* index,
    long n, long batch, std::int64_t key) {{
  Given given{{inputs, (const Loss::Target*)targets, index}};
  return checked_gradient(x, g, given, n, batch, key);
}}

// Gradients of clients at the rows of x, `stride` apart, each on the first counts[i] of a minibatch
// of `batch` samples: 0 if all went well, 1 for a label that is none, 2 without memory, 3 for a
// gradient that is not finite.
extern "C" int undrift_gradients(
    const float* x, long stride, float* g, const float* inputs, const void* targets,
    const std::int64_t* index, const std::int64_t* counts, const std::int64_t* keys,
    long clients, long batch, int threads) {{
  std::atomic<int> result{{0}};
  // Waking somebody takes as long as this many products.
  if ((double)clients * batch * {products} < 1e6) threads = 1;
  Workers::share(clients, threads, [&](long i) {{
    Given given{{inputs, (const Loss::Target*)targets, index}};
    if (index) given.index += i * batch;
    else {{
      given.inputs += i * batch * {features};
      given.targets += i * batch * Loss::TARGETS;
    }}
    const long n = counts ? counts[i] : batch;
    const int made = checked_gradient(x + i * stride, g + i * {parameters}, given, n, batch,
                                      keys ? keys[i] : 0);
    if (made) result = made;
  }});
  return result;
}}
"""


def emit(chain: Chain) -> str:
    """Return the source of a library with `undrift_gradients`, and `undrift_gradient` of one."""
    before, flat = layer_parts(chain)
    images = ImageCode(stages_of(before))
    width = math.prod(before[-1].out if before else chain.inputs)
    rows = RowCode(flat, rows_source(before, width), images.learns)
    last = images.stages and f"{len(images.stages)}"
    through = _forward_through_blocks(chain, images, width) if last else []
    back = _back_through_blocks(images, width) if last and images.learns else []
    if before:
        rows.keep_first(width)
    program = _GRADIENT.format(
        types="\n".join(images.types),
        block="\n".join(images.block or ["char nothing;"]),
        fixed="\n".join(images.fixed or ["char nothing;"]),
        loss=chain.loss,
        outputs=chain.outputs,
        width=rows.width,
        features=math.prod(chain.inputs),
        parameters=chain.parameters,
        products=chain.products,
        names="\n  ".join(rows.names),
        before="\n  ".join(images.before),
        blocks_forward="\n  ".join(through),
        rows_forward="\n  ".join(rows.forward),
        copied=rows.copied,
        slope=rows.slope,
        rows_backward="\n  ".join(rows.backward),
        blocks_backward="\n  ".join(back),
        after="\n  ".join(images.after),
    )
    here = files("undrift.gradients.kernels")
    return "".join(here.joinpath(part).read_text(encoding="utf-8") for part in PARTS) + program


def layer_parts(chain: Chain) -> tuple[list[Layer], list[Layer]]:
    """Return the layers that work on images, in lanes, and those that work on rows."""
    layers = list(chain.layers)
    flat = [i for i, layer in enumerate(layers) if isinstance(layer, Flatten)]
    cut = flat[0] if flat and len(chain.inputs) == 3 else 0
    return layers[:cut], [layer for layer in layers[cut:] if not isinstance(layer, Flatten)]


def rows_source(before: list[Layer], width: int) -> str:
    """Return the C++ of the rows that the first flat layer sees."""
    return f"Packed{{r0, {width}}}" if before else "Pointed{inputs}"


_EACH_BLOCK = [
    "for (long b = 0; b * V < n; ++b) {",
    "Block& s = memory.blocks[b];",
    "const ivec mask = lanes_of(b, n);",
]


def _forward_through_blocks(chain: Chain, images: ImageCode, width: int) -> list[str]:
    channels = chain.inputs[0]
    return [
        *_EACH_BLOCK,
        f"into_lanes<{channels}, P0>(Pointed{{inputs}}, b, n, s.a0);",
        *images.forward,
        f"lanes_to_rows<{width}>(s.a{len(images.stages)}, b, n, r0);",
        "}",
    ]


def _back_through_blocks(images: ImageCode, width: int) -> list[str]:
    last = len(images.stages)
    channels = images.stages[-1].out[0]
    return [
        *_EACH_BLOCK,
        f"into_lanes<{channels}, P{last}>(Packed{{e, {width}}}, b, n, f.d{last});",
        *(line for stage in reversed(images.backward) for line in stage),
        "}",
    ]
