// Sixteen numbers at a time on a CPU with AVX2, in two registers: the same functions as in avx512.h.

#pragma once

#define CPU_CAPABILITY_AVX2  // at::vec's numbers are then registers of AVX2
#include <ATen/cpu/vec/vec.h>

namespace {

struct Floats {  // float32
  __m256 low, high;
};
struct Ints {  // int32
  __m256i low, high;
};
struct Mask {  // some of the sixteen: all bits of each
  __m256i low, high;
};
struct Tail {  // the first of the sixteen: those before a row's end
  int64_t count;
};
constexpr Tail kAll{kLanes};
constexpr bool kManyRegisters = false;

Tail tail(int64_t left) { return {std::min(left, kLanes)}; }

Mask mask_of(Tail there) {
  alignas(64) static const int32_t kOnes[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  const auto* at = reinterpret_cast<const __m256i*>(kOnes + kLanes - there.count);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
Ints all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

Floats load(const float* at, Tail there = kAll) {
  if (there.count == kLanes) return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
  const Mask mask = mask_of(there);
  return {_mm256_maskload_ps(at, mask.low), _mm256_maskload_ps(at + 8, mask.high)};
}

__m256 widened(__m128i half) { return (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16); }

Floats load(const BFloat16* at, Tail there = kAll) {
  alignas(32) BFloat16 whole[kLanes];
  if (there.count < kLanes) {
    std::memset(whole, 0, sizeof(whole));
    std::memcpy(whole, at, there.count * sizeof(BFloat16));
    at = whole;
  }
  const auto* halves = reinterpret_cast<const __m128i*>(at);
  return {widened(_mm_loadu_si128(halves)), widened(_mm_loadu_si128(halves + 1))};
}

void store(float* at, Floats x, Tail there = kAll) {
  if (there.count == kLanes) {
    _mm256_storeu_ps(at, x.low);
    _mm256_storeu_ps(at + 8, x.high);
  } else {
    const Mask mask = mask_of(there);
    _mm256_maskstore_ps(at, mask.low, x.low);
    _mm256_maskstore_ps(at + 8, mask.high, x.high);
  }
}

__m256i rounded(__m256 x) {  // to bfloat16, half to even
  const __m256i bits = (__m256i)x, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 none = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_srli_epi32((__m256i)_mm256_blendv_ps((__m256)near, (__m256)_mm256_set1_epi32(0x7fc00000), none), 16);
}

void store(BFloat16* at, Floats x, Tail there = kAll) {
  // Packing goes by halves of a register: put the quarters in order.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(x.low), rounded(x.high)), 0xd8);
  if (there.count == kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), packed);
  } else {
    alignas(32) BFloat16 whole[kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(whole), packed);
    std::memcpy(at, whole, there.count * sizeof(BFloat16));
  }
}

void store(int32_t* at, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + 8), x.high);
}

Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
Floats least(Floats a, Floats b) {  // the second where one is not-a-number, as in `most`
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
Floats most(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
Floats nearest(Floats x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kNearest), _mm256_round_ps(x.high, kNearest)};
}
Floats fmadd(Floats a, Floats b, Floats c) {  // a * b + c
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
Floats fmsub(Floats a, Floats b, Floats c) {  // a * b - c
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
Floats fnmadd(Floats a, Floats b, Floats c) {  // c - a * b
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
Floats absolute(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}

__m256 power(__m256 n) {  // 2^n of whole numbers from -126 to 127
  return (__m256)_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
}
Floats times_power(Floats x, Floats n) { return mul(x, {power(n.low), power(n.high)}); }  // x * 2^n

float sum(Floats x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

float largest(Floats x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

Floats kept(Mask mask, Floats x) {  // zero elsewhere
  return {_mm256_and_ps((__m256)mask.low, x.low), _mm256_and_ps((__m256)mask.high, x.high)};
}
Floats kept(Tail there, Floats x) { return there.count == kLanes ? x : kept(mask_of(there), x); }
Floats chosen(Mask mask, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.low, yes.low, (__m256)mask.low), _mm256_blendv_ps(no.high, yes.high, (__m256)mask.high)};
}
Ints chosen(Mask mask, Ints yes, Ints no) {
  return {_mm256_blendv_epi8(no.low, yes.low, mask.low), _mm256_blendv_epi8(no.high, yes.high, mask.high)};
}
Floats most(Tail there, Floats a, Floats b) {
  return there.count == kLanes ? most(a, b) : chosen(mask_of(there), most(a, b), a);
}

template <int HOW>
Mask compared(Mask of, Floats a, Floats b) {
  return {_mm256_and_si256(of.low, (__m256i)_mm256_cmp_ps(a.low, b.low, HOW)),
          _mm256_and_si256(of.high, (__m256i)_mm256_cmp_ps(a.high, b.high, HOW))};
}
Mask greater(Mask of, Floats a, Floats b) { return compared<_CMP_GT_OQ>(of, a, b); }
Mask greater(Tail of, Floats a, Floats b) { return greater(mask_of(of), a, b); }
Mask equal(Tail of, Floats a, Floats b) { return compared<_CMP_EQ_OQ>(mask_of(of), a, b); }
Mask unordered(Mask of, Floats x) { return compared<_CMP_UNORD_Q>(of, x, x); }
uint32_t bits(Mask mask) {
  return _mm256_movemask_ps((__m256)mask.low) | _mm256_movemask_ps((__m256)mask.high) << 8;
}

// Those of the first sixteen flags that are not set.
Mask unset(const bool* flags, Tail there) {
  alignas(16) bool whole[kLanes];
  if (there.count < kLanes) {
    std::memset(whole, 1, sizeof(whole));
    std::memcpy(whole, flags, there.count);
    flags = whole;
  }
  const __m128i open = _mm_cmpeq_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(flags)), _mm_setzero_si128());
  return {_mm256_cvtepi8_epi32(open), _mm256_cvtepi8_epi32(_mm_srli_si128(open, 8))};
}

// Writes the numbers first, first + 1, … of those in the mask one after another, and up to sixteen in all; returns how
// many are theirs.
int64_t write_numbers(Mask mask, int32_t first, int32_t* to) {
  uint32_t left = bits(mask);
  if (left == 0xffff) {
    const __m256i low = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    store(to, {low, _mm256_add_epi32(low, _mm256_set1_epi32(8))});
    return kLanes;
  }
  int64_t found = 0;
  for (; left; left &= left - 1) to[found++] = first + __builtin_ctz(left);
  return found;
}

// The sum of each of four registers. None depends on the others, nor on which of the four it is.
__m128 sum_of_each(Floats a, Floats b, Floats c, Floats d) {
  const auto half = [](Floats x) { return _mm256_add_ps(x.low, x.high); };
  const __m256 abcd = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
  return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}

// -- 8-bit numbers ---------------------------------------------------------------------------------------------

// AVX-VNNI has AVX-512's products in registers of 32 bytes.
#ifdef __AVXVNNI__
#define PASTA_VNNI "%{vex%} vpdpbusd"
#endif

#ifdef PASTA_VNNI
constexpr int32_t kZero = 128;  // stands for zero, since these products take one unsigned factor
#else
constexpr int32_t kZero = 0;
#endif

// Rounds numbers of at most 127 either way.
void store_quantised(uint8_t* to, Floats x, Tail there) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(words, words), 0xd8);
  // A quarter of the first register, of the second, and so on: put them in order.
  const __m128i whole = _mm_shuffle_epi32(_mm256_castsi256_si128(bytes), 0xd8);
  alignas(16) uint8_t kept[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(kept), _mm_add_epi8(whole, _mm_set1_epi8(static_cast<char>(kZero))));
  std::memcpy(to, kept, there.count);
}

