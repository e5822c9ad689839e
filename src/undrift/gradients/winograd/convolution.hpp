// Convolutions of 3 x 3 weights and a border of one zero, or of 1 x 1 weights: forward, and backward
// as the adjoint of what was computed forward.
//
// Every phase is shared by channels or planes, so that each number is made by one thread in an order
// that does not depend on how many there are.

namespace {

constexpr long BLOCK = 96;  // tiles at a time, whose planes fit a cache

enum Result { DONE = 0, NOT_FINITE = 1, NO_MEMORY = 2 };

// A thread's memory, which is kept for the next call and grows.
class Store {
 public:
  ~Store() { std::free(at_); }
  bool reserve(std::size_t floats) {
    used_ = 0;
    if (floats <= size_) return true;
    std::free(at_);
    at_ = (float*)std::aligned_alloc(64, floats * sizeof(float));
    size_ = at_ ? floats : 0;
    return at_;
  }
  float* take(long floats) {
    float* at = at_ + used_;
    used_ += rounded(floats);
    return at;
  }
  static std::size_t rounded(long floats) { return (std::size_t)(floats + 15) / 16 * 16; }

 private:
  float* at_ = nullptr;
  std::size_t size_ = 0, used_ = 0;
};

inline Store& own_store() {
  thread_local Store store;
  return store;
}

template <class S>
class Convolution {
 public:
  Convolution(long number, long height, long width, long in, long out, int threads)
      : x_{number, height, width, in},
        y_{number, (height - 1) / S::STRIDE + 1, (width - 1) / S::STRIDE + 1, out},
        threads_(threads) {
    rows_ = (y_.height + S::PIXELS - 1) / S::PIXELS;
    columns_ = (y_.width + S::PIXELS - 1) / S::PIXELS;
    tiles_ = number * rows_ * columns_;
    list_products();
  }

  int forward(const float* x, const float* weights, const float* bias, float* y) {
    const long block = tiles_ < BLOCK ? tiles_ : BLOCK;
    Store& store = own_store();
    const long sizes[] = {weights_size(), IN2 * plane_size(in(), block),
                          OUT2 * plane_size(out(), block), in(), out()};
    if (!reserve(store, sizes)) return NO_MEMORY;
    float *u = store.take(sizes[0]), *v = store.take(sizes[1]), *m = store.take(sizes[2]);
    float *zeros = store.take(sizes[3]), *sink = store.take(sizes[4]);
    std::memset(zeros, 0, sizeof(float) * in());
    transform_weights<true>(weights, u);
    std::atomic<bool> finite{true};
    for (long first = 0; first < tiles_; first += BLOCK) {
      const Tiles tiles = some(first);
      const long from = plane_size(in(), tiles.count), to = plane_size(out(), tiles.count);
      by_panels(in(), [&](long a, long b) { input_planes(x, tiles, zeros, v, from, a, b); });
      by_planes(OUT2, out(), [&](int plane, long a, long b) {
        bool add = false;
        for (int i = 0; i < number_; ++i) {
          const Product& p = products_[i];
          if (p.out != plane) continue;
          multiply(v + p.in * from, u + p.tap * weight_plane(), m + plane * to, tiles.count, in(),
                   a, b, add);
          add = true;
        }
        if (!add) clear(m + plane * to, tiles.count, a, b);
      });
      by_panels(out(), [&](long a, long b) {
        if (!from_planes<typename S::Output, S::OUT, S::PIXELS, false>(
                m, to, bias, y, y_, tiles, S::PIXELS, 0, sink, a, b))
          finite = false;
      });
    }
    return finite ? DONE : NOT_FINITE;
  }

