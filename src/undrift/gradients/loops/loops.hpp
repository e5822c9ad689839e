// What a compiled loop is made of: arithmetic that rounds as torch's does, a call's arguments, and
// the minibatches of a client. The library is compiled without contraction of products and sums.

#include <cmath>

namespace {

// torch adds a multiple with one rounding where the processor can.
INLINE float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

INLINE float lerp(float from, float to, float weight) {
  const bool small = std::fabs(weight) < 0.5f;
  return fused(small ? weight : weight - 1.0f, to - from, small ? from : to);
}

// A sum in each lane, then over the lanes, then over the rest, as torch sums and rounds it.
float norm(const float* in, long count) {
  alignas(64) float total[V] = {};
  long i = 0;
  for (; i + V <= count; i += V)
    for (int j = 0; j < V; ++j) total[j] += in[i + j] * in[i + j];
  for (int j = 1; j < V; ++j) total[0] += total[j];
  for (; i < count; ++i) total[0] = fused(in[i], in[i], total[0]);
  return std::sqrt(total[0]);
}

// One client's gradient by the kernel: 0 if all went well.
using Gradient = int (*)(const float* x, float* g, const float* inputs, const void* targets,
                         const std::int64_t* index, long n, long batch, std::int64_t key);

struct Call {
  Gradient gradient;
  float* const* carries;         // each (clients, size) or (clients,), changed in place
  const float* const* tensors;   // each with a row for every client, `strides` apart
  const std::int64_t* strides;
  const float* numbers;
  const float* inputs;           // the pool of samples
  const void* targets;
  const std::int64_t* index;     // (clients, steps, batch)
  const std::int64_t* counts;    // (clients, steps), samples in front of the padding
  const std::int64_t* keys;      // (clients, steps) or null
  const std::int64_t* lengths;   // (clients,), steps of each client
  std::int32_t* status;          // (clients,), what the last gradient returned
  std::int64_t clients, steps, batch, size, features;
  std::int64_t start;            // k of the first step of this call
  std::int64_t threads;

  int gradient_at(const float* x, float* g, long i, long k) const {
    const long at = i * steps + k;
    return gradient(x, g, inputs, targets, index + at * batch, counts[at], batch,
                    keys ? keys[at] : 0);
  }

  // Samples of the next step are fetched while this one is computed.
  void fetch(long i, long k) const {
    if (k >= lengths[i]) return;
    const long at = i * steps + k, bytes = 4 * features;
    for (long s = 0; s < counts[at] && s * bytes < 1 << 17; ++s) {
      const char* row = (const char*)(inputs + index[at * batch + s] * features);
      for (long byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte, 0, 2);
    }
  }
};

}  // namespace
