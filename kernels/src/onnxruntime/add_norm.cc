#include "add_norm.h"

#include "each_row.h"

namespace edgeformer {

template <class Function>
void AddNorm::for_each_row(const Call& call, Parallel& parallel, const Function& norm) const {
  const std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || call.shape(1) != shape) call.refuse("input and skip must have the same shape");
  const std::int64_t size = shape.back();
  if (call.shape(2) != std::vector{size}) call.refuse("gamma must have as many numbers as a row of input");
  run_each_row(rows_of(shape), size, parallel, [&](std::size_t row) { norm(row * size, static_cast<int>(size)); });
}

void AddRMSNorm::run(Call& call, Parallel& parallel) const {
  const float *input = call.input<float>(0), *skip = call.input<float>(1), *gamma = call.input<float>(2);
  float *output = call.output<float>(0, call.shape(0)), *sums = call.output<float>(1, call.shape(0));
  for_each_row(call, parallel, [&](std::size_t at, int size) {
    level_.add_and_norm(input + at, skip + at, gamma, size, epsilon_, sums + at, output + at);
  });
}

template <bool kKeepsSum>
void AddLayerNormOp<kKeepsSum>::run(Call& call, Parallel& parallel) const {
  const bool has_bias = call.has_input(3);
  if (has_bias && call.shape(3) != call.shape(2)) call.refuse("beta must have as many numbers as gamma");
  const float *input = call.input<float>(0), *skip = call.input<float>(1), *gamma = call.input<float>(2);
  const float* beta = has_bias ? call.input<float>(3) : nullptr;
  float* output = call.output<float>(0, call.shape(0));
  float* sums = nullptr;
  if constexpr (kKeepsSum) sums = call.output<float>(1, call.shape(0));
  for_each_row(call, parallel, [&](std::size_t at, int size) {
    float* sum = sums == nullptr ? nullptr : sums + at;
    level_.add_and_layer_norm(input + at, skip + at, gamma, beta, size, epsilon_, sum, output + at);
  });
}

template class AddLayerNormOp<false>;
template class AddLayerNormOp<true>;

}  // namespace edgeformer
