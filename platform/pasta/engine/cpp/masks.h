// Attention masks of a step, from segments.

#pragma once

#include "numbers.h"

namespace {

// A bit for each segment: whether a token's own sees it, by that row [S] of the slot's visibility.
std::vector<uint64_t> packed(const bool* row, int64_t segments) {
  std::vector<uint64_t> words((segments + 63) / 64);
  for (int64_t s = 0; s < segments; ++s) words[s / 64] |= uint64_t{row[s]} << (s % 64);
  return words;
}

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
    const Floats hidden = all(float(std::numeric_limits<scalar_t>::lowest()));
    scalar_t* to = full.template mutable_data_ptr<scalar_t>();
    scalar_t* within = windowed.template mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < fed; ++i, to += keys, within += keys) {
      const int64_t b = i / queries, own = segment[i];
      const bool* row = sees.const_data_ptr<bool>() + ((first + b) * segments + std::max<int64_t>(own, 0)) * segments;
      const auto words = packed(row, segments);
      const Sight sight(words.data(), own, position[i], window);
      for (int64_t k = 0; k < keys; k += kLanes) {
        const Tail there = tail(keys - k);
        const auto seen =
            sight(all_segments + b * width + k, all_positions + b * width + k, own < 0 ? tail(0) : there);
        if (window > 0) store(within + k, chosen(seen.second, zeros(), hidden), there);
        store(to + k, chosen(seen.first, zeros(), hidden), there);
      }
    }
  });
  return {tokens, positions, places, full, windowed};
}

}  // namespace
