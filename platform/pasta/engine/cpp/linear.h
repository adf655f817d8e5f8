// Linear layers of few rows.

#pragma once

#include <atomic>

#include "between.h"
#include "threads.h"

#ifdef __AVX512F__
#include "products_avx512.h"
#else
#include "products_avx2.h"
#endif

namespace {

constexpr int64_t kOutputs = kLanes * kBlocks;

// Whether weights are fetched ahead of their turn: with one row, with several that one pass computes, and with more.
// pasta/engine/fetching.py measures what is faster here. It changes no result.
std::atomic<bool> fetched_for_one{false}, fetched_for_several{true}, fetched_for_more{true};

void fetch_ahead(bool one, bool several, bool more) {
  fetched_for_one = one;
  fetched_for_several = several;
  fetched_for_more = more;
}

// together: rows of a pass. With many passes arithmetic takes longer than the memory, and longer chunks are faster.
bool fetches(int64_t rows, int64_t together) {
  if (rows == 1) return fetched_for_one;
  if (rows <= together) return fetched_for_several;
  return fetched_for_more && rows <= 4 * together;
}

// Calls pass(n, passes) until `rows` rows are done; n, up to MOST, is a constant to the compiler, passes how many calls
// there are. evenly: as many rows in each. Otherwise the first, which waits for the memory, takes as many as it can.
template <int MOST, class Pass>
void in_passes(int64_t rows, bool evenly, const Pass& pass) {
  const int64_t passes = (rows + MOST - 1) / MOST;
  for (int64_t left = passes; rows > 0; --left) {
    const int64_t some = evenly ? (rows + left - 1) / left : std::min<int64_t>(MOST, rows);
    [&]<int... ROWS>(std::integer_sequence<int, ROWS...>) {
      ((some == ROWS + 1 ? pass(std::integral_constant<int, ROWS + 1>{}, passes) : void()), ...);
    }(std::make_integer_sequence<int, MOST>{});
    rows -= some;
  }
}

// Adds the products of all rows with `steps` steps of a block's weights, or begins with them. ahead: the next weights,
// of which each pass may fetch its share.
template <class F>
void by_rows(const int32_t* x, int64_t width, int64_t rows, const int32_t* w, int64_t steps, typename F::Sum* sums,
             bool begins, const int32_t* ahead, bool fetched) {
  in_passes<F::kMostRows>(rows, fetched, [&](auto some, int64_t passes) {
    const auto pass = fetched ? tile<F, some, true> : tile<F, some, false>;
    ahead = pass(x, width, w, steps, sums, begins, ahead, passes);
    x += some * width, sums += some * kBlocks;
  });
}

// What an operator makes of the outputs of a product: nothing, or half as many, act(first half) * second half.
enum Gate : int64_t { kNoGate, kSilu, kGelu };

// Writes the sixteen outputs from n on to every row of to [rows, outputs]. of(n, there, part) gives, by row, what a
// product of the row has in output n, or in output `outputs` + n for part 1, which only a gate has.
template <class T, class Of>
void write_outputs(T* to, int64_t rows, int64_t outputs, int64_t n, int64_t gate, const Of& of) {
  if (n >= outputs) return;
  const Tail there = tail(outputs - n);
  const auto own = of(n, there, 0);
  if (gate == kNoGate) {
    for (int64_t r = 0; r < rows; ++r) store(to + r * outputs + n, own(r), there);
    return;
  }
  const auto up = of(outputs + n, there, 1);
  for (int64_t r = 0; r < rows; ++r)
    store(to + r * outputs + n, apply_gate(as<T>(own(r)), as<T>(up(r)), gate == kGelu), there);
}

// y * scale + bias, if there is one; told how to round, for else the compiler chooses at each place.
Floats scaled(Floats y, float scale, bool has_bias, Floats bias) {
  return has_bias ? fmadd(y, all(scale), bias) : mul(y, all(scale));
}

// How many outputs an operator has whose product has so many. Those of a gate's halves lie in blocks of their own.
int64_t outputs_after(int64_t gate, int64_t outputs) {
  TORCH_CHECK(gate == kNoGate || outputs % (2 * kOutputs) == 0, "linear: a gate's halves must be whole blocks");
  return gate == kNoGate ? outputs : outputs / 2;
}

// The order in which threads take the blocks of a product: a task is a block, or a gate's and then the block that it gates.
struct Order {
  int64_t parts, tasks;

