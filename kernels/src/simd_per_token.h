// Products of rows that are rounded per token and weights with one scale for each output, over a SIMD level V (see
// simd_kernels.h): a tile's sums stay in registers over all inputs.
#pragma once

#include "simd_gate.h"
#include "simd_integers.h"
#include "simd_kernels.h"

namespace edgeformer {

// Rows times one panel: values, and the bias if there is one, in results [kRows][columns]. fetch: whether the weights are
// read for the first time.
template <class V, int kRows>
void multiply_per_token_tile(const Panels& panels, int panel, const Activations& x, int row, const float* bias,
                             bool fetch, float* results) {
  typename V::Ints sums[kRows][2];
  for (int each = 0; each < kRows; ++each) {
    sums[each][0] = sums[each][1] = V::splat(x.offsets[row + each]);
  }
  add_products<V, kRows, false>(panels.panel(panel), panels.block(), x.values_of(row, 0), x.word_stride(), fetch, sums);
  for (int half = 0; half < 2; ++half) {
    const typename V::Floats of_columns = V::load(panels.factors(panel) + half * V::kLanes);
    const typename V::Floats plus = bias ? V::load(bias + half * V::kLanes) : V::splat(0.0f);
#pragma clang loop unroll(full)
    for (int each = 0; each < kRows; ++each) {
      const typename V::Floats value = V::multiply(V::to_floats(sums[each][half]), of_columns);
      V::store(results + (2 * each + half) * V::kLanes, V::multiply_add(value, V::splat(x.scales[row + each]), plus));
    }
  }
}

template <class V, int... kRows>
constexpr auto per_token_tiles_of(std::integer_sequence<int, kRows...>) {
  return std::array{&multiply_per_token_tile<V, kRows + 1>...};
}

// y = f(result, y) for the results of a tile; of the last panel only `columns` are left.
template <class V, class F>
void finish_tile(const float* results, int rows, int columns, float* y, std::size_t stride, F f) {
  constexpr int kColumns = 2 * V::kLanes;
  for (int row = 0; row < rows; ++row, results += kColumns, y += stride) {
    alignas(kCacheLine) float padded[kColumns];
    float* to = y;
    if (columns < kColumns) {
      to = padded;
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, y, columns * sizeof(float));
    }
    for (int half = 0; half < kColumns; half += V::kLanes) {
      V::store(to + half, f(V::load(results + half), V::load(to + half)));
    }
    if (to == padded) std::memcpy(y, padded, columns * sizeof(float));
  }
}

// finish_tile for what an activation makes of a number.
template <class V, class F>
void activate_tile(const float* results, int rows, int columns, float* y, std::size_t stride, bool gated, F activate) {
  using Floats = typename V::Floats;
  if (gated) {
    finish_tile<V>(results, rows, columns, y, stride,
                   [=](Floats up, Floats gate) { return V::multiply(activate(gate), up); });
  } else {
    finish_tile<V>(results, rows, columns, y, stride, [=](Floats up, Floats) { return activate(up); });
  }
}

template <class V>
void finish_tile(const float* results, int rows, int columns, float* y, std::size_t stride, const Finish& finish) {
  switch (finish.activation) {
    case Activation::kNone:
      return activate_tile<V>(results, rows, columns, y, stride, finish.gated, same<V>);
    case Activation::kRelu:
      return activate_tile<V>(results, rows, columns, y, stride, finish.gated, relu<V>);
    case Activation::kSilu:
      return activate_tile<V>(results, rows, columns, y, stride, finish.gated, silu<V>);
    case Activation::kGelu:
      return activate_tile<V>(results, rows, columns, y, stride, finish.gated, gelu<V>);
    case Activation::kGeluTanh:
      return activate_tile<V>(results, rows, columns, y, stride, finish.gated, gelu_tanh<V>);
  }
}

template <class V>
void multiply_per_token(const Panels& panels, const Activations& x, int begin, int end, int rows, const Finish& finish,
                        float* y) {
  static constexpr auto tiles = per_token_tiles_of<V>(std::make_integer_sequence<int, V::kTileRows>());
  alignas(kCacheLine) float results[V::kTileRows * 2 * V::kLanes];
  for (int panel = begin; panel < end; ++panel) {
    const int column = panel * panels.columns(), columns = std::min(panels.columns(), panels.outputs() - column);
    const float* bias = finish.bias ? finish.bias + column : nullptr;
    for (int row = 0; row < rows; row += x.tile_rows) {
      const int of_tile = std::min(x.tile_rows, rows - row);
      tiles[of_tile - 1](panels, panel, x, row, bias, row == 0, results);
      float* to = y + static_cast<std::size_t>(row) * panels.outputs() + column;
      finish_tile<V>(results, of_tile, columns, to, panels.outputs(), finish);
    }
  }
}

}  // namespace edgeformer
