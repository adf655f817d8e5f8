// What stands between the linear layers: norms, gates, and the angles of rotary positions.

#pragma once

#include "numbers.h"
#include "threads.h"

namespace {

template <class T, class To>
void normalise(const T* row, const float* weight, float eps, int64_t width, To* to) {
  Floats squares = zeros();
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats x = load(row + i, tail(width - i));
    squares = fmadd(x, x, squares);
  }
  const Floats factor = all(1.f / std::sqrt(sum(squares) / width + eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    const Tail there = tail(width - i);
    store(to + i, mul(mul(load(row + i, there), factor), load(weight + i, there)), there);
  }
}

// x [..., width] divided by its root mean square, times weight [width] float32.
Tensor rms_norm(const Tensor& x_any, const Tensor& weight, double eps) {
  const Tensor x = x_any.contiguous(), out = at::empty_like(x);
  const int64_t width = x.size(-1), rows = x.numel() / width;
  by_type(x.scalar_type(), [&](auto number) {
    using scalar_t = decltype(number);
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    const float* weight_at = weight.const_data_ptr<float>();
    parallel(rows, rows * width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) normalise(from + r * width, weight_at, eps, width, to + r * width);
    });
  });
  return out;
}

// act(gate) * up: SiLU, or GELU's tanh form.
Floats apply_gate(Floats gate, Floats up, bool gelu) {
  Floats inner = gate;
  if (gelu) {  // x * (1 + tanh(u)) / 2 is x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
    const Floats cubic = fmadd(mul(gate, gate), all(0.044715f), all(1.f));
    inner = mul(mul(gate, cubic), all(1.5957691216f));
  }
  return mul(mul(gate, sigmoid(inner)), up);
}

// gate_up [..., 2 * width] to act(gate) * up [..., width].
Tensor gated(const Tensor& gate_up_any, bool gelu) {
  const Tensor gate_up = gate_up_any.contiguous();
  auto sizes = gate_up.sizes().vec();
  const int64_t width = sizes.back() / 2, rows = gate_up.numel() / sizes.back();
  sizes.back() = width;
  const Tensor out = at::empty(sizes, gate_up.options());
  by_type(out.scalar_type(), [&](auto number) {
    using scalar_t = decltype(number);
    const scalar_t* from = gate_up.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; i += kLanes) {
        const Tail there = tail(width - i);
        const Floats gate = load(from + 2 * r * width + i, there), up = load(from + (2 * r + 1) * width + i, there);
        store(to + r * width + i, apply_gate(gate, up, gelu), there);
      }
    }
  });
  return out;
}

// Cosines and sines, times `scale`, of positions [...] times frequencies [F]: each [..., 2 * F], the second half as the
// first. torch computes even a few of them in OpenMP's threads. These spin afterwards, on the cores that the kernels' own
// threads need.
std::tuple<Tensor, Tensor> rotary(const Tensor& positions_any, const Tensor& frequencies, double scale,
                                  at::ScalarType type) {
  const Tensor positions = positions_any.contiguous();
  auto sizes = positions.sizes().vec();
  const int64_t half = frequencies.numel(), rows = positions.numel();
  sizes.push_back(2 * half);
  const Tensor cosines = at::empty(sizes, frequencies.options().dtype(type)), sines = at::empty_like(cosines);
  const int64_t* position = positions.const_data_ptr<int64_t>();
  const float *frequency = frequencies.const_data_ptr<float>(), factor = scale;
  by_type(type, [&](auto number) {
    using scalar_t = decltype(number);
    scalar_t *c = cosines.mutable_data_ptr<scalar_t>(), *s = sines.mutable_data_ptr<scalar_t>();
    for (int64_t r = 0; r < rows; ++r, c += 2 * half, s += 2 * half) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position[r]) * frequency[i];
        c[i] = c[half + i] = std::cos(angle) * factor;
        s[i] = s[half + i] = std::sin(angle) * factor;
      }
    }
  });
  return {cosines, sines};
}

}  // namespace
