// Products of planes, in tiles of sums that stay in registers: the rows are tiles of an image or
// channels, the columns one panel of channels.

namespace {

// Sums of ROWS rows and PANELS panels at a time stay in registers; transposed, the rows are of a panel.
#if defined(__AVX512F__)
constexpr int ROWS = 12, TRANSPOSED_ROWS = 8, PANELS = 2;
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int ROWS = 6, TRANSPOSED_ROWS = 6, PANELS = 1;
#else
constexpr int ROWS = 2, TRANSPOSED_ROWS = 2, PANELS = 1;
#endif
constexpr long INNER = 256;  // channels that are summed at a time, so that their weights fit L1

// Where the numbers of neighbours are: of rows and terms, and of the blocks that terms come in.
struct Steps {
  long row, term, block;
};

// c (C, R, P) = or += sum over blocks and k < inner of a[block, r, k] b[C, block, k, P], where panels
// of b and c are so far apart. Adding a sum that began at zero rounds less than going on from c.
template <int R, int C>
INLINE void sums(const float* a, const Steps& step, long blocks, long inner, const float* b,
                 long b_panel, float* c, long c_panel, bool add) {
  constexpr int N = P / V;
  vec total[R][C * N] = {};
  for (long i = 0; i < blocks; ++i, a += step.block) {
    _Pragma("GCC unroll 4") for (long k = 0; k < inner; ++k, b += P) {
      vec columns[C * N];
      UNROLL for (int j = 0; j < C * N; ++j) columns[j] = load(b + j / N * b_panel + j % N * V);
      _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r) {
        const vec one = all(a[r * step.row + k * step.term]);
        UNROLL for (int j = 0; j < C * N; ++j) total[r][j] += one * columns[j];
      }
    }
  }
  _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r)
    UNROLL for (int j = 0; j < C * N; ++j) {
      float* to = c + r * P + j / N * c_panel + j % N * V;
      store(to, add ? load(to) + total[r][j] : total[r][j]);
    }
}

// Calls f(start, constant number) for pieces of Size and, at the end, of half of it and so on. A piece
// of every size would take the compiler several times as long.
template <int Size, class F>
INLINE void in_halves_of(long first, long last, F&& f) {
  for (; first + Size <= last; first += Size) f(first, Constant<Size>());
  if constexpr (Size > 1)
    if (first < last) in_halves_of<(Size > 3 ? Size / 2 : Size - 1)>(first, last, f);
}

// m (columns / P, tiles, P) = or += v u, with v (inner / P, tiles, P) and u (columns / P, inner, P),
// for some panels of columns.
inline void multiply(const float* v, const float* u, float* m, long tiles, long inner,
                     long first_panel, long last_panel, bool add) {
  for (long k = 0; k < inner; k += INNER) {
    const long blocks = (inner - k < INNER ? inner - k : INNER) / P;
    in_halves_of<PANELS>(first_panel, last_panel, [&](long j, auto panels) {
      in_halves_of<ROWS>(0, tiles, [&](long t, auto rows) {
        sums<decltype(rows)::value, decltype(panels)::value>(
            v + (k / P * tiles + t) * P, {P, 1, tiles * P}, blocks, P, u + (j * inner + k) * P,
            inner * P, m + (j * tiles + t) * P, tiles * P, add || k);
      });
    });
  }
}

// slopes (in / P, out, P) = or += the product of w (out / P, tiles, P), transposed, and
// v (in / P, tiles, P), for some panels of inputs.
inline void multiply_transposed(const float* w, const float* v, float* slopes, long tiles, long out,
                                long first_panel, long last_panel, bool add) {
  in_halves_of<PANELS>(first_panel, last_panel, [&](long i, auto panels) {
    for (long o = 0; o < out; o += P)
      in_pieces<P, TRANSPOSED_ROWS>([&](long r, auto rows) {
        sums<decltype(rows)::value, decltype(panels)::value>(
            w + o * tiles + r, {1, P, 0}, 1, tiles, v + i * tiles * P, tiles * P,
            slopes + (i * out + o + r) * P, out * P, add);
      });
  });
}

}  // namespace
