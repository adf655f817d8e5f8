// Attention over the cache, each row over the keys that it sees.

#pragma once

#include "between.h"
#include "query_heads.h"
#include "threads.h"

namespace {

constexpr int64_t kFewRows = 64;  // more queries than this, a prompt's, are one large product in torch

// A head of a row: normalised if there is a weight, then rotated by its position.
template <class T, class To>
void rotate(const T* head, const float* weight, float eps, const T* cos, const T* sin, int64_t dim, To* to) {
  float x[512];
  if (weight != nullptr) {
    normalise(head, weight, eps, dim, x);
  } else {
    for (int64_t d = 0; d < dim; d += kLanes) store(x + d, load(head + d, tail(dim - d)), tail(dim - d));
  }
  for (int64_t d = 0, half = dim / 2; d < half; d += kLanes) {
    const Tail there = tail(half - d);
    const Floats low = load(x + d, there), high = load(x + d + half, there);
    const Floats turned = mul(high, load(sin + d, there));
    store(to + d, fmsub(low, load(cos + d, there), turned), there);
    const Floats back = mul(low, load(sin + d + half, there));
    store(to + d + half, fmadd(high, load(cos + d + half, there), back), there);
  }
}

struct Sizes {
  int64_t batch, queries, heads, groups, dim, keys, width;  // width: tokens of a slot in the cache
};

// Which tokens of [B, Q] are fed, slot by slot: row r is token at[r], and those of slot b are the rows from starts[b] to
// starts[b + 1]. All, or the `flat` ones [R].
struct Fed {
  std::vector<int64_t> at, starts;

  Fed(const std::optional<Tensor>& flat, int64_t batch, int64_t queries) : starts(batch + 1) {
    at.resize(flat.has_value() ? flat->numel() : batch * queries);
    if (flat.has_value()) {
      TORCH_CHECK(flat->is_contiguous(), "attend: sizes that do not fit");
      std::copy_n(flat->const_data_ptr<int64_t>(), at.size(), at.begin());
    } else {
      std::iota(at.begin(), at.end(), 0);
    }
    int64_t last = 0;
    for (const int64_t token : at) {
      TORCH_CHECK(token >= last * queries && token < batch * queries, "attend: a flat token outside the step");
      last = token / queries;
      ++starts[last + 1];
    }
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
  }
  int64_t rows() const { return at.size(); }
};

// Which keys each row sees, by its token's row of a mask: row r those from starts[r] to starts[r + 1].
struct Seen {
  std::unique_ptr<int32_t[]> keys;
  std::vector<int64_t> starts;

