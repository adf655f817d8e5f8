// Products of a few rows with a block of weights, on a CPU with AVX2, which has sixteen registers of 32 bytes: the more
// rows there are, the fewer outputs are computed together.

#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kChunk = 48;  // steps whose weights, widened too (24 KiB), stay in the first cache for all rows
constexpr int64_t kFetchedChunk = kChunk;

constexpr int64_t kStep = kBlocks * kLanes;  // numbers of four bytes that a step of a block's weights takes
constexpr int64_t kParts = 2 * kBlocks;  // registers of a step's weights
constexpr int parts_together(int rows) { return rows == 1 ? kParts : rows <= 3 ? 4 : 2; }

__m256i weights_at(const int32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

// A step is four bytes of a row against four bytes of each output's weights: one float32, two bfloat16, or four 8-bit
// numbers. N: how many registers of weights are multiplied together. In assembly: GCC 12 computes all products of a step
// before it adds the first to its sum, and then keeps sums in memory for want of registers.

template <class F>
struct Format {
  static constexpr bool kTiles = false, kWidened = false;
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

// Float32 of which a step is half of one of bfloat16: the even or the odd numbers.
struct Widened : Float32 {
  static constexpr bool kWidened = true;
};

#define PASTA_BFLOAT16
struct Bfloat16 : Format<Bfloat16> {
  static constexpr bool kWidens = true;
  static constexpr int64_t kWidenedFrom = 5;  // rows that share weights which were widened once for all of them
  using Wide = Widened;
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

  // A row of `count` pairs, widened in order.
  static void widen_row(const int32_t* x, int64_t count, int32_t* to) {
    for (int64_t s = 0; s < count; ++s) {
      to[2 * s] = static_cast<int32_t>(static_cast<uint32_t>(x[s]) << 16);
      to[2 * s + 1] = static_cast<int32_t>(x[s] & 0xffff0000);
    }
  }
  // The weights of `steps` steps of a block, widened: to [2 * steps, 64].
  static void widen_weights(const int32_t* w, int64_t steps, int32_t* to) {
    for (int64_t s = 0; s < steps; ++s, w += kStep, to += 2 * kStep) {
      for (int64_t n = 0; n < kStep; n += 8) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + n), even(weights_at(w + n)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kStep + n), odd(weights_at(w + n)));
      }
    }
  }
};

struct Int8 : Format<Int8> {
  static constexpr bool kWidens = false;
  static constexpr int64_t kMostRows = 4;
  using Sum = Ints;
  using Register = __m256i;
  static Sum zero() { return all(0); }
#ifdef PASTA_VNNI
  static Register add(Register sum, __m256i x, __m256i w) {
    asm(PASTA_VNNI " %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
    return sum;
  }
#else
  // The product of bytes takes an unsigned factor, so the row's signs go to the weights. It adds pairs up in 16 bits,
  // which two products of at most 127 * 127 do not exceed.
  static Register add(Register sum, __m256i x, __m256i w) {
    __m256i product;
    asm("vpsignb %2, %3, %1\n\tvpmaddubsw %1, %4, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sum), "=&x"(product)
        : "x"(x), "x"(w), "x"(_mm256_abs_epi8(x)), "x"(_mm256_set1_epi16(1)));
    return sum;
  }
#endif
};

// Weights of 4 bits (linear_int4.h), a register of which holds two steps of eight outputs. They are unsigned, the row
// is signed. Without AVX-VNNI 16 bits hold the sums of a group, which are at most 8 * 2 * 15 * 127.
struct Int4 {
  static constexpr int64_t kMostRows = 4;
  static constexpr _mm_hint kInto = _MM_HINT_T0;
  using Register = __m256i;
  using Row = __m256i;
  using Sum = __m256;
  static constexpr int64_t kNumbers = 8;  // outputs of a register
  static constexpr int together(int rows) { return rows == 1 ? kParts : 2; }
  static Register load(const int32_t* w) { return weights_at(w); }
  static Register low(Register w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static Register high(Register w) { return low(_mm256_srli_epi16(w, 4)); }
  static Row row(const int32_t* x) { return _mm256_set1_epi32(*x); }
  static Sum scales(const BFloat16* at) { return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
  // offset: minus what a group has too much, since 8 stands for zero.
#ifdef PASTA_VNNI
  static Register start(int32_t offset) { return _mm256_set1_epi32(offset); }
  static Register add(Register sum, Row x, Register w) {
    asm(PASTA_VNNI " %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
    return sum;
  }
  static Sum scaled(Sum all, Register sum, int32_t, Sum scales) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scales, all);
  }
#else
  static Register start(int32_t) { return _mm256_setzero_si256(); }
  static Register add(Register sum, Row x, Register w) {
    __m256i product;
    asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x), "x"(w));
    return sum;
  }
  static Sum scaled(Sum all, Register sum, int32_t offset, Sum scales) {
    const __m256i whole = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(whole, _mm256_set1_epi32(offset))), scales, all);
  }
#endif
};

// ROWS rows against `steps` steps of a block's weights: adds to what earlier steps gave, if there were any. Meanwhile a
// share, 1 / `passes`, of as many weights at `ahead` comes into the cache: products do not wait for the memory. With
// several rows that is always so, since the processor itself finds no stream in a part of each step. Returns where the
// next share begins.
template <class F, int ROWS, bool FETCHES>
__attribute__((noinline)) const int32_t* tile(const int32_t* x, int64_t width, const int32_t* w, int64_t steps,
                                              typename F::Sum* sums, bool begins, const int32_t* ahead,
                                              int64_t passes) {
  constexpr int kTogether = parts_together(ROWS);
  constexpr int64_t kFetched = kStep * kTogether / kParts / (F::kWidened ? 2 : 1);  // numbers a step, in one pass
  const int64_t fetched = kFetched / passes;
  auto* to = reinterpret_cast<typename F::Register*>(sums);
  for (int first = 0; first < kParts; first += kTogether) {
    typename F::Register sum[ROWS][kTogether];
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < kTogether; ++n) sum[r][n] = begins ? F::zero().low : to[r * kParts + first + n];
    for (int64_t s = 0; s < steps; ++s, ahead += fetched) {
      if constexpr (FETCHES || ROWS > 1)
        for (int64_t i = 0; i < kFetched; i += kLanes)
          _mm_prefetch(reinterpret_cast<const char*>(ahead + i), _MM_HINT_T0);
      F::step(sum, x + s, width, w + s * kStep + 8 * first);
    }
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < kTogether; ++n) to[r * kParts + first + n] = sum[r][n];
  }
  return ahead;
}

}  // namespace
