// Products of a few rows with a block of weights, on a CPU with AVX2, which has sixteen registers of 32 bytes: the more
// rows there are, the fewer outputs are computed together.

#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kChunk = 48;  // steps whose weights, widened too (24 KiB), stay in the first cache for all rows
constexpr int64_t kAhead = 24;  // steps whose weights are fetched before their turn
constexpr int64_t kWidenedFrom = 5;  // rows

constexpr int64_t kParts = 2 * kBlocks;  // registers of a step's weights
constexpr int parts_together(int rows) { return rows == 1 ? kParts : rows <= 3 ? 4 : 2; }

__m256i weights_at(const int32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

// A step is four bytes of a row against four bytes of each output's weights: one float32, two 16-bit numbers, two bfloat16,
// or four 8-bit numbers. N: how many registers of weights are multiplied together. In assembly: GCC 12 adds up all products
// of a step before it adds the first to its sum, and keeps sums in memory for want of registers.

template <class F>
struct Format {
  static constexpr bool kTiles = false;
  static constexpr int64_t kMostRows = 6;
  template <int ROWS, int N, class Register>
  static void step(Register (&sum)[ROWS][N], const int32_t* x, int64_t width, const int32_t* w) {
    __m256i weights[N];
    for (int n = 0; n < N; ++n) weights[n] = weights_at(w + 8 * n);
    for (int r = 0; r < ROWS; ++r) {
      const __m256i row = _mm256_set1_epi32(x[r * width]);
      for (int n = 0; n < N; ++n) sum[r][n] = F::add(sum[r][n], row, weights[n]);
    }
  }
};

struct Float32 : Format<Float32> {
  static constexpr bool kWidens = false;
  using Sum = Floats;
  using Register = __m256;
  static Sum zero() { return zeros(); }
  static Register add(Register sum, __m256i x, __m256i w) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
    return sum;
  }
};

// Several rows share weights that were widened once: a step becomes two, of its even and of its odd numbers. A row alone is
// multiplied with the weights as they are, in the same order.

#define PASTA_BFLOAT16
struct Bfloat16 : Format<Bfloat16> {
  static constexpr bool kWidens = true;
  using Wide = Float32;
  using Sum = Floats;
  using Register = __m256;
  static Sum zero() { return zeros(); }
  static __m256i even(__m256i pairs) { return _mm256_slli_epi32(pairs, 16); }
  static __m256i odd(__m256i pairs) {
    return _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000)));
  }
  static Register add(Register sum, __m256i x, __m256i w) {
    return Float32::add(Float32::add(sum, even(x), even(w)), odd(x), odd(w));
  }
};

struct Int8 : Format<Int8> {
  static constexpr bool kWidens = false;
  static constexpr int64_t kMostRows = 4;
  using Sum = Ints;
  using Register = __m256i;
  static Sum zero() { return all(0); }
  // The product of bytes takes an unsigned factor, so the row's signs go to the weights. It adds pairs up in 16 bits, which
  // two products of at most 127 * 127 do not exceed.
  static Register add(Register sum, __m256i x, __m256i w) {
    __m256i product;
    asm("vpsignb %2, %3, %1\n\tvpmaddubsw %1, %4, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sum), "=&x"(product)
        : "x"(x), "x"(w), "x"(_mm256_abs_epi8(x)), "x"(_mm256_set1_epi16(1)));
    return sum;
  }
};

// Eight steps at a time of a row, or the eight outputs of a register: to [.., 2, `stride`].
template <class F>
void widen(const int32_t* from, int64_t stride, int32_t* to) {
  const __m256i eight = weights_at(from);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), F::even(eight));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + stride), F::odd(eight));
}

// `count` numbers of a row, widened: even and odd ones in turn.
template <class F>
void widen_row(const int32_t* x, int64_t count, int32_t* to) {
  alignas(32) int32_t from[8] = {}, halves[16];
  for (int64_t s = 0; s < count; s += 8) {
    const int64_t some = std::min<int64_t>(8, count - s);
    std::memcpy(from, x + s, some * 4);
    widen<F>(from, 8, halves);
    for (int64_t i = 0; i < some; ++i) to[2 * (s + i)] = halves[i], to[2 * (s + i) + 1] = halves[8 + i];
  }
}

// The weights of `steps` steps of a block, widened: to [2 * steps, 64].
template <class F>
void widen_weights(const int32_t* w, int64_t steps, int32_t* to) {
  constexpr int64_t kStep = kBlocks * kLanes;
  for (int64_t s = 0; s < steps; ++s, w += kStep, to += 2 * kStep) {
    for (int64_t b = 0; b < kBlocks; ++b)
      _mm_prefetch(reinterpret_cast<const char*>(w + kAhead * kStep + b * kLanes), _MM_HINT_T0);
    for (int64_t n = 0; n < kStep; n += 8) widen<F>(w + n, kStep, to + n);
  }
}

// ROWS rows against `steps` steps of a block's weights: adds to what earlier steps gave, if there were any.
template <class F, int ROWS>
__attribute__((noinline)) void tile(const int32_t* x, int64_t width, const int32_t* w, int64_t steps,
                                    typename F::Sum* sums, bool begins) {
  constexpr int64_t kStep = kBlocks * kLanes;
  constexpr int kTogether = parts_together(ROWS);
  auto* to = reinterpret_cast<typename F::Register*>(sums);
  for (int first = 0; first < kParts; first += kTogether) {
    typename F::Register sum[ROWS][kTogether];
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < kTogether; ++n) sum[r][n] = begins ? F::zero().low : to[r * kParts + first + n];
    const auto run = [&](auto fetches) {
      for (int64_t s = 0; s < steps; ++s) {
        if constexpr (fetches)
          for (int b = 0; b < kBlocks; ++b)
            _mm_prefetch(reinterpret_cast<const char*>(w + (s + kAhead) * kStep + b * kLanes), _MM_HINT_T0);
        F::step(sum, x + s, width, w + s * kStep + 8 * first);
      }
    };
    // The passes after the first find the weights in the cache.
    first == 0 ? run(std::true_type()) : run(std::false_type());
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < kTogether; ++n) to[r * kParts + first + n] = sum[r][n];
  }
}

}  // namespace
