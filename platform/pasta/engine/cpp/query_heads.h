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
float soften(float* scores, int64_t count, float scaling, float softcap) {
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
  return count ? sum(totals) : 1.f;
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

// Query heads that read a block of keys and values while it lies in the second cache, that block's bytes, and from how
// many blocks on it is worth it: fewer stay in that cache anyway.
constexpr int64_t kAtOnce = 64, kBlockBytes = 128 * 1024, kWorthBlocks = 4;

// N query heads over the keys and values of their key head. Each does the same arithmetic in the same order as it would
// alone, however the keys are parted.
template <class T, class Out, int VECTORS, int N>
class Together {
 public:
  Together(const Head<T, Out>* heads, const T* keys, const T* values, int64_t dim)
      : heads_(heads), keys_(keys), values_(values), dim_(dim) {}

  // The scores of the keys from `first` to `stop`, which are the same for all: to scores[n * stride]. The first `tiled`
  // of a slot are in `tiles`.
  void score(const KeyTiles<T, VECTORS>& tiles, int64_t tiled, int64_t first, int64_t stop, float* scores,
             int64_t stride) const {
    if constexpr (KeyTiles<T, VECTORS>::kHere) {
      const int32_t* queries[N];
      for (int n = 0; n < N; ++n) queries[n] = reinterpret_cast<const int32_t*>(heads_[n].query);
      for (; first < std::min(stop, tiled); first += kLanes)
        tiles.template score<N>(queries, first, scores + first, stride);
    }
    if (first >= stop) return;
    Query<T, VECTORS> product[N];
    for (int n = 0; n < N; ++n) product[n].read(heads_[n].query, dim());
    const int32_t* at = heads_[0].at;
    for (int64_t i = first; i < stop; i += 4) {
      for (int64_t k = i; k < i + 4; ++k) {  // the values are read when all keys have been
        fetch(key(at[std::min(k + kKeysAhead, stop - 1)]), dim());
        fetch(value(at[std::min(k, stop - 1)]), dim());
      }
      if constexpr (kManyRegisters && VECTORS > 0 && N > 1) {  // four keys stay in registers for all heads
        typename Query<T, VECTORS>::Register key[4][VECTORS];
        for (int k = 0; k < 4; ++k)
          Query<T, VECTORS>::read_key(this->key(at[std::min(i + k, stop - 1)]), key[k]);
        for (int n = 0; n < N; ++n)
          _mm_storeu_ps(scores + n * stride + i, sum_of_each(product[n].by(key[0]), product[n].by(key[1]),
                                                             product[n].by(key[2]), product[n].by(key[3])));
      } else if constexpr (!kManyRegisters && N > 1) {
        __m128 of[4];  // of a key each
        for (int k = 0; k < 4; ++k)
          of[k] = Query<T, VECTORS>::template several<N>(product, key(at[std::min(i + k, stop - 1)]));
        _MM_TRANSPOSE4_PS(of[0], of[1], of[2], of[3]);
        for (int n = 0; n < N; ++n) _mm_storeu_ps(scores + n * stride + i, of[n]);
      } else {
        for (int n = 0; n < N; ++n) score_four(product[n], heads_[n].at, i, stop, scores + n * stride);
      }
    }
  }

  // The scores of the other keys, from the first `common` ones on, and all of them to shares of the values; `totals`:
  // what these add up to.
  void soften_all(int64_t common, float scaling, float softcap, float* scores, int64_t stride, float* totals) const {
    for (int n = 0; n < N; ++n) {
      if (common < heads_[n].count) {
        Query<T, VECTORS> product;
        product.read(heads_[n].query, dim());
        for (int64_t i = common; i < heads_[n].count; i += 4)
          score_four(product, heads_[n].at, i, heads_[n].count, scores + n * stride);
      }
      totals[n] = soften(scores + n * stride, heads_[n].count, scaling, softcap);
    }
  }

  // Adds the values of the keys from `first` to `stop`, which are the same for all, to `sums` [N, dim]: what BEGINS
  // begins with zero, and what ENDS goes on with the other keys' values, and to the outputs.
  template <bool BEGINS, bool ENDS>
  void add_values(int64_t first, int64_t stop, const float* scores, int64_t stride, float* sums,
                  const float* totals) const {
    // So much of a value at a time that its sums stay in registers over all keys.
    const int64_t dim = this->dim();
    constexpr int kPart = kManyRegisters ? 4 : 1;
    for (int64_t d = 0; d < dim; d += kPart * kLanes) {
      Tail there[kPart];
      Floats sum[N][kPart];
      for (int v = 0; v < kPart; ++v) {
        there[v] = tail(std::max<int64_t>(dim - d - v * kLanes, 0));
        for (int n = 0; n < N; ++n) sum[n][v] = BEGINS ? zeros() : load(sums + n * dim + d + v * kLanes, there[v]);
      }
      for (int64_t i = first; i < stop; ++i) {
        const T* from = value(heads_[0].at[i]) + d;
        Floats part[kPart];
        for (int v = 0; v < kPart; ++v) part[v] = load(from + v * kLanes, there[v]);
        for (int n = 0; n < N; ++n) {
          const Floats p = all(scores[n * stride + i]);
          for (int v = 0; v < kPart; ++v) sum[n][v] = fmadd(p, part[v], sum[n][v]);
        }
      }
#pragma GCC unroll 4  // else the sums leave their registers, in the loop above too
      for (int n = 0; n < N; ++n) {
        for (int64_t i = ENDS ? stop : heads_[n].count; i < heads_[n].count; ++i) {
          const T* from = value(heads_[n].at[i]) + d;
          const Floats p = all(scores[n * stride + i]);
          for (int v = 0; v < kPart; ++v) sum[n][v] = fmadd(p, load(from + v * kLanes, there[v]), sum[n][v]);
        }
        for (int v = 0; v < kPart; ++v) {
          if (ENDS)
            store(heads_[n].to + d + v * kLanes, div(sum[n][v], all(totals[n])), there[v]);
          else
            store(sums + n * dim + d + v * kLanes, sum[n][v], there[v]);
        }
      }
    }
  }

 private:
  int64_t dim() const { return VECTORS > 0 ? Query<T, VECTORS>::kNumbers : dim_; }
  const T* key(int64_t at) const { return keys_ + at * dim(); }
  const T* value(int64_t at) const { return values_ + at * dim(); }
  void score_four(const Query<T, VECTORS>& product, const int32_t* at, int64_t i, int64_t stop, float* scores) const {
    const auto sums = [&](int64_t k) __attribute__((always_inline)) {
      return product(key(at[std::min(k, stop - 1)]));
    };
    _mm_storeu_ps(scores + i, sum_of_each(sums(i), sums(i + 1), sums(i + 2), sums(i + 3)));
  }

  const Head<T, Out>* heads_;
  const T *keys_, *values_;
  int64_t dim_;
};

// All query heads of a slot's key head, kTogether at a time, of which the first common[i] keys are the same; the first
// `shared` are the same for all. scores: `stride` for each of kAtOnce query heads, or of all.
template <class T, class Out, int VECTORS>
void attend_heads(const std::vector<Head<T, Out>>& heads, const std::vector<int64_t>& common, int64_t shared,
                  const T* keys, const T* values, int64_t dim, float scaling, float softcap, float* scores,
                  int64_t stride) {
  const int64_t count = heads.size(), block = kBlockBytes / (dim * sizeof(T)) / kLanes * kLanes;
  KeyTiles<T, VECTORS> tiles;
  int64_t tiled = 0;
  if constexpr (KeyTiles<T, VECTORS>::kHere)
    if (count >= kWorthTiles) tiled = tiles.lay_out(keys, heads[0].at, shared);
  // Keys that are read block by block, each for all query heads; without, these go one after another.
  const int64_t blocked = count > kTogether && shared >= kWorthBlocks * block ? shared / block * block : 0;
  const int64_t at_once = blocked ? kAtOnce : kTogether;
  std::vector<float> sums(blocked ? at_once * dim : 0);
  float totals[kAtOnce];
  for (int64_t begin = 0; begin < count; begin += at_once) {
    const int64_t end = std::min(begin + at_once, count);
    const auto each = [&](const auto& run) {  // of the query heads that go together
      for (int64_t from = begin; from < end; from += kTogether) {
        const int64_t some = std::min<int64_t>(kTogether, end - from);
        const auto with = [&](auto together) {
          run(together, common[from / kTogether], from - begin, scores + (from - begin) * stride);
        };
        if (some == 4) with(Together<T, Out, VECTORS, 4>(&heads[from], keys, values, dim));
        if (some == 3) with(Together<T, Out, VECTORS, 3>(&heads[from], keys, values, dim));
        if (some == 2) with(Together<T, Out, VECTORS, 2>(&heads[from], keys, values, dim));
        if (some == 1) with(Together<T, Out, VECTORS, 1>(&heads[from], keys, values, dim));
      }
    };
    for (int64_t first = 0; first < blocked; first += block)
      each([&](const auto& together, int64_t, int64_t, float* own) {
        together.score(tiles, tiled, first, first + block, own, stride);
      });
    each([&](const auto& together, int64_t same, int64_t n, float* own) {
      together.score(tiles, tiled, blocked, same, own, stride);
      together.soften_all(same, scaling, softcap, own, stride, totals + n);
      if (!blocked) together.template add_values<true, true>(0, same, own, stride, nullptr, totals + n);
    });
    for (int64_t first = 0; first < blocked; first += block)
      each([&](const auto& together, int64_t, int64_t n, float* own) {
        first ? together.template add_values<false, false>(first, first + block, own, stride, &sums[n * dim], nullptr)
              : together.template add_values<true, false>(first, first + block, own, stride, &sums[n * dim], nullptr);
      });
    if (blocked)
      each([&](const auto& together, int64_t same, int64_t n, float* own) {
        together.template add_values<false, true>(blocked, same, own, stride, &sums[n * dim], totals + n);
      });
  }
}

}  // namespace