  template <class T>
  Seen(const T* masks, const Fed& fed, int64_t width)
      : keys(new int32_t[fed.rows() * width + kLanes]), starts(fed.rows() + 1) {
    int64_t found = 0;
    for (int64_t r = 0; r < fed.rows(); ++r) {
      const T* mask = masks + fed.at[r] * width;
      for (int64_t t = 0; t < width; t += kLanes) {
        const Tail there = tail(width - t);
        found += write_numbers(greater(there, load(mask + t, there), all(-1e30f)), t, &keys[found]);
      }
      starts[r + 1] = found;
    }
  }
};

// How many of the first keys are the same for the rows from `first` to `last`, by how many each has as the row before.
int64_t common_keys(const Seen& seen, const std::vector<int64_t>& as_before, int64_t first, int64_t last) {
  int64_t common = seen.starts[first + 1] - seen.starts[first];
  for (int64_t row = first + 1; row <= last; ++row) common = std::min(common, as_before[row]);
  return common;
}

// q and out [R, H, D] of the rows that are fed, keys and values [H/G, slots * width, D], mask [B, 1, Q, T].
template <class T, class Out>
void attend_few(const T* q, const T* keys, const T* values, int64_t slots, const Out* mask, const Fed& fed,
                const Sizes& n, int64_t first, float scaling, float softcap, Out* out) {
  const int64_t key_heads = n.heads / n.groups;
  const Seen seen(mask, fed, n.keys);
  std::vector<int64_t> as_before(fed.rows());  // but for the first row of a slot
  parallel(fed.rows(), (fed.rows() - n.batch) * n.keys, [&](int64_t begin, int64_t end) {
    for (int64_t row = std::max<int64_t>(begin, 1); row < end; ++row) {
      if (fed.at[row] / n.queries != fed.at[row - 1] / n.queries) continue;
      const int32_t *own = &seen.keys[seen.starts[row]], *before = &seen.keys[seen.starts[row - 1]];
      const int64_t most = std::min(seen.starts[row + 1] - seen.starts[row], seen.starts[row] - seen.starts[row - 1]);
      as_before[row] = std::mismatch(own, own + most, before).first - own;
    }
  });
  // Of each slot: how many of the first keys the query heads share that are attended together.
  std::vector<std::vector<int64_t>> common(n.batch);
  // And how many all of its rows share.
  std::vector<int64_t> shared(n.batch, 0);
  const auto query_heads = [&](int64_t b) { return (fed.starts[b + 1] - fed.starts[b]) * n.groups; };
  int64_t at_once = 0;
  for (int64_t b = 0; b < n.batch; ++b) {
    at_once = std::max(at_once, std::min(query_heads(b), kAtOnce));
    for (int64_t row = fed.starts[b], own = query_heads(b), from = 0; from < own; from += kTogether) {
      const int64_t last = std::min(from + kTogether, own) - 1;
      common[b].push_back(common_keys(seen, as_before, row + from / n.groups, row + last / n.groups));
    }
    if (query_heads(b) > 0) shared[b] = common_keys(seen, as_before, fed.starts[b], fed.starts[b + 1] - 1);
  }
  constexpr int64_t kNumbers = Query<T, 1>::kNumbers;
  const auto attend = n.dim == 2 * kNumbers   ? attend_heads<T, Out, 2>
                      : n.dim == 4 * kNumbers ? attend_heads<T, Out, 4>
                      : n.dim == 8 * kNumbers ? attend_heads<T, Out, 8>
                                              : attend_heads<T, Out, 0>;
  parallel(n.batch * key_heads, fed.rows() * n.heads * n.keys * n.dim / kLanes, [&](int64_t begin, int64_t end) {
    const int64_t stride = n.keys + 2 * kLanes;
    const std::unique_ptr<float[]> scores(new float[at_once * stride]);
    std::vector<Head<T, Out>> heads;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / key_heads, j = task % key_heads, own = query_heads(b);
      const int64_t start = (j * slots * n.width + (first + b) * n.width) * n.dim;
      heads.resize(own);
      for (int64_t i = 0; i < own; ++i) {
        const int64_t row = fed.starts[b] + i / n.groups;
        const int64_t at = (row * n.heads + j * n.groups + i % n.groups) * n.dim;
        heads[i] = {q + at, out + at, &seen.keys[seen.starts[row]], seen.starts[row + 1] - seen.starts[row]};
      }
      attend(heads, common[b], shared[b], keys + start, values + start, n.dim, scaling, softcap, scores.get(), stride);
    }
  });
}