// Sums of products to float32; zeros: what they have too much because of kZero.
Floats as_floats(Ints sums, const int32_t* zeros, Tail there) {
  if (kZero != 0) {
    const Floats bits = load(reinterpret_cast<const float*>(zeros), there);
    sums = {_mm256_sub_epi32(sums.low, (__m256i)bits.low), _mm256_sub_epi32(sums.high, (__m256i)bits.high)};
  }
  return {_mm256_cvtepi32_ps(sums.low), _mm256_cvtepi32_ps(sums.high)};
}

// -- which keys a token sees -----------------------------------------------------------------------------------

struct Sight {
  const uint64_t* words;  // a bit for each segment: whether the token's own sees it
  int64_t own, position, window;

  Sight(const uint64_t* words, int64_t own, int64_t position, int64_t window)
      : words(words), own(own), position(position), window(window) {}

  // Of sixteen keys, which have segments and positions: those that are seen, and those of them within the window.
  std::pair<Mask, Mask> operator()(const int64_t* segment, const int64_t* at, Tail there) const {
    alignas(32) int32_t sees[kLanes] = {}, near[kLanes] = {};
    for (int64_t i = 0; i < there.count; ++i) {
      const uint64_t other = std::max<int64_t>(segment[i], 0);
      const int64_t distance = at[i] - position;
      const bool later = (segment[i] == own) & (distance > 0);
      const bool seen = (segment[i] >= 0) & (words[other / 64] >> (other % 64)) & !later;
      sees[i] = -int32_t{seen};
      near[i] = -int32_t{seen & (std::abs(distance) < window)};
    }
    const auto read = [](const int32_t* lanes) {
      const auto* from = reinterpret_cast<const __m256i*>(lanes);
      return Mask{_mm256_load_si256(from), _mm256_load_si256(from + 1)};
    };
    return {read(sees), read(near)};
  }
};

