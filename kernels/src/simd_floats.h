// Products with weights of floats in panels, written once over a SIMD level V (see simd_kernels.h).
#pragma once

#include <algorithm>
#include <cstring>

#include "float_weights.h"
#include "simd_integers.h"
#include "simd_math.h"
#include "simd_matrices.h"

namespace edgeformer {

// Inputs that are summed by themselves before they are added to the sums of those before: errors grow less, and a part of a
// panel and of x stays in the first-level cache.
inline constexpr int kInputsAtOnce = 128;

template <class V, class T>
void multiply_floats_of(const FloatPanels& panels, const float* x, int rows, int begin, int end, float* y, std::size_t stride) {
  constexpr int kColumns = 2 * V::kLanes;
  alignas(kCacheLine) float last[kMostRows * kColumns];
  const std::size_t inputs = panels.inputs();
  for (int panel = begin; panel < end; ++panel, y += kColumns) {
    const T* w = reinterpret_cast<const T*>(panels.panel(panel));
    const int left = panels.outputs() - panel * kColumns;
    float* const to = left < kColumns ? last : y;
    const std::size_t to_stride = left < kColumns ? kColumns : stride;
    for (std::size_t first = 0; first < inputs; first += kInputsAtOnce, w += kInputsAtOnce * kColumns) {
      const int depth = static_cast<int>(std::min<std::size_t>(kInputsAtOnce, inputs - first));
      for (int row = 0; row < rows; row += V::kTileRows) {
        const int index = std::min(rows - row, V::kTileRows) - 1;
        const TileOf<T> tile{x + row * inputs + first, w, to + row * to_stride, inputs, kColumns, to_stride, depth};
        const bool is_new = row == 0;
        if (first == 0) {
          (is_new ? kFloatTiles<V, T, 2, false, false, true> : kFloatTiles<V, T, 2, false, false, false>)[index](tile);
        } else {
          (is_new ? kFloatTiles<V, T, 2, true, false, true> : kFloatTiles<V, T, 2, true, false, false>)[index](tile);
        }
      }
    }
    for (int row = 0; row < rows && left < kColumns; ++row) {
      std::memcpy(y + row * stride, last + row * kColumns, left * sizeof(float));
    }
  }
}

template <class V>
void multiply_floats(const FloatPanels& panels, const float* x, int rows, int begin, int end, float* y, std::size_t stride) {
  switch (panels.type()) {
    case Numbers::kFloat: return multiply_floats_of<V, float>(panels, x, rows, begin, end, y, stride);
    case Numbers::kBfloat16: return multiply_floats_of<V, Bfloat16>(panels, x, rows, begin, end, y, stride);
  }
}

template <HasTiles V>
void split_row(const float* x, int inputs, const SplitRows& to, std::size_t row) {
  float* pairs = to.numbers + row * to.stride();
  for (int i = 0; i < static_cast<int>(2 * to.pairs); i += 2 * V::kLanes, pairs += V::kLanes) {
    typename V::Floats halves[2] = {load_or_zeros<V>(x + i, inputs - i), load_or_zeros<V>(x + i + V::kLanes, inputs - i - V::kLanes)};
    for (int part = 0; part < PartsProduct::kParts; ++part) {
      float* const of_part = pairs + part * to.part();
      V::store(of_part, V::pair_halves(halves[0], halves[1]));
      const auto* numbers = reinterpret_cast<const Bfloat16*>(of_part);
      for (int half = 0; half < 2; ++half) {
        halves[half] = V::subtract(halves[half], V::load_bfloat16(numbers + half * V::kLanes));
      }
    }
  }
}

// Multiplies a panel by the unit, some inputs at a time.
template <HasTiles V>
class PanelBySplit {
  using Unit = typename V::Tiles;
  static constexpr int kColumns = 2 * V::kLanes, kRows = 2 * Unit::kRows;