// Attention of many queries at once, by torch: q [B, Q, H, D] to [B, Q, H, D], in the type of q.
Tensor attend_many(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& mask, const Sizes& n,
                   int64_t first, double scaling, double softcap) {
  const int64_t key_heads = n.heads / n.groups;
  const auto seen = [&](const Tensor& block) {
    const Tensor slots = block.view({key_heads, -1, n.width, n.dim}).narrow(1, first, n.batch).narrow(2, 0, n.keys);
    return slots.transpose(0, 1).to(q.scalar_type());
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

// A layer's attention between its two projections: qkv [B, Q, (H + 2 H/G) D], or of the tokens `flat` [R] of these alone
// [1, R, (H + 2 H/G) D], to as many rows of H D. Queries and keys are normalised (with weights [D] float32) and rotated
// by cos and sin, a row of D each; keys and values go to `places` [B * Q] of the cache's blocks [H/G, slots * width, D],
// of qkv's type, or bfloat16 where that is float32 (then queries of few rows are rounded, too). The B slots from number
// len(before) on are used, and T tokens of each.
Tensor attend(const Tensor& qkv_any, const Tensor& cos_any, const Tensor& sin_any, const std::optional<Tensor>& q_weight,
              const std::optional<Tensor>& k_weight, double eps, Tensor keys, Tensor values, const Tensor& places,
              const Tensor& before, int64_t width, const Tensor& mask_any, const std::optional<Tensor>& flat,
              int64_t groups, double scaling, double softcap) {
  const Tensor qkv = qkv_any.contiguous(), mask = mask_any.contiguous();
  const int64_t key_heads = keys.size(0), slots = keys.size(1) / width;
  const Sizes n{mask.size(0), mask.size(2), key_heads * groups, groups, keys.size(2), mask.size(3), width};
  const Tensor cos = cos_any.expand({qkv.size(0), qkv.size(1), n.dim}).contiguous();
  const Tensor sin = sin_any.expand({qkv.size(0), qkv.size(1), n.dim}).contiguous();
  const bool few = n.queries <= kFewRows;
  if (flat.has_value() && !few) {  // a prompt beside decoding slots
    const auto spread = [&](const Tensor& rows) {
      const Tensor padded = at::zeros({n.batch * n.queries, rows.size(2)}, rows.options());
      return padded.index_copy_(0, *flat, rows[0]).view({n.batch, n.queries, -1});
    };
    return attend(spread(qkv), spread(cos), spread(sin), q_weight, k_weight, eps, keys, values, places, before, width, mask,
                  std::nullopt, groups, scaling, softcap).flatten(0, 1).index_select(0, *flat).unsqueeze(0);
  }
  const Fed fed(flat, n.batch, n.queries);
  TORCH_CHECK(n.dim % 2 == 0 && n.dim <= kMostVectors * kLanes, "attend: a head of ", n.dim, " numbers");
  TORCH_CHECK(qkv.size(0) * qkv.size(1) == fed.rows() && places.numel() == n.batch * n.queries,
              "attend: sizes that do not fit");
  const auto q_type = few ? keys.scalar_type() : qkv.scalar_type();
  const Tensor q = at::empty({qkv.size(0), qkv.size(1), n.heads, n.dim}, qkv.options().dtype(q_type));
  Tensor out;
  const auto attend_by = [&](auto number, auto cached) {
    using scalar_t = decltype(number);
    using cache_t = decltype(cached);
    cache_t *k_to = keys.mutable_data_ptr<cache_t>(), *v_to = values.mutable_data_ptr<cache_t>();
    cache_t* few_to = few ? q.mutable_data_ptr<cache_t>() : nullptr;
    scalar_t* many_to = few ? nullptr : q.mutable_data_ptr<scalar_t>();
    const int64_t* place = places.const_data_ptr<int64_t>();
    parallel(fed.rows(), qkv.numel(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t to_place = place[fed.at[r]];
        const scalar_t* row = qkv.const_data_ptr<scalar_t>() + r * (n.heads + 2 * key_heads) * n.dim;
        const scalar_t* c = cos.const_data_ptr<scalar_t>() + r * n.dim;
        const scalar_t* s = sin.const_data_ptr<scalar_t>() + r * n.dim;
        for (int64_t h = 0; h < n.heads; ++h, row += n.dim) {
          const int64_t at = (r * n.heads + h) * n.dim;
          if (few)
            rotate(row, data_or_null(q_weight), eps, c, s, n.dim, few_to + at);
          else
            rotate(row, data_or_null(q_weight), eps, c, s, n.dim, many_to + at);
        }
        for (int64_t j = 0; j < key_heads; ++j, row += n.dim)
          rotate(row, data_or_null(k_weight), eps, c, s, n.dim, k_to + (j * slots * width + to_place) * n.dim);
        for (int64_t j = 0; j < key_heads; ++j, row += n.dim) {
          cache_t* to = v_to + (j * slots * width + to_place) * n.dim;
          for (int64_t d = 0; d < n.dim; d += kLanes) store(to + d, load(row + d, tail(n.dim - d)), tail(n.dim - d));
        }
      }
    });
    if (few) {
      out = at::empty(q.sizes(), qkv.options());
      attend_few(few_to, k_to, v_to, slots, mask.const_data_ptr<scalar_t>(), fed, n, before.size(0),
                 float(scaling), float(softcap), out.mutable_data_ptr<scalar_t>());
    } else {
      out = attend_many(q, keys, values, mask, n, before.size(0), scaling, softcap);
    }
  };
  if (qkv.scalar_type() == at::kFloat && keys.scalar_type() == at::kBFloat16) {
    attend_by(float{}, BFloat16{});
  } else {
    TORCH_CHECK(qkv.scalar_type() == keys.scalar_type(), "attend: types that do not go together");
    by_type(qkv.scalar_type(), [&](auto number) { attend_by(number, number); });
  }
  return out.view({qkv.size(0), qkv.size(1), n.heads * n.dim});
}

}  // namespace
