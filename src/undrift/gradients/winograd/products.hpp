// Products of planes, in tiles of sums that stay in registers: the rows are tiles of an image or
// channels, the columns one panel of channels.

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 16;
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int ROWS = 6;
#else
constexpr int ROWS = 2;
#endif
constexpr long INNER = 256;  // channels that are summed at a time, so that their weights fit L1

// c (R, P) = or += sum over blocks and k < inner of a[block, r, k] b[block, k, :]. Adding a sum that
// began at zero rounds less than going on from c.
template <int R>
INLINE void sums(const float* a, long row, long step, long block, long blocks, long inner,
                 const float* b, float* c, bool add) {
  constexpr int N = P / V;
  vec total[R][N] = {};
  for (long i = 0; i < blocks; ++i, a += block) {
    _Pragma("GCC unroll 4") for (long k = 0; k < inner; ++k, b += P) {
      vec columns[N];
      UNROLL for (int j = 0; j < N; ++j) columns[j] = load(b + j * V);
      _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r) {
        const vec one = all(a[r * row + k * step]);
        UNROLL for (int j = 0; j < N; ++j) total[r][j] += one * columns[j];
      }
    }
  }
  _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r)
    UNROLL for (int j = 0; j < N; ++j) {
      float* to = c + r * P + j * V;
      store(to, add ? load(to) + total[r][j] : total[r][j]);
    }
}

// m (columns / P, tiles, P) = or += v u, with v (inner / P, tiles, P) and u (columns / P, inner, P),
// for some panels of columns.
inline void multiply(const float* v, const float* u, float* m, long tiles, long inner,
                     long first_panel, long last_panel, bool add) {
  for (long k = 0; k < inner; k += INNER) {
    const long blocks = (inner - k < INNER ? inner - k : INNER) / P;
    for (long j = first_panel; j < last_panel; ++j)
      in_pieces_of<ROWS>(tiles, [&](long t, auto rows) {
        sums<decltype(rows)::value>(v + (k / P * tiles + t) * P, P, 1, tiles * P, blocks, P,
                                    u + (j * inner + k) * P, m + (j * tiles + t) * P, add || k);
      });
  }
}

// slopes (in / P, out, P) = or += the product of w (out / P, tiles, P), transposed, and
// v (in / P, tiles, P), for some panels of inputs.
inline void multiply_transposed(const float* w, const float* v, float* slopes, long tiles, long out,
                                long first_panel, long last_panel, bool add) {
  for (long i = first_panel; i < last_panel; ++i)
    for (long o = 0; o < out; o += P)
      in_pieces<P, ROWS>([&](long r, auto rows) {
        sums<decltype(rows)::value>(w + o * tiles + r, 1, P, 0, 1, tiles, v + i * tiles * P,
                                    slopes + (i * out + o + r) * P, add);
      });
}

}  // namespace
