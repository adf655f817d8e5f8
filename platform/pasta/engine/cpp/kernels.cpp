// Decoding kernels for CPUs with AVX2 or AVX-512: linear layers of few rows, and the small steps between them, each in
// one operator. pasta/engine/kernels.py builds them for the machine they run on. What depends on its instructions is in
// avx2.h or avx512.h, and in products_avx2.h or products_avx512.h.
//
// No row's arithmetic depends on how many rows there are: sums always go over the inputs in order, and attention
// touches only the keys that a row sees. So a token has the same logits alone and beside others, to the last bit.

#include <torch/library.h>

#include "attention.h"
#include "draft.h"
#include "linear.h"
#include "linear_int4.h"
#include "masks.h"
#include "sampling.h"
#include "steps.h"

TORCH_LIBRARY(pasta, m) {
  m.def("linear(Tensor x, Tensor weight, Tensor? bias, int outputs, int gate=0) -> Tensor");
  m.def("linear_int8(Tensor x, Tensor weight, Tensor scales, Tensor offsets, Tensor? bias, int outputs, int gate=0) -> Tensor");
  m.def("linear_int4(Tensor x, Tensor weight, Tensor? bias, int outputs, int gate=0) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("gated(Tensor gate_up, bool gelu) -> Tensor");
  m.def("rotary(Tensor positions, Tensor frequencies, float scale, ScalarType type) -> (Tensor, Tensor)");
  m.def(
      "attend(Tensor qkv, Tensor cos, Tensor sin, Tensor? q_weight, Tensor? k_weight, float eps, Tensor(a!) keys, "
      "Tensor(b!) values, Tensor places, Tensor before, int width, Tensor mask, Tensor? flat, int groups, "
      "float scaling, float softcap) -> Tensor");
  m.def(
      "draft(Tensor hidden, Tensor chosen, Tensor embedding, Tensor[] up, Tensor[] down, Tensor[] output, "
      "Tensor guessed, int width, float scale) -> (Tensor, Tensor)");
  m.def("gumbel_argmax(Tensor scores, Tensor keys) -> Tensor");
  m.def(
      "lay(Tensor inputs, Tensor(a!) key_segments, Tensor(b!) key_positions, Tensor sees, int first, int batch, "
      "int queries, int keys, int flat, int window, ScalarType type) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "follow(Tensor(a!) inputs, Tensor tokens, Tensor places, Tensor keys, Tensor modes, Tensor goes_on, int fed, "
      "int flat) -> bool");
  m.def("claim_threads(bool begins) -> ()", &claim_threads);
  m.def("fetch_ahead(bool one, bool several, bool more) -> ()", &fetch_ahead);
  m.def("likeliest_permitted(Tensor logits, Tensor numbers, Tensor forbidden, int promise) -> Tensor");
}

TORCH_LIBRARY_IMPL(pasta, CPU, m) {
  m.impl("linear", &linear);
  m.impl("linear_int8", &linear_int8);
  m.impl("linear_int4", &linear_int4);
  m.impl("rms_norm", &rms_norm);
  m.impl("gated", &gated);
  m.impl("rotary", &rotary);
  m.impl("attend", &attend);
  m.impl("draft", &draft);
  m.impl("gumbel_argmax", &gumbel_argmax);
  m.impl("lay", &lay);
  m.impl("follow", &follow);
  m.impl("likeliest_permitted", &likeliest_permitted);
}