// -- noise, four tokens at a time --------------------------------------------------------------------------------

using Doubles = at::vec::Vectorized<double>;
constexpr int64_t kDoubles = 4;

// The uniform numbers (pasta.engine.sampling.gumbel) of tokens first to first + 3.
Doubles uniform(int64_t key, int64_t first) {
  alignas(32) double out[kDoubles];
  for (int64_t i = 0; i < kDoubles; ++i) {
    uint64_t z = static_cast<uint64_t>(first + 1 + i) * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(key);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    out[i] = (static_cast<double>(static_cast<int64_t>((z ^ z >> 31) >> 11)) + 0.5) * 0x1p-53;
  }
  return _mm256_load_pd(out);
}

// The largest so far in each of four places, and where it was.
struct Leaders {
  __m256d most = _mm256_set1_pd(-std::numeric_limits<double>::infinity());
  __m256i at = _mm256_setzero_si256();

  // Takes the scores of `left` tokens from i on, and noise(i); what is `margin` below the leaders needs none.
  template <class Noise>
  void take(const double* row, int64_t i, int64_t left, double margin, const Noise& noise) {
    const __m256i places = _mm256_setr_epi64x(0, 1, 2, 3);
    const __m256i there = _mm256_cmpgt_epi64(_mm256_set1_epi64x(left), places);
    const __m256d score = _mm256_maskload_pd(row + i, there);
    const __m256d least = _mm256_sub_pd(most, _mm256_set1_pd(margin));
    const __m256d possible = _mm256_and_pd((__m256d)there, _mm256_cmp_pd(score, least, _CMP_GT_OQ));
    if (!_mm256_movemask_pd(possible)) return;
    const __m256d sum = _mm256_add_pd(score, noise(i));
    const __m256d more = _mm256_and_pd(possible, _mm256_cmp_pd(sum, most, _CMP_GT_OQ));
    most = _mm256_blendv_pd(most, sum, more);
    at = (__m256i)_mm256_blendv_pd((__m256d)at, (__m256d)_mm256_set1_epi64x(i), more);
  }
  void store(double* largest, int64_t* block) const {
    _mm256_storeu_pd(largest, most);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block), at);
  }
};

}  // namespace
