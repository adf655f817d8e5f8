// Attention masks of a step, from segments.

#pragma once

#include "numbers.h"

namespace {

// Whether a token of segment `own` at `position` sees each of sixteen keys of a slot, which have segments and positions.
class Sight {
 public:
  // `row` [S]: which segments the token's own sees.
  Sight(const bool* row, int64_t segments, int64_t own, int64_t position, int64_t window)
      : words_((segments + 63) / 64), own_(_mm512_set1_epi64(own)), position_(_mm512_set1_epi64(position)),
        window_(_mm512_set1_epi64(window)) {
    for (int64_t s = 0; s < segments; ++s) words_[s / 64] |= uint64_t{row[s]} << (s % 64);
  }
  // The keys that are seen, and those of them that are less than the window away.
  std::pair<__mmask16, __mmask16> operator()(const int64_t* segment, const int64_t* position, __mmask16 there) const {
    const auto low = eight(segment, position, there), high = eight(segment + 8, position + 8, there >> 8);
    return {low.first | high.first << 8, low.second | high.second << 8};
  }

 private:
  std::pair<__mmask8, __mmask8> eight(const int64_t* segment, const int64_t* position, __mmask8 there) const {
    const __m512i other = _mm512_maskz_loadu_epi64(there, segment), at = _mm512_maskz_loadu_epi64(there, position);
    there = _mm512_mask_cmpge_epi64_mask(there, other, _mm512_setzero_si512());
    const __m512i word = _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), there, _mm512_srli_epi64(other, 6),
                                                     words_.data(), 8);
    const __m512i bit = _mm512_sllv_epi64(_mm512_set1_epi64(1), _mm512_and_si512(other, _mm512_set1_epi64(63)));
    __mmask8 sees = _mm512_mask_test_epi64_mask(there, word, bit);
    const __mmask8 own = _mm512_cmpeq_epi64_mask(other, own_);
    sees &= ~(own & _mm512_cmpgt_epi64_mask(at, position_));
    const __m512i distance = _mm512_abs_epi64(_mm512_sub_epi64(at, position_));
    return {sees, _mm512_mask_cmplt_epi64_mask(sees, distance, window_)};
  }
  std::vector<uint64_t> words_;
  __m512i own_, position_, window_;
};

// Notes where the tokens of a step go, and makes its masks. `inputs` begins with token, position, segment and place in
// the slot's cache of each fed token [4, B, Q], and ends with which of them are fed flat [R] (pasta/engine/shapes.py).
// Segments and positions of all cached tokens [slots, width] are updated; sees [slots, S, S]. The B slots from number
// `first` on are used, and K tokens of each.
//
// Returns tokens and positions that are fed, [B, Q] or [1, R]; the places [B * Q] of all, counted over the slots; and the
// additive mask [B, 1, Q, K], and the same within the window (once more the first where there is no window).
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lay(const Tensor& inputs, Tensor key_segments, Tensor key_positions,
                                                       const Tensor& sees, int64_t first, int64_t batch,
                                                       int64_t queries, int64_t keys, int64_t flat, int64_t window,
                                                       at::ScalarType type) {
  const int64_t fed = batch * queries, width = key_segments.size(1), segments = sees.size(2);
  TORCH_CHECK(inputs.is_contiguous() && key_segments.is_contiguous() && key_positions.is_contiguous() &&
                  sees.is_contiguous() && inputs.numel() >= 4 * fed + flat && keys <= width,
              "lay: sizes that do not fit");
  const int64_t* token = inputs.const_data_ptr<int64_t>();
  const int64_t *position = token + fed, *segment = position + fed, *place = segment + fed;
  const int64_t* of_flat = token + inputs.numel() - flat;
  int64_t* all_segments = key_segments.mutable_data_ptr<int64_t>() + first * width;
  int64_t* all_positions = key_positions.mutable_data_ptr<int64_t>() + first * width;
  const int64_t rows = flat ? 1 : batch, columns = flat ? flat : queries;
  const Tensor tokens = at::empty({rows, columns}, inputs.options()), positions = at::empty_like(tokens);
  const Tensor places = at::empty({fed}, inputs.options());
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t from = flat ? of_flat[i] : i;
    TORCH_CHECK(from >= 0 && from < fed, "lay: a flat token outside the step");
    tokens.mutable_data_ptr<int64_t>()[i] = token[from];
    positions.mutable_data_ptr<int64_t>()[i] = position[from];
  }
  for (int64_t i = 0; i < fed; ++i) {
    TORCH_CHECK(place[i] >= 0 && place[i] < width && segment[i] < segments, "lay: a place outside the cache");
    const int64_t at = i / queries * width + place[i];
    all_segments[at] = segment[i];
    all_positions[at] = position[i];
    places.mutable_data_ptr<int64_t>()[i] = first * width + at;
  }
  const Tensor full = at::empty({batch, 1, queries, keys}, inputs.options().dtype(type));
  const Tensor windowed = window > 0 ? at::empty_like(full) : full;
  by_type(type, [&](auto number) {
    using scalar_t = decltype(number);
    const __m512 hidden = _mm512_set1_ps(float(std::numeric_limits<scalar_t>::lowest()));
    scalar_t* to = full.template mutable_data_ptr<scalar_t>();
    scalar_t* within = windowed.template mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < fed; ++i, to += keys, within += keys) {
      const int64_t b = i / queries, own = segment[i];
      const bool* row = sees.const_data_ptr<bool>() + ((first + b) * segments + std::max<int64_t>(own, 0)) * segments;
      const Sight sight(row, segments, own, position[i], window);
      for (int64_t k = 0; k < keys; k += kLanes) {
        const __mmask16 there = mask_of(keys - k);
        const auto seen = sight(all_segments + b * width + k, all_positions + b * width + k, own < 0 ? 0 : there);
        if (window > 0) store(within + k, _mm512_mask_mov_ps(hidden, seen.second, _mm512_setzero_ps()), there);
        store(to + k, _mm512_mask_mov_ps(hidden, seen.first, _mm512_setzero_ps()), there);
      }
    }
  });
  return {tokens, positions, places, full, windowed};
}

}  // namespace
