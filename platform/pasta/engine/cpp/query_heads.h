// Attention of query heads over the keys of a slot's key head.

#pragma once

#include "key_tiles.h"

namespace {

constexpr int64_t kMostVectors = 32;  // registers that a head fills

// A query head against a key: sixteen sums, which together are their product. VECTORS registers hold the head; 0: as many
// as it takes.
template <class T, int VECTORS>
class Query {
 public:
  void read(const T* query, int64_t dim) {
    vectors_ = (dim + kLanes - 1) / kLanes;
    tail_ = tail(dim - (vectors_ - 1) * kLanes);
    for (int64_t v = 0; v < vectors(); ++v) query_[v] = load(query + v * kLanes, there(v));
  }
  Floats operator()(const T* key) const {
    const int64_t last = vectors() - 1;
    Floats sums = mul(query_[last], load(key + last * kLanes, there(last)));
    for (int64_t v = 0; v < last; ++v) sums = fmadd(query_[v], load(key + v * kLanes), sums);
    return sums;
  }
  // The same of a key that is in registers already.
  using Register = Floats;
  static void read_key(const T* key, Register* to) {
    for (int64_t v = 0; v < VECTORS; ++v) to[v] = load(key + v * kLanes);
  }
  Floats by(const Register* key) const {
    Floats sums = mul(query_[VECTORS - 1], key[VECTORS - 1]);
    for (int64_t v = 0; v < VECTORS - 1; ++v) sums = fmadd(query_[v], key[v], sums);
    return sums;
  }
  static constexpr int64_t kNumbers = VECTORS * kLanes;

  // N query heads against a key that is read once for all of them.
  template <int N>
  static __m128 several(const Query* queries, const T* key) {
    const int64_t last = queries->vectors() - 1;
    Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
    Floats part = load(key + last * kLanes, queries->there(last));
    for (int n = 0; n < N; ++n) sums[n] = mul(queries[n].query_[last], part);
    for (int64_t v = 0; v < last; ++v) {
      part = load(key + v * kLanes);
      for (int n = 0; n < N; ++n) sums[n] = fmadd(queries[n].query_[v], part, sums[n]);
    }
    return sum_of_each(sums[0], sums[1], sums[2], sums[3]);
  }

 private:
  int64_t vectors() const { return VECTORS ? VECTORS : vectors_; }
  Tail there(int64_t v) const { return VECTORS || v + 1 < vectors_ ? kAll : tail_; }
  Floats query_[VECTORS ? VECTORS : kMostVectors];
  int64_t vectors_;
  Tail tail_;
};

#ifdef __AVX512BF16__
template <int VECTORS>
class Query<BFloat16, VECTORS> {
 public:
  void read(const BFloat16* query, int64_t dim) {
    vectors_ = (dim + kPairs - 1) / kPairs;
    const int64_t left = dim - (vectors_ - 1) * kPairs;
    tail_ = left == kPairs ? ~0u : (1u << left) - 1;
    for (int64_t v = 0; v < vectors(); ++v) query_[v] = pairs(query, v);
  }
  Floats operator()(const BFloat16* key) const {
    Floats sums = zeros();
    for (int64_t v = 0; v < vectors(); ++v) sums = _mm512_dpbf16_ps(sums, query_[v], pairs(key, v));
    return sums;
  }
  using Register = __m512bh;
  static void read_key(const BFloat16* key, Register* to) {
    for (int64_t v = 0; v < VECTORS; ++v) to[v] = (__m512bh)_mm512_loadu_si512(key + v * kPairs);
  }
  Floats by(const Register* key) const {
    Floats sums = zeros();
    for (int64_t v = 0; v < VECTORS; ++v) sums = _mm512_dpbf16_ps(sums, query_[v], key[v]);
    return sums;
  }
  static constexpr int64_t kPairs = 2 * kLanes, kNumbers = VECTORS * kPairs;