  Order(int64_t blocks, int64_t gate) : parts(gate == kNoGate ? 1 : 2), tasks(blocks / parts) {}
  // Turn `parts` * task + part: which block it computes.
  int64_t block(int64_t turn) const { return turn / parts + turn % parts * tasks; }
};

// x: rows of `steps` steps; w [blocks, steps, 64] steps of weights. finish(n, block, sums) takes the results of the
// sixteen outputs from n on: those of row r are in sums[r * kBlocks + block]. With a gate n is in the first half of the
// blocks, and row r of as many outputs of the second half is at sums[(rows + r) * kBlocks + block].
template <class F, class Finish>
void product(const int32_t* x, int64_t rows, int64_t steps, const int32_t* w, int64_t blocks, int64_t gate,
             const Finish& finish) {
  const Order order(blocks, gate);
  bool tiled = false, wide = false;
  if constexpr (F::kTiles) tiled = rows >= F::kTiledFrom && steps % kTileSteps == 0 && tiles_allowed();
  const bool fetched = !tiled && fetches(rows, F::kMostRows);
  const int64_t chunk = fetched ? kFetchedChunk : kChunk;
  std::vector<int32_t> wide_rows;
  if constexpr (F::kWidens) {
    wide = rows >= F::kWidenedFrom;
    wide_rows.resize(wide ? 2 * rows * steps : 0);
    for (int64_t r = 0; wide && r < rows; ++r) F::widen_row(x + r * steps, steps, &wide_rows[2 * r * steps]);
  }
  parallel(order.tasks, steps * blocks * kOutputs, [&](int64_t begin, int64_t end) {
    std::vector<typename F::Sum> room_of_sums(order.parts * rows * kBlocks);
    std::vector<Ints> room(wide ? 2 * kChunk * kBlocks : 0);  // aligned, as its registers are
    auto* wide_weights = reinterpret_cast<int32_t*>(room.data());
    Tiles tiles;
    for (int64_t turn = begin * order.parts; turn < end * order.parts; ++turn) {
      const int64_t task = turn / order.parts, part = turn % order.parts;
      const auto weights_of = [=](int64_t turn) { return w + order.block(turn) * steps * kOutputs; };
      auto* sums = room_of_sums.data() + part * rows * kBlocks;
      if (tiled) std::fill(sums, sums + rows * kBlocks, F::zero());
      for (int64_t first = 0; first < steps; first += chunk) {
        const int64_t count = std::min(chunk, steps - first);
        const int32_t* weights = weights_of(turn) + first * kOutputs;
        const int32_t* ahead = first + count < steps ? weights + count * kOutputs : weights_of(turn + 1);
        if constexpr (F::kTiles) {
          for (int64_t r = 0; tiled && r < rows; r += kTileRows) {
            tiles.use(std::min(kTileRows, rows - r));
            by_tiles<F::kIntegers>(x + r * steps + first, steps, weights, count, &sums[r * kBlocks]);
          }
        }
        if constexpr (F::kWidens) {
          if (wide) {
            F::widen_weights(weights, count, wide_weights);
            by_rows<typename F::Wide>(&wide_rows[2 * first], 2 * steps, rows, wide_weights, 2 * count, sums,
                                      first == 0, ahead, fetched);
          }
        }
        if (!tiled && !wide) by_rows<F>(x + first, steps, rows, weights, count, sums, first == 0, ahead, fetched);
      }
      if (part + 1 < order.parts) continue;
      for (int64_t b = 0; b < kBlocks; ++b) finish(task * kOutputs + b * kLanes, b, room_of_sums.data());
    }
  });
}

// x [..., in] float32 or bfloat16, weight [blocks, steps, 4, 16] of four bytes each, bias [outputs] float32, gate: one
// of Gate. Returns [..., outputs], or half as many after a gate.
Tensor linear(const Tensor& x_any, const Tensor& weight, const std::optional<Tensor>& bias, int64_t outputs,
              int64_t gate) {
  const Tensor x = x_any.contiguous();
  auto sizes = x.sizes().vec();
  const int64_t steps = weight.size(1), blocks = weight.size(0);
  const int64_t rows = x.numel() / sizes.back(), made = outputs_after(gate, outputs);
  sizes.back() = made;
  const Tensor out = at::empty(sizes, x.options());
  const float* bias_at = data_or_null(bias);
  const auto run = [&](auto format, auto* to) {
    product<decltype(format)>(
        static_cast<const int32_t*>(x.const_data_ptr()), rows, steps,
        static_cast<const int32_t*>(weight.const_data_ptr()), blocks, gate,
        [=](int64_t n, int64_t b, const Floats* sums) {
          write_outputs(to, rows, made, n, gate, [=](int64_t n, Tail there, int64_t part) {
            const Floats more = bias_at == nullptr ? zeros() : load(bias_at + n, there);
            return [=](int64_t r) {
              const Floats y = sums[(part * rows + r) * kBlocks + b];
              return bias_at == nullptr ? y : add(y, more);
            };
          });
        });
  };
  if (x.scalar_type() == at::kFloat) {
    run(Float32(), out.mutable_data_ptr<float>());
  } else {
#ifdef PASTA_BFLOAT16
    run(Bfloat16(), out.mutable_data_ptr<BFloat16>());
#else
    TORCH_CHECK(false, "built for a CPU without bfloat16 products");
#endif
  }
  return out;
}

// A row over its largest value as 8-bit numbers, kZero for zero; returns its scale. Not-a-number and infinity
// make the scale not-a-number, and with it the whole row.
float quantise(const float* row, int64_t width, uint8_t* to) {
  Floats highest = all(1e-12f), wrong = zeros();
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats x = load(row + i, tail(width - i));
    highest = most(highest, absolute(x));
    wrong = fmadd(x, zeros(), wrong);
  }
  const float scale = largest(highest) / 127.f;
  for (int64_t i = 0; i < width; i += kLanes) {
    const Tail there = tail(width - i);
    store_quantised(to + i, div(load(row + i, there), all(scale)), there);
  }
  return scale + sum(wrong);
}

