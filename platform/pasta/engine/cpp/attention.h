// Attention over the cache, each row over the keys that it sees.

#pragma once

#include "between.h"

namespace {

constexpr int64_t kFewRows = 64;      // more queries than this, a prompt's, are one large product in torch
constexpr int64_t kMostVectors = 32;  // registers that a head fills

// A head of a row: normalised if there is a weight, then rotated by its position.
template <class T>
void rotate(const T* head, const float* weight, float eps, const T* cos, const T* sin, int64_t dim, T* to) {
  float x[512];
  if (weight != nullptr) {
    normalise(head, weight, eps, dim, x);
  } else {
    for (int64_t d = 0; d < dim; d += kLanes) store(x + d, load(head + d, mask_of(dim - d)), mask_of(dim - d));
  }
  for (int64_t d = 0, half = dim / 2; d < half; d += kLanes) {
    const __mmask16 mask = mask_of(half - d);
    const __m512 low = load(x + d, mask), high = load(x + d + half, mask);
    const __m512 turned = _mm512_mul_ps(high, load(sin + d, mask));
    store(to + d, _mm512_fmsub_ps(low, load(cos + d, mask), turned), mask);
    const __m512 back = _mm512_mul_ps(low, load(sin + d + half, mask));
    store(to + d + half, _mm512_fmadd_ps(high, load(cos + d + half, mask), back), mask);
  }
}

struct Sizes {
  int64_t batch, queries, heads, groups, dim, keys, width;  // width: tokens of a slot in the cache
};

// A query head against a key: sixteen sums, which together are their product.
template <class T>
class Query {
 public:
  Query(const T* query, int64_t dim) : vectors_((dim + kLanes - 1) / kLanes) {
    tail_ = mask_of(dim - (vectors_ - 1) * kLanes);
    for (int64_t v = 0; v < vectors_; ++v) query_[v] = load(query + v * kLanes, v + 1 == vectors_ ? tail_ : 0xffff);
  }
  __m512 operator()(const T* key) const {
    const int64_t last = vectors_ - 1;
    __m512 sums = _mm512_mul_ps(query_[last], load(key + last * kLanes, tail_));
    for (int64_t v = 0; v < last; ++v) sums = _mm512_fmadd_ps(query_[v], load(key + v * kLanes), sums);
    return sums;
  }

 private:
  __m512 query_[kMostVectors];
  int64_t vectors_;
  __mmask16 tail_;
};

#ifdef __AVX512BF16__
template <>
class Query<BFloat16> {
 public:
  Query(const BFloat16* query, int64_t dim) : vectors_((dim + kPairs - 1) / kPairs) {
    const int64_t left = dim - (vectors_ - 1) * kPairs;
    tail_ = left == kPairs ? ~0u : (1u << left) - 1;
    for (int64_t v = 0; v < vectors_; ++v) query_[v] = pairs(query, v);
  }
  __m512 operator()(const BFloat16* key) const {
    __m512 sums = _mm512_setzero_ps();
    for (int64_t v = 0; v < vectors_; ++v) sums = _mm512_dpbf16_ps(sums, query_[v], pairs(key, v));
    return sums;
  }

