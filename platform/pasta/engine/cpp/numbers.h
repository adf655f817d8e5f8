// Numbers, sixteen at a time whatever the CPU's registers.

#pragma once

#include <ATen/ATen.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

using at::BFloat16;
using at::Tensor;

constexpr int64_t kLanes = 16;  // numbers that the functions below take at a time

#ifdef __AVX512F__
#include "avx512.h"
#else
#include "avx2.h"
#endif

namespace {

// e^x to 2 units in the last place; not-a-number stays one.
Floats exponential(Floats x) {
  x = least(all(88.f), most(all(-87.f), x));
  const Floats n = nearest(mul(x, all(1.44269504f)));
  Floats r = fnmadd(n, all(0.693145752f), x);
  r = fnmadd(n, all(1.42860677e-6f), r);
  Floats sum = all(1.f / 720);
  for (float c : {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) sum = fmadd(sum, r, all(c));
  return times_power(sum, n);
}

Floats sigmoid(Floats x) { return div(all(1.f), add(all(1.f), exponential(sub(zeros(), x)))); }

// Numbers as a tensor of type T holds them.
template <class T>
Floats as(Floats x) {
  if constexpr (std::is_same_v<T, float>) return x;
  T held[kLanes];
  store(held, x);
  return load(held);
}

// Calls run with a number of the type that a tensor holds.
template <class Run>
void by_type(at::ScalarType type, const Run& run) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "expected float32 or bfloat16");
  type == at::kFloat ? run(float{}) : run(BFloat16{});
}

const float* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr<float>() : nullptr;
}

}  // namespace
