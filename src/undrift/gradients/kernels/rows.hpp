// Layers of rows, and the losses.

namespace {

struct Pointed {  // the rows of a minibatch, wherever they are
  const float* const* rows;
  INLINE const float* operator()(long i) const { return rows[i]; }
};

struct Packed {  // rows one after the other
  const float* rows;
  long stride;
  INLINE const float* operator()(long i) const { return rows + i * stride; }
};

// out(r)[i] = sum over k < K of a(k, r) b(k)[i], for r < R and i < I.
template <int I, int N, int R, class A, class B, class Out>
INLINE void combine_tile(long r, long K, int i, A a, B b, Out out) {
  constexpr bool whole = N > 0;
  constexpr int M = whole ? N : 1;
  vec total[R][M] = {};
  for (long k = 0; k < K; ++k) {
    const float* from = b(k) + i;
    vec x[M];
    for (int m = 0; m < M; ++m) x[m] = whole ? load(from + m * V) : load_some<I % V>(from);
    for (int j = 0; j < R; ++j) {
      const float weight = a(k, r + j);
      for (int m = 0; m < M; ++m) total[j][m] += weight * x[m];
    }
  }
  for (int j = 0; j < R; ++j)
    for (int m = 0; m < M; ++m) {
      float* to = out(r + j) + i + m * V;
      if (whole) store(to, total[j][m]);
      else store_some<I % V>(to, total[j][m]);
    }
}

// `About` is R where it is known, and otherwise a number like it.
template <int I, int About, class A, class B, class Out>
INLINE void combine(long R, long K, A a, B b, Out out) {
  constexpr Tile T = tile_for(About, I / V > 0 ? I / V : 1);
  in_pieces<I / V, T.columns>([&](int i, auto vectors) {
    in_pieces_of<T.rows>(R, [&](long r, auto rows) {
      combine_tile<I, decltype(vectors)::value, decltype(rows)::value>(r, K, i * V, a, b, out);
    });
  });
  if constexpr (I % V != 0)
    in_pieces_of<T.rows>(R, [&](long r, auto rows) {
      combine_tile<I, 0, decltype(rows)::value>(r, K, I - I % V, a, b, out);
    });
}

template <int I, int O>
struct Linear {
  static constexpr Tile T = tile_for(64, O);  // samples x outputs

  template <int S, int N, class Rows>
  static INLINE void tile(Rows x, long s, const float* w, const float* bias, float* out) {
    vec total[S][N] = {};
    const float* row[S];
    for (int i = 0; i < S; ++i) row[i] = x(s + i);
    for (int at = 0; at + V <= I; at += V) {
      vec weight[N];
      for (int o = 0; o < N; ++o) weight[o] = load(w + o * I + at);
      for (int i = 0; i < S; ++i) {
        const vec value = load(row[i] + at);
        for (int o = 0; o < N; ++o) total[i][o] += value * weight[o];
      }
    }
    if constexpr (I % V != 0)
      for (int i = 0; i < S; ++i)
        for (int o = 0; o < N; ++o)
          total[i][o] += load_some<I % V>(row[i] + I - I % V) * load_some<I % V>(w + o * I + I - I % V);
    for (int i = 0; i < S; ++i)
      for (int o = 0; o < N; ++o) out[(s + i) * O + o] = sum(total[i][o]) + (bias ? bias[o] : 0.0f);
  }

  template <class Rows>
  static void forward(Rows x, long n, const float* w, const float* bias, float* out) {
    // A few rows stay in the cache while all weights pass by.
    in_pieces_of<T.rows>(n, [&](long s, auto samples) {
      in_pieces<O, T.columns>([&](int o, auto outputs) {
        tile<decltype(samples)::value, decltype(outputs)::value>(x, s, w + o * I,
                                                                 bias ? bias + o : nullptr, out + o);
      });
    });
  }

