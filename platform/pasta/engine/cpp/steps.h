// The next step of threads that write text.

#pragma once

#include "numbers.h"

namespace {

// Makes of a step's inputs (pasta/engine/shapes.py: B * Q = `fed` tokens, N rows of logits) those of the next one: each
// row's token [N] goes behind the fed token that it follows, to its place in the slot's cache [N], and is chosen by its
// stream key [N]. Returns whether there is a next step, for which all tokens have to be text [V]; if not, nothing has
// changed.
bool follow(Tensor inputs, const Tensor& tokens, const Tensor& places, const Tensor& keys, const Tensor& text,
            int64_t fed) {
  const int64_t rows = tokens.size(0);
  TORCH_CHECK(inputs.is_contiguous() && tokens.is_contiguous() && places.is_contiguous() && keys.is_contiguous() &&
                  inputs.numel() >= 4 * fed + 3 * rows && places.numel() == rows && keys.numel() == rows,
              "follow: sizes that do not fit");
  const int64_t* chosen = tokens.const_data_ptr<int64_t>();
  const bool* is_text = text.const_data_ptr<bool>();
  for (int64_t r = 0; r < rows; ++r)
    if (chosen[r] < 0 || chosen[r] >= text.size(0) || !is_text[chosen[r]]) return false;
  int64_t* token = inputs.mutable_data_ptr<int64_t>();
  int64_t *position = token + fed, *place = token + 3 * fed;
  const int64_t* row = token + 4 * fed;
  int64_t* key = token + 4 * fed + 2 * rows;  // the second of the numbers that tokens are chosen by
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = row[r];
    TORCH_CHECK(at >= 0 && at < fed, "follow: a row outside the step");
    token[at] = chosen[r];
    position[at] += 1;
    place[at] = places.const_data_ptr<int64_t>()[r];
    key[r] = keys.const_data_ptr<int64_t>()[r];
  }
  return true;
}

}  // namespace