  // Slopes that nobody wants are null.
  int backward(const float* dy, const float* x, const float* weights, float* dx, float* dweights,
               float* dbias) {
    const long block = tiles_ < BLOCK ? tiles_ : BLOCK, wide = in() > out() ? in() : out();
    Store& store = own_store();
    const long planes = IN2 * plane_size(in(), block);
    // A single block has done with the weights when it comes to their slopes, which are as many.
    const bool shared = dx && dweights && tiles_ <= BLOCK;
    const long sizes[] = {OUT2 * plane_size(out(), block), dx ? weights_size() : 0,
                          planes, dweights && !shared ? weights_size() : 0, wide, wide};
    if (!reserve(store, sizes)) return NO_MEMORY;
    float *w = store.take(sizes[0]), *u = store.take(sizes[1]), *v = store.take(sizes[2]);
    float *du = store.take(sizes[3]), *zeros = store.take(sizes[4]), *sink = store.take(sizes[5]);
    if (shared) du = u;
    std::memset(zeros, 0, sizeof(float) * wide);
    std::memset(sink, 0, sizeof(float) * wide);
    std::atomic<bool> finite{true};
    if (dx) {
      transform_weights<false>(weights, u);
      std::memset(dx, 0, sizeof(float) * x_.number * x_.height * x_.width * x_.channels);
    }
    for (long first = 0; first < tiles_ && (dx || dweights); first += BLOCK) {
      const Tiles tiles = some(first);
      const long from = plane_size(in(), tiles.count), to = plane_size(out(), tiles.count);
      by_panels(out(), [&](long a, long b) {
        into_planes<typename S::OutputBack, S::PIXELS, S::OUT>(dy, y_, tiles, S::PIXELS, 0, zeros, w,
                                                               to, a, b);
      });
      if (dx) {
        slopes_of_planes(w, to, u, v, from, tiles.count);
        by_panels(in(), [&](long a, long b) {
          if (!from_planes<typename S::InputBack, S::IN, S::READ, true>(
                  v, from, nullptr, dx, x_, tiles, S::PIXELS * S::STRIDE, S::BEFORE, sink, a, b))
            finite = false;
        });
      }
      if (dweights) {
        by_panels(in(), [&](long a, long b) { input_planes(x, tiles, zeros, v, from, a, b); });
        slopes_of_weights(w, to, v, from, du, tiles.count, first > 0);
      }
    }
    if (dweights)
      share(in() / P, [&](long panel) {
        if (!weights_from_planes<S>(du, weight_plane(), taps_, y_.channels, x_.channels, dweights,
                                    panel))
          finite = false;
      });
    if (dbias)
      by_panels(out(), [&](long a, long b) {
        if (!sum_of_pixels(dy, y_, dbias, a, b)) finite = false;
      });
    return finite ? DONE : NOT_FINITE;
  }

 private:
  static constexpr int IN2 = S::IN * S::IN, OUT2 = S::OUT * S::OUT, TAPS2 = S::TAPS * S::TAPS;

  // Products of two directions are pairs of those of a line.
  void list_products() {
    Product down[9], along[9];
    const int rows = S::line(x_.height, y_.height, down);
    const int columns = S::line(x_.width, y_.width, along);
    taps_.number = S::DIRECT ? 0 : TAPS2;
    for (int tap = 0; tap < TAPS2; ++tap) taps_.plane[tap] = S::DIRECT ? Taps::NOWHERE : tap;
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) {
        int& plane = taps_.plane[down[i].tap * S::TAPS + along[j].tap];
        if (plane == Taps::NOWHERE) plane = taps_.number++;
        products_[number_++] = {down[i].out * S::OUT + along[j].out,
                                down[i].in * S::IN + along[j].in, plane};
      }
  }

  long in() const { return padded(x_.channels); }
  long out() const { return padded(y_.channels); }
  long weight_plane() const { return in() * out() + GAP; }
  long weights_size() const { return taps_.number * weight_plane(); }
  static long plane_size(long channels, long tiles) { return channels * tiles + GAP; }

  Tiles some(long first) const {
    return {rows_, columns_, first, tiles_ - first < BLOCK ? tiles_ - first : BLOCK};
  }

  template <int N>
  static bool reserve(Store& store, const long (&sizes)[N]) {
    std::size_t floats = 0;
    for (long size : sizes) floats += Store::rounded(size);
    return store.reserve(floats);
  }

  template <class F>
  void share(long jobs, F&& job) const {
    Workers::share(jobs, threads_, job);
  }

