// Layers of images in lanes: what goes in and out, poolings, convolutions.

namespace {

template <int F>
void lanes_to_rows(const vec* in, long b, long n, float* rows) {
  const float* from = (const float*)in;
  for (int i = 0; i < V && b * V + i < n; ++i)
    for (int f = 0; f < F; ++f) rows[(b * V + i) * F + f] = from[f * V + i];
}

// Planes of H x W numbers, which may lie inside a border.
template <int H_, int W_, int PH_, int PW_>
struct Plane {
  static constexpr int H = H_, W = W_, PH = PH_, PW = PW_;
  static constexpr int STRIDE = W + 2 * PW, SIZE = (H + 2 * PH) * STRIDE, START = PH * STRIDE + PW;
  static constexpr int at(int h, int w) { return START + h * STRIDE + w; }
};

// f(place inside a border, place without one) for all numbers of C planes.
template <int C, class P, class F>
INLINE void over(F&& f) {
  for (int c = 0; c < C; ++c)
    for (int h = 0; h < P::H; ++h)
      for (int w = 0; w < P::W; ++w) f(c * P::SIZE + P::at(h, w), (c * P::H + h) * P::W + w);
}

// V rows of C planes into lanes, inside a border of zeros that is already there.
template <int C, class P, class Rows>
void into_lanes(Rows rows, long b, long n, vec* out) {
  const float* of[V];
  static const float nothing[C * P::H * P::W] = {};
  for (int i = 0; i < V; ++i) of[i] = b * V + i < n ? rows(b * V + i) : nothing;
  over<C, P>([&](int to, int from) {
    for (int i = 0; i < V; ++i) ((float*)(out + to))[i] = of[i][from];
  });
}

template <class In_, int KH_, int KW_, int SH_, int SW_, int PH_, int PW_>
struct Window {
  using In = In_;
  static constexpr int KH = KH_, KW = KW_, SH = SH_, SW = SW_, PH = PH_, PW = PW_;
  static constexpr int OH = (In::H + 2 * PH - KH) / SH + 1, OW = (In::W + 2 * PW - KW) / SW + 1;
  // With all windows inside the image and none overlapping, each number is in one at most.
  static constexpr bool apart = SH >= KH && SW >= KW && PH == 0 && PW == 0;

