// Choosing tokens by the Gumbel-max trick: noise and argmax in one pass.

#pragma once

#define CPU_CAPABILITY_AVX512  // at::vec's numbers are then registers of AVX-512
#include <ATen/cpu/vec/vec.h>

#include "numbers.h"

namespace {

using Doubles = at::vec::Vectorized<double>;

constexpr int64_t kDoubles = 8;
constexpr double kMostNoise = 37.5;  // the largest uniform number below 1 has 54 log(2)

__m512i mixed(__m512i z, int bits, uint64_t factor) {
  return _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, bits)), _mm512_set1_epi64(factor));
}

// pasta.engine.sampling.gumbel of tokens first to first + 7.
Doubles gumbel(int64_t key, int64_t first) {
  const __m512i ids = _mm512_add_epi64(_mm512_set1_epi64(first + 1), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i z = _mm512_mullo_epi64(ids, _mm512_set1_epi64(0x9E3779B97F4A7C15));
  z = _mm512_add_epi64(z, _mm512_set1_epi64(key));
  z = mixed(mixed(z, 30, 0xBF58476D1CE4E5B9), 27, 0x94D049BB133111EB);
  z = _mm512_srli_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 31)), 11);
  const __m512d half = _mm512_add_pd(_mm512_cvtepu64_pd(z), _mm512_set1_pd(0.5));
  const Doubles uniform(_mm512_mul_pd(half, _mm512_set1_pd(0x1p-53)));
  return uniform.log().neg().log().neg();
}

// The largest of a register's numbers and its token, the lowest of equal ones. Number n is that of token block[n] + n.
template <class Number, class Block, size_t N>
std::pair<Number, int64_t> first_largest(const Number (&largest)[N], const Block (&block)[N]) {
  size_t best = 0;
  for (size_t n = 1; n < N; ++n) {
    const bool earlier = largest[n] == largest[best] && block[n] + n < block[best] + best;
    if (largest[n] > largest[best] || earlier) best = n;
  }
  return {largest[best], block[best] + best};
}

// scores [N, V] float64, each row with one above -inf, and a key for each row [N]: the first token [N] whose score and
// noise are the largest.
Tensor gumbel_argmax(const Tensor& scores_any, const Tensor& keys_any) {
  const Tensor scores = scores_any.contiguous(), keys = keys_any.contiguous();
  const int64_t rows = scores.size(0), vocab = scores.size(1);
  const Tensor out = at::empty({rows}, keys.options());
  parallel(rows, rows * vocab, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const double* row = scores.const_data_ptr<double>() + r * vocab;
      const int64_t key = keys.const_data_ptr<int64_t>()[r];
      __m512d most = _mm512_set1_pd(-std::numeric_limits<double>::infinity());
      __m512i at = _mm512_setzero_si512();
      for (int64_t i = 0; i < vocab; i += kDoubles) {
        const __mmask8 there = vocab - i >= kDoubles ? 0xff : (1u << (vocab - i)) - 1;
        const __m512d score = _mm512_maskz_loadu_pd(there, row + i);
        const __m512d least = _mm512_sub_pd(most, _mm512_set1_pd(kMostNoise));
        const __mmask8 possible = _mm512_mask_cmp_pd_mask(there, score, least, _CMP_GT_OQ);
        if (!possible) continue;
        const __m512d sum = _mm512_add_pd(score, gumbel(key, i));
        const __mmask8 more = _mm512_mask_cmp_pd_mask(possible, sum, most, _CMP_GT_OQ);
        most = _mm512_mask_mov_pd(most, more, sum);
        at = _mm512_mask_mov_epi64(at, more, _mm512_set1_epi64(i));
      }
      alignas(64) double largest[kDoubles];
      alignas(64) int64_t block[kDoubles];
      _mm512_store_pd(largest, most);
      _mm512_store_si512(block, at);
      out.mutable_data_ptr<int64_t>()[r] = first_largest(largest, block).second;
    }
  });
  return out;
}

// The likeliest token [N] of each row of logits [N, V] that its constraint permits: forbidden [C, V] bool, numbers
// [>= 4, N]: a row's constraint first, and fourth, as a double, what is added to the logit of `promise` (if that is a
// token). -1 where there is none: a permitted logit is not-a-number, or the largest is not finite.
Tensor likeliest_permitted(const Tensor& logits_any, const Tensor& numbers_any, const Tensor& forbidden,
                           int64_t promise) {
  const Tensor logits = logits_any.contiguous(), numbers = numbers_any.contiguous();
  const int64_t rows = logits.size(0), vocab = logits.size(1), stride = numbers.size(1);
  TORCH_CHECK(forbidden.is_contiguous() && forbidden.size(1) == vocab, "likeliest_permitted: sizes that do not fit");
  const Tensor out = at::empty({rows}, numbers.options());
  const int64_t* number = numbers.const_data_ptr<int64_t>();
  const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  by_type(logits.scalar_type(), [&](auto kind) {
    using scalar_t = decltype(kind);
    parallel(rows, rows * vocab, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const scalar_t* row = logits.const_data_ptr<scalar_t>() + r * vocab;
        TORCH_CHECK(number[r] >= 0 && number[r] < forbidden.size(0), "likeliest_permitted: no such constraint");
        const bool* bars = forbidden.const_data_ptr<bool>() + number[r] * vocab;
        __m512 most = least;
        __m512i at = _mm512_setzero_si512();
        __mmask16 wrong = 0;
        for (int64_t i = 0; i < vocab; i += kLanes) {
          const __mmask16 there = mask_of(vocab - i);
          const __m128i barred = _mm_maskz_loadu_epi8(there, bars + i);
          const __mmask16 open = _mm_mask_testn_epi8_mask(there, barred, barred);
          const __m512 x = load(row + i, there);
          wrong |= _mm512_mask_cmp_ps_mask(open, x, x, _CMP_UNORD_Q);
          const __mmask16 more = _mm512_mask_cmp_ps_mask(open, x, most, _CMP_GT_OQ);
          most = _mm512_mask_mov_ps(most, more, x);
          at = _mm512_mask_mov_epi32(at, more, _mm512_set1_epi32(i));
        }
        alignas(64) float largest[kLanes];
        alignas(64) int32_t block[kLanes];
        _mm512_store_ps(largest, most);
        _mm512_store_si512(block, at);
        auto [best, token] = first_largest(largest, block);
        const double bias = promise < 0 ? 0.0 : reinterpret_cast<const double*>(number)[3 * stride + r];
        if (bias != 0.0 && promise < vocab && !bars[promise]) {
          // Rare: once more, with the promise's logit as its bias makes it.
          best = -std::numeric_limits<float>::infinity();
          for (int64_t i = 0; i < vocab; ++i) {
            if (bars[i]) continue;
            const float x = i == promise ? float(scalar_t(float(row[i]) + float(scalar_t(bias)))) : float(row[i]);
            if (x > best) best = x, token = i;
          }
        }
        const bool finite = std::isfinite(best) && !wrong;
        out.mutable_data_ptr<int64_t>()[r] = finite ? token : -1;
      }
    });
  });
  return out;
}

}  // namespace
