// Products of rows that are rounded per token and weights with one scale for each output, over a SIMD level V (see
// simd_kernels.h): a tile's sums stay in registers over all inputs.
#pragma once

#include "simd_gate.h"
#include "simd_integers.h"
#include "simd_kernels.h"
#include "tile_products.h"

namespace edgeformer {

// The most rows of a tile, or of two tiles of a unit.
inline constexpr int kMostRowsAtOnce = 32;

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

// The same tile, or two of them, by a unit of matrix tiles.
template <class V>
void multiply_per_token_tiles(const Panels& panels, int panel, const Activations& x, int row, int rows, const float* bias,
                              float* results) {
  constexpr int kColumns = 2 * V::kLanes;
  alignas(kCacheLine) std::int32_t sums[2 * V::Tiles::kRows * kColumns];
  const int words = panels.block() / 4;
  const std::size_t to_row = panels.block(), to_word = 4 * kColumns;
  multiply_panel<V, Words::kUnsigned>({x.values_of(row, 0), panels.panel(panel), sums, to_row, to_word, to_word, x.tile_rows,
                                       words, words_at_once<typename V::Tiles>(words)},
                                      rows > x.tile_rows, [] {});
  for (int half = 0; half < kColumns; half += V::kLanes) {
    const typename V::Floats of_columns = V::load(panels.factors(panel) + half);
    const typename V::Floats plus = bias ? V::load(bias + half) : V::splat(0.0f);
    for (int each = 0; each < rows; ++each) {
      const typename V::Ints all = V::add(V::load(sums + each * kColumns + half), V::splat(x.offsets[row + each]));
      const typename V::Floats value = V::multiply(V::to_floats(all), of_columns);
      V::store(results + each * kColumns + half, V::multiply_add(value, V::splat(x.scales[row + each]), plus));
    }
  }
}

template <class V, bool kByUnit>
void multiply_per_token_of(const Panels& panels, const Activations& x, int begin, int end, int rows, const Finish& finish,
                           float* y) {
  static constexpr auto tiles = per_token_tiles_of<V>(std::make_integer_sequence<int, V::kTileRows>());
  alignas(kCacheLine) float results[kMostRowsAtOnce * 2 * V::kLanes];
  const int at_once = kByUnit ? 2 * x.tile_rows : x.tile_rows;
  [[maybe_unused]] const TilesInUse<V, kByUnit> in_use(x.tile_rows, panels.block() / 4);
  for (int panel = begin; panel < end; ++panel) {
    const int column = panel * panels.columns(), columns = std::min(panels.columns(), panels.outputs() - column);
    const float* bias = finish.bias ? finish.bias + column : nullptr;
    for (int row = 0; row < rows; row += at_once) {
      const int of_tile = std::min(at_once, rows - row);
      if constexpr (kByUnit) {
        multiply_per_token_tiles<V>(panels, panel, x, row, of_tile, bias, results);
      } else {
        tiles[of_tile - 1](panels, panel, x, row, bias, row == 0, results);
      }
      float* to = y + static_cast<std::size_t>(row) * panels.outputs() + column;
      finish_tile<V>(results, of_tile, columns, to, panels.outputs(), finish);
    }
  }
}

template <class V>
void multiply_per_token(const Panels& panels, const Activations& x, int begin, int end, int rows, const Finish& finish,
                        float* y) {
  if constexpr (HasTiles<V>) {
    if (x.by_rows) return multiply_per_token_of<V, true>(panels, x, begin, end, rows, finish, y);
  }
  multiply_per_token_of<V, false>(panels, x, begin, end, rows, finish, y);
}

}  // namespace edgeformer
