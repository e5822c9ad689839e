// Tiles of images to panels and back, and weights likewise.
//
// Images lie in memory as (images, height, width, channels). A plane holds one of the numbers of
// every tile, for all channels: (channels / P, tiles, P), the channels beyond the last being zero.

namespace {

constexpr int P = 16;  // channels of a panel
constexpr long GAP = 16;  // floats between planes, so that they do not compete for cache lines

INLINE long padded(long channels) { return (channels + P - 1) / P * P; }

struct Images {
  long number, height, width, channels;
};

// Some consecutive tiles of all images.
struct Tiles {
  long rows, columns, first, count;  // rows and columns of an image
};

// The lanes that hold a channel, of a vector that begins at channel c.
INLINE long lanes_at(long c, long channels) {
  return c + V <= channels ? V : c < channels ? channels - c : 0;
}

INLINE vec load_lanes(const float* at, long lanes) {
  vec value = {};
  std::memcpy(&value, at, 4 * lanes);
  return value;
}

// Watches values: `odd` stays zero while they are finite.
struct Watch {
  vec odd = {};
  INLINE void see(vec value) { odd += value - value; }
  INLINE bool finite() const { return sum(odd) == 0.0f; }
};

// Where the EDGE x EDGE pixels of a tile are; those outside of the image are at `outside`.
template <int EDGE, class Float>
INLINE void pixels_of(Float* data, const Images& images, const Tiles& tiles, long tile, int stride,
                      int before, Float* outside, Float* (&at)[EDGE][EDGE]) {
  const long place = tile % (tiles.rows * tiles.columns), image = tile / (tiles.rows * tiles.columns);
  const long top = place / tiles.columns * stride - before;
  const long left = place % tiles.columns * stride - before;
  for (int i = 0; i < EDGE; ++i)
    for (int j = 0; j < EDGE; ++j) {
      const long y = top + i, x = left + j;
      const bool inside = y >= 0 && y < images.height && x >= 0 && x < images.width;
      const long pixel = (image * images.height + y) * images.width + x;
      at[i][j] = inside ? data + pixel * images.channels : outside;
    }
}

// The pixels of a tile at V channels, of which some lanes hold none: copies with zeros there.
template <int EDGE>
struct Tail {
  alignas(64) float copies[EDGE][EDGE][V] = {};
  float* at[EDGE][EDGE];