  // f(place in the plane, number of the place in the window) for a window's places in the image.
  template <class F>
  static INLINE void places(int oh, int ow, F&& f) {
    for (int kh = 0; kh < KH; ++kh)
      for (int kw = 0; kw < KW; ++kw) {
        const int h = oh * SH + kh - PH, w = ow * SW + kw - PW;
        if (apart || (h >= 0 && h < In::H && w >= 0 && w < In::W)) f(In::at(h, w), kh * KW + kw);
      }
  }
};

// The largest of each window and which one it was, the first of equals and NaN before all.
template <class Win, class Out>
struct MaxPool {
  static_assert(Win::KH * Win::KW <= 127, "places are kept in a byte");
  template <class Done>
  static INLINE void forward(const vec* in, std::int8_t* which, Done&& done) {
    for (int oh = 0; oh < Win::OH; ++oh)
      for (int ow = 0; ow < Win::OW; ++ow) {
        vec best = all(-std::numeric_limits<float>::infinity());
        ivec place = ivec{} - 1;
        Win::places(oh, ow, [&](int at, int k) {
          const vec x = in[at];
          const ivec larger = (x > best) | (x != x) | (place < 0);
          best = where(larger, x, best);
          place = larger ? ivec{} + k : place;
        });
        *(bytes*)(which + (oh * Win::OW + ow) * V) = __builtin_convertvector(place, bytes);
        done(Out::at(oh, ow), oh * Win::OW + ow, best);
      }
  }
  // `slope(i)` of the i-th window goes to where its largest was; `step` is between places of d.
  template <class Slope>
  static INLINE void backward(const std::int8_t* which, Slope&& slope, vec* d, int step) {
    if constexpr (!Win::apart || Win::In::H != Win::OH * Win::KH || Win::In::W != Win::OW * Win::KW)
      for (int i = 0; i < Win::In::H * Win::In::W; ++i) d[i * step] = vec{};
    for (int oh = 0; oh < Win::OH; ++oh)
      for (int ow = 0; ow < Win::OW; ++ow) {
        const int i = oh * Win::OW + ow;
        const vec from = slope(i);
        const ivec place = __builtin_convertvector(*(const bytes*)(which + i * V), ivec);
        Win::places(oh, ow, [&](int at, int k) {
          const vec mine = masked(from, place == k);
          if constexpr (Win::apart) d[at * step] = mine;
          else d[at * step] += mine;
        });
      }
  }
};

template <class Win, class Out, bool WithBorder>
struct AvgPool {
  static INLINE float share(int oh, int ow) {
    int inside = 0;
    Win::places(oh, ow, [&](int, int) { ++inside; });
    return 1.0f / (WithBorder ? Win::KH * Win::KW : inside);
  }
  static INLINE void forward(const vec* in, ivec mask, vec* out) {
    for (int oh = 0; oh < Win::OH; ++oh)
      for (int ow = 0; ow < Win::OW; ++ow) {
        vec total = {};
        Win::places(oh, ow, [&](int at, int) { total += in[at]; });
        out[Out::at(oh, ow)] = masked(total * share(oh, ow), mask);
      }
  }
  static INLINE void backward(const vec* d, vec* back) {
    for (int i = 0; i < Win::In::H * Win::In::W; ++i) back[i] = vec{};
    for (int oh = 0; oh < Win::OH; ++oh)
      for (int ow = 0; ow < Win::OW; ++ow) {
        const vec from = d[oh * Win::OW + ow] * share(oh, ow);
        Win::places(oh, ow, [&](int at, int) { back[at] += from; });
      }
  }
};

// A convolution of C planes to O. What comes back is (places, O): all channels of a place together.
template <int C_, class In_, int O_, int KH_, int KW_, int SH_, int SW_>
struct Conv {
  using In = In_;
  static constexpr int C = C_, O = O_, KH = KH_, KW = KW_, SH = SH_, SW = SW_;
  static constexpr int HP = In::H + 2 * In::PH, WP = In::STRIDE;
  static constexpr int OH = (HP - KH) / SH + 1, OW = (WP - KW) / SW + 1;
  static constexpr int PLACES = OH * OW, TAPS = C * KH * KW;
  static constexpr Tile FORWARD = tile_for(O, OW), WEIGHTS = tile_for(TAPS, O);
  static constexpr int CHANNELS = FORWARD.rows;
  static constexpr int BACK = C < 9 || REGISTERS > 16 ? (C < 16 ? C : 16)
                              : C % 8 == 0            ? 8
                              : C % 9 == 0            ? 9
                              : C % 11 == 0           ? 11
                              : C % 12 == 0           ? 12
                                                      : 10;

  // Weights in the order in which they are met: (channels of a tile) for each tap.
  static void pack(const float* w, float* packed) {
    in_pieces<O, CHANNELS>([&](int o, auto size) {
      for (int j = 0; j < TAPS; ++j)
        for (int i = 0; i < size.value; ++i)
          packed[o * TAPS + j * size.value + i] = w[(o + i) * TAPS + j];
    });
  }

  template <int N, int P>
  static INLINE void tile(const vec* in, const float* packed, const float* bias, vec* out) {
    vec total[N][P];
    for (int o = 0; o < N; ++o)
      for (int p = 0; p < P; ++p) total[o][p] = bias ? all(bias[o]) : vec{};
    for (int c = 0; c < C; ++c)
      for (int kh = 0; kh < KH; ++kh) {
        const vec* line = in + (c * HP + kh) * WP;
        const float* w = packed + (c * KH + kh) * KW * N;
#pragma GCC unroll 8
        for (int kw = 0; kw < KW; ++kw) {
          vec x[P];
          for (int p = 0; p < P; ++p) x[p] = line[p * SW + kw];
          for (int o = 0; o < N; ++o)
            for (int p = 0; p < P; ++p) total[o][p] += w[kw * N + o] * x[p];
        }
      }
    for (int o = 0; o < N; ++o)
      for (int p = 0; p < P; ++p) out[o * PLACES + p] = total[o][p];
  }

