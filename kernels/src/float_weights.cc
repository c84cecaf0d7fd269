#include "float_weights.h"

#include <algorithm>
#include <cstring>

namespace edgeformer {
namespace {

// Panels that a chunk copies of weights [inputs][outputs]: runs of memory of 2 KB and more.
constexpr std::size_t kStoredAtOnce = 16;

}  // namespace

FloatPanels::FloatPanels(const FloatWeights& weights, int columns, Parallel& parallel)
    : outputs_(weights.outputs), inputs_(weights.inputs), columns_(columns), type_(weights.type),
      memory_(allocate_weights(count() * panel_bytes())) {
  type_ == Numbers::kFloat ? copy<std::uint32_t>(weights, parallel) : copy<std::uint16_t>(weights, parallel);
}

// T: an integer as wide as a number, of which nothing but the bits counts.
template <class T>
void FloatPanels::copy(const FloatWeights& weights, Parallel& parallel) {
  const T* from = static_cast<const T*>(weights.numbers);
  T* to = reinterpret_cast<T*>(memory_.get());
  const std::size_t panels = count(), inputs = inputs_, outputs = outputs_, columns = columns_;
  parallel.run((panels + kStoredAtOnce - 1) / kStoredAtOnce, Task([&](std::size_t chunk) {
    const std::size_t begin = chunk * kStoredAtOnce, end = std::min(panels, begin + kStoredAtOnce);
    for (std::size_t input = 0; input < inputs; ++input) {
      for (std::size_t panel = begin; panel < end; ++panel) {
        const std::size_t first = panel * columns, count = std::min(columns, outputs - first);
        T* of_input = to + (panel * inputs + input) * columns;
        if (weights.by_output) {
          for (std::size_t column = 0; column < count; ++column) of_input[column] = from[(first + column) * inputs + input];
        } else {
          std::memcpy(of_input, from + input * outputs + first, count * sizeof(T));
        }
        std::fill(of_input + count, of_input + columns, T{0});
      }
    }
  }));
}

}  // namespace edgeformer