 private:
  static constexpr int64_t kPairs = 2 * kLanes;
  __m512bh pairs(const BFloat16* row, int64_t v) const {
    return (__m512bh)_mm512_maskz_loadu_epi16(v + 1 == vectors_ ? tail_ : ~0u, row + v * kPairs);
  }
  __m512bh query_[kMostVectors / 2];
  int64_t vectors_;
  __mmask32 tail_;
};
#endif

// The sum of each of four registers. None depends on the others, nor on which of the four it is.
__m128 sum_of_each(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd((__m512d)ab, (__m512d)cd), high = _mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
  const __m512 abcd = _mm512_add_ps((__m512)low, (__m512)high);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// One query head over the `count` keys [at[0]], [at[1]], … of its key head; scores is scratch space.
template <class T>
void attend_one(const T* query, const T* keys, const T* values, const int32_t* at, int64_t count, int64_t dim,
                float scaling, float softcap, float* scores, T* to) {
  const Query<T> product(query, dim);
  for (int64_t i = 0; i < count; i += 4) {
    const auto sums = [&](int64_t k) { return product(keys + at[std::min(k, count - 1)] * dim); };
    _mm_storeu_ps(scores + i, sum_of_each(sums(i), sums(i + 1), sums(i + 2), sums(i + 3)));
  }
  __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = mask_of(count - i);
    __m512 s = _mm512_mul_ps(load(scores + i, mask), _mm512_set1_ps(scaling));
    if (softcap > 0) {  // cap * tanh(s / cap) = cap * (2 sigmoid(2 s / cap) - 1)
      const __m512 twice = _mm512_mul_ps(s, _mm512_set1_ps(2.f / softcap));
      s = _mm512_mul_ps(_mm512_set1_ps(softcap), _mm512_fmsub_ps(_mm512_set1_ps(2.f), sigmoid(twice), _mm512_set1_ps(1.f)));
    }
    store(scores + i, s, mask);
    most = _mm512_mask_max_ps(most, mask, most, s);
  }
  const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 totals = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = mask_of(count - i);
    const __m512 p = _mm512_maskz_mov_ps(mask, exponential(_mm512_sub_ps(load(scores + i, mask), largest)));
    totals = _mm512_add_ps(totals, p);
    store(scores + i, p, mask);
  }
  const __m512 total = _mm512_set1_ps(count ? _mm512_reduce_add_ps(totals) : 1.f);
  // Four registers of a value at a time: their sums stay in registers over all keys.
  for (int64_t first = 0; first < dim; first += 4 * kLanes) {
    __mmask16 masks[4];
    __m512 sum[4];
    for (int v = 0; v < 4; ++v) {
      const int64_t left = dim - first - v * kLanes;
      masks[v] = left > 0 ? mask_of(left) : 0;
      sum[v] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < count; ++i) {
      const T* value = values + at[i] * dim + first;
      const __m512 p = _mm512_set1_ps(scores[i]);
      for (int v = 0; v < 4; ++v) sum[v] = _mm512_fmadd_ps(p, load(value + v * kLanes, masks[v]), sum[v]);
    }
    for (int v = 0; v < 4; ++v) store(to + first + v * kLanes, _mm512_div_ps(sum[v], total), masks[v]);
  }
}

// Which keys each row of a mask sees: row r those from starts[r] to starts[r + 1].
struct Seen {
  std::vector<int32_t> keys;
  std::vector<int64_t> starts;

  template <class T>
  Seen(const T* mask, int64_t rows, int64_t width) : keys(rows * width + kLanes), starts(rows + 1) {
    const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int64_t found = 0;
    for (int64_t r = 0; r < rows; ++r, mask += width) {
      for (int64_t t = 0; t < width; t += kLanes) {
        const __mmask16 there = mask_of(width - t);
        const __m512 added = load(mask + t, there);
        const __mmask16 sees = _mm512_mask_cmp_ps_mask(there, added, _mm512_set1_ps(-1e30f), _CMP_GT_OQ);
        const __m512i numbers = _mm512_add_epi32(count, _mm512_set1_epi32(t));
        _mm512_storeu_si512(&keys[found], _mm512_maskz_compress_epi32(sees, numbers));
        found += __builtin_popcount(sees);
      }
      starts[r + 1] = found;
    }
  }
};

// q [B, Q, H, D], out like it, keys and values [H/G, slots * width, D], mask [B, 1, Q, T].
template <class T>
void attend_few(const T* q, const T* keys, const T* values, int64_t slots, const T* mask, const Sizes& n, int64_t first,
                float scaling, float softcap, T* out) {
  const int64_t key_heads = n.heads / n.groups;
  const Seen seen(mask, n.batch * n.queries, n.keys);
  parallel(n.batch * key_heads, n.queries * n.heads * n.keys, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(n.keys + kLanes);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / key_heads, j = task % key_heads;
      const int64_t start = (j * slots * n.width + (first + b) * n.width) * n.dim;
      for (int64_t row = b * n.queries; row < (b + 1) * n.queries; ++row) {
        const int64_t from = seen.starts[row], count = seen.starts[row + 1] - from;
        for (int64_t g = 0; g < n.groups; ++g) {
          const int64_t at = (row * n.heads + j * n.groups + g) * n.dim;
          attend_one(q + at, keys + start, values + start, &seen.keys[from], count, n.dim, scaling, softcap,
                     scores.data(), out + at);
        }
      }
    }
  });
}

