// Linear layers of few rows whose weights have 4 bits: 32 inputs of an output share a scale. Activations have 8 bits
// and a scale for each row, as in `linear_int8`.

#pragma once

#include "linear.h"

namespace {

constexpr int64_t kGroupSteps = 8;  // of four inputs
// A group of a block's weights, in numbers of four bytes: pairs of steps, of which the first has the low half of each
// byte, and then the 64 outputs' scales in bfloat16.
constexpr int64_t kGroup = kGroupSteps / 2 * kOutputs + kOutputs / 2;
constexpr int64_t kChunkGroups = 16;  // whose weights (18 KiB) stay in the first cache for all rows
constexpr int64_t kLine = 16;         // numbers of a line of the cache

// ROWS rows, each of `groups` groups, against `some` groups of a block: adds to sums [ROWS, 64]. offsets
// [ROWS, groups]: minus eight times the sum of the row's group. Meanwhile a share, 1 / `passes`, of as many weights at
// `ahead` may come into the cache. Where only a part of each group is read at a time that is always so, since the
// processor itself finds no stream in it. Returns where the next share begins.
template <int ROWS, bool FETCHES>
__attribute__((noinline)) const int32_t* groups_of_rows(const int32_t* x, const int32_t* offsets, int64_t groups,
                                                        const int32_t* w, int64_t some, float* sums,
                                                        const int32_t* ahead, int64_t passes) {
  constexpr int64_t kParts = kOutputs / Int4::kNumbers;
  constexpr int kTogether = Int4::together(ROWS);
  const int64_t turns = kParts / kTogether * passes, lines = (kGroup / kLine + turns - 1) / turns;
  for (int64_t first = 0; first < kParts; first += kTogether) {
    const auto at = [=](int r, int n) {
      return reinterpret_cast<Int4::Sum*>(sums + r * kOutputs + (first + n) * Int4::kNumbers);
    };
    Int4::Sum all[ROWS][kTogether];
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < kTogether; ++n) all[r][n] = *at(r, n);
    for (int64_t g = 0; g < some; ++g) {
      const int32_t* group = w + g * kGroup;
      if constexpr (FETCHES || kTogether < kParts)
        for (int64_t i = 0; i < lines; ++i, ahead += kLine)
          _mm_prefetch(reinterpret_cast<const char*>(ahead), Int4::kInto);
      Int4::Register sum[ROWS][kTogether];
      for (int r = 0; r < ROWS; ++r)
        for (int n = 0; n < kTogether; ++n) sum[r][n] = Int4::start(offsets[r * groups + g]);
#pragma GCC unroll 1  // unrolled, GCC 12 computes products of later steps first and keeps them in memory
      for (int64_t pair = 0; pair < kGroupSteps / 2; ++pair) {
        const int32_t* from = x + g * kGroupSteps + 2 * pair;
        const int32_t* both = group + pair * kOutputs + first * Int4::kNumbers;
        Int4::Register low[kTogether], high[kTogether];
        for (int n = 0; n < kTogether; ++n) {
          const Int4::Register weights = Int4::load(both + n * Int4::kNumbers);
          low[n] = Int4::low(weights), high[n] = Int4::high(weights);
        }
        for (int r = 0; r < ROWS; ++r) {
          const Int4::Row one = Int4::row(from + r * groups * kGroupSteps);
          for (int n = 0; n < kTogether; ++n) sum[r][n] = Int4::add(sum[r][n], one, low[n]);
          const Int4::Row other = Int4::row(from + r * groups * kGroupSteps + 1);
          for (int n = 0; n < kTogether; ++n) sum[r][n] = Int4::add(sum[r][n], other, high[n]);
        }
      }
      const auto* scales = reinterpret_cast<const BFloat16*>(group + kGroupSteps / 2 * kOutputs);
      for (int n = 0; n < kTogether; ++n) {
        const Int4::Sum scale = Int4::scales(scales + (first + n) * Int4::kNumbers);
        for (int r = 0; r < ROWS; ++r)
          all[r][n] = Int4::scaled(all[r][n], sum[r][n], offsets[r * groups + g], scale);
      }
    }
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < kTogether; ++n) *at(r, n) = all[r][n];
  }
  return ahead;
}

