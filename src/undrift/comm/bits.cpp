// Packed signs as in bits.py, bit for bit, from NumPy's own stream of random words.
//
// Processors without AVX2 draw words one by one and leave packing to NumPy.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {
using Word = std::uint64_t;

constexpr long CHUNK = 256;  // words that are worked on at once, so that they stay in the cache
constexpr int FULL = 6;      // digits that are drawn for all words, as _FULL of bits.py

#ifdef __AVX2__
constexpr int LANES = 4;  // blocks side by side in a vector
typedef Word Lanes __attribute__((vector_size(8 * LANES)));

inline Lanes all_lanes(Word word) { return word - Lanes{}; }

inline Lanes count_from(Word word) { return word + Lanes{0, 1, 2, 3}; }

// Write word j of block k, which is lane k of x[j], to out[4 * k + j].
inline void store(const Lanes* x, Word* out) {
  const auto even = [](Lanes a, Lanes b) {
    return _mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
  };
  const auto odd = [](Lanes a, Lanes b) { return _mm256_unpackhi_epi64((__m256i)a, (__m256i)b); };
  const __m256i pairs[4] = {even(x[0], x[1]), even(x[2], x[3]), odd(x[0], x[1]), odd(x[2], x[3])};
  auto to = (__m256i*)out;
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(pairs[0], pairs[1], 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(pairs[2], pairs[3], 0x20));
  _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(pairs[0], pairs[1], 0x31));
  _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(pairs[2], pairs[3], 0x31));
}

