#include "quantized_linear.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace edgeformer {
namespace {

// Bytes of weights that are worth a chunk of their own, about a microsecond of reading.
constexpr std::size_t kChunkBytes = 32 << 10;

// Rows that one thread rounds in less time than others take to start. Of many rows, chunks have no fewer.
constexpr std::size_t kFewRows = 8, kManyRows = 64;

// Panels of a gated row that are multiplied at once, so that what one half waits for is on the stack.
constexpr int kPanelsAtOnce = 16;

// Rows that one thread takes through a feed-forward at once: four tiles of six. 48 to 192 take up to 1.04 times as long.
constexpr std::size_t kRowsOfAFeedForward = 24;

// The largest block: sums of it, 255 * 127 * block, stay below 2^31.
constexpr int kMostBytes = 65536;

}  // namespace

std::string why_unsupported(const WeightSizes& sizes) {
  if (sizes.bits != 4 && sizes.bits != 8) return "bits must be 4 or 8, not " + std::to_string(sizes.bits);
  const int most = sizes.bits == 4 ? kMostPacked : kMostBytes;
  if (sizes.block < 16 || sizes.block > most || sizes.block % 8 != 0) {
    return "block_size must be a multiple of 8 from 16 to " + std::to_string(most) + ", not " +
           std::to_string(sizes.block);
  }
  if (sizes.outputs < 1 || sizes.inputs < 1) return "N and K must be positive";
  return "";
}

std::string why_unsupported(const Weights& weights) {
  const std::string reason = why_unsupported(weights.sizes());
  if (!reason.empty()) return reason;
  for (std::size_t i = 0; i < static_cast<std::size_t>(weights.outputs) * weights.blocks(); ++i) {
    if (!std::isfinite(weights.scales[i])) return "a scale is not finite";
  }
  return "";
}

QuantizedLinear::QuantizedLinear(const Weights& weights, const Level& level)
    : level_(level), panels_([&] {
        Serial serial;
        return Panels(weights, level.columns, level.byte_bias, serial);
      }()) {}

QuantizedLinear::QuantizedLinear(Panels panels, const Level& level, std::optional<Activation> gate)
    : level_(level), panels_(std::move(panels)), gate_(gate) {}

QuantizedLinear::QuantizedLinear(Panels panels, const Level& level, const float* bias, Activation activation)
    : level_(level), panels_(std::move(panels)), activation_(activation) {
  bias_ = make_aligned<float>(static_cast<std::size_t>(panels_.count()) * panels_.columns());
  std::copy_n(bias, outputs(), bias_.get());
}

void QuantizedLinear::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  if (rows == 0) return;
  static thread_local ActivationBuffer buffer;
  const Activations activations = buffer.make(rows, level_.tiles_of_blocks(rows), panels_);
  Serial serial;
  Parallel& few = rows <= kFewRows ? serial : parallel;
  // Rows of a tile share cache lines, for which two threads would wait.
  const std::size_t size = round_up(rows > kManyRows ? kFewRows : 1, activations.tile_rows);
  few.run((rows + size - 1) / size, Task([&](std::size_t chunk) {
            const std::size_t end = std::min(rows, (chunk + 1) * size);
            for (std::size_t row = chunk * size; row < end; ++row) {
              level_.quantize_row(x + row * inputs(), inputs(), activations, row);
            }
          }));
  if (rows == 1) return run_row(activations, y, parallel);
  run_rows(activations, rows, y, parallel);
}

void QuantizedLinear::run_row(const Activations& activations, float* y, Parallel& parallel) const {
  const std::size_t panels = count(), bytes = panels_.count() * panels_.panel_bytes();
  const std::size_t most = std::max<std::size_t>(1, bytes / kChunkBytes);
  const std::size_t chunks = std::min({panels, most, kChunksPerThread * parallel.threads()});
  parallel.run(chunks, Task([&](std::size_t chunk) {
                 const int begin = chunk * panels / chunks, end = (chunk + 1) * panels / chunks;
                 multiply_row(activations, begin, end, y + begin * panels_.columns());
               }));
}

