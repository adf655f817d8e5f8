// Linear layers of few rows.

#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kOutputs = 64;  // kLanes * kBlocks
constexpr int64_t kAhead = 24;    // steps whose weights are fetched before their turn
constexpr int64_t kMostRows = 6;  // rows whose sums fit the registers beside a step's weights
constexpr int64_t kChunk = 512;   // steps whose weights (128 KiB) stay in the cache for all rows

// A step is four bytes of a row against a register of weights: one float32, two bfloat16, or four 8-bit numbers. In
// assembly: what GCC 12 makes of the intrinsics reads a row's number, or the weights, from memory for each product.

struct Float32 {
  static constexpr bool kTiles = false;
  using Sum = __m512;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};

#ifdef __AVX512BF16__
struct Bfloat16 {
  static constexpr bool kTiles = true, kIntegers = false;
  static constexpr int64_t kTiledFrom = 1;  // tiles round in an order of their own, and all rows must round alike
  using Sum = __m512;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};
#endif

struct Int8 {
  static constexpr bool kTiles = true, kIntegers = true;
  static constexpr int64_t kTiledFrom = 5;  // fewer rows are as fast without; sums of integers are exact either way
  using Sum = __m512i;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum step(Sum sum, __m512i x, __m512i w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};

// ROWS rows against `steps` steps of a block's weights: adds to what earlier steps gave, if there were any.
template <class F, int ROWS>
void tile(const int32_t* x, int64_t width, const __m512i* w, int64_t steps, typename F::Sum* sums, bool begins) {
  typename F::Sum sum[ROWS][kBlocks];
  for (int r = 0; r < ROWS; ++r)
    for (int b = 0; b < kBlocks; ++b) sum[r][b] = begins ? F::zero() : sums[r * kBlocks + b];
  for (int64_t s = 0; s < steps; ++s) {
    __m512i weights[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      weights[b] = _mm512_loadu_si512(w + s * kBlocks + b);
      // With several rows the processor itself looks too few steps ahead to keep the memory busy.
      if constexpr (ROWS > 1) _mm_prefetch(reinterpret_cast<const char*>(w + (s + kAhead) * kBlocks + b), _MM_HINT_T0);
    }
    for (int r = 0; r < ROWS; ++r) {
      const __m512i row = _mm512_set1_epi32(x[r * width + s]);
      for (int b = 0; b < kBlocks; ++b) sum[r][b] = F::step(sum[r][b], row, weights[b]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int b = 0; b < kBlocks; ++b) sums[r * kBlocks + b] = sum[r][b];
}

// x: rows of `steps` steps; w [outputs / 64, steps, 4] registers; finish(output, register, sums) takes the results of the
// sixteen outputs from `output` on: those of row r are in sums[r * kBlocks + register].
template <class F, class Finish>
void product(const int32_t* x, int64_t rows, int64_t steps, const __m512i* w, int64_t outputs, const Finish& finish) {
  bool tiled = false;
  if constexpr (F::kTiles) tiled = rows >= F::kTiledFrom && steps % kTileSteps == 0 && tiles_allowed();
  parallel(outputs / kOutputs, steps * outputs, [&](int64_t begin, int64_t end) {
    std::vector<typename F::Sum> sums(rows * kBlocks);
    Tiles tiles;
    for (int64_t block = begin; block < end; ++block) {
      if (tiled) std::fill(sums.begin(), sums.end(), F::zero());
      for (int64_t first = 0; first < steps; first += kChunk) {
        const int64_t count = std::min(kChunk, steps - first);
        const __m512i* weights = w + (block * steps + first) * kBlocks;
        int64_t r = 0;
        if constexpr (F::kTiles) {
          for (; tiled && r < rows; r += kTileRows) {
            tiles.use(std::min(kTileRows, rows - r));
            by_tiles<F::kIntegers>(x + r * steps + first, steps, weights, count, &sums[r * kBlocks]);
          }
        }
        while (r < rows) {  // the first pass waits for the memory: it takes as many rows as it can
          const int64_t some = std::min(kMostRows, rows - r);
          const auto run = [&](auto pass) { pass(x + r * steps + first, steps, weights, count, &sums[r * kBlocks], first == 0); };
          if (some == 6) run(tile<F, 6>);
          if (some == 5) run(tile<F, 5>);
          if (some == 4) run(tile<F, 4>);
          if (some == 3) run(tile<F, 3>);
          if (some == 2) run(tile<F, 2>);
          if (some == 1) run(tile<F, 1>);
          r += some;
        }
      }
      for (int64_t b = 0; b < kBlocks; ++b) finish(block * kOutputs + b * kLanes, b, sums.data());
    }
  });
}

// x [..., in] float32 or bfloat16, weight [blocks, steps, 4, 16] of four bytes each, bias [outputs] float32.
Tensor linear(const Tensor& x_any, const Tensor& weight, const std::optional<Tensor>& bias, int64_t outputs) {
  const Tensor x = x_any.contiguous();
  auto sizes = x.sizes().vec();
  const int64_t steps = weight.size(1), padded = weight.size(0) * kOutputs;
  const int64_t rows = x.numel() / sizes.back();
  sizes.back() = outputs;
  const Tensor out = at::empty(sizes, x.options());
  const float* add = data_or_null(bias);
  const auto run = [&](auto format, auto* to) {
    product<decltype(format)>(
        static_cast<const int32_t*>(x.const_data_ptr()), rows, steps,
        static_cast<const __m512i*>(weight.const_data_ptr()), padded, [=](int64_t n, int64_t b, const __m512* sums) {
          if (n >= outputs) return;
          const __mmask16 mask = mask_of(outputs - n);
          const __m512 more = add == nullptr ? _mm512_setzero_ps() : load(add + n, mask);
          for (int64_t r = 0; r < rows; ++r) {
            const __m512 sum = sums[r * kBlocks + b];
            store(to + r * outputs + n, add == nullptr ? sum : _mm512_add_ps(sum, more), mask);
          }
        });
  };
  if (x.scalar_type() == at::kFloat) {
    run(Float32(), out.mutable_data_ptr<float>());
  } else {
#ifdef __AVX512BF16__
    run(Bfloat16(), out.mutable_data_ptr<BFloat16>());
#else
    TORCH_CHECK(false, "built for a CPU without bfloat16 products");
#endif
  }
  return out;
}

// A row over its largest value as unsigned 8-bit numbers, 128 for zero; returns its scale. Not-a-number and infinity
// make the scale not-a-number, and with it the whole row.
float quantise(const float* row, int64_t width, uint8_t* to) {
  __m512 most = _mm512_set1_ps(1e-12f), wrong = _mm512_setzero_ps();
  for (int64_t i = 0; i < width; i += kLanes) {
    const __m512 x = load(row + i, mask_of(width - i));
    most = _mm512_max_ps(most, _mm512_abs_ps(x));
    wrong = _mm512_fmadd_ps(x, _mm512_setzero_ps(), wrong);
  }
  const float scale = _mm512_reduce_max_ps(most) / 127.f;
  for (int64_t i = 0; i < width; i += kLanes) {
    const __mmask16 mask = mask_of(width - i);
    const __m512i whole = _mm512_cvtps_epi32(_mm512_div_ps(load(row + i, mask), _mm512_set1_ps(scale)));
    _mm_mask_storeu_epi8(to + i, mask, _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128))));
  }
  return scale + _mm512_reduce_add_ps(wrong);
}

