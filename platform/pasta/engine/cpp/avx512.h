// Sixteen numbers at a time on a CPU with AVX-512, in one register.

#pragma once

#define CPU_CAPABILITY_AVX512  // at::vec's numbers are then registers of AVX-512
#include <ATen/cpu/vec/vec.h>

namespace {

using Floats = __m512;    // float32
using Ints = __m512i;     // int32
using Mask = __mmask16;   // some of the sixteen
using Tail = __mmask16;   // the first of the sixteen: those before a row's end
constexpr Tail kAll = 0xffff;
constexpr bool kManyRegisters = true;

Tail tail(int64_t left) { return left >= kLanes ? kAll : static_cast<Tail>((1u << left) - 1); }

Floats zeros() { return _mm512_setzero_ps(); }
Floats all(float x) { return _mm512_set1_ps(x); }
Ints all(int32_t x) { return _mm512_set1_epi32(x); }

Floats load(const float* at, Tail there = kAll) { return _mm512_maskz_loadu_ps(there, at); }

Floats load(const BFloat16* at, Tail there = kAll) {
  const __m256i half = _mm256_maskz_loadu_epi16(there, at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

void store(float* at, Floats x, Tail there = kAll) { _mm512_mask_storeu_ps(at, there, x); }

void store(BFloat16* at, Floats x, Tail there = kAll) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));  // half to even
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
  _mm256_mask_storeu_epi16(at, there, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

void store(int32_t* at, Ints x) { _mm512_storeu_si512(at, x); }

Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
Floats least(Floats a, Floats b) { return _mm512_min_ps(a, b); }  // the second where one is not-a-number, as in `most`
Floats most(Floats a, Floats b) { return _mm512_max_ps(a, b); }
Floats most(Tail there, Floats a, Floats b) { return _mm512_mask_max_ps(a, there, a, b); }
Floats absolute(Floats x) { return _mm512_abs_ps(x); }
Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 0); }
Floats times_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }  // x * 2^n
Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
Floats fmsub(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }    // a * b - c
Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
float sum(Floats x) { return _mm512_reduce_add_ps(x); }
float largest(Floats x) { return _mm512_reduce_max_ps(x); }

Floats kept(Mask mask, Floats x) { return _mm512_maskz_mov_ps(mask, x); }  // zero elsewhere
Floats chosen(Mask mask, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, mask, yes); }
Ints chosen(Mask mask, Ints yes, Ints no) { return _mm512_mask_mov_epi32(no, mask, yes); }
Mask greater(Mask of, Floats a, Floats b) { return _mm512_mask_cmp_ps_mask(of, a, b, _CMP_GT_OQ); }
Mask equal(Mask of, Floats a, Floats b) { return _mm512_mask_cmp_ps_mask(of, a, b, _CMP_EQ_OQ); }
Mask unordered(Mask of, Floats x) { return _mm512_mask_cmp_ps_mask(of, x, x, _CMP_UNORD_Q); }
uint32_t bits(Mask mask) { return mask; }

// Those of the first sixteen flags that are not set.
Mask unset(const bool* flags, Tail there) {
  const __m128i set = _mm_maskz_loadu_epi8(there, flags);
  return _mm_mask_testn_epi8_mask(there, set, set);
}

// Writes the numbers first, first + 1, … of those in the mask one after another, and up to sixteen in all; returns how
// many are theirs.
int64_t write_numbers(Mask mask, int32_t first, int32_t* to) {
  const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, _mm512_add_epi32(count, _mm512_set1_epi32(first))));
  return __builtin_popcount(mask);
}

// The sum of each of four registers. None depends on the others, nor on which of the four it is.
__m128 sum_of_each(Floats a, Floats b, Floats c, Floats d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd((__m512d)ab, (__m512d)cd), high = _mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
  const __m512 abcd = _mm512_add_ps((__m512)low, (__m512)high);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// -- 8-bit numbers: 128 stands for zero, since products take one unsigned factor ---------------------------------

constexpr int32_t kZero = 128;

// Rounds numbers of at most 127 either way.
void store_quantised(uint8_t* to, Floats x, Tail there) {
  const __m512i whole = _mm512_cvtps_epi32(x);
  _mm_mask_storeu_epi8(to, there, _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(kZero))));
}

// Sums of products to float32; zeros: what they have too much because of kZero.
Floats as_floats(Ints sums, const int32_t* zeros, Tail there) {
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_maskz_loadu_epi32(there, zeros)));
}