// Attention of many queries at once, by torch: q [B, Q, H, D] to [B, Q, H, D].
Tensor attend_many(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& mask, const Sizes& n,
                   int64_t first, double scaling, double softcap) {
  const int64_t key_heads = n.heads / n.groups;
  const auto seen = [&](const Tensor& block) {
    return block.view({key_heads, -1, n.width, n.dim}).narrow(1, first, n.batch).narrow(2, 0, n.keys).transpose(0, 1);
  };
  const Tensor rows = q.transpose(1, 2).reshape({n.batch, key_heads, n.groups * n.queries, n.dim});
  const Tensor additive = mask.repeat({1, 1, n.groups, 1});
  Tensor out;
  if (softcap > 0) {
    const Tensor scores = at::tanh(at::matmul(rows, seen(keys).transpose(2, 3)) * (scaling / softcap)) * softcap;
    out = at::matmul(at::softmax(scores + additive, -1, at::kFloat).to(q.scalar_type()), seen(values));
  } else {
    out = at::scaled_dot_product_attention(rows, seen(keys), seen(values), additive, 0.0, false, scaling);
  }
  return out.reshape({n.batch, n.heads, n.queries, n.dim}).transpose(1, 2).contiguous();
}

// A layer's attention between its two projections: qkv [B, Q, (H + 2 H/G) D] to [B, Q, H D]. Queries and keys are
// normalised (with weights [D] float32) and rotated by cos and sin [B, Q, D]; keys and values go to `places` [B * Q] of
// the cache's blocks [H/G, slots * width, D]. The B slots from number len(before) on are used, and T tokens of each.
Tensor attend(const Tensor& qkv_any, const Tensor& cos_any, const Tensor& sin_any, const std::optional<Tensor>& q_weight,
              const std::optional<Tensor>& k_weight, double eps, Tensor keys, Tensor values, const Tensor& places,
              const Tensor& before, int64_t width, const Tensor& mask_any, int64_t groups, double scaling,
              double softcap) {
  const Tensor qkv = qkv_any.contiguous(), mask = mask_any.contiguous();
  const int64_t key_heads = keys.size(0), slots = keys.size(1) / width;
  const Sizes n{qkv.size(0), qkv.size(1), key_heads * groups, groups, keys.size(2), mask.size(3), width};
  const Tensor cos = cos_any.expand({n.batch, n.queries, n.dim}).contiguous();
  const Tensor sin = sin_any.expand({n.batch, n.queries, n.dim}).contiguous();
  const Tensor q = at::empty({n.batch, n.queries, n.heads, n.dim}, qkv.options());
  Tensor out;
  by_type(qkv.scalar_type(), [&](auto number) {
    using scalar_t = decltype(number);
    scalar_t *k_to = keys.mutable_data_ptr<scalar_t>(), *v_to = values.mutable_data_ptr<scalar_t>();
    scalar_t* q_to = q.mutable_data_ptr<scalar_t>();
    const int64_t* place = places.const_data_ptr<int64_t>();
    for (int64_t r = 0; r < n.batch * n.queries; ++r) {
      const scalar_t* row = qkv.const_data_ptr<scalar_t>() + r * (n.heads + 2 * key_heads) * n.dim;
      const scalar_t* c = cos.const_data_ptr<scalar_t>() + r * n.dim;
      const scalar_t* s = sin.const_data_ptr<scalar_t>() + r * n.dim;
      for (int64_t h = 0; h < n.heads; ++h, row += n.dim)
        rotate(row, data_or_null(q_weight), eps, c, s, n.dim, q_to + (r * n.heads + h) * n.dim);
      for (int64_t j = 0; j < key_heads; ++j, row += n.dim)
        rotate(row, data_or_null(k_weight), eps, c, s, n.dim, k_to + (j * slots * width + place[r]) * n.dim);
      for (int64_t j = 0; j < key_heads; ++j, row += n.dim)
        std::memcpy(v_to + (j * slots * width + place[r]) * n.dim, row, n.dim * sizeof(scalar_t));
    }
    if (n.queries <= kFewRows) {
      out = at::empty_like(q);
      attend_few(q_to, k_to, v_to, slots, mask.const_data_ptr<scalar_t>(), n, before.size(0), float(scaling),
                 float(softcap), out.mutable_data_ptr<scalar_t>());
    } else {
      out = attend_many(q, keys, values, mask, n, before.size(0), scaling, softcap);
    }
  });
  return out.view({n.batch, n.queries, n.heads * n.dim});
}

}  // namespace