// x [..., in] float32; weight as in `linear`, 8-bit numbers; scales and bias [outputs] float32; offsets [outputs] int32:
// 128 times the sum of an output's weights.
Tensor linear_int8(const Tensor& x_any, const Tensor& weight, const Tensor& scales, const Tensor& offsets,
                   const std::optional<Tensor>& bias, int64_t outputs) {
  const Tensor x = x_any.contiguous();
  auto sizes = x.sizes().vec();
  const int64_t width = sizes.back(), rows = x.numel() / width;
  const int64_t steps = weight.size(1), padded = weight.size(0) * kOutputs;
  std::vector<int32_t> quantised(rows * steps, 0);
  std::vector<float> row_scales(rows);
  const float* from = x.const_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r)
    row_scales[r] = quantise(from + r * width, width, reinterpret_cast<uint8_t*>(&quantised[r * steps]));
  sizes.back() = outputs;
  const Tensor out = at::empty(sizes, x.options());
  float* to = out.mutable_data_ptr<float>();
  const float *scale = scales.const_data_ptr<float>(), *add = data_or_null(bias), *by_row = row_scales.data();
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  product<Int8>(quantised.data(), rows, steps, static_cast<const __m512i*>(weight.const_data_ptr()), padded,
                [=](int64_t n, int64_t b, const __m512i* sums) {
                  if (n >= outputs) return;
                  const __mmask16 mask = mask_of(outputs - n);
                  const __m512i zero = _mm512_maskz_loadu_epi32(mask, offset + n);
                  const __m512 by_output = load(scale + n, mask);
                  const __m512 more = add == nullptr ? _mm512_setzero_ps() : load(add + n, mask);
                  for (int64_t r = 0; r < rows; ++r) {
                    const __m512i whole = _mm512_sub_epi32(sums[r * kBlocks + b], zero);
                    __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), by_output);
                    y = _mm512_mul_ps(y, _mm512_set1_ps(by_row[r]));
                    store(to + r * outputs + n, add == nullptr ? y : _mm512_add_ps(y, more), mask);
                  }
                });
  return out;
}

}  // namespace
