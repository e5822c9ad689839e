// Calls the convolutions of the source before it on random shapes and compares them with sums in
// double precision. Every array has just its size, so that a sanitizer sees an access beyond.
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

unsigned state = 1;

int below(int n) {
  state = state * 1664525u + 1013904223u;
  return (int)((state >> 8) % n);
}

std::vector<float> drawn(long size) {
  std::vector<float> values(size);
  for (float& value : values) value = (float)(below(2001) - 1000) / 1000;
  return values;
}

double distance(const std::vector<float>& a, const std::vector<double>& b) {
  double apart = 0, size = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(apart / size);
}

int stride_of(int scheme) { return scheme < 20 ? 1 : 2; }
int kernel_of(int scheme) { return scheme == 20 ? 1 : 3; }
long outputs(int scheme, long edge) { return (edge - 1) / stride_of(scheme) + 1; }

// Calls f(output, input, tap) for all places in arrays that are multiplied with each other.
template <class F>
void each_product(int scheme, long n, long h, long w, long in, long out, F&& f) {
  const long rows = outputs(scheme, h), columns = outputs(scheme, w);
  const int edge = kernel_of(scheme), stride = stride_of(scheme);
  for (long image = 0; image < n; ++image)
    for (long y = 0; y < rows; ++y)
      for (long x = 0; x < columns; ++x)
        for (int k = 0; k < edge * edge; ++k) {
          const long v = stride * y + k / edge - edge / 2, u = stride * x + k % edge - edge / 2;
          if (v < 0 || v >= h || u < 0 || u >= w) continue;
          for (long o = 0; o < out; ++o)
            for (long i = 0; i < in; ++i)
              f(((image * rows + y) * columns + x) * out + o, ((image * h + v) * w + u) * in + i,
                (o * in + i) * edge * edge + k);
        }
}

bool right(int scheme, long n, long h, long w, long in, long out, int threads, bool biased) {
  const int edge = kernel_of(scheme);
  const auto x = drawn(n * h * w * in), weights = drawn(out * in * edge * edge), bias = drawn(out);
  const auto dy = drawn(n * outputs(scheme, h) * outputs(scheme, w) * out);
  std::vector<float> y(dy.size()), dx(x.size()), dw(weights.size()), db(out);
  if (undrift_convolve(scheme, x.data(), weights.data(), biased ? bias.data() : nullptr, y.data(), n,
                       h, w, in, out, threads))
    return false;
  if (undrift_convolve_back(scheme, dy.data(), x.data(), weights.data(), dx.data(), dw.data(),
                            db.data(), n, h, w, in, out, threads))
    return false;
  std::vector<double> right_y(y.size()), right_dx(dx.size()), right_dw(dw.size()), right_db(out);
  for (std::size_t i = 0; i < y.size(); ++i) {
    right_y[i] = biased ? bias[i % out] : 0;
    right_db[i % out] += dy[i];
  }
  each_product(scheme, n, h, w, in, out, [&](long o, long i, long k) {
    right_y[o] += (double)x[i] * weights[k];
    right_dx[i] += (double)dy[o] * weights[k];
    right_dw[k] += (double)dy[o] * x[i];
  });
  const double apart[] = {distance(y, right_y), distance(dx, right_dx), distance(dw, right_dw),
                          distance(db, right_db)};
  for (double each : apart)
    if (!(each < 3e-6)) {
      std::printf("scheme %d, %ld images %ld x %ld, %ld to %ld channels, %d threads: %g\n", scheme,
                  n, h, w, in, out, threads, each);
      return false;
    }
  return true;
}

}  // namespace

int main() {
  for (int turn = 0; turn < 60; ++turn) {
    const bool small = turn % 3 == 0;
    const long n = 1 + below(5), h = 1 + below(small ? 2 : 13), w = 1 + below(small ? 2 : 13);
    const long in = 1 + below(40), out = 1 + below(40);
    for (int scheme : {1, 2, 4, 20, 21, 22})
      if ((scheme % 10 != 1 || small) && !right(scheme, n, h, w, in, out, 1 + below(3), turn % 2))
        return 1;
  }
  std::puts("right");
  return 0;
}