// Numbers of this thread for as long as it needs them, not zeroed: new memory for each product would have to come into
// the cache. Its next product writes over them.
int32_t* scratch(int64_t count) {
  thread_local std::vector<int32_t> numbers;
  if (count > static_cast<int64_t>(numbers.size())) numbers.resize(count);
  return numbers.data();
}

// x [..., in] float32; weight, bias and gate as in `linear`, 8-bit numbers; scales [outputs] float32; offsets [outputs]
// int32: 128 times the sum of an output's weights.
Tensor linear_int8(const Tensor& x_any, const Tensor& weight, const Tensor& scales, const Tensor& offsets,
                   const std::optional<Tensor>& bias, int64_t outputs, int64_t gate) {
  const Tensor x = x_any.contiguous();
  auto sizes = x.sizes().vec();
  const int64_t width = sizes.back(), rows = x.numel() / width;
  const int64_t steps = weight.size(1), blocks = weight.size(0), made = outputs_after(gate, outputs);
  int32_t* quantised = scratch(rows * steps);  // what a row's last step has too much meets weights of zero
  std::vector<float> row_scales(rows);
  const float* from = x.const_data_ptr<float>();
  parallel(rows, rows * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      row_scales[r] = quantise(from + r * width, width, reinterpret_cast<uint8_t*>(&quantised[r * steps]));
  });
  sizes.back() = made;
  const Tensor out = at::empty(sizes, x.options());
  float* to = out.mutable_data_ptr<float>();
  const float *scale = scales.const_data_ptr<float>(), *bias_at = data_or_null(bias), *by_row = row_scales.data();
  const int32_t* offset = offsets.const_data_ptr<int32_t>();
  product<Int8>(quantised, rows, steps, static_cast<const int32_t*>(weight.const_data_ptr()), blocks, gate,
                [=](int64_t n, int64_t b, const Ints* sums) {
                  write_outputs(to, rows, made, n, gate, [=](int64_t n, Tail there, int64_t part) {
                    const Floats by_output = load(scale + n, there);
                    const Floats more = bias_at == nullptr ? zeros() : load(bias_at + n, there);
                    return [=](int64_t r) {
                      const Ints sum = sums[(part * rows + r) * kBlocks + b];
                      const Floats y = mul(as_floats(sum, offset + n, there), by_output);
                      return scaled(y, by_row[r], bias_at != nullptr, more);
                    };
                  });
                });
  return out;
}

}  // namespace
