// Scores of many query heads against the same keys, sixteen keys at a time, on a CPU with AVX-512: numbers of the keys
// lie in registers, of sixteen keys each, so that no sum goes across a register.

#pragma once

#include <memory>

#include "numbers.h"

namespace {

constexpr int64_t kWorthTiles = 16;  // query heads for which keys are laid out anew

#ifdef __AVX512F__

// Four bytes of a query head, in all lanes, times those of sixteen keys: as `Query` in query_heads.h multiplies them.
template <class T>
struct Word;

template <>
struct Word<float> {
  static Floats first(int32_t query, __m512i keys) { return mul(both(query), (__m512)keys); }
  static Floats add(Floats sum, int32_t query, __m512i keys) { return fmadd(both(query), (__m512)keys, sum); }
  static Floats both(int32_t query) { return (__m512)_mm512_set1_epi32(query); }
  static constexpr bool kLastFirst = true, kHere = true;
};

#ifdef __AVX512BF16__
template <>
struct Word<BFloat16> {
  static Floats add(Floats sum, int32_t query, __m512i keys) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(query), (__m512bh)keys);
  }
  static Floats first(int32_t query, __m512i keys) { return add(zeros(), query, keys); }
  static constexpr bool kLastFirst = false, kHere = true;
};
#else
template <>
struct Word<BFloat16> {
  static constexpr bool kHere = false;
};
#endif

// Keys of VECTORS registers each. A tile has sixteen of them: their first four bytes, their second, and so on.
template <class T, int VECTORS>
class KeyTiles {
 public:
  static constexpr bool kHere = VECTORS > 0 && Word<T>::kHere;

  // Lays out keys [at[0]], …, [at[count - 1]]: as many of the first as lie beside each other and fill tiles. Returns how
  // many these are.
  __attribute__((flatten)) int64_t lay_out(const T* keys, const int32_t* at, int64_t count) {
    int64_t done = 0;
    words_.reset(new float[count * kWords]);
    for (; done + kLanes <= count && at[done + kLanes - 1] == at[done] + kLanes - 1; done += kLanes) {
      const auto* from = reinterpret_cast<const float*>(keys) + at[done] * kWords;
      for (int64_t v = 0; v < VECTORS; ++v)
        at::vec::transpose_mxn<float>(from + v * kLanes, kWords, &words_[done * kWords + v * kLanes * kLanes], kLanes,
                                      kLanes, kLanes);
    }
    return done;
  }

  // Scores of N query heads against the keys from i on, a multiple of sixteen: to scores[n * stride]. The sixteen sums
  // of a product are added up in the order in which `sum_of_each` adds them.
  template <int N>
  void score(const int32_t* const* queries, int64_t i, float* scores, int64_t stride) const {
    const float* tile = &words_[i * kWords];
    Floats whole[N], half[N], quarter[N];
    for (int g : {0, 2, 1, 3}) {
      product<N>(queries, tile, 4 * g, quarter);
      add_product<N>(queries, tile, 4 * g + 2, quarter);
      Floats odd[N];
      product<N>(queries, tile, 4 * g + 1, odd);
      add_product<N>(queries, tile, 4 * g + 3, odd);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        quarter[n] = ::add(quarter[n], odd[n]);
        if (g == 0 || g == 1) half[n] = quarter[n];
        if (g == 2) whole[n] = ::add(half[n], quarter[n]);
        if (g == 3) store(scores + n * stride, ::add(whole[n], ::add(half[n], quarter[n])));
      }
    }
  }

 private:
  static constexpr int64_t kWords = VECTORS * kLanes;  // of four bytes, in a key

  template <int N>
  static void product(const int32_t* const* queries, const float* tile, int word, Floats* to) {
    constexpr int kFirst = Word<T>::kLastFirst ? VECTORS - 1 : 0;
#pragma GCC unroll 8
    for (int turn = 0; turn < VECTORS; ++turn) {
      const int v = turn == 0 ? kFirst : Word<T>::kLastFirst ? turn - 1 : turn;
      const __m512i keys = _mm512_loadu_si512(tile + (v * kLanes + word) * kLanes);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const int32_t query = queries[n][v * kLanes + word];
        to[n] = turn == 0 ? Word<T>::first(query, keys) : Word<T>::add(to[n], query, keys);
      }
    }
  }
  template <int N>
  static void add_product(const int32_t* const* queries, const float* tile, int word, Floats* sums) {
    Floats more[N];
    product<N>(queries, tile, word, more);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[n] = ::add(sums[n], more[n]);
  }

  std::unique_ptr<float[]> words_;
};

#else

template <class T, int VECTORS>
struct KeyTiles {
  static constexpr bool kHere = false;
};

#endif

}  // namespace
