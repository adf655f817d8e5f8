// Products of a few rows with a block of weights, on a CPU with AVX-512.

#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kChunk = 512;  // steps whose weights (128 KiB) stay in the cache for all rows
constexpr int64_t kFetchedChunk = 32;  // and where the next chunk is fetched meanwhile, into the second cache

// A step is four bytes of a row against a register of weights: one float32, two bfloat16, or four 8-bit numbers. In
// assembly: what GCC 12 makes of the intrinsics reads a row's number, or the weights, from memory for each product.

struct Float32 {
  static constexpr bool kTiles = false, kWidens = false;
  static constexpr int64_t kMostRows = 6;  // rows whose sums fit the registers beside a step's weights
  using Sum = Floats;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};

#ifdef __AVX512BF16__
#define PASTA_BFLOAT16
struct Bfloat16 {
  static constexpr bool kTiles = true, kIntegers = false, kWidens = false;
  static constexpr int64_t kTiledFrom = 1;  // tiles round in an order of their own, and all rows must round alike
  static constexpr int64_t kMostRows = 6;
  using Sum = Floats;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};
#endif

struct Int8 {
  static constexpr bool kTiles = true, kIntegers = true, kWidens = false;
  static constexpr int64_t kTiledFrom = 5;  // fewer rows are as fast without; sums of integers are exact either way
  static constexpr int64_t kMostRows = 6;
  using Sum = Ints;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};

// Weights of 4 bits (linear_int4.h), a register of which holds two steps of sixteen outputs: they are the unsigned
// factor, the row is signed.
struct Int4 {
  static constexpr int64_t kMostRows = 6;
  static constexpr _mm_hint kInto = _MM_HINT_T1;
  using Register = __m512i;
  using Row = const int32_t*;  // four numbers, which the product itself reads from memory
  using Sum = __m512;
  static constexpr int64_t kNumbers = kLanes;  // outputs of a register
  static constexpr int together(int rows) { return rows <= 3 ? kBlocks : 2; }
  static Register load(const int32_t* w) { return _mm512_loadu_si512(w); }
  static Register low(Register w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
  static Register high(Register w) { return low(_mm512_srli_epi16(w, 4)); }
  static Row row(const int32_t* x) { return x; }
  // What a group has too much, since 8 stands for zero, is taken off before it is summed.
  static Register start(int32_t offset) { return _mm512_set1_epi32(offset); }
  static Register add(Register sum, Row x, Register w) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*x));
    return sum;
  }
  static Sum scales(const BFloat16* at) { return ::load(at); }
  static Sum scaled(Sum all, Register sum, int32_t, Sum scales) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, all);
  }
};

// ROWS rows against `steps` steps of a block's weights: adds to what earlier steps gave, if there were any. Meanwhile a
// share, 1 / `passes`, of as many weights at `ahead` may come into the cache; returns where the next share begins.
template <class F, int ROWS, bool FETCHES>
const int32_t* tile(const int32_t* x, int64_t width, const int32_t* w, int64_t steps, typename F::Sum* sums,
                    bool begins, const int32_t* ahead, int64_t passes) {
  const int64_t fetched = (kBlocks + passes - 1) / passes;
  typename F::Sum sum[ROWS * kBlocks];
#pragma GCC unroll 32  // else GCC 12 copies the sums through memory before and after the loop, here and below
  for (int i = 0; i < ROWS * kBlocks; ++i) sum[i] = begins ? F::zero() : sums[i];
  for (int64_t s = 0; s < steps; ++s) {
    __m512i weights[kBlocks];
    for (int b = 0; b < kBlocks; ++b) weights[b] = _mm512_loadu_si512(w + (s * kBlocks + b) * kLanes);
    if constexpr (FETCHES)
      for (int64_t i = 0; i < fetched; ++i, ahead += kLanes)
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
#pragma GCC unroll 32
    for (int i = 0; i < ROWS * kBlocks; ++i) {
      const __m512i row = _mm512_set1_epi32(x[i / kBlocks * width + s]);
      sum[i] = F::step(sum[i], row, weights[i % kBlocks]);
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < ROWS * kBlocks; ++i) sums[i] = sum[i];
  return ahead;
}

}  // namespace
