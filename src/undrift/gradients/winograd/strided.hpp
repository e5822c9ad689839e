// The schemes of convolutions with stride 2, whose even and odd inputs never share a tap.
//
// Along a line with weights w0, w1, w2 an output is w1 times an even input and a convolution of w0, w2
// with two odd inputs. Two outputs take two products for the first part and three for the second,
// where there would be four: 25 products for 4 outputs of a 3 x 3 convolution instead of 36.

namespace {

// A tile has 2 x 2 outputs. The products with the middle weight are added to those at 0 and infinity
// before they are transformed, since each pair goes to one output alone.
struct TwoStrided {
  static constexpr int KERNEL = 3, STRIDE = 2, PIXELS = 2, BEFORE = 1, READ = 5;
  static constexpr int IN = 5, OUT = 3, TAPS = 4;
  static constexpr bool DIRECT = false;

  static int line(long, long, Product (&list)[9]) {
    const Product all[] = {{0, 0, 0}, {0, 2, 1}, {1, 1, 0}, {1, 4, 3}, {2, 3, 2}};
    std::memcpy(list, all, sizeof all);
    return 5;
  }

  struct Input {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec middle = get(2);
      put(0, get(1));
      put(1, get(3));
      put(2, get(0) + middle);
      put(3, middle);
      put(4, middle + get(4));
    }
  };
  struct InputBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec first = get(2), last = get(4);
      put(0, first);
      put(1, get(0));
      put(2, first + get(3) + last);
      put(3, get(1));
      put(4, last);
    }
  };
  struct Output {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec both = get(2);
      put(0, get(0) + both);
      put(1, get(1) - both);
    }
  };
  struct OutputBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec y0 = get(0), y1 = get(1);
      put(0, y0);
      put(1, y1);
      put(2, y0 - y1);
    }
  };
  struct Weight {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec w0 = get(0), w2 = get(2);
      put(0, get(1));
      put(1, w0);
      put(2, w2 - w0);
      put(3, w2);
    }
  };
  struct WeightBack {
    template <class Get, class Put>
    static INLINE void apply(Get get, Put put) {
      const vec u2 = get(2);
      put(0, get(1) - u2);
      put(1, get(0));
      put(2, get(3) + u2);
    }
  };
};

// Images of at most 4 x 4 pixels, which have at most 2 x 2 outputs.
using DirectStrided = Small<2>;

// A 1 x 1 convolution looks at every other pixel.
struct OneStrided {
  static constexpr int KERNEL = 1, STRIDE = 2, PIXELS = 1, BEFORE = 0, READ = 1;
  static constexpr int IN = 1, OUT = 1, TAPS = 1;
  static constexpr bool DIRECT = true;
  static int line(long, long, Product (&list)[9]) {
    list[0] = {0, 0, 0};
    return 1;
  }
  using Input = Unchanged<1>;
  using InputBack = Unchanged<1>;
  using Output = Unchanged<1>;
  using OutputBack = Unchanged<1>;
};

}  // namespace