 private:
  int64_t vectors() const { return VECTORS ? VECTORS : vectors_; }
  __m512bh pairs(const BFloat16* row, int64_t v) const {
    const __mmask32 mask = VECTORS || v + 1 < vectors_ ? ~0u : tail_;
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, row + v * kPairs);
  }
  __m512bh query_[VECTORS ? VECTORS : kMostVectors / 2];
  int64_t vectors_;
  __mmask32 tail_;
};
#endif

// The scores of keys against a query to their share of the values, not yet divided by the returned total.
Floats soften(float* scores, int64_t count, float scaling, float softcap) {
  Floats highest = all(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kLanes) {
    const Tail there = tail(count - i);
    Floats s = mul(load(scores + i, there), all(scaling));
    if (softcap > 0) {  // cap * tanh(s / cap) = cap * (2 sigmoid(2 s / cap) - 1)
      const Floats twice = mul(s, all(2.f / softcap));
      s = mul(all(softcap), fmsub(all(2.f), sigmoid(twice), all(1.f)));
    }
    store(scores + i, s, there);
    highest = most(there, highest, s);
  }
  const Floats peak = all(largest(highest));
  Floats totals = zeros();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Tail there = tail(count - i);
    const Floats p = kept(there, exponential(sub(load(scores + i, there), peak)));
    totals = add(totals, p);
    store(scores + i, p, there);
  }
  return all(count ? sum(totals) : 1.f);
}

constexpr int kTogether = 4;  // query heads that read a key and a value once for all of them
constexpr int64_t kKeysAhead = 8;

// Has a row come into the cache. The processor itself fetches ahead to the end of a page, which holds few keys.
template <class T>
void fetch(const T* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 64 / sizeof(T)) _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
}

// A query head, of the cache's type T: where it is, where its output goes, and the keys [at[0]], [at[1]], … of its key
// head that it sees.
template <class T, class Out>
struct Head {
  const T* query;
  Out* to;
  const int32_t* at;
  int64_t count;
};