  template <class Rows>
  static void to_weights(Rows x, const float* d, long n, float* weights, float* biases) {
    combine<I, O>(O, n, [=](long s, long o) { return d[s * O + o]; }, x,
               [=](long o) { return weights + o * I; });
    if (!biases) return;
    for (int o = 0; o < O; ++o) biases[o] = 0.0f;
    for (long s = 0; s < n; ++s)
      for (int o = 0; o < O; ++o) biases[o] += d[s * O + o];
  }

  static void to_input(const float* d, long n, const float* w, float* back) {
    combine<I, 64>(n, O, [=](long o, long s) { return d[s * O + o]; },
               [=](long o) { return w + o * I; }, [=](long s) { return back + s * I; });
  }
};

// out = f(numbers) over any count of them.
template <class F>
INLINE void each(long count, F&& f) {
  long i = 0;
  for (; i + V <= count; i += V) f(i, Constant<V>());
  for (; i < count; ++i) f(i, Constant<1>());
}

template <int N>
INLINE vec load_n(const float* at) {
  return N == V ? load(at) : load_some<1>(at);
}

template <int N>
INLINE void store_n(float* at, vec value) {
  if (N == V) store(at, value);
  else store_some<1>(at, value);
}

template <class Act>
void activate(const float* in, long count, float* out) {
  each(count, [=](long i, auto n) { store_n<n.value>(out + i, Act::value(load_n<n.value>(in + i))); });
}

template <class Act>
void deactivate(const float* out, long count, float* d) {
  each(count, [=](long i, auto n) {
    store_n<n.value>(d + i, Act::slope(load_n<n.value>(out + i), load_n<n.value>(d + i)));
  });
}

bool finite(const float* in, long count) {
  vec total = {};
  each(count, [&](long i, auto n) { total += load_n<n.value>(in + i) * 0.0f; });
  return sum(total) == 0.0f;  // 0 times what is not finite is NaN
}

INLINE void multiply(const float* by, const float* in, long count, float* out) {
  for (long i = 0; i < count; ++i) out[i] = by[i] * in[i];
}

// ------------------------------------------------------------------------------- losses

// Each turns outputs (n, O) into the slope of the mean loss, or says that it cannot.
template <int O>
struct CrossEntropy {
  using Target = std::int64_t;
  static constexpr int TARGETS = 1;
  template <class Targets>
  static bool slope(float* z, Targets target, long n) {
    const float share = 1.0f / (float)n;
    for (long s = 0; s < n; ++s) {
      const Target label = *target(s);
      if (label < 0 || label >= O) return false;
      float* row = z + s * O;
      float top = row[0], total = 0.0f;
      for (int o = 1; o < O; ++o) top = row[o] > top || row[o] != row[o] ? row[o] : top;
      each(O, [=](long i, auto m) {
        store_n<m.value>(row + i, exponential(load_n<m.value>(row + i) - top));
      });
      for (int o = 0; o < O; ++o) total += row[o];
      const float by = share / total;
      for (int o = 0; o < O; ++o) row[o] *= by;
      row[label] -= share;
    }
    return true;
  }
};

template <int O>
struct BinaryLogistic {
  using Target = float;
  static constexpr int TARGETS = O;
  template <class Targets>
  static bool slope(float* z, Targets target, long n) {
    const float share = 1.0f / (float)(n * O);
    activate<Sigmoid>(z, n * O, z);
    for (long s = 0; s < n; ++s)
      for (int o = 0; o < O; ++o) z[s * O + o] = (z[s * O + o] - target(s)[o]) * share;
    return true;
  }
};

template <int O>
struct Squared {
  using Target = float;
  static constexpr int TARGETS = O;
  template <class Targets>
  static bool slope(float* z, Targets target, long n) {
    const float share = 2.0f / (float)(n * O);
    for (long s = 0; s < n; ++s)
      for (int o = 0; o < O; ++o) z[s * O + o] = (z[s * O + o] - target(s)[o]) * share;
    return true;
  }
};

}  // namespace
