// Attention masks of a step, from segments.

#pragma once

#include "numbers.h"

namespace {

// pasta.engine.masks.expand: sees [B, S, S] bool, segments and indices of queries [B, Q] and keys [B or 1, K].
Tensor expand(const Tensor& sees, const Tensor& q_seg_any, const Tensor& k_seg_any, const Tensor& q_index_any,
              const Tensor& k_index_any) {
  const Tensor q_seg = q_seg_any.contiguous(), q_index = q_index_any.contiguous();
  const int64_t batch = q_seg.size(0), queries = q_seg.size(1), keys = k_seg_any.size(1);
  const Tensor k_seg = k_seg_any.expand({batch, keys}), k_index = k_index_any.expand({batch, keys});
  const Tensor out = at::empty({batch, queries, keys}, sees.options());
  bool* to = out.mutable_data_ptr<bool>();
  for (int64_t b = 0; b < batch; ++b) {
    const bool* table = sees.const_data_ptr<bool>() + b * sees.stride(0);
    const int64_t* segment = k_seg.const_data_ptr<int64_t>() + b * k_seg.stride(0);
    const int64_t* index = k_index.const_data_ptr<int64_t>() + b * k_index.stride(0);
    const int64_t segment_step = k_seg.stride(1), index_step = k_index.stride(1), column = sees.stride(2);
    for (int64_t q = 0; q < queries; ++q, to += keys) {
      const int64_t own = q_seg.const_data_ptr<int64_t>()[b * queries + q];
      const int64_t place = q_index.const_data_ptr<int64_t>()[b * queries + q];
      const bool* row = table + std::max<int64_t>(own, 0) * sees.stride(1);
      for (int64_t k = 0; k < keys; ++k) {
        const int64_t other = segment[k * segment_step];
        to[k] = own >= 0 && other >= 0 && row[other * column] && (other != own || index[k * index_step] <= place);
      }
    }
  }
  return out;
}

// visible [B, Q, K] as an additive mask [B, 1, Q, K] of the type of `like`; with a window, only keys less than that many
// positions away: q_pos [B, Q], k_pos [B, K].
Tensor additive(const Tensor& visible_any, const Tensor& q_pos_any, const Tensor& k_pos, int64_t window,
                at::ScalarType type) {
  const Tensor visible = visible_any.contiguous(), q_pos = q_pos_any.contiguous();
  const int64_t batch = visible.size(0), queries = visible.size(1), keys = visible.size(2);
  const Tensor out = at::empty({batch, 1, queries, keys}, visible.options().dtype(type));
  by_type(type, [&](auto number) {
    using scalar_t = decltype(number);
    const scalar_t seen = 0.f, hidden = std::numeric_limits<scalar_t>::lowest();
    const bool* from = visible.const_data_ptr<bool>();
    scalar_t* to = out.template mutable_data_ptr<scalar_t>();
    for (int64_t row = 0; row < batch * queries; ++row, from += keys, to += keys) {
      for (int64_t k = 0; k < keys; ++k) to[k] = from[k] ? seen : hidden;
      if (window <= 0) continue;
      const int64_t at = q_pos.const_data_ptr<int64_t>()[row], step = k_pos.stride(1);
      const int64_t* position = k_pos.const_data_ptr<int64_t>() + row / queries * k_pos.stride(0);
      for (int64_t k = 0; k < keys; ++k)
        if (std::abs(at - position[k * step]) >= window) to[k] = hidden;
    }
  });
  return out;
}

}  // namespace