// x [..., in] float32; weight [outputs / 64, in / 32, 288] of four bytes each; bias and gate as in `linear`.
Tensor linear_int4(const Tensor& x_any, const Tensor& weight, const std::optional<Tensor>& bias, int64_t outputs,
                   int64_t gate) {
  const Tensor x = x_any.contiguous();
  auto sizes = x.sizes().vec();
  const int64_t width = sizes.back(), rows = x.numel() / width, groups = weight.size(1), blocks = weight.size(0);
  TORCH_CHECK(width == groups * kGroupSteps * 4, "linear_int4: rows and weights of another width");
  const int64_t made = outputs_after(gate, outputs);
  const Order order(blocks, gate);
  int32_t* quantised = scratch(rows * groups * (kGroupSteps + 1));
  int32_t* offsets = quantised + rows * groups * kGroupSteps;
  std::vector<float> row_scales(rows);
  parallel(rows, rows * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      auto* row = reinterpret_cast<int8_t*>(&quantised[r * groups * kGroupSteps]);
      row_scales[r] = quantise(x.const_data_ptr<float>() + r * width, width, reinterpret_cast<uint8_t*>(row));
      for (int64_t g = 0; g < groups; ++g, row += 4 * kGroupSteps) {
        int32_t sum = 0;
        for (int64_t i = 0; i < 4 * kGroupSteps; ++i) {
          row[i] = static_cast<int8_t>(row[i] - kZero);
          sum += row[i];
        }
        offsets[r * groups + g] = -8 * sum;
      }
    }
  });
  sizes.back() = made;
  const Tensor out = at::empty(sizes, x.options());
  float* to = out.mutable_data_ptr<float>();
  const auto* weights = static_cast<const int32_t*>(weight.const_data_ptr());
  const float* bias_at = data_or_null(bias);
  const bool fetched = fetches(rows, Int4::kMostRows);
  const float* by_row = row_scales.data();
  parallel(order.tasks, blocks * groups * kGroupSteps * kOutputs, [&](int64_t begin, int64_t end) {
    std::vector<Floats> room(order.parts * rows * kBlocks);  // aligned, as its registers are
    for (int64_t turn = begin * order.parts; turn < end * order.parts; ++turn) {
      const int64_t task = turn / order.parts, part = turn % order.parts;
      const auto weights_of = [=](int64_t turn) { return weights + order.block(turn) * groups * kGroup; };
      Floats* const begun = room.data() + part * rows * kBlocks;
      std::fill(begun, begun + rows * kBlocks, zeros());
      auto* sums = reinterpret_cast<float*>(begun);
      for (int64_t first = 0; first < groups; first += kChunkGroups) {
        const int64_t some = std::min(kChunkGroups, groups - first);
        const int32_t* w = weights_of(turn) + first * kGroup;
        const int32_t* ahead = first + some < groups ? w + some * kGroup : weights_of(turn + 1);
        int64_t r = 0;
        in_passes<Int4::kMostRows>(rows, fetched, [&](auto together, int64_t passes) {
          const auto pass = fetched ? groups_of_rows<together, true> : groups_of_rows<together, false>;
          ahead = pass(&quantised[(r * groups + first) * kGroupSteps], &offsets[r * groups + first], groups, w, some,
                       sums + r * kOutputs, ahead, passes);
          r += together;
        });
      }
      if (part + 1 < order.parts) continue;
      for (int64_t b = 0; b < kBlocks; ++b) {
        const Floats* const all_sums = room.data();
        write_outputs(to, rows, made, task * kOutputs + b * kLanes, gate, [=](int64_t n, Tail there, int64_t part) {
          const Floats more = bias_at == nullptr ? zeros() : load(bias_at + n, there);
          return [=](int64_t r) {
            return scaled(all_sums[(part * rows + r) * kBlocks + b], by_row[r], bias_at != nullptr, more);
          };
        });
      }
    }
  });
  return out;
}

}  // namespace
