"""The C++ of packed signs and random bits under the compiler's sanitizers, as a program."""

import platform
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)

# Every array is as long as it must be and not a byte longer, so that a step beyond is seen. Blocks
# that are drawn by a call each must have the bits of one call for all of them.
MAIN = """
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

bool drawn(long words, long block, Word a, Word q, Word at) {
  const Word counter[] = {0, 3, 5, 7}, key[] = {11, 13};
  std::vector<Word> out(words), parts(words), buffer(4), last(4);
  const Word end =
      undrift_bernoulli(out.data(), words, block, a, q, counter, key, at, buffer.data());
  Word next = at;
  for (long i = 0; i < words; i += block) {
    const long n = std::min(block, words - i);
    std::vector<Word> part(n);
    next = undrift_bernoulli(part.data(), n, n, a, q, counter, key, next, last.data());
    std::copy(part.begin(), part.end(), parts.begin() + i);
  }
  double ones = 0;
  for (Word word : out) ones += __builtin_popcountll(word);
  const double p = (double)a / q, apart = std::abs(ones / (64.0 * words) - p);
  return end == next && out == parts && buffer == last &&
         apart <= 6 * std::sqrt(p * (1 - p) / (64.0 * words)) + 3 / (64.0 * words);
}

#ifdef __AVX2__
template <class Float>
bool packed(long n, int (*pack)(const Float*, long, std::uint8_t*)) {
  std::vector<Float> v(n);
  for (long i = 0; i < n; ++i) v[i] = (Float)((i * 7919 + n) % 5 - 2);
  std::vector<std::uint8_t> out((n + 7) / 8), right((n + 7) / 8);
  for (long i = 0; i < n; ++i) right[i / 8] |= (v[i] >= 0) << i % 8;
  if (!pack(v.data(), n, out.data()) || out != right) return false;
  if (n) v[n / 2] = std::numeric_limits<Float>::infinity();
  return !n || !pack(v.data(), n, out.data());
}
#endif

int main() {
  for (long words : {1, 3, 255, 256, 257, 1000})
    for (long block : {1, 64, 256, 700})
      for (Word at : {1, 6, 4099})
        for (Word q : {2, 3, 8, 1000003}) {
          for (Word a : {Word{1}, q / 2, q - 1})
            if (!drawn(words, block, a, q, at)) return 2;
        }
#ifdef __AVX2__
  for (long n = 0; n < 300; ++n)
    if (!packed(n, undrift_pack_float) || !packed(n, undrift_pack_double)) return 3;
#endif
  std::puts("right");
}
"""


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("vectors", ["-march=native", "-mno-avx2"])
def test_nothing_is_found(vectors: str, tmp_path: Path) -> None:
    if vectors == "-mno-avx2" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("another processor")
    text, program = tmp_path / "program.cpp", tmp_path / "program"
    text.write_text(files("undrift.comm").joinpath("bits.cpp").read_text() + MAIN)
    flags = ["-std=c++17", "-O1", "-g", "-w", vectors, "-fno-sanitize-recover=all"]
    command = [COMPILER, *flags, "-fsanitize=address,undefined", str(text), "-o", program]
    subprocess.run(command, check=True, timeout=300)
    ran = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout) == (0, "right\n"), ran.stderr
