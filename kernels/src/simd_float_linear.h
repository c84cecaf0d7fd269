// Products with weights of float32, written once over a SIMD level V (see simd_kernels.h).
//
// A number of y is summed up over inputs from the first to the last, one multiply-add each, however many rows there are:
// so a row of a batch is what it is alone, bit for bit.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "float_matrix.h"

namespace edgeformer {

// Inputs whose weights are read in one sweep over the outputs.
inline constexpr int kInputsOfSweep = 8;

// Rows that share what is read of the weights.
inline constexpr int kRowsOfSweep = 4;

// The first `count` numbers, at most a vector, and zeros behind.
template <class V>
typename V::Floats load_first(const float* from, int count) {
  if (count >= V::kLanes) return V::load(from);
  alignas(kCacheLine) float padded[V::kLanes] = {};
  std::memcpy(padded, from, count * sizeof(float));
  return V::load(padded);
}

template <class V>
void store_first(float* to, typename V::Floats numbers, int count) {
  if (count >= V::kLanes) return V::store(to, numbers);
  alignas(kCacheLine) float padded[V::kLanes];
  V::store(padded, numbers);
  std::memcpy(to, padded, count * sizeof(float));
}

// Adds the products of inputs from `input` on to y, in columns `begin` to `end`; the first inputs find no sums there.
template <class V, int kRows, int kInputs>
void sweep(const FloatMatrix& w, const float* x, int input, int begin, int end, float* y) {
  const std::size_t outputs = w.outputs, inputs = w.inputs;
  const float* from = w.numbers + input * outputs;
  const std::size_t ahead = input + 2 * kInputs <= w.inputs ? kInputs * outputs : 0;
  for (int column = begin; column < end; column += V::kLanes) {
    const int count = end - column;
    typename V::Floats sums[kRows];
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) {
      sums[row] = input == 0 ? V::splat(0.0f) : load_first<V>(y + row * outputs + column, count);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < kInputs; ++i) {
      V::prefetch(from + ahead + i * outputs + column);
      const typename V::Floats weights = load_first<V>(from + i * outputs + column, count);
#pragma clang loop unroll(full)
      for (int row = 0; row < kRows; ++row) {
        sums[row] = V::multiply_add(V::splat(x[row * inputs + input + i]), weights, sums[row]);
      }
    }
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) store_first<V>(y + row * outputs + column, sums[row], count);
  }
}

template <class V, int kRows>
void sweep_inputs(const FloatMatrix& w, const float* x, int begin, int end, float* y) {
  int input = 0;
  for (; input + kInputsOfSweep <= w.inputs; input += kInputsOfSweep) {
    sweep<V, kRows, kInputsOfSweep>(w, x, input, begin, end, y);
  }
  for (; input < w.inputs; ++input) sweep<V, kRows, 1>(w, x, input, begin, end, y);
}

// Weights of a square of outputs and inputs, with outputs side by side. Outputs behind the last are copies of it.
template <class V>
void load_square(const FloatMatrix& w, int output, int input, typename V::Floats (&square)[V::kLanes]) {
  constexpr int kAhead = 128;  // numbers
  const int inputs = std::min(w.inputs - input, V::kLanes);
#pragma clang loop unroll(full)
  for (int i = 0; i < V::kLanes; ++i) {
    const float* from = w.numbers + static_cast<std::size_t>(std::min(output + i, w.outputs - 1)) * w.inputs + input;
    V::prefetch(from + kAhead);
    square[i] = load_first<V>(from, inputs);
  }
  V::transpose(square);
}

// The same where weights of an output lie side by side. Several squares at once, as each sum waits for itself.
template <class V, int kRows>
void sweep_outputs(const FloatMatrix& w, const float* x, int begin, int end, float* y) {
  constexpr int kSquares = std::max(1, 16 / V::kLanes);
  for (int column = begin; column < end; column += kSquares * V::kLanes) {
    typename V::Floats sums[kSquares][kRows];
    for (auto& of_square : sums) std::fill(of_square, of_square + kRows, V::splat(0.0f));
    for (int input = 0; input < w.inputs; input += V::kLanes) {
      const int inputs = std::min(w.inputs - input, V::kLanes);
#pragma clang loop unroll(full)
      for (int i = 0; i < kSquares; ++i) {
        typename V::Floats square[V::kLanes];
        load_square<V>(w, column + i * V::kLanes, input, square);
#pragma clang loop unroll(full)
        for (int j = 0; j < V::kLanes; ++j) {
          if (j < inputs) {
#pragma clang loop unroll(full)
            for (int row = 0; row < kRows; ++row) {
              const float number = x[static_cast<std::size_t>(row) * w.inputs + input + j];
              sums[i][row] = V::multiply_add(V::splat(number), square[j], sums[i][row]);
            }
          }
        }
      }
    }
    for (int i = 0; i < kSquares; ++i) {
      const int at = column + i * V::kLanes;
      for (int row = 0; row < kRows && at < end; ++row) {
        store_first<V>(y + static_cast<std::size_t>(row) * w.outputs + at, sums[i][row], end - at);
      }
    }
  }
}

template <class V, int kRows>
void multiply_few_of(const FloatMatrix& w, const float* x, int begin, int end, float* y) {
  w.by_outputs ? sweep_outputs<V, kRows>(w, x, begin, end, y) : sweep_inputs<V, kRows>(w, x, begin, end, y);
}