  // Calls f(first, last) for ranges of panels, one a thread.
  template <class F>
  void by_panels(long channels, F&& f) const {
    const long panels = channels / P, parts = panels < threads_ ? panels : threads_;
    share(parts, [&](long i) { f(panels * i / parts, panels * (i + 1) / parts); });
  }

  // Calls f(plane, first, last) for all planes, and for parts of them where there are many threads.
  template <class F>
  void by_planes(int planes, long channels, F&& f) const {
    const long panels = channels / P, wanted = threads_ == 1 ? 1 : 4 * threads_ / planes + 1;
    const long parts = panels < wanted ? panels : wanted;
    share(planes * parts, [&](long job) {
      const long i = job % parts;
      f((int)(job / parts), panels * i / parts, panels * (i + 1) / parts);
    });
  }

  template <bool FORWARD>
  void transform_weights(const float* weights, float* u) const {
    share(out() / P, [&](long panel) {
      weights_into_planes<S, FORWARD>(weights, y_.channels, x_.channels, u, weight_plane(), taps_,
                                      panel);
    });
  }

  void input_planes(const float* x, const Tiles& tiles, const float* zeros, float* v, long plane,
                    long first, long last) const {
    into_planes<typename S::Input, S::READ, S::IN>(x, x_, tiles, S::PIXELS * S::STRIDE, S::BEFORE,
                                                   zeros, v, plane, first, last);
  }

  // A small image has planes without a product, which are zero.
  static void clear(float* plane, long rows, long first, long last) {
    std::memset(plane + first * P * rows, 0, sizeof(float) * (last - first) * P * rows);
  }

  void slopes_of_planes(const float* w, long to, const float* u, float* v, long from,
                        long tiles) const {
    by_planes(IN2, in(), [&](int plane, long a, long b) {
      bool add = false;
      for (int i = 0; i < number_; ++i) {
        const Product& p = products_[i];
        if (p.in != plane) continue;
        multiply(w + p.out * to, u + p.tap * weight_plane(), v + plane * from, tiles, out(), a, b,
                 add);
        add = true;
      }
      if (!add) clear(v + plane * from, tiles, a, b);
    });
  }

  void slopes_of_weights(const float* w, long to, const float* v, long from, float* du, long tiles,
                         bool later) const {
    by_planes(taps_.number, in(), [&](int plane, long a, long b) {
      float* own = du + plane * weight_plane();
      bool add = later;
      for (int i = 0; i < number_; ++i) {
        const Product& p = products_[i];
        if (p.tap != plane) continue;
        multiply_transposed(w + p.out * to, v + p.in * from, own, tiles, out(), a, b, add);
        add = true;
      }
    });
  }

  Images x_, y_;
  int threads_, number_ = 0;
  long rows_, columns_, tiles_;
  Product products_[36];
  Taps taps_;
};

// Calls f with the convolution of a scheme, which has the number that `library.py` gives it.
template <class F>
int by_scheme(int scheme, long number, long height, long width, long in, long out, int threads,
              F&& f) {
  if (scheme == 4) return f(Convolution<Four>(number, height, width, in, out, threads));
  if (scheme == 2) return f(Convolution<Two>(number, height, width, in, out, threads));
  if (scheme == 1) return f(Convolution<Direct>(number, height, width, in, out, threads));
  if (scheme == 22) return f(Convolution<TwoStrided>(number, height, width, in, out, threads));
  if (scheme == 21) return f(Convolution<DirectStrided>(number, height, width, in, out, threads));
  return f(Convolution<OneStrided>(number, height, width, in, out, threads));
}

}  // namespace

extern "C" int undrift_convolve(int scheme, const float* x, const float* weights, const float* bias,
                                float* y, long number, long height, long width, long in, long out,
                                int threads) {
  return by_scheme(scheme, number, height, width, in, out, threads,
                   [&](auto made) { return made.forward(x, weights, bias, y); });
}

extern "C" int undrift_convolve_back(int scheme, const float* dy, const float* x,
                                     const float* weights, float* dx, float* dweights, float* dbias,
                                     long number, long height, long width, long in, long out,
                                     int threads) {
  return by_scheme(scheme, number, height, width, in, out, threads, [&](auto made) {
    return made.backward(dy, x, weights, dx, dweights, dbias);
  });
}
