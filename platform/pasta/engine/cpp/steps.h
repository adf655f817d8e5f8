// The next step of threads that go on as they are.

#pragma once

#include "numbers.h"

namespace {

// Puts a step's tokens [N] into the inputs of the next one (pasta/engine/shapes.py: B * Q = `fed` tokens, N rows of
// logits, the `flat` ones R at the end): each behind the last one of its thread, to its place in the slot's cache [N],
// chosen by its stream key [N]. Returns whether there is a next step, for which each token has to be one that the mode
// [N] of its row goes on after (`goes_on` [modes, V]); if not, nothing has changed.
bool follow(Tensor inputs, const Tensor& tokens, const Tensor& places, const Tensor& keys, const Tensor& modes,
            const Tensor& goes_on, int64_t fed, int64_t flat) {
  const int64_t rows = tokens.size(0);
  TORCH_CHECK(inputs.is_contiguous() && tokens.is_contiguous() && places.is_contiguous() && keys.is_contiguous() &&
                  modes.is_contiguous() && goes_on.is_contiguous() && inputs.numel() >= 4 * fed + 3 * rows + flat &&
                  places.numel() == rows && keys.numel() == rows && modes.numel() == rows && goes_on.dim() == 2,
              "follow: sizes that do not fit");
  const int64_t* chosen = tokens.const_data_ptr<int64_t>();
  const int64_t* mode = modes.const_data_ptr<int64_t>();
  const bool* allowed = goes_on.const_data_ptr<bool>();
  const int64_t vocab = goes_on.size(1);
  for (int64_t r = 0; r < rows; ++r) {
    TORCH_CHECK(mode[r] >= 0 && mode[r] < goes_on.size(0), "follow: a mode that is not there");
    if (chosen[r] < 0 || chosen[r] >= vocab || !allowed[mode[r] * vocab + chosen[r]]) return false;
  }
  int64_t* token = inputs.mutable_data_ptr<int64_t>();
  int64_t *position = token + fed, *place = token + 3 * fed;
  const int64_t *row = token + 4 * fed, *of_flat = token + inputs.numel() - flat;
  int64_t* key = token + 4 * fed + 2 * rows;  // the second of the numbers that tokens are chosen by
  for (int64_t r = 0; r < rows; ++r) {
    TORCH_CHECK(row[r] >= 0 && row[r] < (flat ? flat : fed), "follow: a row outside the step");
    const int64_t at = flat ? of_flat[row[r]] : row[r];
    TORCH_CHECK(at >= 0 && at < fed, "follow: a flat token outside the step");
    token[at] = chosen[r];
    position[at] += 1;
    place[at] = places.const_data_ptr<int64_t>()[r];
    key[r] = keys.const_data_ptr<int64_t>()[r];
  }
  return true;
}

}  // namespace
