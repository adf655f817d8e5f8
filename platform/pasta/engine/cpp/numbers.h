// Sixteen float32 numbers at a time, and threads.

#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using at::BFloat16;
using at::Tensor;

namespace {

constexpr int64_t kLanes = 16;    // float32 numbers in a register
constexpr int64_t kInline = 1 << 15;  // work below this is not worth waking another thread for

// -- numbers, 16 at a time; a mask leaves out those past a row's end ---------------------------------------------

__mmask16 mask_of(int64_t left) { return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1); }

__m512 load(const float* at, __mmask16 mask = 0xffff) { return _mm512_maskz_loadu_ps(mask, at); }

__m512 load(const BFloat16* at, __mmask16 mask = 0xffff) {
  const __m256i half = _mm256_maskz_loadu_epi16(mask, at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

void store(float* at, __m512 x, __mmask16 mask = 0xffff) { _mm512_mask_storeu_ps(at, mask, x); }

void store(BFloat16* at, __m512 x, __mmask16 mask = 0xffff) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));  // half to even
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
  _mm256_mask_storeu_epi16(at, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// e^x to 2 units in the last place; not-a-number stays one.
__m512 exponential(__m512 x) {
  x = _mm512_min_ps(_mm512_set1_ps(88.f), _mm512_max_ps(_mm512_set1_ps(-87.f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 sum = _mm512_set1_ps(1.f / 720);
  for (float c : {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(sum, n);
}

__m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// Calls run with a number of the type that a tensor holds.
template <class Run>
void by_type(at::ScalarType type, const Run& run) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "expected float32 or bfloat16");
  type == at::kFloat ? run(float{}) : run(BFloat16{});
}

const float* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr<float>() : nullptr;
}

template <class Work>
void parallel(int64_t tasks, int64_t work, const Work& run) {
  if (work < kInline || at::get_num_threads() == 1) {
    run(int64_t{0}, tasks);
  } else {
    at::parallel_for(0, tasks, 1, run);
  }
}

}  // namespace
