// The transforms of Winograd's convolutions along one line, each beside its adjoint.
//
// A scheme says how a tile of PIXELS x PIXELS outputs is made: READ x READ inputs, which begin BEFORE
// pixels before the tile, become IN x IN numbers, the KERNEL x KERNEL weights TAPS x TAPS, their
// products OUT x OUT, and those the outputs. `line` lists the products along one line, for images with
// so many inputs and outputs along it. In Winograd's schemes each number is multiplied by one weight;
// that is 36 products for 16 outputs instead of 144 in F(4x4), 16 instead of 36 for 4 in F(2x2). A
// DIRECT scheme transforms nothing.
//
// Transforms read by get(i) and write by put(i, value).

namespace {

#define UNROLL _Pragma("GCC unroll 6")

// The numbers of a tile of which one product is made: indices along a line, or of planes.
struct Product {
  int out, in, tap;
};

// Each number is multiplied by the weight of the same index.
template <int N>
int one_to_one(Product (&list)[9]) {
  for (int i = 0; i < N; ++i) list[i] = {i, i, i};
  return N;
}

// F(4x4) evaluates polynomials at 0, A, -A, B, -B and infinity. With A = 5/8 and B = 3/2 its error
// is less than half of that with the usual 1 and 2, and squares and their products are exact.
struct Four {
  static constexpr int KERNEL = 3, STRIDE = 1, PIXELS = 4, BEFORE = 1, READ = 6;
  static constexpr int IN = 6, OUT = 6, TAPS = 6;
  static constexpr bool DIRECT = false;
  static int line(long, long, Product (&list)[9]) { return one_to_one<6>(list); }
  static constexpr float A = 0.625f, B = 1.5f, A2 = A * A, B2 = B * B, A3 = A2 * A, B3 = B2 * B;
  static constexpr float SUM = A2 + B2, PRODUCT = A2 * B2;
  static constexpr float AT_A = 1 / (2 * A2 * (A2 - B2)), AT_B = 1 / (2 * B2 * (B2 - A2));

  struct Input {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec d1 = get(1), d2 = get(2), d3 = get(3), d4 = get(4);
      const vec even_a = d4 - B2 * d2, odd_a = A * (d3 - B2 * d1);
      const vec even_b = d4 - A2 * d2, odd_b = B * (d3 - A2 * d1);
      put(0, PRODUCT * get(0) - SUM * d2 + d4);
      put(1, even_a + odd_a);
      put(2, even_a - odd_a);
      put(3, even_b + odd_b);
      put(4, even_b - odd_b);
      put(5, PRODUCT * d1 - SUM * d3 + get(5));
    }
  };
  struct InputBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec r0 = get(0), r1 = get(1), r2 = get(2), r3 = get(3), r4 = get(4), r5 = get(5);
      const vec even_a = r1 + r2, odd_a = A * (r1 - r2), even_b = r3 + r4, odd_b = B * (r3 - r4);
      put(0, PRODUCT * r0);
      put(1, PRODUCT * r5 - B2 * odd_a - A2 * odd_b);
      put(2, -SUM * r0 - B2 * even_a - A2 * even_b);
      put(3, odd_a + odd_b - SUM * r5);
      put(4, r0 + even_a + even_b);
      put(5, r5);
    }
  };
  struct Output {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec m1 = get(1), m2 = get(2), m3 = get(3), m4 = get(4);
      const vec even_a = m1 + m2, odd_a = m1 - m2, even_b = m3 + m4, odd_b = m3 - m4;
      put(0, get(0) + even_a + even_b);
      put(1, A * odd_a + B * odd_b);
      put(2, A2 * even_a + B2 * even_b);
      put(3, A3 * odd_a + B3 * odd_b + get(5));
    }
  };
  struct OutputBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec y0 = get(0), y1 = get(1), y2 = get(2), y3 = get(3);
      const vec even_a = y0 + A2 * y2, odd_a = A * y1 + A3 * y3;
      const vec even_b = y0 + B2 * y2, odd_b = B * y1 + B3 * y3;
      put(0, y0);
      put(1, even_a + odd_a);
      put(2, even_a - odd_a);
      put(3, even_b + odd_b);
      put(4, even_b - odd_b);
      put(5, y3);
    }
  };
  struct Weight {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec w0 = get(0), w1 = get(1), w2 = get(2);
      const vec even_a = AT_A * (w0 + A2 * w2), odd_a = (AT_A * A) * w1;
      const vec even_b = AT_B * (w0 + B2 * w2), odd_b = (AT_B * B) * w1;
      put(0, (1 / PRODUCT) * w0);
      put(1, even_a + odd_a);
      put(2, even_a - odd_a);
      put(3, even_b + odd_b);
      put(4, even_b - odd_b);
      put(5, w2);
    }
  };
  struct WeightBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec u1 = get(1), u2 = get(2), u3 = get(3), u4 = get(4);
      const vec even_a = AT_A * (u1 + u2), odd_a = (AT_A * A) * (u1 - u2);
      const vec even_b = AT_B * (u3 + u4), odd_b = (AT_B * B) * (u3 - u4);
      put(0, (1 / PRODUCT) * get(0) + even_a + even_b);
      put(1, odd_a + odd_b);
      put(2, A2 * even_a + B2 * even_b + get(5));
    }
  };
};

