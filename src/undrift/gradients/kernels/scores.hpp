// The value of each loss for each sample, and whether the largest output is the label's.

#include <cmath>

namespace {

INLINE bool is_finite(float value) { return value * 0.0f == 0.0f; }

// Each takes outputs (n, O), which it may overwrite. It returns 0, 1 for a label that is none, or 3
// for a value that is not finite.
template <int O>
struct CrossEntropyValues {
  template <class Targets>
  static int of(float* z, Targets target, long n, float* losses, std::uint8_t* hits) {
    for (long s = 0; s < n; ++s) {
      const std::int64_t label = *target(s);
      if (label < 0 || label >= O) return 1;
      float* row = z + s * O;
      int at = 0;  // the first of the largest, as in torch
      for (int o = 1; o < O; ++o) at = row[o] > row[at] ? o : at;
      const float top = row[at], own = row[label] - top;
      each(O, [=](long i, auto m) {
        store_n<m.value>(row + i, exponential(load_n<m.value>(row + i) - top));
      });
      float total = 0.0f;
      for (int o = 0; o < O; ++o) total += row[o];
      losses[s] = std::log(total) - own;
      if (!is_finite(losses[s])) return 3;
      hits[s] = at == label;
    }
    return 0;
  }
};

template <int O>
struct BinaryLogisticValues {
  template <class Targets>
  static int of(float* z, Targets target, long n, float* losses, std::uint8_t*) {
    for (long s = 0; s < n; ++s) {
      const float* row = z + s * O;
      float total = 0.0f;
      for (int o = 0; o < O; ++o) {
        const float positive = row[o] > 0.0f ? row[o] : 0.0f;
        const float away = row[o] < 0.0f ? row[o] : -row[o];
        total += positive - row[o] * target(s)[o] + std::log1p(std::exp(away));
      }
      losses[s] = total / O;
      if (!is_finite(losses[s])) return 3;
    }
    return 0;
  }
};

template <int O>
struct SquaredValues {
  template <class Targets>
  static int of(float* z, Targets target, long n, float* losses, std::uint8_t*) {
    for (long s = 0; s < n; ++s) {
      float total = 0.0f;
      for (int o = 0; o < O; ++o) {
        const float away = z[s * O + o] - target(s)[o];
        total += away * away;
      }
      losses[s] = total / O;
      if (!is_finite(losses[s])) return 3;
    }
    return 0;
  }
};

}  // namespace