  // Words that are multiplied at once: parts of rows stay in the first-level cache, and sums are made by themselves, since
  // errors of long ones grow.
  static constexpr int kWordsAtOnce = 4 * Unit::kWords;

 public:
  // Totals of the rows, [rows][kColumns].
  const float* multiply(const Bfloat16* w, int inputs, const SplitRows& x, std::size_t row, int rows) {
    for (int first = 0; first < static_cast<int>(x.pairs); first += kWordsAtOnce) {
      const int words = std::min(kWordsAtOnce, static_cast<int>(x.pairs) - first);
      pair_columns(w, inputs - 2 * first, words);
      w += 2 * kWordsAtOnce * kColumns;
      for (int at = 0; at < rows; at += kRows) {
        const PartsProduct product{x.numbers + (row + at) * x.stride() + first, columns_, x.stride(), x.part(), kColumns,
                                   sums_[1 - buffer_], words};
        const auto add = [&] { add_sums(std::min(left_, kRowsOfAStep)); };
        at + Unit::kRows < rows ? multiply_parts<V, true>(product, add) : multiply_parts<V, false>(product, add);
        add_sums(left_);
        buffer_ = 1 - buffer_;
        next_ = sums_[buffer_];
        to_ = totals_ + at * kColumns;
        left_ = std::min(rows - at, kRows);
        is_first_ = first == 0;
      }
    }
    add_sums(left_);
    return totals_;
  }

 private:
  // Rows whose sums are added behind a step: all of them, where words are kWordsAtOnce.
  static constexpr int kRowsOfAStep = 3;

  void pair_columns(const Bfloat16* w, int inputs, int words) {
    const auto load = [&](int input, int half) {
      return input < inputs ? V::load_bfloat16(w + input * kColumns + half * V::kLanes) : V::splat(0.0f);
    };
    for (int word = 0; word < words; ++word) {
      V::prefetch(reinterpret_cast<const std::byte*>(w + 2 * word * kColumns) + kPrefetchDistance);
      for (int half = 0; half < 2; ++half) {
        V::store(columns_ + word * kColumns + half * V::kLanes, V::pair_rows(load(2 * word, half), load(2 * word + 1, half)));
      }
    }
  }

  // Sums are added while the unit makes the next ones, which it would else wait for.
  void add_sums(int rows) {
    for (int i = 0; i < rows * kColumns; i += V::kLanes) {
      const typename V::Floats sums = V::load(next_ + i);
      V::store(to_ + i, is_first_ ? sums : V::add(V::load(to_ + i), sums));
    }
    next_ += rows * kColumns;
    to_ += rows * kColumns;
    left_ -= rows;
  }

  alignas(kCacheLine) float columns_[kWordsAtOnce * kColumns];
  alignas(kCacheLine) float sums_[2][kRows * kColumns];
  alignas(kCacheLine) float totals_[whole_tiles(kMostRows) * kColumns];
  const float* next_ = nullptr;
  float* to_ = nullptr;
  int left_ = 0, buffer_ = 0;
  bool is_first_ = true;
};

template <HasTiles V>
void multiply_split(const FloatPanels& panels, const SplitRows& x, std::size_t row, int rows, int begin, int end, float* y,
                    std::size_t stride) {
  constexpr int kColumns = 2 * V::kLanes;
  const TilesInUse<V, true> in_use(V::Tiles::kRows, V::Tiles::kWords);
  for (int panel = begin; panel < end; ++panel, y += kColumns) {
    PanelBySplit<V> product;
    const auto* w = reinterpret_cast<const Bfloat16*>(panels.panel(panel));
    const float* totals = product.multiply(w, panels.inputs(), x, row, rows);
    const int columns = std::min(kColumns, panels.outputs() - panel * kColumns);
    for (int each = 0; each < rows; ++each) std::memcpy(y + each * stride, totals + each * kColumns, columns * sizeof(float));
  }
}

}  // namespace edgeformer