// F(2x2) evaluates at 0, 1, -1 and infinity.
struct Two {
  static constexpr int KERNEL = 3, STRIDE = 1, PIXELS = 2, BEFORE = 1, READ = 4;
  static constexpr int IN = 4, OUT = 4, TAPS = 4;
  static constexpr bool DIRECT = false;
  static int line(long, long, Product (&list)[9]) { return one_to_one<4>(list); }

  struct Input {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec d1 = get(1), d2 = get(2);
      put(0, get(0) - d2);
      put(1, d1 + d2);
      put(2, d2 - d1);
      put(3, d1 - get(3));
    }
  };
  struct InputBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec r0 = get(0), r1 = get(1), r2 = get(2), r3 = get(3);
      put(0, r0);
      put(1, r1 - r2 + r3);
      put(2, r1 + r2 - r0);
      put(3, -r3);
    }
  };
  struct Output {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec m1 = get(1), m2 = get(2);
      put(0, get(0) + m1 + m2);
      put(1, m1 - m2 - get(3));
    }
  };
  struct OutputBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec y0 = get(0), y1 = get(1);
      put(0, y0);
      put(1, y0 + y1);
      put(2, y0 - y1);
      put(3, -y1);
    }
  };
  struct Weight {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec w0 = get(0), w2 = get(2), even = 0.5f * (w0 + w2), odd = 0.5f * get(1);
      put(0, w0);
      put(1, even + odd);
      put(2, even - odd);
      put(3, w2);
    }
  };
  struct WeightBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec u1 = get(1), u2 = get(2), even = 0.5f * (u1 + u2);
      put(0, get(0) + even);
      put(1, 0.5f * (u1 - u2));
      put(2, even + get(3));
    }
  };
};

template <int N>
struct Unchanged {
  template <class Get, class Put>
  static INLINE void apply(Get get, Put put) {
    UNROLL for (int i = 0; i < N; ++i) put(i, get(i));
  }
};

// Images of at most 2 x 2 outputs are one tile, in which each output is a sum over the taps that meet
// the image. Nothing is transformed.
template <int Stride>
struct Small {
  static constexpr int KERNEL = 3, STRIDE = Stride, PIXELS = 2, BEFORE = 0, READ = 2 * Stride;
  static constexpr int IN = READ, OUT = 2, TAPS = 3;
  static constexpr bool DIRECT = true;

  static int line(long inputs, long outputs, Product (&list)[9]) {
    int number = 0;
    for (int out = 0; out < outputs; ++out)
      for (int in = 0; in < inputs; ++in) {
        const int tap = 1 + in - Stride * out;
        if (tap >= 0 && tap < 3) list[number++] = {out, in, tap};
      }
    return number;
  }

  using Input = Unchanged<IN>;
  using InputBack = Unchanged<IN>;
  using Output = Unchanged<OUT>;
  using OutputBack = Unchanged<OUT>;
};

using Direct = Small<1>;

// A transform along both directions; get(i, j) and put(i, j, value).
template <class Line, int FROM, int TO, class Get, class Put>
INLINE void square(Get get, Put put) {
  vec half[TO][FROM];
  UNROLL for (int j = 0; j < FROM; ++j)
    Line::apply([&](int i) { return get(i, j); }, [&](int i, vec value) { half[i][j] = value; });
  UNROLL for (int i = 0; i < TO; ++i)
    Line::apply([&](int j) { return half[i][j]; }, [&](int j, vec value) { put(i, j, value); });
}

}  // namespace