// -- which keys a token sees -----------------------------------------------------------------------------------

struct Sight {
  const uint64_t* words;  // a bit for each segment: whether the token's own sees it
  __m512i own, position, window;

  Sight(const uint64_t* words, int64_t own, int64_t position, int64_t window)
      : words(words), own(_mm512_set1_epi64(own)), position(_mm512_set1_epi64(position)),
        window(_mm512_set1_epi64(window)) {}

  // Of sixteen keys, which have segments and positions: those that are seen, and those of them within the window.
  std::pair<Mask, Mask> operator()(const int64_t* segment, const int64_t* position, Tail there) const {
    const auto low = eight(segment, position, there), high = eight(segment + 8, position + 8, there >> 8);
    return {low.first | high.first << 8, low.second | high.second << 8};
  }

 private:
  std::pair<__mmask8, __mmask8> eight(const int64_t* segment, const int64_t* position, __mmask8 there) const {
    const __m512i other = _mm512_maskz_loadu_epi64(there, segment), at = _mm512_maskz_loadu_epi64(there, position);
    there = _mm512_mask_cmpge_epi64_mask(there, other, _mm512_setzero_si512());
    const __m512i none = _mm512_setzero_si512();
    const __m512i word = _mm512_mask_i64gather_epi64(none, there, _mm512_srli_epi64(other, 6), words, 8);
    const __m512i bit = _mm512_sllv_epi64(_mm512_set1_epi64(1), _mm512_and_si512(other, _mm512_set1_epi64(63)));
    __mmask8 sees = _mm512_mask_test_epi64_mask(there, word, bit);
    const __mmask8 same = _mm512_cmpeq_epi64_mask(other, own);
    sees &= ~(same & _mm512_cmpgt_epi64_mask(at, this->position));
    const __m512i distance = _mm512_abs_epi64(_mm512_sub_epi64(at, this->position));
    return {sees, _mm512_mask_cmplt_epi64_mask(sees, distance, window)};
  }
};

// -- noise, eight tokens at a time -------------------------------------------------------------------------------

using Doubles = at::vec::Vectorized<double>;
constexpr int64_t kDoubles = 8;

__m512i mixed(__m512i z, int bits, uint64_t factor) {
  return _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, bits)), _mm512_set1_epi64(factor));
}

// The uniform numbers (pasta.engine.sampling.gumbel) of tokens first to first + 7.
Doubles uniform(int64_t key, int64_t first) {
  const __m512i ids = _mm512_add_epi64(_mm512_set1_epi64(first + 1), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i z = _mm512_mullo_epi64(ids, _mm512_set1_epi64(0x9E3779B97F4A7C15));
  z = _mm512_add_epi64(z, _mm512_set1_epi64(key));
  z = mixed(mixed(z, 30, 0xBF58476D1CE4E5B9), 27, 0x94D049BB133111EB);
  z = _mm512_srli_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 31)), 11);
  const __m512d half = _mm512_add_pd(_mm512_cvtepu64_pd(z), _mm512_set1_pd(0.5));
  return _mm512_mul_pd(half, _mm512_set1_pd(0x1p-53));
}

// The largest so far in each of eight places, and where it was.
struct Leaders {
  __m512d most = _mm512_set1_pd(-std::numeric_limits<double>::infinity());
  __m512i at = _mm512_setzero_si512();

  // Takes the scores of `left` tokens from i on, and noise(i); what is `margin` below the leaders needs none.
  template <class Noise>
  void take(const double* row, int64_t i, int64_t left, double margin, const Noise& noise) {
    const __mmask8 there = left >= kDoubles ? 0xff : (1u << left) - 1;
    const __m512d score = _mm512_maskz_loadu_pd(there, row + i);
    const __m512d least = _mm512_sub_pd(most, _mm512_set1_pd(margin));
    const __mmask8 possible = _mm512_mask_cmp_pd_mask(there, score, least, _CMP_GT_OQ);
    if (!possible) return;
    const __m512d sum = _mm512_add_pd(score, noise(i));
    const __mmask8 more = _mm512_mask_cmp_pd_mask(possible, sum, most, _CMP_GT_OQ);
    most = _mm512_mask_mov_pd(most, more, sum);
    at = _mm512_mask_mov_epi64(at, more, _mm512_set1_epi64(i));
  }
  void store(double* largest, int64_t* block) const {
    _mm512_storeu_pd(largest, most);
    _mm512_storeu_si512(block, at);
  }
};

}  // namespace