  // `done(channel, its plane)` as soon as a few channels are there; `planes` holds those few.
  template <class Done>
  static INLINE void forward(
      const vec* in, const float* packed, const float* bias, vec* planes, Done&& done) {
    in_pieces<O, CHANNELS>([&](int o, auto channels) {
      constexpr int N = decltype(channels)::value;
      for (int oh = 0; oh < OH; ++oh)
        in_pieces<OW, FORWARD.columns>([&](int ow, auto size) {
          tile<N, decltype(size)::value>(in + oh * SH * WP + ow * SW, packed + o * TAPS,
                                         bias ? bias + o : nullptr, planes + oh * OW + ow);
        });
      for (int i = 0; i < N; ++i) done(o + i, planes + i * PLACES);
    });
  }

  static constexpr int tap(int j) { return (j / (KH * KW) * HP + j / KW % KH) * WP + j % KW; }

  template <int J, int N>
  static INLINE void weights_tile(const vec* in, const vec* d, int j, int o, vec* slopes) {
    const vec* x[J];
    vec total[J][N];
    for (int i = 0; i < J; ++i) x[i] = in + tap(j + i);
    for (int i = 0; i < J; ++i)
      for (int k = 0; k < N; ++k) total[i][k] = slopes[(o + k) * TAPS + j + i];
    for (int oh = 0; oh < OH; ++oh)
      for (int ow = 0; ow < OW; ++ow) {
        const vec* from = d + (oh * OW + ow) * O + o;
        const int at = oh * SH * WP + ow * SW;
        vec back[N];
        for (int k = 0; k < N; ++k) back[k] = from[k];
        for (int i = 0; i < J; ++i) {
          const vec value = x[i][at];
          for (int k = 0; k < N; ++k) total[i][k] += value * back[k];
        }
      }
    for (int i = 0; i < J; ++i)
      for (int k = 0; k < N; ++k) slopes[(o + k) * TAPS + j + i] = total[i][k];
  }

  // Adds to the slopes of weights and biases, a sum per lane.
  static void to_weights(const vec* in, const vec* d, vec* weights, vec* biases) {
    in_pieces<O, WEIGHTS.columns>([&](int o, auto channels) {
      in_pieces<TAPS, WEIGHTS.rows>([&](int j, auto taps) {
        weights_tile<decltype(taps)::value, decltype(channels)::value>(in, d, j, o, weights);
      });
    });
    if (biases)
      for (int p = 0; p < PLACES; ++p)
        for (int o = 0; o < O; ++o) biases[o] += d[p * O + o];
  }

  // Weights for the way back: (input channels of a piece) for each place of the kernel and output.
  static void pack_back(const float* w, float* packed) {
    in_pieces<C, BACK>([&](int c, auto size) {
      float* to = packed + c * KH * KW * O;
      for (int k = 0; k < KH * KW; ++k)
        for (int o = 0; o < O; ++o)
          for (int i = 0; i < size.value; ++i) *to++ = w[(o * C + c + i) * KH * KW + k];
    });
  }

  // The slopes at the input, without its border.
  static void to_input(const vec* d, const float* packed, ivec mask, vec* back) {
    in_pieces<C, BACK>([&](int c, auto channels) {
      constexpr int N = decltype(channels)::value;
      const float* mine = packed + c * KH * KW * O;
      for (int h = 0; h < In::H; ++h)
        for (int w = 0; w < In::W; ++w) {
          vec total[N] = {};
          for (int kh = 0; kh < KH; ++kh) {
            const int y = h + In::PH - kh;
            if (y < 0 || y % SH || y / SH >= OH) continue;
            for (int kw = 0; kw < KW; ++kw) {
              const int x = w + In::PW - kw;
              if (x < 0 || x % SW || x / SW >= OW) continue;
              const vec* from = d + (y / SH * OW + x / SW) * O;
              const float* weights = mine + (kh * KW + kw) * O * N;
              for (int o = 0; o < O; ++o) {
                const vec value = from[o];
                for (int i = 0; i < N; ++i) total[i] += weights[o * N + i] * value;
              }
            }
          }
          for (int i = 0; i < N; ++i)
            back[((c + i) * In::H + h) * In::W + w] = masked(total[i], mask);
        }
    });
  }
};

INLINE void sum_lanes(const vec* in, long numbers, float* out) {
  for (long i = 0; i < numbers; ++i) out[i] = sum(in[i]);
}

}  // namespace