  template <class Float>
  INLINE void read(Float* (&from)[EDGE][EDGE], long c, long lanes) {
    for (int i = 0; i < EDGE; ++i)
      for (int j = 0; j < EDGE; ++j) {
        at[i][j] = copies[i][j];
        std::memcpy(copies[i][j], from[i][j] + c, 4 * lanes);
      }
  }
  INLINE void write(float* (&to)[EDGE][EDGE], long c, long lanes) const {
    for (int i = 0; i < EDGE; ++i)
      for (int j = 0; j < EDGE; ++j) std::memcpy(to[i][j] + c, copies[i][j], 4 * lanes);
  }
};

// FROM x FROM pixels of each tile become TO x TO planes, for the channels of some panels.
template <class Line, int FROM, int TO>
void into_planes(const float* data, const Images& images, const Tiles& tiles, int stride, int before,
                 const float* zeros, float* planes, long plane, long first_panel, long last_panel) {
  Tail<FROM> tail;
  for (long t = 0; t < tiles.count; ++t) {
    const float* at[FROM][FROM];
    pixels_of(data, images, tiles, tiles.first + t, stride, before, zeros, at);
    for (long c = first_panel * P; c < last_panel * P; c += V) {
      const long lanes = lanes_at(c, images.channels), shift = lanes == V ? c : 0;
      if (lanes < V) tail.read(at, c, lanes);
      const float* const* from = lanes < V ? tail.at[0] : at[0];
      float* to = planes + (c / P * tiles.count + t) * P + c % P;
      square<Line, FROM, TO>(
          [&](int i, int j) { return load(from[i * FROM + j] + shift); },
          [&](int i, int j, vec value) { store(to + (i * TO + j) * plane, value); });
    }
  }
}

// FROM x FROM planes become TO x TO pixels of each tile, which are set to the value and a bias, or
// added to where tiles overlap. Returns whether all are finite.
template <class Line, int FROM, int TO, bool ADD>
bool from_planes(const float* planes, long plane, const float* bias, float* data,
                 const Images& images, const Tiles& tiles, int stride, int before, float* sink,
                 long first_panel, long last_panel) {
  Watch watch;
  Tail<TO> tail;
  for (long t = 0; t < tiles.count; ++t) {
    float* at[TO][TO];
    pixels_of(data, images, tiles, tiles.first + t, stride, before, sink, at);
    for (long c = first_panel * P; c < last_panel * P; c += V) {
      const long lanes = lanes_at(c, images.channels), shift = lanes == V ? c : 0;
      if (lanes < V) tail.read(at, c, lanes);
      float* const* to = lanes < V ? tail.at[0] : at[0];
      const float* from = planes + (c / P * tiles.count + t) * P + c % P;
      const vec shared = bias ? load_lanes(bias + c, lanes) : vec{};
      square<Line, FROM, TO>(
          [&](int i, int j) { return load(from + (i * FROM + j) * plane); },
          [&](int i, int j, vec value) {
            float* pixel = to[i * TO + j] + shift;
            value += ADD ? load(pixel) : shared;
            watch.see(value);
            store(pixel, value);
          });
      if (lanes < V) tail.write(at, c, lanes);
    }
  }
  return watch.finite();
}

// Where the weights of each tap are kept; those of a tap that no product needs are nowhere.
struct Taps {
  static constexpr int NOWHERE = -1;
  int number = 0, plane[36];
};

// Weights (out, in, K, K) become planes (lanes / P, others, P), for the outputs of one panel.
// Forward, outputs are the lanes and inputs the others; backward, it is the other way round.
template <class S, bool FORWARD>
void weights_into_planes(const float* weights, long out, long in, float* planes, long plane,
                         const Taps& at, long panel) {
  constexpr int K2 = S::KERNEL * S::KERNEL;
  alignas(64) float taps[P][K2][P];  // other, tap, lane
  const long others = padded(FORWARD ? in : out), a = panel * P;
  for (long b = 0; b < in; b += P) {
    std::memset(taps, 0, sizeof taps);
    for (int o = 0; o < P && a + o < out; ++o)
      for (int i = 0; i < P && b + i < in; ++i)
        for (int k = 0; k < K2; ++k)
          if (!S::DIRECT || at.plane[k] >= 0)
            (FORWARD ? taps[i][k][o] : taps[o][k][i]) = weights[((a + o) * in + b + i) * K2 + k];
    for (int q = 0; q < P; ++q) {
      float* to = planes + (FORWARD ? a / P * others + b + q : b / P * others + a + q) * P;
      if constexpr (S::DIRECT) {
        for (int k = 0; k < K2; ++k)
          if (at.plane[k] >= 0) std::memcpy(to + at.plane[k] * plane, taps[q][k], sizeof taps[q][k]);
      } else {
        for (int lane = 0; lane < P; lane += V)
          square<typename S::Weight, S::KERNEL, S::TAPS>(
              [&](int i, int j) { return load(&taps[q][i * S::KERNEL + j][lane]); },
              [&](int i, int j, vec value) {
                store(to + (i * S::TAPS + j) * plane + lane, value);
              });
      }
    }
  }
}

// The adjoint of the above: planes (in / P, out, P) become slopes of the weights of one panel of
// inputs. Returns whether all are finite.
template <class S>
bool weights_from_planes(const float* planes, long plane, const Taps& at, long out, long in,
                         float* slopes, long panel) {
  constexpr int K2 = S::KERNEL * S::KERNEL;
  alignas(64) float taps[K2][P];
  const long lanes = in - panel * P < P ? in - panel * P : P;
  Watch watch;
  for (long o = 0; o < out; ++o) {
    const float* from = planes + (panel * padded(out) + o) * P;
    float* to = slopes + (o * in + panel * P) * K2;
    if constexpr (S::DIRECT) {
      if (at.number < K2) std::memset(to, 0, sizeof(float) * lanes * K2);
      for (int k = 0; k < K2; ++k) {
        if (at.plane[k] < 0) continue;
        const float* own = from + at.plane[k] * plane;
        for (int lane = 0; lane < P; lane += V) watch.see(load(own + lane));
        for (int i = 0; i < lanes; ++i) to[i * K2 + k] = own[i];
      }
    } else {
      for (int lane = 0; lane < P; lane += V)
        square<typename S::WeightBack, S::TAPS, S::KERNEL>(
            [&](int i, int j) { return load(from + (i * S::TAPS + j) * plane + lane); },
            [&](int i, int j, vec value) {
              watch.see(value);
              store(&taps[i * S::KERNEL + j][lane], value);
            });
      for (int i = 0; i < lanes; ++i)
        for (int k = 0; k < K2; ++k) to[i * K2 + k] = taps[k][i];
    }
  }
  return watch.finite();
}

// The slopes of the bias are sums over all pixels, taken image by image.
inline bool sum_of_pixels(const float* data, const Images& images, float* sums, long first_panel,
                          long last_panel) {
  const long last = last_panel * P < images.channels ? last_panel * P : images.channels;
  bool finite = true;
  for (long c = first_panel * P; c < last; c += V) {
    const long lanes = lanes_at(c, images.channels);
    vec total = {};
    for (long n = 0; n < images.number; ++n) {
      vec own = {};
      const float* at = data + n * images.height * images.width * images.channels + c;
      for (long pixel = 0; pixel < images.height * images.width; ++pixel, at += images.channels)
        own += lanes == V ? load(at) : load_lanes(at, lanes);
      total += own;
    }
    std::memcpy(sums + c, &total, 4 * lanes);
    Watch watch;
    watch.see(total);
    finite = finite && watch.finite();
  }
  return finite;
}

}  // namespace
