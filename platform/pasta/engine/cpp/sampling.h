// Choosing tokens by the Gumbel-max trick: noise and argmax in one pass.

#pragma once

#include "numbers.h"
#include "threads.h"

namespace {

constexpr double kMostNoise = 37.5;  // the largest uniform number below 1 has 54 log(2)

// The largest of some numbers and its token, the lowest of equal ones. Number n is that of token block[n] + n.
template <class Number, class Block, size_t N>
std::pair<Number, int64_t> first_largest(const Number (&largest)[N], const Block (&block)[N]) {
  size_t best = 0;
  for (size_t n = 1; n < N; ++n) {
    const bool earlier = largest[n] == largest[best] && block[n] + n < block[best] + best;
    if (largest[n] > largest[best] || earlier) best = n;
  }
  return {largest[best], block[best] + best};
}

// scores [N, V] float64, each row with one above -inf, and a key for each row [N]: the first token [N] whose score and
// noise are the largest.
Tensor gumbel_argmax(const Tensor& scores_any, const Tensor& keys_any) {
  const Tensor scores = scores_any.contiguous(), keys = keys_any.contiguous();
  const int64_t rows = scores.size(0), vocab = scores.size(1);
  const Tensor out = at::empty({rows}, keys.options());
  parallel(rows, rows * vocab, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const double* row = scores.const_data_ptr<double>() + r * vocab;
      const int64_t key = keys.const_data_ptr<int64_t>()[r];
      Leaders leaders;
      for (int64_t i = 0; i < vocab; i += kDoubles)
        leaders.take(row, i, vocab - i, kMostNoise,
                     [key](int64_t first) { return uniform(key, first).log().neg().log().neg(); });
      double largest[kDoubles];
      int64_t block[kDoubles];
      leaders.store(largest, block);
      out.mutable_data_ptr<int64_t>()[r] = first_largest(largest, block).second;
    }
  });
  return out;
}

// The likeliest token [N] of each row of logits [N, V] that its constraint permits: forbidden [C, V] bool, numbers
// [>= 4, N]: a row's constraint first, and fourth, as a double, what is added to the logit of `promise` (if that is a
// token). -1 where there is none: a permitted logit is not-a-number, or the largest is not finite.
Tensor likeliest_permitted(const Tensor& logits_any, const Tensor& numbers_any, const Tensor& forbidden,
                           int64_t promise) {
  const Tensor logits = logits_any.contiguous(), numbers = numbers_any.contiguous();
  const int64_t rows = logits.size(0), vocab = logits.size(1), stride = numbers.size(1);
  TORCH_CHECK(forbidden.is_contiguous() && forbidden.size(1) == vocab, "likeliest_permitted: sizes that do not fit");
  const Tensor out = at::empty({rows}, numbers.options());
  const int64_t* number = numbers.const_data_ptr<int64_t>();
  const Floats lowest = all(-std::numeric_limits<float>::infinity());
  by_type(logits.scalar_type(), [&](auto kind) {
    using scalar_t = decltype(kind);
    parallel(rows, rows * vocab, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const scalar_t* row = logits.const_data_ptr<scalar_t>() + r * vocab;
        TORCH_CHECK(number[r] >= 0 && number[r] < forbidden.size(0), "likeliest_permitted: no such constraint");
        const bool* bars = forbidden.const_data_ptr<bool>() + number[r] * vocab;
        Floats highest = lowest;
        Ints at = all(0);
        uint32_t wrong = 0;
        for (int64_t i = 0; i < vocab; i += kLanes) {
          const Tail there = tail(vocab - i);
          const Mask open = unset(bars + i, there);
          const Floats x = load(row + i, there);
          wrong |= bits(unordered(open, x));
          const Mask more = greater(open, x, highest);
          highest = chosen(more, x, highest);
          at = chosen(more, all(static_cast<int32_t>(i)), at);
        }
        alignas(64) float largest[kLanes];
        alignas(64) int32_t block[kLanes];
        store(largest, highest);
        store(block, at);
        auto [best, token] = first_largest(largest, block);
        const double bias = promise < 0 ? 0.0 : reinterpret_cast<const double*>(number)[3 * stride + r];
        if (bias != 0.0 && promise < vocab && !bars[promise]) {
          // Rare: once more, with the promise's logit as its bias makes it.
          best = -std::numeric_limits<float>::infinity();
          for (int64_t i = 0; i < vocab; ++i) {
            if (bars[i]) continue;
            const float x = i == promise ? float(scalar_t(float(row[i]) + float(scalar_t(bias)))) : float(row[i]);
            if (x > best) best = x, token = i;
          }
        }
        const bool finite = std::isfinite(best) && !wrong;
        out.mutable_data_ptr<int64_t>()[r] = finite ? token : -1;
      }
    });
  });
  return out;
}

}  // namespace
