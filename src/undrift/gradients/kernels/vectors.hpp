// The vectors that kernels are made of, functions of them, keyed masks, and tiles of sums.
//
// Two layouts of a minibatch occur:
//
//   lanes  images: V samples at a time, each number of the image a vector with a sample per lane,
//          so that convolutions and poolings are the same for every image size and waste nothing;
//   rows   everything flat: a row of numbers per sample, vectors along the row.
//
// Shapes are template arguments. Arithmetic is plain IEEE float32, so NaN and Inf go where they
// should; the order of summation does not depend on threads. Lanes beyond the last sample hold 0.

#include <cstdint>
#include <cstring>
#include <limits>

namespace {

#if defined(__AVX512F__)
constexpr int V = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int V = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int V = 4, REGISTERS = 32;
#else
constexpr int V = 4, REGISTERS = 16;
#endif

typedef float vec __attribute__((vector_size(4 * V)));
typedef float loose __attribute__((vector_size(4 * V), aligned(4), may_alias));  // anywhere
typedef std::int32_t ivec __attribute__((vector_size(4 * V)));
typedef std::int8_t bytes __attribute__((vector_size(V), aligned(1), may_alias));

#define INLINE inline __attribute__((always_inline))

INLINE vec all(float value) { return value - vec{}; }
INLINE vec load(const float* at) { return *reinterpret_cast<const loose*>(at); }
INLINE void store(float* at, vec value) { *reinterpret_cast<loose*>(at) = value; }
INLINE vec where(ivec condition, vec yes, vec no) { return condition ? yes : no; }
INLINE vec masked(vec value, ivec mask) { return (vec)((ivec)value & mask); }

template <int N>
INLINE vec load_some(const float* at) {
  vec value = {};
  std::memcpy(&value, at, 4 * N);
  return value;
}

template <int N>
INLINE void store_some(float* at, vec value) {
  std::memcpy(at, &value, 4 * N);
}

INLINE float sum(vec value) {
  float half[V];
  std::memcpy(half, &value, sizeof half);
  for (int width = V / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) half[i] += half[i + width];
  return half[0];
}

// The lanes of block b that hold one of n samples.
INLINE ivec lanes_of(long b, long n) {
  ivec mask;
  for (int i = 0; i < V; ++i) mask[i] = b * V + i < n ? -1 : 0;
  return mask;
}

// ------------------------------------------------------------------------------- functions

INLINE vec exponential(vec x) {
  const ivec above = x > 88.72284f, below = x < -87.33654f;
  vec in = where(above, all(88.0f), where(below, all(-87.0f), x));
  vec shifted = in * 1.44269504f + 12582912.0f;  // the nearest whole number, in the low bits
  vec n = shifted - 12582912.0f;
  vec r = in - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  vec power = (vec)(((ivec)shifted + (127 - 0x4B400000)) << 23);
  // At the upper end 2^n itself would overflow; one factor of 2 comes last.
  vec value = p * (vec)((ivec)power - (1 << 23)) * 2.0f;
  value = where(below, all(0.0f), value);
  return where(above, all(std::numeric_limits<float>::infinity()), value);
}

INLINE vec logistic(vec x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vec hyperbolic(vec x) {
  vec size = where(x < 0.0f, -x, x), z = x * x;
  vec p = all(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  vec small = p * z * x + x;
  vec large = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
  large = where(x < 0.0f, -large, large);
  return where(size < 0.625f, small, large);
}

// An activation's value, and from its output and the slope there the slope at its input.
struct Same {
  static INLINE vec value(vec x) { return x; }
  static INLINE vec slope(vec, vec d) { return d; }
};
struct Relu {  // NaN stays NaN, and lets slopes pass, as in torch
  static INLINE vec value(vec x) { return where(x < 0.0f, vec{}, x); }
  static INLINE vec slope(vec y, vec d) { return where(y <= 0.0f, vec{}, d); }
};
struct Tanh {
  static INLINE vec value(vec x) { return hyperbolic(x); }
  static INLINE vec slope(vec y, vec d) { return d * (1.0f - y * y); }
};
struct Sigmoid {
  static INLINE vec value(vec x) { return logistic(x); }
  static INLINE vec slope(vec y, vec d) { return d * ((1.0f - y) * y); }
};

// ------------------------------------------------------------------------------- dropout

constexpr std::uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

INLINE std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

INLINE std::uint64_t folded(std::uint64_t key, std::uint64_t counter) {
  return mixed(key + (counter + 1) * GOLDEN);
}

// What one number is multiplied by: 0, or `scale` with probability 1 - p.
INLINE float kept(std::uint64_t key, std::uint64_t counter, float p, float scale) {
  float draw = (float)((mixed(key + counter * GOLDEN) >> 40) & 0xFFFFFF) * 0x1p-24f;
  return draw >= p ? scale : 0.0f;
}

// For C numbers of each sample of a block, (C, V).
template <int C>
void masks_in_lanes(std::uint64_t key, long b, float p, float scale, vec* out) {
  for (int c = 0; c < C; ++c)
    for (int lane = 0; lane < V; ++lane)
      out[c][lane] = kept(key, (std::uint64_t)(b * V + lane) * C + c, p, scale);
}

INLINE void masks_in_rows(std::uint64_t key, long numbers, float p, float scale, float* out) {
  for (long i = 0; i < numbers; ++i) out[i] = kept(key, (std::uint64_t)i, p, scale);
}

// ------------------------------------------------------------------------------- tiles

struct Tile {
  int rows, columns;
};

// How to cut rows x columns of sums into tiles that stay in registers, with the vectors they are
// made of: two multiply-adds and two loads a cycle, and ten sums to hide their latency.
constexpr long cost(int rows, int columns) {
  long sums = rows * columns, loads = rows + columns;
  long least = sums > loads ? sums : loads;
  return rows == 0 || columns == 0 ? 0 : least > 10 ? least : 10;
}

constexpr Tile tile_for(int rows, int columns) {
  Tile best = {1, 1};
  long cheapest = std::numeric_limits<long>::max();
  for (int r = 1; r <= 8 && r <= rows; ++r)
    for (int c = 1; c <= 8 && c <= columns; ++c) {
      if (r * c + c + 1 > REGISTERS) continue;
      long full_rows = rows / r, full_columns = columns / c;
      long total = full_rows * full_columns * cost(r, c) + full_columns * cost(rows % r, c) +
                   full_rows * cost(r, columns % c) + cost(rows % r, columns % c);
      if (total < cheapest) {
        cheapest = total;
        best = {r, c};
      }
    }
  return best;
}

// Calls f(start, constant size) for pieces of `Size` and for the rest, which is smaller.
template <int N>
struct Constant {
  static constexpr int value = N;
};

template <int Total, int Size, class F>
INLINE void in_pieces(F&& f) {
  for (int start = 0; start + Size <= Total; start += Size) f(start, Constant<Size>());
  if constexpr (Total % Size != 0) f(Total - Total % Size, Constant<Total % Size>());
}

template <int Size, class F>
INLINE void in_pieces_of(long total, F&& f) {
  long start = 0;
  for (; start + Size <= total; start += Size) f(start, Constant<Size>());
  if constexpr (Size > 1)
    if (start < total) in_pieces_of<Size - 1>(total - start, [&](long from, auto size) {
        f(start + from, size);
      });
}

}  // namespace
