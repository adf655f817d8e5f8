// Draft heads (pasta/engine/heads.py): all depths in one operator, since a step of a small model is not much longer than
// a few dozen operators.

#pragma once

#include "between.h"
#include "linear.h"

namespace {

// The largest of a row and its probability under softmax.
std::pair<int64_t, float> likeliest(const float* row, int64_t width) {
  Floats highest = all(-std::numeric_limits<float>::infinity()), total = zeros();
  for (int64_t i = 0; i < width; i += kLanes) {
    const Tail there = tail(width - i);
    highest = most(there, highest, load(row + i, there));
  }
  const float most_likely = largest(highest);
  int64_t at = 0;
  for (int64_t i = 0; i < width; i += kLanes) {
    const Tail there = tail(width - i);
    const Floats x = load(row + i, there);
    const uint32_t found = bits(equal(there, x, all(most_likely)));
    if (found) at = i + __builtin_ctz(found);
    total = add(total, kept(there, exponential(sub(x, all(most_likely)))));
  }
  return {at, 1.f / sum(total)};
}

// hidden [L, hidden] and the tokens [L] chosen from it; embedding [V, hidden], read times `scale`; up and down: weight,
// scales and offsets of each head as in `linear_int8`, output: the same of the output layer, of the tokens [G] alone that
// may be guessed. Returns the tokens [L, depth] that are likeliest to follow one after another, and how likely each is.
std::tuple<Tensor, Tensor> draft(const Tensor& hidden, const Tensor& chosen_any, const Tensor& embedding_any,
                                 at::TensorList up, at::TensorList down, at::TensorList output,
                                 const Tensor& guessed_any, int64_t width, double scale) {
  const Tensor embedding = embedding_any.contiguous(), chosen = chosen_any.contiguous();
  const Tensor guessed = guessed_any.contiguous();
  const float times = float(scale);
  const int64_t* token_of = guessed.const_data_ptr<int64_t>();
  const int64_t lanes = hidden.size(0), size = hidden.size(1), vocab = embedding.size(0), depth = up.size() / 3;
  const Tensor known = at::empty({lanes, (depth + 1) * size}, at::kFloat);  // the hidden state, and embeddings
  known.narrow(1, 0, size).copy_(hidden);
  const Tensor tokens = at::empty({lanes, depth}, at::kLong), odds = at::empty({lanes, depth}, at::kFloat);
  float *x = known.mutable_data_ptr<float>(), *probability = odds.mutable_data_ptr<float>();
  int64_t* found = tokens.mutable_data_ptr<int64_t>();
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t r = 0; r < lanes; ++r) {
      const int64_t token = k ? found[r * depth + k - 1] : chosen.const_data_ptr<int64_t>()[r];
      TORCH_CHECK(token >= 0 && token < vocab, "draft: a token outside the vocabulary");
      float* to = x + (r * (depth + 1) + k + 1) * size;
      by_type(embedding.scalar_type(), [&](auto number) {
        const auto* row = embedding.const_data_ptr<decltype(number)>() + token * size;
        for (int64_t i = 0; i < size; ++i) to[i] = times * float(row[i]);
      });
    }
    const int64_t at = 3 * k;
    const Tensor units =
        linear_int8(known.narrow(1, 0, (k + 2) * size), up[at], up[at + 1], up[at + 2], std::nullopt, width, kNoGate);
    float* unit = units.mutable_data_ptr<float>();
    for (int64_t i = 0; i < lanes * width; i += kLanes) {
      const Tail there = tail(lanes * width - i);
      const Floats u = load(unit + i, there);
      store(unit + i, mul(u, sigmoid(u)), there);
    }
    const Tensor said = linear_int8(units, down[at], down[at + 1], down[at + 2], std::nullopt, size, kNoGate);
    const int64_t choices = guessed.size(0);
    const Tensor logits = linear_int8(said, output[0], output[1], output[2], std::nullopt, choices, kNoGate);
    for (int64_t r = 0; r < lanes; ++r) {
      const auto best = likeliest(logits.const_data_ptr<float>() + r * choices, choices);
      found[r * depth + k] = token_of[best.first];
      probability[r * depth + k] = best.second;
    }
  }
  return {tokens, odds};
}

}  // namespace