inline Lanes low_product(Lanes a, Lanes b) {  // of the lower halves
  return (Lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

inline void multiply(Lanes x, Word by, Lanes& high, Lanes& low) {
  const Word half = 0xFFFFFFFFu;
  const Lanes by_low = all_lanes(by & half), by_high = all_lanes(by >> 32), x_high = x >> 32;
  const Lanes lowest = low_product(x, by_low);
  const Lanes first = low_product(x_high, by_low) + (lowest >> 32);
  const Lanes second = low_product(x, by_high) + (first & half);
  high = low_product(x_high, by_high) + (first >> 32) + (second >> 32);
  low = (second << 32) | (lowest & half);
}
#else
constexpr int LANES = 1;
typedef Word Lanes;

inline Lanes all_lanes(Word word) { return word; }
inline Lanes count_from(Word word) { return word; }
inline void store(const Lanes* x, Word* out) { std::copy(x, x + 4, out); }

inline void multiply(Lanes x, Word by, Lanes& high, Lanes& low) {
  const auto product = (unsigned __int128)x * by;
  high = (Word)(product >> 64);
  low = (Word)product;
}
#endif

// Philox4x64-10 (Salmon et al., SC 2011), whose word i is word i % 4 of the block of counter i / 4.
class Philox {
 public:
  static constexpr int VECTORS = LANES > 1 ? 2 : 4;  // side by side, since each waits for products
  static constexpr int BLOCKS = VECTORS * LANES;

  Philox(const Word* counter, const Word* key) : counter_(counter) {
    for (int r = 0; r < ROUNDS; ++r) {
      keys_[r][0] = key[0] + r * 0x9E3779B97F4A7C15u;
      keys_[r][1] = key[1] + r * 0xBB67AE8584CAA73Bu;
    }
  }

  // Return n words of the stream from word `at` on, which lie in `room`.
  const Word* words(Word at, long n, Word* room) const {
    const Word end = (at + n + 3) / 4;
    Word* to = room;
    for (Word c = at / 4; c < end; c += BLOCKS, to += 4 * BLOCKS) blocks(c, to);
    return room + at % 4;
  }

  // Write the block of one counter.
  void block(Word counter, Word* out) const {
    Word several[4 * BLOCKS];
    blocks(counter, several);
    std::copy(several, several + 4, out);
  }

 private:
  static constexpr int ROUNDS = 10;
  const Word* counter_;  // four words, of which the first counts
  Word keys_[ROUNDS][2];

  void blocks(Word first, Word* out) const {
    Lanes x[VECTORS][4];
    for (int i = 0; i < VECTORS; ++i) {
      x[i][0] = count_from(first + i * LANES);
      for (int j = 1; j < 4; ++j) x[i][j] = all_lanes(counter_[j]);
    }
    for (int r = 0; r < ROUNDS; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < VECTORS; ++i) {
        Lanes high, low, higher, lower;
        multiply(x[i][0], 0xD2E7470EE14C6C93u, high, low);
        multiply(x[i][2], 0xCA5A826395121157u, higher, lower);
        x[i][0] = higher ^ x[i][1] ^ keys_[r][0];
        x[i][1] = lower;
        x[i][2] = high ^ x[i][3] ^ keys_[r][1];
        x[i][3] = low;
      }
    for (int i = 0; i < VECTORS; ++i) store(x[i], out + 4 * i * LANES);
  }
};

// The binary digits of a / q, from the most significant on.
struct Digits {
  Word rest, q;
  bool next() {
    rest *= 2;
    const bool one = rest >= q;
    if (one) rest -= q;
    return one;
  }
};

// Where a digit of a / q is 1, a drawn 0 is less; where it is 0, a drawn 1 is more.
inline void compare(bool one, Word drawn, Word& less, Word& undecided) {
  if (one) less |= undecided & ~drawn;
  undecided &= one ? drawn : ~drawn;
}

struct Open {  // words with undecided lanes
  std::unique_ptr<long[]> places;
  std::unique_ptr<Word[]> undecided;
  long count = 0;
  void keep(long place, Word lanes) {  // A word that is decided is overwritten by the next.
    places[count] = place;
    undecided[count] = lanes;
    count += lanes != 0;
  }
};

// Draw the first digits of `n` words and return how many digits that were.
int draw_all(const Philox& philox, Word at, Digits& digits, Word* out, long n, Open& open) {
  bool ones[FULL];
  int count = 0;
  while (digits.rest && count < FULL) ones[count++] = digits.next();
  Word room[CHUNK + 8 * Philox::BLOCKS], undecided[CHUNK];
  for (long i = 0; i < n; i += CHUNK) {
    const long m = std::min(CHUNK, n - i);
    Word* less = out + i;
    std::fill(less, less + m, 0);
    std::fill(undecided, undecided + m, ~Word{0});
    for (int d = 0; d < count; ++d) {
      const Word* drawn = philox.words(at + d * n + i, m, room);
      for (long j = 0; j < m; ++j) compare(ones[d], drawn[j], less[j], undecided[j]);
    }
    if (digits.rest)
      for (long j = 0; j < m; ++j) open.keep(i + j, undecided[j]);
  }
  return count;
}

// Draw one digit of the words that are open.
void draw_open(const Philox& philox, Word at, bool one, Word* out, Open& open) {
  Word room[CHUNK + 8 * Philox::BLOCKS];
  const long n = open.count;
  open.count = 0;
  for (long i = 0; i < n; i += CHUNK) {
    const long m = std::min(CHUNK, n - i);
    const Word* drawn = philox.words(at + i, m, room);
    for (long j = 0; j < m; ++j) {
      const long place = open.places[i + j];
      Word undecided = open.undecided[i + j];
      compare(one, drawn[j], out[place], undecided);
      open.keep(place, undecided);
    }
  }
}

#ifdef __AVX2__
// Pack the signs of eight numbers, and add zero times the numbers, which is zero if all are finite.
inline std::uint8_t pack_eight(const float* v, __m256& zero) {
  const __m256 x = _mm256_loadu_ps(v);
  zero += x * __m256{};
  return (std::uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(x, __m256{}, _CMP_GE_OQ));
}

inline std::uint8_t pack_eight(const double* v, __m256d& zero) {
  const __m256d x = _mm256_loadu_pd(v), y = _mm256_loadu_pd(v + 4);
  zero += x * __m256d{} + y * __m256d{};
  const int low = _mm256_movemask_pd(_mm256_cmp_pd(x, __m256d{}, _CMP_GE_OQ));
  const int high = _mm256_movemask_pd(_mm256_cmp_pd(y, __m256d{}, _CMP_GE_OQ));
  return (std::uint8_t)(low | high << 4);
}

// Pack the signs of n numbers and return whether all are finite.
template <class Float, class Vector>
int pack(const Float* v, long n, std::uint8_t* out) {
  constexpr int SUMS = 8;  // since each addition waits for the one before
  Vector zeros[SUMS] = {};
  long j = 0;
  for (; j + 8 * SUMS <= n; j += 8 * SUMS) {
    const char* soon = (const char*)(v + j) + 1024;  // which memory is asked for in good time
    for (int k = 0; k < 8 * SUMS * (int)sizeof(Float); k += 64) __builtin_prefetch(soon + k);
#pragma GCC unroll 8
    for (int k = 0; k < SUMS; ++k) out[j / 8 + k] = pack_eight(v + j + 8 * k, zeros[k]);
  }
  for (; j + 8 <= n; j += 8) out[j / 8] = pack_eight(v + j, zeros[0]);
  if (j < n) {
    Float rest[8] = {-1, -1, -1, -1, -1, -1, -1, -1};  // whose bits are zero
    std::copy(v + j, v + n, rest);
    out[j / 8] = pack_eight(rest, zeros[0]);
  }
  Float sum = 0;
  for (const auto& zero : zeros)
    for (int k = 0; k < (int)(sizeof(Vector) / sizeof(Float)); ++k) sum += zero[k];
  return sum == 0;
}
#endif
}  // namespace

// Set the bits of `words` words, each 1 with probability a / q, block by block, from word `at` of
// the stream on. Return the next word of the stream, and in `buffer` the block before that word; or
// 0 without memory.
extern "C" Word undrift_bernoulli(Word* out, long words, long block, Word a, Word q,
                                  const Word* counter, const Word* key, Word at, Word* buffer) {
  const Philox philox(counter, key);
  const long most = std::min(block, words);
  Open open{std::unique_ptr<long[]>(new (std::nothrow) long[most]),
            std::unique_ptr<Word[]>(new (std::nothrow) Word[most])};
  if (!open.places || !open.undecided) return 0;
  for (long start = 0; start < words; start += block) {
    const long n = std::min(block, words - start);
    Digits digits{a, q};
    open.count = 0;
    at += n * draw_all(philox, at, digits, out + start, n, open);
    while (digits.rest && open.count) {
      const long drawn = open.count;
      draw_open(philox, at, digits.next(), out + start, open);
      at += drawn;
    }
  }
  philox.block((at - 1) / 4, buffer);
  return at;
}

#ifdef __AVX2__
// Pack the signs of n numbers into (n + 7) / 8 bytes, and return 1 if all are finite, else 0.
extern "C" int undrift_pack_float(const float* v, long n, std::uint8_t* out) {
  return pack<float, __m256>(v, n, out);
}
extern "C" int undrift_pack_double(const double* v, long n, std::uint8_t* out) {
  return pack<double, __m256d>(v, n, out);
}
#endif