// N query heads, of which the first `common` keys are the same. Each does the same arithmetic in the same order as it
// would alone. The first `tiled` of the common keys are in `tiles`. scores: N times `stride` numbers of scratch space.
template <class T, class Out, int VECTORS, int N>
void attend_together(const Head<T, Out>* heads, int64_t common, const KeyTiles<T, VECTORS>& tiles, int64_t tiled,
                     const T* keys, const T* values, int64_t dim, float scaling, float softcap, float* scores,
                     int64_t stride) {
  if constexpr (VECTORS > 0) dim = Query<T, VECTORS>::kNumbers;
  Query<T, VECTORS> product[N];
  for (int n = 0; n < N; ++n) product[n].read(heads[n].query, dim);
  const auto score = [&](int n, int64_t i, int64_t stop) {
    const auto sums = [&](int64_t k) __attribute__((always_inline)) {
      return product[n](keys + heads[n].at[std::min(k, stop - 1)] * dim);
    };
    _mm_storeu_ps(scores + n * stride + i, sum_of_each(sums(i), sums(i + 1), sums(i + 2), sums(i + 3)));
  };
  if constexpr (KeyTiles<T, VECTORS>::kHere) {
    const int32_t* queries[N];
    for (int n = 0; n < N; ++n) queries[n] = reinterpret_cast<const int32_t*>(heads[n].query);
    for (int64_t i = 0; i < tiled; i += kLanes) tiles.template score<N>(queries, i, scores + i, stride);
  }
  for (int64_t i = tiled; i < common; i += 4) {
    for (int64_t k = i; k < i + 4; ++k) {  // the values are read when all keys have been
      fetch(keys + heads[0].at[std::min(k + kKeysAhead, common - 1)] * dim, dim);
      fetch(values + heads[0].at[std::min(k, common - 1)] * dim, dim);
    }
    if constexpr (kManyRegisters && VECTORS > 0 && N > 1) {  // four keys stay in registers for all heads
      typename Query<T, VECTORS>::Register key[4][VECTORS];
      for (int k = 0; k < 4; ++k)
        Query<T, VECTORS>::read_key(keys + heads[0].at[std::min(i + k, common - 1)] * dim, key[k]);
      for (int n = 0; n < N; ++n)
        _mm_storeu_ps(scores + n * stride + i, sum_of_each(product[n].by(key[0]), product[n].by(key[1]),
                                                           product[n].by(key[2]), product[n].by(key[3])));
    } else if constexpr (!kManyRegisters && N > 1) {
      __m128 of[4];  // of a key each
      for (int k = 0; k < 4; ++k)
        of[k] = Query<T, VECTORS>::template several<N>(product, keys + heads[0].at[std::min(i + k, common - 1)] * dim);
      _MM_TRANSPOSE4_PS(of[0], of[1], of[2], of[3]);
      for (int n = 0; n < N; ++n) _mm_storeu_ps(scores + n * stride + i, of[n]);
    } else {
      for (int n = 0; n < N; ++n) score(n, i, common);
    }
  }
  Floats total[N];
  for (int n = 0; n < N; ++n) {
    for (int64_t i = common; i < heads[n].count; i += 4) score(n, i, heads[n].count);
    total[n] = soften(scores + n * stride, heads[n].count, scaling, softcap);
  }
  // So much of a value at a time that its sums stay in registers over all keys.
  constexpr int kPart = kManyRegisters ? 4 : 1;
  for (int64_t first = 0; first < dim; first += kPart * kLanes) {
    Tail there[kPart];
    Floats sum[N][kPart];
    for (int v = 0; v < kPart; ++v) {
      const int64_t left = dim - first - v * kLanes;
      there[v] = tail(std::max<int64_t>(left, 0));
      for (int n = 0; n < N; ++n) sum[n][v] = zeros();
    }
    for (int64_t i = 0; i < common; ++i) {
      const T* value = values + heads[0].at[i] * dim + first;
      Floats part[kPart];
      for (int v = 0; v < kPart; ++v) part[v] = load(value + v * kLanes, there[v]);
      for (int n = 0; n < N; ++n) {
        const Floats p = all(scores[n * stride + i]);
        for (int v = 0; v < kPart; ++v) sum[n][v] = fmadd(p, part[v], sum[n][v]);
      }
    }
#pragma GCC unroll 4  // else the sums leave their registers, in the loop above too
    for (int n = 0; n < N; ++n) {
      for (int64_t i = common; i < heads[n].count; ++i) {
        const T* value = values + heads[n].at[i] * dim + first;
        const Floats p = all(scores[n * stride + i]);
        for (int v = 0; v < kPart; ++v) sum[n][v] = fmadd(p, load(value + v * kLanes, there[v]), sum[n][v]);
      }
      for (int v = 0; v < kPart; ++v)
        store(heads[n].to + first + v * kLanes, div(sum[n][v], total[n]), there[v]);
    }
  }
}

// All query heads of a slot's key head, kTogether at a time, of which the first common[i] keys are the same; the first
// `shared` are the same for all.
template <class T, class Out, int VECTORS>
void attend_heads(const std::vector<Head<T, Out>>& heads, const std::vector<int64_t>& common, int64_t shared,
                  const T* keys, const T* values, int64_t dim, float scaling, float softcap, float* scores,
                  int64_t stride) {
  const int64_t count = heads.size();
  KeyTiles<T, VECTORS> tiles;
  int64_t tiled = 0;
  if constexpr (KeyTiles<T, VECTORS>::kHere)
    if (count >= kWorthTiles) tiled = tiles.lay_out(keys, heads[0].at, shared);
  for (int64_t from = 0; from < count; from += kTogether) {
    const auto run = [&](auto attend) {
      attend(&heads[from], common[from / kTogether], tiles, tiled, keys, values, dim, scaling, softcap, scores, stride);
    };
    const int64_t some = std::min<int64_t>(kTogether, count - from);
    if (some == 4) run(attend_together<T, Out, VECTORS, 4>);
    if (some == 3) run(attend_together<T, Out, VECTORS, 3>);
    if (some == 2) run(attend_together<T, Out, VECTORS, 2>);
    if (some == 1) run(attend_together<T, Out, VECTORS, 1>);
  }
}

}  // namespace