void QuantizedLinear::multiply_row(const Activations& activations, int begin, int end, float* y) const {
  level_.multiply_row(panels_, activations, begin, end, y);
  if (bias_) add_bias(begin, end, 1, y);
  if (!gate_) return;
  float ups[kPanelsAtOnce * kGateColumns];
  for (int first = begin; first < end; first += kPanelsAtOnce) {
    const int last = std::min(first + kPanelsAtOnce, end), size = (last - first) * panels_.columns();
    float* to = y + (first - begin) * panels_.columns();
    level_.multiply_row(panels_, activations, count() + first, count() + last, ups);
    level_.gate(*gate_, to, ups, size, to);
  }
}

void QuantizedLinear::add_bias(int begin, int end, int rows, float* y) const {
  const int first = begin * panels_.columns(), columns = std::min(outputs(), end * panels_.columns()) - first;
  level_.add_bias(activation_, bias_.get() + first, rows, columns, y, outputs());
}

void QuantizedLinear::run_rows(const Activations& activations, std::size_t rows, float* y, Parallel& parallel) const {
  const std::size_t tile = activations.tile_rows, tiles = activations.tiles, panels = count();
  const std::size_t parts = (tiles * tile + kMostRows - 1) / kMostRows;
  // Chunks of neighbouring rows read the same panels, so rows are the inner index.
  const std::size_t wanted = 2 * kChunksPerThread * parallel.threads();
  const std::size_t groups = std::min(panels, std::max<std::size_t>(1, (wanted + parts - 1) / parts));
  parallel.run(groups * parts, Task([&](std::size_t chunk) {
                 const std::size_t group = chunk / parts, part = chunk % parts;
                 const std::size_t row = part * tiles / parts * tile, end = std::min(rows, (part + 1) * tiles / parts * tile);
                 const int first = group * panels / groups, last = (group + 1) * panels / groups;
                 multiply_rows(activations, first, last, row, end - row, y + row * outputs() + first * panels_.columns());
               }));
}

void QuantizedLinear::multiply_rows(const Activations& activations, int begin, int end, int row, int rows,
                                    float* y) const {
  const int columns = panels_.columns();
  if (bias_) {
    // A panel's results are still in the first-level cache.
    for (int panel = begin; panel < end; ++panel, y += columns) {
      level_.multiply_rows(panels_, activations, panel, panel + 1, row, rows, y, outputs());
      add_bias(panel, panel + 1, rows, y);
    }
    return;
  }
  if (!gate_) return level_.multiply_rows(panels_, activations, begin, end, row, rows, y, outputs());
  alignas(kCacheLine) float ups[kMostRows * kGateColumns];
  for (int panel = begin; panel < end; ++panel, y += columns) {
    const int up = count() + panel;
    level_.multiply_rows(panels_, activations, panel, panel + 1, row, rows, y, outputs());
    level_.multiply_rows(panels_, activations, up, up + 1, row, rows, ups, columns);
    for (int each = 0; each < rows; ++each) {
      float* to = y + static_cast<std::size_t>(each) * outputs();
      level_.gate(*gate_, to, ups + each * columns, columns, to);
    }
  }
}

QuantizedFeedForward::QuantizedFeedForward(QuantizedLinear up, QuantizedLinear down)
    : up_(std::move(up)), down_(std::move(down)) {}

void QuantizedFeedForward::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  const std::size_t chunks = rows / kRowsOfAFeedForward;
  // Of fewer rows, threads share out panels, so that each weight is read once.
  if (chunks < static_cast<std::size_t>(parallel.threads())) return run_rows(x, rows, y, parallel);
  const std::size_t even = round_up(chunks, parallel.threads());
  parallel.run(even, Task([&](std::size_t chunk) {
                 const std::size_t first = chunk * rows / even, end = (chunk + 1) * rows / even;
                 Serial serial;
                 run_rows(x + first * inputs(), end - first, y + first * outputs(), serial);
               }));
}

void QuantizedFeedForward::run_rows(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  static thread_local GrowingArray<float> between;
  float* hidden = between.at_least(rows * up_.outputs());
  up_.run(x, rows, hidden, parallel);
  down_.run(hidden, rows, y, parallel);
}

}  // namespace edgeformer
