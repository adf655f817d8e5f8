// Attention over the cache, each row over the keys that it sees.

#pragma once

#include "between.h"

namespace {

constexpr int64_t kFewRows = 64;  // more queries than this, a prompt's, are one large product in torch

// A head of a row: normalised if there is a weight, then rotated by its position.
template <class T>
void rotate(const T* head, const float* weight, float eps, const T* cos, const T* sin, int64_t dim, T* to) {
  float x[512];
  if (weight != nullptr) {
    normalise(head, weight, eps, dim, x);
  } else {
    for (int64_t d = 0; d < dim; ++d) x[d] = head[d];
  }
  for (int64_t d = 0, half = dim / 2; d < half; ++d) {
    to[d] = x[d] * float(cos[d]) - x[d + half] * float(sin[d]);
    to[d + half] = x[d + half] * float(cos[d + half]) + x[d] * float(sin[d + half]);
  }
}

struct Sizes {
  int64_t batch, queries, heads, groups, dim, keys, width;  // width: tokens of a slot in the cache
};

// One query head over the keys [at[0]], [at[1]], … of its key head; scores is scratch space.
template <class T>
void attend_one(const T* query, const T* keys, const T* values, const std::vector<int32_t>& at, int64_t dim,
                float scaling, float softcap, std::vector<float>& scores, T* to) {
  const int64_t count = at.size(), vectors = (dim + kLanes - 1) / kLanes;
  const __mmask16 tail = mask_of(dim - (vectors - 1) * kLanes);
  __m512 q[32], sum[32];
  for (int64_t v = 0; v < vectors; ++v) {
    q[v] = load(query + v * kLanes, v + 1 == vectors ? tail : 0xffff);
    sum[v] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < count; ++i) {
    const T* key = keys + at[i] * dim;
    __m512 dot = _mm512_setzero_ps();
    for (int64_t v = 0; v + 1 < vectors; ++v) dot = _mm512_fmadd_ps(q[v], load(key + v * kLanes), dot);
    dot = _mm512_fmadd_ps(q[vectors - 1], load(key + (vectors - 1) * kLanes, tail), dot);
    scores[i] = _mm512_reduce_add_ps(dot);
  }
  __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = mask_of(count - i);
    __m512 s = _mm512_mul_ps(load(&scores[i], mask), _mm512_set1_ps(scaling));
    if (softcap > 0) {  // cap * tanh(s / cap) = cap * (2 sigmoid(2 s / cap) - 1)
      const __m512 twice = _mm512_mul_ps(s, _mm512_set1_ps(2.f / softcap));
      s = _mm512_mul_ps(_mm512_set1_ps(softcap), _mm512_fmsub_ps(_mm512_set1_ps(2.f), sigmoid(twice), _mm512_set1_ps(1.f)));
    }
    store(&scores[i], s, mask);
    most = _mm512_mask_max_ps(most, mask, most, s);
  }
  const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 totals = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = mask_of(count - i);
    const __m512 p = _mm512_maskz_mov_ps(mask, exponential(_mm512_sub_ps(load(&scores[i], mask), largest)));
    totals = _mm512_add_ps(totals, p);
    store(&scores[i], p, mask);
  }
  for (int64_t i = 0; i < count; ++i) {
    const T* value = values + at[i] * dim;
    const __m512 p = _mm512_set1_ps(scores[i]);
    for (int64_t v = 0; v + 1 < vectors; ++v) sum[v] = _mm512_fmadd_ps(p, load(value + v * kLanes), sum[v]);
    sum[vectors - 1] = _mm512_fmadd_ps(p, load(value + (vectors - 1) * kLanes, tail), sum[vectors - 1]);
  }
  const __m512 total = _mm512_set1_ps(count ? _mm512_reduce_add_ps(totals) : 1.f);
  for (int64_t v = 0; v < vectors; ++v)
    store(to + v * kLanes, _mm512_div_ps(sum[v], total), v + 1 == vectors ? tail : 0xffff);
}

// q [B, Q, H, D], out like it, keys and values [H/G, slots * width, D], mask [B, 1, Q, T].
template <class T>
void attend_few(const T* q, const T* keys, const T* values, int64_t slots, const T* mask, const Sizes& n, int64_t first,
                float scaling, float softcap, T* out) {
  const int64_t key_heads = n.heads / n.groups;
  parallel(n.batch * key_heads, n.queries * n.heads * n.keys, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(n.keys + kLanes);
    std::vector<int32_t> seen;
    seen.reserve(n.keys);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / key_heads, j = task % key_heads;
      const int64_t start = (j * slots * n.width + (first + b) * n.width) * n.dim;
      for (int64_t i = 0; i < n.queries; ++i) {
        const T* row = mask + (b * n.queries + i) * n.keys;
        seen.clear();
        for (int64_t t = 0; t < n.keys; ++t)
          if (float(row[t]) > -1e30f) seen.push_back(t);
        for (int64_t g = 0; g < n.groups; ++g) {
          const int64_t at = ((b * n.queries + i) * n.heads + j * n.groups + g) * n.dim;
          attend_one(q + at, keys + start, values + start, seen, n.dim, scaling, softcap, scores, out + at);
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