template <class V>
void multiply_few_floats(const FloatMatrix& w, const float* x, int rows, int begin, int end, float* y) {
  static constexpr std::array kOf{&multiply_few_of<V, 1>, &multiply_few_of<V, 2>, &multiply_few_of<V, 3>, &multiply_few_of<V, 4>};
  for (int row = 0; row < rows; row += kRowsOfSweep) {
    const std::size_t first = row;
    kOf[std::min(rows - row, kRowsOfSweep) - 1](w, x + first * w.inputs, begin, end, y + first * w.outputs);
  }
}

template <class V>
void tile_floats(const float* x, int rows, const FloatRows& to, std::size_t tile) {
  for (int group = 0; group < to.tile_rows; group += V::kLanes) {
    for (int input = 0; input < to.inputs; input += V::kLanes) {
      const int inputs = std::min(to.inputs - input, V::kLanes);
      typename V::Floats square[V::kLanes];
#pragma clang loop unroll(full)
      for (int i = 0; i < V::kLanes; ++i) {
        square[i] = load_first<V>(x + static_cast<std::size_t>(std::min(group + i, rows - 1)) * to.inputs + input, inputs);
      }
      V::transpose(square);
      // A vector may be wider than a tile: what it writes of the next inputs is written again.
      float* at = to.tile(tile) + static_cast<std::size_t>(input) * to.tile_rows + group;
#pragma clang loop unroll(full)
      for (int j = 0; j < V::kLanes; ++j) {
        if (j < inputs) store_first<V>(at + j * to.tile_rows, square[j], group == 0 ? V::kLanes : to.tile_rows - group);
      }
    }
  }
}

// Adds kRows rows, side by side at `a` for each input, times a panel of two vectors of outputs to c.
template <class V, int kRows>
void multiply_float_tile(const float* a, int a_stride, const float* panel, int depth, bool adds, float* c, std::size_t c_stride) {
  typename V::Floats sums[kRows][2];
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) {
      sums[row][half] = adds ? V::load(c + row * c_stride + half * V::kLanes) : V::splat(0.0f);
    }
  }
  for (int input = 0; input < depth; ++input, a += a_stride, panel += 2 * V::kLanes) {
    const typename V::Floats weights[2] = {V::load(panel), V::load(panel + V::kLanes)};
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) {
      const typename V::Floats number = V::splat(a[row]);
      for (int half = 0; half < 2; ++half) sums[row][half] = V::multiply_add(number, weights[half], sums[row][half]);
    }
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) V::store(c + row * c_stride + half * V::kLanes, sums[row][half]);
  }
}

template <class V, int... kRows>
constexpr auto tiles_of_floats(std::integer_sequence<int, kRows...>) {
  return std::array{&multiply_float_tile<V, kRows + 1>...};
}

// Weights of `depth` inputs from `input` on and of two vectors of outputs, side by side; zeros behind the last output.
template <class V>
void make_panel(const FloatMatrix& w, int input, int depth, int column, float* panel) {
  if (!w.by_outputs) {
    const int left = w.outputs - column;
    for (int i = 0; i < depth; ++i, panel += 2 * V::kLanes) {
      const float* from = w.numbers + static_cast<std::size_t>(input + i) * w.outputs + column;
      for (int half = 0; half < 2; ++half) {
        const int count = std::clamp(left - half * V::kLanes, 0, V::kLanes);
        V::prefetch(from + 2 * V::kLanes + half * V::kLanes);  // the next panel's
        V::store(panel + half * V::kLanes, load_first<V>(count > 0 ? from + half * V::kLanes : from, count));
      }
    }
    return;
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < depth; i += V::kLanes) {
      typename V::Floats square[V::kLanes];
      load_square<V>(w, column + half * V::kLanes, input + i, square);
#pragma clang loop unroll(full)
      for (int j = 0; j < V::kLanes; ++j) {
        if (i + j < depth) V::store(panel + (i + j) * 2 * V::kLanes + half * V::kLanes, square[j]);
      }
    }
  }
}

template <class V>
void multiply_many_floats(const FloatMatrix& w, const FloatRows& x, int begin, int end, std::size_t row, int rows, float* y) {
  constexpr int kColumns = 2 * V::kLanes, kDepth = 4096 / kColumns;  // half of a first-level cache
  static constexpr auto kTiles = tiles_of_floats<V>(std::make_integer_sequence<int, V::kTileRows>());
  alignas(kCacheLine) float panel[kDepth * kColumns];
  alignas(kCacheLine) float padded[V::kTileRows * kColumns];
  const std::size_t outputs = w.outputs;
  for (int input = 0; input < w.inputs; input += kDepth) {
    const int depth = std::min(kDepth, w.inputs - input);
    for (int column = begin; column < end; column += kColumns) {
      make_panel<V>(w, input, depth, column, panel);
      const int count = std::min(end - column, kColumns);
      for (int first = 0; first < rows; first += x.tile_rows) {
        const int size = std::min(rows - first, x.tile_rows);
        const float* a = x.tile((row + first) / x.tile_rows) + static_cast<std::size_t>(input) * x.tile_rows;
        float* to = y + (row + first) * outputs + column;
        if (count == kColumns) {
          kTiles[size - 1](a, x.tile_rows, panel, depth, input > 0, to, outputs);
          continue;
        }
        for (int each = 0; each < size; ++each) std::memcpy(padded + each * kColumns, to + each * outputs, count * sizeof(float));
        kTiles[size - 1](a, x.tile_rows, panel, depth, input > 0, padded, kColumns);
        for (int each = 0; each < size; ++each) std::memcpy(to + each * outputs, padded + each * kColumns, count * sizeof(float));
      }
    }
  }
}

}  // namespace edgeformer
