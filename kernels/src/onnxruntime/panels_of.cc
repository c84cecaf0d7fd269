#include "panels_of.h"

#include <algorithm>
#include <thread>

#include "file_pages.h"
#include "quantized_linear.h"

namespace edgeformer {
namespace {

// More threads wait for memory.
constexpr unsigned kMostThreads = 8;

// The smallest array whose pages are worth a look at the map of the process.
constexpr std::size_t kMuch = 256 << 10;

template <class T>
void release(const T* constant, std::size_t size) {
  if (size * sizeof(T) >= kMuch) release_file_pages(constant, size * sizeof(T));
}

Panels pack(const Node& node, const Weights& weights) {
  const Level& level = node.level();
  if (node.team() != nullptr) return Panels(weights, level.columns, level.byte_bias, *node.team());
  // The session's threads cannot be had before it runs.
  Team team(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads)));
  return Panels(weights, level.columns, level.byte_bias, team);
}

}  // namespace

Panels panels_of(const Node& node, std::size_t first, WeightSizes sizes) {
  const std::size_t blocks = static_cast<std::size_t>(sizes.outputs) * sizes.blocks();
  const std::size_t bytes = blocks * sizes.block * sizes.bits / 8;
  Weights weights{sizes.outputs, sizes.inputs, sizes.bits, sizes.block, nullptr, nullptr, nullptr};
  weights.integers = node.constant<std::uint8_t>(first, node.name_of(first).c_str(), bytes);
  weights.scales = node.constant<float>(first + 1, node.name_of(first + 1).c_str(), blocks);
  if (node.has_input(first + 2)) {
    const std::size_t row_bytes = (static_cast<std::size_t>(sizes.blocks()) * sizes.bits + 7) / 8;
    const std::string name = node.name_of(first + 2);
    weights.zero_points = node.constant<std::uint8_t>(first + 2, name.c_str(), sizes.outputs * row_bytes);
  }
  const std::string reason = why_unsupported(weights);
  if (!reason.empty()) node.refuse(reason);
  Panels panels = pack(node, weights);
  release(weights.integers, bytes);
  release(weights.scales, blocks);
  return panels;
}

}  // namespace edgeformer
